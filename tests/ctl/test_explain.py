"""`canopy ctl explain`, as somebody at a terminal uses it."""

from __future__ import annotations

import json

from broker.ctl.explain import _told
from canopy import Broker
from tests.ctl.conftest import Ctl, Start
from tests.e2e.wire import Peer
from tests.support.waiting import until


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


def test_a_name_does_nothing_to_the_terminal() -> None:
    delivery = {"at": 0.0, "topic": "a\x1b[2Jb\n\u202eü", "qos": 0, "packet_id": 0}
    assert r"  a\x1b[2Jb\n\u202eü QoS 0  written" in _told(delivery)


async def test_what_a_client_gets_is_told_until_the_time_is_over(broker: Broker, ctl: Ctl, canopy_ctl: Start) -> None:
    reader = await Peer.join(broker.ports[0], "reader")
    await reader.subscribe(("t", 1))
    running = await canopy_ctl("explain", "t", "--client", "reader", "--follow", "2s")
    await until(lambda: broker.traces._lookings)
    await reader.publish("t", b"x", qos=1)
    await reader.message()
    await until(lambda: broker.router.sessions["reader"].inflight.count == 0)
    broker.router.sessions["reader"].drop(0)
    told, complaints = await running.communicate()
    assert running.returncode == 0, complaints
    lines = told.decode().splitlines()
    assert any("  t QoS 1 packet 1  acknowledged after " in line for line in lines), lines
    assert any(line.endswith("  lost 1: full-messages") for line in lines), lines
    assert broker.traces.all == {}
    assert (await ctl("explain", "t", "--follow", "2s")).exit_code == 2
    reader.abort()
