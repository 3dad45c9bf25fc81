"""`canopy ctl top`, as somebody at a terminal uses it."""

from __future__ import annotations

import json
from io import StringIO

from rich.console import Console

from canopy_mqtt import Broker
from canopy_mqtt.ctl.top import number, printable, tables
from tests.ctl.conftest import Ctl
from tests.e2e.wire import Peer
from tests.support.runs import for_each


async def test_tables_for_a_pipe_come_once(broker: Broker, ctl: Ctl) -> None:
    peer = await Peer.join(broker.ports[0], "sensor-7")
    for _ in range(3):
        await peer.publish("plant/a/1", b"x", qos=1)
    shown = await ctl("top", "--by", "bytes")
    assert shown.exit_code == 0, shown.stderr
    for part in ("topics by bytes/s", "plant/a/1", "prefixes by bytes/s", "plant/a/#", "sensor-7", "100.0%"):
        assert part in shown.stdout
    peer.abort()


async def test_json_of_one_list(broker: Broker, ctl: Ctl) -> None:
    peer = await Peer.join(broker.ports[0], "sensor-7")
    await peer.publish("t", b"x", qos=1)
    shown = await ctl("--json", "top", "--of", "publishers", "--window", "3600")
    (found,) = json.loads(shown.stdout)
    assert [place["name"] for place in found["data"]] == ["sensor-7"]
    assert found["seconds"] == 3_600
    peer.abort()


async def test_what_is_not_counted_is_one_line(broker: Broker, ctl: Ctl) -> None:
    del broker
    shown = await ctl("top", "--of", "topics", "--by", "lag")
    assert (shown.stdout, shown.exit_code) == ("", 1)
    assert shown.stderr == "canopy: by lag there are subscribers alone\n"


def test_a_name_that_a_client_chose_does_nothing_to_the_terminal() -> None:
    place = {"name": "a\x1b[2J\n\u202e[red]b", "value": 1.0, "error": 0.0, "deviation": 0.5}
    found = {"of": "topics", "by": "messages", "seconds": 60.0, "total": 2.0, "data": [place]}
    shown = StringIO()
    Console(file=shown, width=100, force_terminal=False).print(tables([found]))
    text = shown.getvalue()
    assert r"a\x1b[2J\n\u202e[red]b" in text
    assert "\x1b" not in text
    assert "50.0%" in text
    assert printable("plain/ä") == "plain/ä"


@for_each(
    ("value", "text"), [(0.0, "0"), (0.25, "0.25"), (12.34, "12.3"), (1_234.0, "1.23k"), (5e6, "5M"), (2.5e9, "2.5G")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
