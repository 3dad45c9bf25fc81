"""`canopy ctl explain`, as somebody at a terminal uses it."""

from __future__ import annotations

import json

from canopy_mqtt import Broker
from tests.ctl.conftest import Ctl
from tests.e2e.wire import Peer


async def test_a_sentence_for_each(broker: Broker, ctl: Ctl) -> None:
    reader = await Peer.join(broker.ports[0], "sensor-7")
    await reader.subscribe(("plant/+/temp", 1))
    shown = await ctl("explain", "plant/1/temp", "--qos", "1", "--retain")
    assert shown.exit_code == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "plant/1/temp: QoS 1, retained, payload of 1 byte"
    assert "  via  plant/+/temp (1 subscription)" in lines
    assert "  yes  sensor-7 gets it at QoS 1 through plant/+/temp" in lines
    assert "  kept it is retained" in lines
    shown = await ctl("--json", "explain", "plant/2", "--client", "sensor-7")
    assert shown.exit_code == 3
    assert json.loads(shown.stdout)["receivers"][0]["sentence"].startswith(
        "sensor-7 does not get it: its only subscription"
    )
    shown = await ctl("explain", "plant/#")
    assert (shown.stdout, shown.exit_code) == ("", 1)
    assert shown.stderr.startswith("canopy: topic: ")
    reader.abort()
