"""What a subscriber that froze finds when it reads again, under each policy of its queue; and a takeover meanwhile.

The broker is embedded, so that its ledgers can be held against what the clients counted; all else goes over sockets.
A message is lost when the ledger says so in the moment of its publish: how much the system's buffers take does not
matter. Sizes are such that a frozen client's buffers are full after a few dozen messages.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from broker import Broker
from broker.core.counters import AGE, DISCONNECTED, FULL_MESSAGES, NO_QUOTA, REPLACED
from broker.core.session.session import Session
from tests.e2e import wire
from tests.e2e.clients import test_overload as overload
from tests.e2e.clients.frozen import Frozen, until
from tests.e2e.clients.test_overload import KEPT, NEVER_STALLED, PAYLOAD, Embed, balance, join
from tests.e2e.wire import Packet, Peer

embed = overload.embed

DEPTH: Final = 20
"""Messages that fit into the queue."""

WINDOW: Final = 5
"""The receive maximum of those who do not acknowledge."""

ENOUGH: Final = 1000
"""Messages with which the system's buffers are full at the latest."""


def queue(**settings: Any) -> dict[str, Any]:
    """A `[queue]` that nobody is evicted from, and nothing is told of in band."""
    return {"stall_timeout": NEVER_STALLED, "live_messages": DEPTH, "session_messages": DEPTH, **settings}


def numbers(packets: list[Packet]) -> list[int]:
    return [int(packet.payload.split(b" ", 1)[0]) for packet in packets if packet.kind == wire.PUBLISH]


def dropped(session: Session, *causes: int) -> int:
    """Messages dropped; all of them for one of these causes."""
    by_cause = session.dropped_by_cause()
    assert sum(by_cause) == sum(by_cause[cause] for cause in causes)
    return sum(by_cause)


async def flood(session: Session, publisher: Peer, losses: int) -> tuple[int, list[int]]:
    """Publish until so many messages are lost. How many were published, and the numbers at which one was lost."""
    count = 0
    at: list[int] = []
    while len(at) < losses:
        count += 1
        assert count < ENOUGH, "the queue is never full"
        before = sum(session.dropped_by_cause())
        await publisher.publish("load", b"%d " % count + PAYLOAD)
        rise = sum(session.dropped_by_cause()) - before
        assert rise in (0, 1)
        at += [count] * rise
    return count, at


async def stuck(session: Session, publisher: Peer, topic: str) -> int:
    """Publish until the system takes nothing more for a frozen client; how many messages that took."""
    count = still = 0
    while still < 2 * DEPTH:
        count += 1
        assert count < ENOUGH, "the system's buffers are never full"
        taken = session.delivered_in_all()
        await publisher.publish(topic, b"%d " % count + PAYLOAD)
        still = still + 1 if session.queued() and session.delivered_in_all() == taken else 0
    return count


async def froze(broker: Broker, **connect: Any) -> tuple[Frozen, Session]:
    """A subscriber to everything under `load`, with QoS 0, that does not read."""
    version = connect.get("version", 5)
    frozen = await Frozen.join(
        broker.ports[0], wire.connect("frozen", keep_alive=0, **connect), ("load/#", 0), version=version
    )
    return frozen, broker.router.sessions["frozen"]


async def fenced(broker: Broker, frozen: Frozen) -> list[Packet]:
    """All that a client finds when it reads again: what the ledger says it was given, and then nothing waits."""
    thawed = await frozen.thaw()
    found = await thawed.fence()
    session = broker.router.sessions["frozen"]
    assert session.delivered_in_all() == len(found)
    assert session.queued() == 0
    offered, accounted = balance(broker, "frozen")
    assert offered == accounted
    return found


VERSIONS = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])


@VERSIONS
async def test_drop_newest_keeps_what_came_first(embed: Embed, version: int) -> None:
    """Those that came while the queue was full are missing, no others; the rest is there in its order."""
    broker = await embed(queue=queue(policy="drop-newest"))
    frozen, session = await froze(broker, version=version)
    publisher = await join(broker, "publisher")
    count, lost = await flood(session, publisher, 2 * DEPTH)
    assert dropped(session, FULL_MESSAGES) == len(lost)
    found = numbers(await fenced(broker, frozen))
    assert found == [number for number in range(1, count + 1) if number not in lost]
    assert session.offered == len(found) + len(lost) == count


@VERSIONS
async def test_drop_oldest_keeps_what_came_last(embed: Embed, version: int) -> None:
    """The newest are there, as many as the queue holds, behind what the system had taken before it was full."""
    broker = await embed(queue=queue(policy="drop-oldest"))
    frozen, session = await froze(broker, version=version)
    publisher = await join(broker, "publisher")
    count, lost = await flood(session, publisher, 2 * DEPTH)
    assert dropped(session, FULL_MESSAGES) == len(lost)
    found = numbers(await fenced(broker, frozen))
    assert found == sorted(set(found))
    assert found[-DEPTH:] == list(range(count - DEPTH + 1, count + 1))
    # Nothing was lost before the queue was full for the first time, but for what waited in it then.
    taken = lost[0] - 1 - DEPTH
    assert found[:taken] == list(range(1, taken + 1))
    assert session.offered == len(found) + len(lost) == count


async def test_latest_keeps_one_of_each_topic(embed: Embed) -> None:
    """The newest of each topic, in the order in which the topics came first; every other one is `replaced`."""
    broker = await embed(queue=queue(policy="latest"))
    frozen, session = await froze(broker)
    publisher = await join(broker, "publisher")
    count = await stuck(session, publisher, "load/filler")
    replaced = dropped(session, REPLACED)
    assert session.queued() == 1
    order = "cabacbbaac"
    for number, topic in enumerate(order):
        await publisher.publish(f"load/{topic}", b"%d " % number)
        # Nothing went meanwhile.
        assert session.queued() == 1 + len(set(order[: number + 1]))
    assert dropped(session, REPLACED) == replaced + len(order) - 3
    found = await fenced(broker, frozen)
    assert [(packet.topic[5:], numbers([packet])[0]) for packet in found[-4:]] == [
        ("filler", count),
        ("c", 9),
        ("a", 8),
        ("b", 6),
    ]
    assert numbers(found[:-4]) == sorted(numbers(found[:-4]))
    assert session.offered == count + len(order) == len(found) + dropped(session, REPLACED)


async def test_latest_full_of_topics_drops_what_arrives(embed: Embed) -> None:
    """The bound holds here too: a topic more than fits does not come in, and those that wait are still renewed."""
    broker = await embed(queue=queue(policy="latest"))
    frozen, session = await froze(broker)
    publisher = await join(broker, "publisher")
    await stuck(session, publisher, "load/filler")
    waiting = session.queued()
    for number in range(DEPTH + 5):
        await publisher.publish(f"load/{number}", b"%d old" % number)
    assert session.queued() == DEPTH
    kept = DEPTH - waiting
    for number in range(DEPTH + 5):
        await publisher.publish(f"load/{number}", b"%d new" % number)
    assert session.dropped_by_cause()[FULL_MESSAGES] == 2 * (DEPTH + 5 - kept)
    dropped(session, FULL_MESSAGES, REPLACED)
    found = await fenced(broker, frozen)
    assert [packet.payload for packet in found[-kept:]] == [b"%d new" % number for number in range(kept)]


@VERSIONS
@pytest.mark.parametrize("expiry", [0, KEPT], ids=["session ends", "session kept"])
async def test_disconnect_ends_the_connection(embed: Embed, version: int, expiry: int) -> None:
    """0x97 in DISCONNECT (3.1.1: the end alone), behind a part without gaps; the Will is published."""
    broker = await embed(queue=queue(policy="disconnect"))
    will = wire.Will("wills", b"too slow")
    connect: dict[str, Any] = {"version": version, "clean": not expiry, "will": will}
    if version == 5:
        connect["props"] = [(wire.SESSION_EXPIRY, expiry)]
    frozen, session = await froze(broker, **connect)
    publisher = await join(broker, "publisher")
    watcher = await join(broker, "watcher", "wills")
    count = 0
    while not sum(session.dropped_by_cause()):
        count += 1
        assert count < ENOUGH
        await publisher.publish("load", b"%d " % count + PAYLOAD)
    thawed = await frozen.thaw()
    said = await thawed.closed()
    found = numbers(said)
    assert found == list(range(1, len(found) + 1))
    if version == 5:
        assert [(packet.kind, packet.code) for packet in said if packet.kind != wire.PUBLISH] == [
            (wire.DISCONNECT, 0x97)
        ]
        assert said[-1].kind == wire.DISCONNECT
    thawed.abort()
    assert (await watcher.message()).payload == b"too slow"
    await until("the socket is gone", lambda: len(broker.connections) == 2, publisher)
    assert dropped(session, FULL_MESSAGES, DISCONNECTED) == count - len(found)
    assert (session.offered, session.delivered_in_all(), session.queued()) == (count, len(found), 0)
    back = await join(broker, "frozen", **{**connect, "clean": False})
    assert back.connack.session_present is (expiry > 0)
    await publisher.publish("load", b"%d" % (count + 1))
    assert numbers(await back.fence()) == ([count + 1] if expiry else [])


async def test_max_age_leaves_only_what_is_fresh(embed: Embed) -> None:
    """What has waited too long is gone, however much room there is; what comes afterwards is delivered."""
    broker = await embed(queue=queue(max_age=2.0, live_messages=0))
    frozen, session = await froze(broker)
    publisher = await join(broker, "publisher")
    count = await stuck(session, publisher, "load")
    before = session.queued() + dropped(session, AGE)
    await until("what waited is too old", lambda: session.queued() == 0, publisher)
    assert dropped(session, AGE) == before
    await publisher.publish("load", b"%d fresh" % (count + 1))
    assert session.queued() == 1
    found = numbers(await fenced(broker, frozen))
    assert found == [*range(1, count - before + 1), count + 1]
    assert session.offered == count + 1 == len(found) + dropped(session, AGE)


async def test_a_deep_queue_of_max_age_zero_keeps_everything(embed: Embed) -> None:
    """0 is no limit: of age, and of what waits."""
    broker = await embed(queue=queue(max_age=0.0, live_messages=0, live_bytes=0))
    frozen, session = await froze(broker)
    publisher = await join(broker, "publisher")
    count = await stuck(session, publisher, "load")
    assert numbers(await fenced(broker, frozen)) == list(range(1, count + 1))
    assert dropped(session) == 0


# ---------------------------------------------------------------------------------------------------------- QoS 1 and 2


WAITING: Final[dict[str, list[int]]] = {
    "drop-newest": list(range(WINDOW + 1, WINDOW + 1 + DEPTH)),
    "drop-oldest": list(range(101 - DEPTH, 101)),
}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("policy", WAITING)
async def test_what_waits_for_acknowledgements(embed: Embed, policy: str, qos: int) -> None:
    """What is in flight is never shed; behind it stand the oldest, or the newest, that the session's queue holds."""
    broker = await embed(queue=queue(policy=policy))
    connect = wire.connect("frozen", keep_alive=0, props=[(wire.RECEIVE_MAXIMUM, WINDOW)])
    frozen = await Frozen.join(broker.ports[0], connect, ("load", qos))
    session = broker.router.sessions["frozen"]
    publisher = await join(broker, "publisher")
    for number in range(1, 101):
        assert await publisher.publish("load", b"%d" % number, qos=qos) == 0
    assert dropped(session, NO_QUOTA, FULL_MESSAGES) == 100 - WINDOW - DEPTH
    thawed = await frozen.thaw()
    found = numbers([await thawed.message() for _ in range(WINDOW + DEPTH)])
    assert found == [*range(1, WINDOW + 1), *WAITING[policy]]
    assert await thawed.fence() == []
    assert balance(broker, "frozen") == (100, 100)
    assert session.delivered_in_all() == len(found)


@pytest.mark.parametrize("qos", [1, 2])
async def test_latest_that_waits_for_acknowledgements(embed: Embed, qos: int) -> None:
    """The newest of each topic behind what is in flight, in the order in which the topics began to wait."""
    broker = await embed(queue=queue(policy="latest"))
    connect = wire.connect("frozen", keep_alive=0, props=[(wire.RECEIVE_MAXIMUM, WINDOW)])
    frozen = await Frozen.join(broker.ports[0], connect, ("load/+", qos))
    session = broker.router.sessions["frozen"]
    publisher = await join(broker, "publisher")
    for number in range(1, WINDOW + 1):
        await publisher.publish("load/first", b"%d" % number, qos=qos)
    assert dropped(session) == 0, "an empty queue replaces nothing"
    for number in range(11, 41):
        await publisher.publish(f"load/{'cab'[number % 3]}", b"%d" % number, qos=qos)
    assert dropped(session, REPLACED) == 27
    thawed = await frozen.thaw()
    found = [await thawed.message() for _ in range(WINDOW + 3)]
    assert [packet.payload for packet in found[:WINDOW]] == [b"%d" % number for number in range(1, WINDOW + 1)]
    assert [(packet.topic, packet.payload) for packet in found[WINDOW:]] == [
        ("load/b", b"38"),
        ("load/c", b"39"),
        ("load/a", b"40"),
    ]
    assert await thawed.fence() == []
    assert balance(broker, "frozen") == (35, 35)


async def test_disconnect_of_who_does_not_acknowledge(embed: Embed) -> None:
    """It is told 0x97; its session keeps what was in flight and what waited, and it gets them when it is back."""
    broker = await embed(queue=queue(policy="disconnect"))
    props = [(wire.RECEIVE_MAXIMUM, WINDOW), (wire.SESSION_EXPIRY, KEPT)]
    mute = await join(broker, "mute", ("load", 1), props=props)
    session = broker.router.sessions["mute"]
    publisher = await join(broker, "publisher")
    fits = WINDOW + DEPTH
    for number in range(1, fits + 1):
        await publisher.publish("load", b"%d" % number, qos=1)
    assert numbers(await mute.fence()) == list(range(1, WINDOW + 1))
    await publisher.publish("load", b"%d" % (fits + 1), qos=1)
    assert [(packet.kind, packet.code) for packet in await mute.closed()] == [(wire.DISCONNECT, 0x97)]
    back = await join(broker, "mute", clean=False, props=props)
    assert back.connack.session_present
    found = [await back.message() for _ in range(fits)]
    assert numbers(found) == list(range(1, fits + 1))
    assert [packet.dup for packet in found] == [True] * WINDOW + [False] * DEPTH
    assert await back.fence() == []
    assert dropped(session, NO_QUOTA, FULL_MESSAGES) == 1
    assert balance(broker, "mute") == (fits + 1, fits + 1)


# ------------------------------------------------------------------------------------------------------------- takeover


@VERSIONS
async def test_a_takeover_sends_again_what_was_in_flight(embed: Embed, version: int) -> None:
    """With DUP what was handed to the frozen connection, without what was not [MQTT-3.3.1-1]; the old one is gone."""
    broker = await embed(queue=queue(live_messages=50, session_messages=0))
    expiry = [(wire.SESSION_EXPIRY, KEPT)] if version == 5 else []
    connect: dict[str, Any] = {"version": version, "clean": False, "props": expiry}
    frozen = await Frozen.join(
        broker.ports[0], wire.connect("twin", keep_alive=0, **connect), ("load", 1), version=version
    )
    session = broker.router.sessions["twin"]
    publisher = await join(broker, "publisher")
    count = 0
    while session.queued() < 60:
        count += 1
        assert count < ENOUGH
        assert await publisher.publish("load", b"%d " % count + PAYLOAD, qos=1) == 0
    handed = session.delivered_in_all()
    assert handed == count - 60

    newcomer = await join(broker, "twin", **connect)
    assert newcomer.connack.session_present
    # It is served while the old socket still holds what nobody reads.
    found = [await newcomer.message() for _ in range(count)]
    assert numbers(found) == list(range(1, count + 1))
    assert [packet.dup for packet in found] == [True] * handed + [False] * 60
    assert await newcomer.fence() == []
    await until("the old socket is gone", lambda: len(broker.connections) == 2, publisher)
    await frozen.read_to_end()
    await publisher.publish("load", b"%d" % (count + 1), qos=1)
    assert numbers([await newcomer.message()]) == [count + 1]
    assert await newcomer.fence() == []
    assert dropped(session) == 0
    offered, accounted = balance(broker, "twin")
    assert offered == accounted == count + 1
    assert broker.router.counters.load.messages == 0
