"""One bound over all queues: the fullest give first, the sum stays below it, and nobody else pays.

The broker is embedded, so that its queues can be looked at after each publish; all else goes over sockets.
"""

from __future__ import annotations

from typing import Final

import pytest

from canopy_mqtt import Broker
from canopy_mqtt.core.ledger import GLOBAL
from canopy_mqtt.core.session.session import Session
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import check_ledger
from tests.e2e.wire import Packet, Peer
from tests.support.losses import dropped_by_cause

NAMES: Final = ("much", "some", "little")


PAYLOAD: Final = bytes(16_384)

ENOUGH: Final = 1000
"""Messages with which every queue is full."""

TOTAL: Final = 100
"""Messages that all queues hold together."""

BOUNDS: Final = {
    "messages": {"total_messages": TOTAL, "total_bytes": 0},
    "bytes": {"total_messages": 0, "total_bytes": TOTAL * (len(PAYLOAD) + 64)},
}


def numbers(packets: list[Packet]) -> list[int]:
    """The numbers of messages."""
    return [int(packet.payload.split(b" ", 1)[0]) for packet in packets]


def lost(session: Session) -> int:
    """Messages lost, all of them to the bound over all queues."""
    by_cause = dropped_by_cause(session)
    assert sum(by_cause) == by_cause[GLOBAL]
    return sum(by_cause)


def within(broker: Broker) -> None:
    """The sum, as the broker keeps it, is that of its sessions and within the bound."""
    totals = broker.router.counters.totals
    queue = broker.settings.queue
    assert totals.messages == sum(session.queued() for session in broker.router.sessions.values())
    if queue.total_messages:
        assert totals.messages <= queue.total_messages
    if queue.total_bytes:
        assert totals.bytes <= queue.total_bytes


async def publish(broker: Broker, publisher: Peer, name: str, number: int) -> None:
    """One message to one subscriber; whoever has to give for it has no less than the others."""
    sessions = broker.router.sessions
    before = {name: (sessions[name].queued(), lost(sessions[name])) for name in NAMES}
    await publisher.publish(name, b"%06d " % number + PAYLOAD)
    within(broker)
    unreported = [name for name in NAMES if lost(sessions[name]) > before[name][1]]
    for loser in unreported:
        for other in NAMES:
            # One that was no fuller has given nothing, unless what is left with the fuller ones is level with it, but
            # for the message that came.
            assert before[loser][0] >= before[other][0] or sessions[other].queued() <= before[loser][0] + 1
            # What is left with it is as much as the fullest have, but for the message that came and for rounding.
            assert sessions[loser].queued() >= sessions[other].queued() - 2
    # Some more than the one that came, so that it need not be done each time; but no wholesale loss.
    assert sum(lost(sessions[name]) - before[name][1] for name in NAMES) <= TOTAL // 8


@pytest.mark.parametrize("bound", BOUNDS)
async def test_the_fullest_of_three_frozen_subscribers_give_first(scene: SetScene, bound: str) -> None:
    """Unequal queues: `little` and `some` lose nothing while `much` has more; then these two stand level."""
    queue = {"live_messages": 0, "live_bytes": 0, **BOUNDS[bound]}
    stage = await scene(queue=queue, sys={"interval": 0.0})
    publisher = await stage.join("publisher")
    frozen = {name: await stage.join_far(name, name, f"plug/{name}") for name in NAMES}
    for name, far in frozen.items():
        await stage.plug(far, name, f"plug/{name}", publisher)
    reader = await stage.join("reader", "news")
    much, some, little = (stage.broker.router.sessions[name] for name in NAMES)
    count = dict.fromkeys(NAMES, 0)

    async def more(name: str) -> None:
        count[name] += 1
        assert count[name] < ENOUGH, "the bound does nothing"
        await publish(stage.broker, publisher, name, count[name])

    for name, wanted in zip(NAMES, (60, 25, 5), strict=True):
        session = stage.broker.router.sessions[name]
        while session.queued() < wanted:
            await more(name)
    assert (lost(much), lost(some), lost(little)) == (0, 0, 0)

    # The bound is reached by one that has little: who has most pays.
    while not lost(much):
        await more("little")
        assert (lost(some), lost(little)) == (0, 0)
    while some.queued() < much.queued():
        await more("some")
        assert (lost(some), lost(little)) == (0, 0)
    # From here on the two fullest are level, and the third has still lost nothing.
    while not lost(some):
        await more("some")
        assert lost(little) == 0
    for _ in range(40):
        await more("some")
        assert lost(little) == 0 or little.queued() >= max(some.queued(), much.queued()) - 1
    # Others are served as ever.
    await publisher.publish("news", b"still here")
    assert (await reader.message()).payload == b"still here"

    # What each of them finds in the end is what its ledger says, and what it lost had waited longest.
    for name in NAMES:
        session = stage.broker.router.sessions[name]
        waiting = session.queued()
        gone = lost(session)
        frozen[name].thaw()
        found = numbers((await frozen[name].peer.fence())[1:])
        assert len(found) == count[name] - gone
        assert found == sorted(set(found))
        assert found[-waiting:] == list(range(count[name] - waiting + 1, count[name] + 1))
        check_ledger(session, offered=count[name] + 1, received=len(found) + 1)
        within(stage.broker)
    totals = stage.broker.router.counters.totals
    assert (totals.messages, totals.bytes) == (0, 0)
