"""`canopy ctl trace`, as somebody at a terminal uses it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import typer

from canopy_mqtt import Broker
from canopy_mqtt.ctl.trace import seconds
from tests.ctl.conftest import Start
from tests.e2e.wire import Peer
from tests.support.runs import for_each
from tests.support.waiting import until


async def test_lines_as_they_come_until_ctrl_c(broker: Broker, canopy_ctl: Start) -> None:
    running = await canopy_ctl("--json", "trace", "client", "sensor-7", "--for", "5m")
    await until(lambda: broker.traces.all)
    client = await Peer.join(broker.ports[0], "sensor-7")
    await client.publish("t", b"1", qos=1)
    assert running.stdout is not None
    found = [json.loads(await running.stdout.readline()) for _ in range(5)]
    assert [one.get("packet", one.get("event")) for one in found] == [
        "connection opened", "CONNECT", "CONNACK", "PUBLISH", "PUBACK",
    ]  # fmt: skip
    running.send_signal(signal.SIGINT)
    rest, told = await running.communicate()
    assert (rest, running.returncode) == (b"", 0)
    assert told == b"canopy: 4 packets\n"
    assert broker.traces.all == {}
    client.abort()


async def test_a_file_for_wireshark_after_its_time(broker: Broker, canopy_ctl: Start, tmp_path: Path) -> None:
    file = tmp_path / "sensor.pcapng"
    running = await canopy_ctl("trace", "topic", "plant/#", "--for", "1s", "-o", str(file), "--keep")
    await until(lambda: broker.traces.all)
    client = await Peer.join(broker.ports[0], "c")
    await client.publish("plant/1", b"x", qos=1)
    client.abort()
    told, complaints = await running.communicate()
    assert (told, running.returncode) == (b"", 0), complaints
    assert complaints.decode() == f"canopy: 2 packets in {file}\n"
    assert file.stat().st_mode & 0o077 == 0
    (trace,) = broker.traces.all.values()
    assert trace.state == "time over"
    assert file.read_bytes().startswith(b"\x0a\x0d\x0d\x0a")


async def test_what_cannot_be_is_one_line(broker: Broker, canopy_ctl: Start) -> None:
    running = await canopy_ctl("trace", "topic", "a/#/b")
    told, complaints = await running.communicate()
    assert (told, running.returncode) == (b"", 1)
    assert complaints.startswith(b"canopy: no topic filter: ")
    assert complaints.count(b"\n") == 1
    assert broker.traces.all == {}


@for_each(("text", "expected"), [("30", 30), ("30s", 30), ("1.5m", 90), ("2h", 7_200), (60.0, 60)])
def test_times(text: str | float, expected: float) -> None:
    assert seconds(text) == expected


@for_each("text", ["", "0", "-1s", "5d", "s", "1e9"])
def test_no_times(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        seconds(text)
