"""A publisher in full flight and a subscriber that reads: nothing is lost. One that does not read stops nobody."""

from __future__ import annotations

import pytest

from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import Tap, check_ledger, lost, stamped

BURST = 3_000
SIZE = 300
BOUNDS = {"live_messages": 400, "session_messages": 400}
RATE = 3_000_000
"""Bytes a second that a slow subscriber reads."""
FOREVER = 3_600.0


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_burst_to_one_who_reads_arrives_whole(scene: SetScene, qos: int) -> None:
    """By the default settings, but for smaller queues: the publisher sends as fast as TCP lets it."""
    stage = await scene(queue=BOUNDS)
    subscriber = await Tap.open(stage.port, "subscriber", ("t", qos), small=True, rate=RATE)
    publisher = await Tap.open(stage.port, "publisher", version=4)
    packets = [
        wire.publish("t", stamped(number, SIZE), qos=qos, packet_id=number + 1 if qos else None, version=4)
        for number in range(BURST)
    ]
    publisher.transport.write(b"".join(packets))
    await subscriber.count(BURST)
    assert subscriber.numbers == list(range(BURST))
    await publisher.fence()
    assert lost(stage.session("subscriber")) == {}


async def test_one_who_does_not_read_stops_nobody(scene: SetScene) -> None:
    """However long publishers may be held: its messages are dropped and counted, and the publisher goes on."""
    stage = await scene(queue={**BOUNDS, "hold_publishers": FOREVER})
    await Tap.open(stage.port, "subscriber", ("t", 0), small=True, reading=False)
    publisher = await Tap.open(stage.port, "publisher")
    publisher.transport.write(b"".join(wire.publish("t", stamped(number, SIZE)) for number in range(BURST)))
    await publisher.fence()
    session = stage.session("subscriber")
    assert sum(lost(session).values()) > 0
    queued = session.queued()
    check_ledger(session, offered=BURST, received=BURST - queued - sum(lost(session).values()), queued=queued)


async def test_one_who_reads_slowly_stops_nobody_for_long(scene: SetScene) -> None:
    """`hold_publishers` is over at some time, and what does not fit is dropped."""
    stage = await scene(tiny=True, queue={**BOUNDS, "hold_publishers": 0.1, "write_batch_bytes": 512})
    await Tap.open(stage.port, "subscriber", ("t", 0), small=True, rate=20_000)
    publisher = await Tap.open(stage.port, "publisher")
    publisher.transport.write(b"".join(wire.publish("t", stamped(number, SIZE)) for number in range(BURST)))
    await publisher.fence()
    assert sum(lost(stage.session("subscriber")).values()) > 0
