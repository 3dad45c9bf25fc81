"""A full queue as its client sees it: the four policies, age, and the bound over all queues.

Every test freezes a client in the middle of a message (`Scene.plug`), so that all that follows waits in the broker.
Then the client reads again, and what it gets is what the policy promises. The ledger is compared with what was
received.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import KEPT, Far, Notes, Scene, check_ledger, lost, number_of, stamped, told
from tests.e2e.wire import Packet, Peer

ROOM: Final = 40
"""Messages that a queue holds in these tests."""
WINDOW: Final = 10
"""Messages that a client takes without acknowledging them."""
SENT: Final = 120
POLICIES: Final = ("drop-newest", "drop-oldest", "disconnect", "latest")
QUOTA_EXCEEDED: Final = 0x97
EXPIRES: Final = [(wire.SESSION_EXPIRY, KEPT)]


def bounds(policy: str = "drop-newest", **more: object) -> dict[str, object]:
    """Settings of queues with room for `ROOM` messages."""
    return {"policy": policy, "live_messages": ROOM, "session_messages": ROOM, **more}


async def frozen(stage: Scene, publisher: Peer, qos: int, client_id: str = "frozen", **options: Any) -> Far:
    """A client that takes no more, with nothing in its queues."""
    props = [*EXPIRES, (wire.RECEIVE_MAXIMUM, WINDOW)] if qos and options.get("version", 5) == 5 else EXPIRES
    if options.get("version", 5) == 5:
        options["props"] = props
    far = await stage.join_far(client_id, ("load/#", qos), (f"plug/{client_id}", 0), clean=False, **options)
    await stage.plug(far, client_id, f"plug/{client_id}", publisher)
    return far


async def publish(publisher: Peer, numbers: range, qos: int, topics: int = 1) -> None:
    """Numbered messages, on one topic after the other."""
    for number in numbers:
        assert await publisher.publish(f"load/{number % topics}", stamped(number, 100), qos=qos) == 0


async def thawed(far: Far, count: int) -> list[Packet]:
    """The plug and so many messages, acknowledged; there must not be more."""
    far.thaw()
    plug = await far.peer.message()
    assert plug.topic.startswith("plug")
    found = [await far.peer.message() for _ in range(count)]
    assert await far.peer.fence() == []
    return found


def numbers(packets: list[Packet]) -> list[int]:
    """The numbers of messages, in order."""
    return [number_of(packet.payload) for packet in packets]


class TestDrop:
    """drop-newest keeps the oldest, drop-oldest the newest; what is in flight stays."""

    OLDEST: Final = list(range(ROOM))
    NEWEST: Final = list(range(SENT - ROOM, SENT))

    @pytest.mark.parametrize(("policy", "kept"), [("drop-newest", OLDEST), ("drop-oldest", NEWEST)])
    async def test_qos_0(self, scene: SetScene, policy: str, kept: list[int]) -> None:
        stage = await scene(queue=bounds(policy))
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, 0)
        await publish(publisher, range(SENT), 0)
        session = stage.session("frozen")
        check_ledger(session, offered=SENT + 1, received=1, queued=ROOM)
        assert lost(session) == {"full-messages": SENT - ROOM}
        assert numbers(await thawed(far, ROOM)) == kept
        check_ledger(session, offered=SENT + 1, received=ROOM + 1)

    @pytest.mark.parametrize("qos", [1, 2])
    @pytest.mark.parametrize(
        ("policy", "kept", "cause"),
        [("drop-newest", range(WINDOW, WINDOW + ROOM), "no-quota"), ("drop-oldest", NEWEST, "full-messages")],
    )
    async def test_with_quality(self, scene: SetScene, policy: str, kept: list[int], cause: str, qos: int) -> None:
        """A window in flight, then a queue."""
        stage = await scene(queue=bounds(policy))
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, qos)
        await publish(publisher, range(SENT), qos)
        session = stage.session("frozen")
        check_ledger(session, offered=SENT + 1, received=1, queued=WINDOW + ROOM)
        assert lost(session) == {cause: SENT - WINDOW - ROOM}
        assert numbers(await thawed(far, WINDOW + ROOM)) == [*range(WINDOW), *kept]
        check_ledger(session, offered=SENT + 1, received=WINDOW + ROOM + 1)

    @pytest.mark.parametrize(
        ("policy", "kept"), [("drop-newest", OLDEST), ("drop-oldest", NEWEST), ("disconnect", OLDEST)]
    )
    async def test_away(self, scene: SetScene, policy: str, kept: list[int]) -> None:
        """Nobody's window is used up: the queue is full, and that is the cause. Who is away is not disconnected."""
        stage = await scene(queue=bounds(policy))
        publisher = await stage.join("publisher")
        await (await stage.join("away", ("load/#", 1), clean=False, props=EXPIRES)).disconnect()
        await publish(publisher, range(SENT), 1)
        session = stage.session("away")
        assert lost(session) == {"full-messages": SENT - ROOM}
        back = await stage.join("away", clean=False, props=EXPIRES)
        assert numbers([await back.message() for _ in range(ROOM)]) == kept
        assert await back.fence() == []
        check_ledger(session, offered=SENT, received=ROOM)

    async def test_bytes_of_the_newest(self, scene: SetScene) -> None:
        """Whole messages of 1,000 bytes of payload; what a queue adds to each is small."""
        stage = await scene(queue={"live_bytes": 700_000})
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, 0)
        send_buffer = stage.send_buffer("frozen")
        for number in range(1000):
            await publisher.publish("load", stamped(number, 1000))
            assert send_buffer.bytes <= 700_000
        session = stage.session("frozen")
        kept = session.queued()
        assert 600 <= kept <= 700
        assert lost(session) == {"full-bytes": 1000 - kept}
        assert numbers(await thawed(far, kept)) == list(range(kept))

    async def test_bytes_of_the_oldest(self, scene: SetScene) -> None:
        """A large message makes room by as many small ones as it takes."""
        stage = await scene(queue={"policy": "drop-oldest", "live_bytes": 700_000})
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, 0)
        for number in range(100):
            await publisher.publish("load", stamped(number, 5_000))
        await publisher.publish("load", stamped(100, 300_000))
        session = stage.session("frozen")
        kept = session.queued()
        assert 70 < kept < 90
        assert lost(session) == {"full-bytes": 101 - kept}
        assert numbers(await thawed(far, kept)) == list(range(101 - kept, 101))
        check_ledger(session, offered=102, received=kept + 1)


class TestLatest:
    """Of each topic the newest, where the topic's first one stood."""

    @pytest.mark.parametrize("qos", [0, 1, 2])
    async def test_order_and_newest(self, scene: SetScene, qos: int) -> None:
        topics = 7
        stage = await scene(queue=bounds("latest"))
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, qos)
        # The window, where there is one, holds the first ones for good.
        first = WINDOW if qos else 0
        await publish(publisher, range(first), qos, topics=WINDOW)
        order = [3, 1, 4, 0, 5, 2, 6]
        number = first
        newest = {}
        for turn in range(10):
            for topic in order if turn % 2 == 0 else sorted(order):
                assert await publisher.publish(f"load/t/{topic}", stamped(number), qos=qos) == 0
                newest[topic] = number
                number += 1
        session = stage.session("frozen")
        assert lost(session) == {"replaced-by-latest": 9 * topics}
        check_ledger(session, offered=number + 1, received=1, queued=first + topics)
        found = await thawed(far, first + topics)
        assert numbers(found) == [*range(first), *(newest[topic] for topic in order)]
        check_ledger(session, offered=number + 1, received=first + topics + 1)

    async def test_full_of_topics(self, scene: SetScene) -> None:
        """A message of a topic without a place is dropped; one of a topic with a place is replaced, full or not."""
        stage = await scene(queue=bounds("latest"))
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, 0)
        await publish(publisher, range(2 * ROOM), 0, topics=2 * ROOM)
        await publish(publisher, range(2 * ROOM, 4 * ROOM), 0, topics=2 * ROOM)
        session = stage.session("frozen")
        assert lost(session) == {"replaced-by-latest": ROOM, "full-messages": 2 * ROOM}
        assert numbers(await thawed(far, ROOM)) == list(range(2 * ROOM, 3 * ROOM))

    async def test_nothing_is_replaced_for_a_client_that_reads(self, scene: SetScene) -> None:
        stage = await scene(queue=bounds("latest"))
        publisher = await stage.join("publisher")
        reader = await stage.join("reader", "load/#")
        for number in range(50):
            await publisher.publish("load/0", stamped(number))
            assert number_of((await reader.message()).payload) == number
        assert lost(stage.session("reader")) == {}

    async def test_away(self, scene: SetScene) -> None:
        topics = 5
        stage = await scene(queue=bounds("latest"))
        publisher = await stage.join("publisher")
        await (await stage.join("away", ("load/#", 1), clean=False, props=EXPIRES)).disconnect()
        await publish(publisher, range(SENT), 1, topics=topics)
        session = stage.session("away")
        assert lost(session) == {"replaced-by-latest": SENT - topics}
        back = await stage.join("away", clean=False, props=EXPIRES)
        assert numbers([await back.message() for _ in range(topics)]) == list(range(SENT - topics, SENT))
        check_ledger(session, offered=SENT, received=topics)

    async def test_one_topic_with_changing_quality(self, scene: SetScene) -> None:
        """Whatever the QoS of each, one message waits, and it is the last."""
        stage = await scene(queue=bounds("latest"))
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, 1)
        await publish(publisher, range(WINDOW), 1, topics=WINDOW)
        number = WINDOW
        last = {}
        for qualities in ((1, 0, 1, 0), (0, 1, 0, 1)):
            topic = f"load/t/{qualities[-1]}"
            for qos in qualities:
                assert await publisher.publish(topic, stamped(number), qos=qos) == 0
                last[topic] = number
                number += 1
        session = stage.session("frozen")
        assert lost(session) == {"replaced-by-latest": 6}
        found = await thawed(far, WINDOW + 2)
        assert {packet.topic: number_of(packet.payload) for packet in found if "t/" in packet.topic} == last
        check_ledger(session, offered=number + 1, received=WINDOW + 3)

    async def test_a_message_without_expiry_replaces_one_with(self, scene: SetScene) -> None:
        """The newest comes with its own properties, flags and expiry [MQTT-3.3.2-6], not with those of its place."""
        stage = await scene(queue=bounds("latest"))
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, 0)
        await publisher.publish("load/a", b"old", props=[(wire.MESSAGE_EXPIRY, 1000), (wire.CONTENT_TYPE, "old")])
        await publisher.publish("load/b", b"old")
        await publisher.publish("load/a", b"new", props=[(wire.USER_PROPERTY, ("k", "v"))])
        await publisher.publish("load/b", b"new", props=[(wire.MESSAGE_EXPIRY, 1000)])
        a, b = await thawed(far, 2)
        assert (a.payload, a.get(wire.MESSAGE_EXPIRY), a.get(wire.CONTENT_TYPE)) == (b"new", None, None)
        assert ("k", "v") in a.all(wire.USER_PROPERTY)
        assert b.payload == b"new"
        assert 900 < b.number(wire.MESSAGE_EXPIRY) <= 1000


class TestDisconnect:
    """The client is told 0x97 and disconnected."""

    async def test_of_3_1_1_the_connection_ends_without_a_word(self, scene: SetScene) -> None:
        """And, as with 5.0, its Will is published, and its session goes on if it was to be kept."""
        stage = await scene(queue=bounds("disconnect"))
        publisher = await stage.join("publisher")
        watcher = await stage.join("watcher", "wills")
        far = await stage.join_far(
            "frozen", "load/0", "plug", version=4, clean=False, will=wire.Will("wills", b"too slow")
        )
        await stage.plug(far, "frozen", "plug", publisher)
        await publish(publisher, range(ROOM + 1), 0)
        far.thaw()
        found = await far.peer.closed()
        assert numbers(found[1:]) == list(range(len(found) - 1))
        assert (await watcher.message()).payload == b"too slow"
        assert (await stage.join("frozen", version=4, clean=False)).connack.session_present

    @pytest.mark.parametrize("qos", [0, 1])
    async def test_it_is_told(self, scene: SetScene, qos: int) -> None:
        notes = Notes()
        stage = await scene(log=notes, queue=bounds("disconnect"))
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, qos)
        session = stage.session("frozen")
        room = ROOM + (WINDOW if qos else 0)
        await publish(publisher, range(room), qos)
        assert lost(session) == {}
        assert not session.ended
        await publish(publisher, range(room, room + 1), qos)
        # At once, before the last packet's time is over.
        far.thaw()
        found = await far.peer.closed()
        far.peer.abort()
        last = found.pop()
        assert (last.kind, last.code) == (wire.DISCONNECT, QUOTA_EXCEEDED)
        assert found[0].topic == "plug/frozen"
        assert numbers(found[1:]) == list(range(len(found) - 1))
        await stage.until("it is gone", lambda: len(stage.broker.connections) == 2)
        assert notes.about("frozen")[-1]["cause"] == "queue-full"

        # Its session goes on as its expiry says, with what has quality.
        await publish(publisher, range(room + 1, room + 3), qos)
        back = await stage.join("frozen", clean=False, props=EXPIRES)
        assert back.connack.session_present
        packets = [packet for packet in await _all(back) if packet.kind == wire.PUBLISH]
        dropped = sum(lost(session).values())
        assert dropped > 0
        if qos:
            assert numbers(packets)[:WINDOW] == list(range(WINDOW))
        check_ledger(session, offered=room + 4, received=room + 4 - dropped)

    async def test_who_never_reads_again_is_gone(self, scene: SetScene) -> None:
        stage = await scene(queue=bounds("disconnect"))
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, 0)
        await publish(publisher, range(ROOM + 1), 0)
        await stage.until("it is gone", lambda: len(stage.broker.connections) == 2)
        assert "frozen" in stage.broker.router.sessions
        assert not far.link.over


async def _all(peer: Peer) -> list[Packet]:
    """Everything that the broker has for a client, each message acknowledged."""
    found: list[Packet] = []
    while more := await peer.fence():
        for packet in more:
            found.append(packet)
            if packet.kind == wire.PUBLISH and packet.packet_id is not None:
                assert packet.qos == 1
                await peer.send(wire.ack(wire.PUBACK, packet.packet_id))
    return found


class TestAge:
    """`max_age`: what has waited too long is shed, whatever the fill."""

    async def test_with_each_policy_and_quality(self, scene: SetScene) -> None:
        """Also under `disconnect`: a queue that is not full disconnects nobody."""
        max_age, old, fresh = 2.5, 20, 6
        rules = [{"client_id": f"{policy}*", "policy": policy} for policy in POLICIES]
        stage = await scene(queue=bounds(max_age=max_age, rules=rules))
        publisher = await stage.join("publisher")
        clients = [
            (
                await frozen(stage, publisher, qos, f"{policy}{qos}"),
                stage.session(f"{policy}{qos}"),
                WINDOW if qos else 0,
            )
            for policy in POLICIES
            for qos in (0, 1)
        ]
        await publish(publisher, range(old), 1, topics=SENT)
        await asyncio.sleep(max_age + 1.2)  # the age itself, and the second that shedding may take
        # Shed without anybody reading or publishing, all but what is in flight.
        for _, session, in_flight in clients:
            assert lost(session) == {"age": old - in_flight}
            assert session.queued() == in_flight
        await publish(publisher, range(old, old + fresh), 1, topics=SENT)
        for far, _, _ in clients:
            far.thaw()
        for far, session, in_flight in clients:
            assert (await far.peer.message()).topic.startswith("plug")
            found = [packet for packet in await _all(far.peer) if packet.kind == wire.PUBLISH]
            got = numbers(found)
            assert got[-fresh:] == list(range(old, old + fresh))
            # What is in flight and was never written can still be too old.
            assert set(got[:-fresh]) <= set(range(in_flight))
            check_ledger(session, offered=old + fresh + 1, received=len(got) + 1)
            assert told(found) == lost(session) == {"age": old + fresh - len(got)}

    async def test_a_client_that_reads_loses_nothing(self, scene: SetScene) -> None:
        stage = await scene(queue=bounds(max_age=0.2))
        publisher = await stage.join("publisher")
        reader = await stage.join("reader", "load/#")
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.0
        number = 0
        while loop.time() < end:
            await publisher.publish("load/0", stamped(number))
            assert number_of((await reader.message()).payload) == number
            number += 1
        assert lost(stage.session("reader")) == {}

    async def test_away(self, scene: SetScene) -> None:
        max_age = 1.0
        stage = await scene(queue=bounds(max_age=max_age))
        publisher = await stage.join("publisher")
        await (await stage.join("away", ("load/#", 1), clean=False, props=EXPIRES)).disconnect()
        await publish(publisher, range(20), 1)
        session = stage.session("away")
        await stage.until("all of it is too old", lambda: session.queued() == 0)
        await publish(publisher, range(20, 25), 1)
        back = await stage.join("away", clean=False, props=EXPIRES)
        assert numbers([await back.message() for _ in range(5)]) == list(range(20, 25))
        assert lost(session) == {"age": 20}
        check_ledger(session, offered=25, received=5)


class TestExpiry:
    """A message that has expired waits for nobody [MQTT-3.3.2-5], and takes nobody's place."""

    @pytest.mark.parametrize("qos", [0, 1])
    async def test_a_queue_full_of_expired_messages_is_not_full(self, scene: SetScene, qos: int) -> None:
        stage = await scene(queue=bounds())
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, qos)
        await (await stage.join("away", ("load/#", 1), clean=False, props=EXPIRES)).disconnect()
        full = ROOM + (WINDOW if qos else 0)
        for number in range(full):
            props = [(wire.MESSAGE_EXPIRY, 1)]
            assert await publisher.publish("load/0", stamped(number), qos=qos, props=props) == 0
        await asyncio.sleep(1.5)  # the expiry itself
        await publish(publisher, range(full, full + 5), qos)
        far.thaw()
        assert (await far.peer.message()).topic.startswith("plug")
        found = numbers([packet for packet in await _all(far.peer) if packet.kind == wire.PUBLISH])
        # What is in flight may still come: delivery of it has begun.
        assert [number for number in found if number >= full] == list(range(full, full + 5))
        assert set(found) <= {*range(full - ROOM), *range(full, full + 5)}
        session = stage.session("frozen")
        assert set(lost(session)) == {"expired"}
        check_ledger(session, offered=full + 6, received=len(found) + 1)
        if qos:
            back = await stage.join("away", clean=False, props=EXPIRES)
            assert numbers(await _all(back)) == list(range(full, full + 5))


class TestRules:
    """`[[queue.rules]]`: another policy for some clients, or for some subscriptions."""

    async def test_by_client_and_user(self, scene: SetScene) -> None:
        """All that match apply in their order; a later one wins for what it names. Anonymous clients match no user."""
        rules = [
            {"client_id": "display-*", "policy": "drop-oldest"},
            {"user": "kiosk*", "policy": "latest"},
            {"client_id": "*-small", "live_messages": 5},
        ]
        stage = await scene(queue=bounds(rules=rules))
        publisher = await stage.join("publisher")
        expected = {
            ("plain", None): list(range(ROOM)),
            ("display-1", None): list(range(SENT - ROOM, SENT)),
            ("Display-1", None): list(range(ROOM)),
            ("display-small", None): list(range(SENT - 5, SENT)),
            ("display-2", "kiosk7"): [SENT - 1],
            ("other", "kiosk"): [SENT - 1],
            ("other-small", "Kiosk"): list(range(5)),
        }
        clients = [await frozen(stage, publisher, 0, client_id, user=user) for client_id, user in expected]
        await publish(publisher, range(SENT), 0)
        for far, got in zip(clients, expected.values(), strict=True):
            assert numbers(await thawed(far, len(got))) == got

    async def test_by_topic_filter(self, scene: SetScene) -> None:
        """Only for subscriptions that the rule's filter covers, and with a depth of their own."""
        rules = [{"topic_filter": "load/#", "policy": "drop-oldest", "depth": 10}]
        stage = await scene(queue={"rules": rules})
        publisher = await stage.join("publisher")
        far = await stage.join_far("far", "load/+", "other", "plug")
        await stage.plug(far, "far", "plug", publisher)
        for number in range(SENT):
            await publisher.publish("load/0", stamped(number))
            await publisher.publish("other", stamped(number))
        session = stage.session("far")
        assert lost(session) == {"full-messages": SENT - 10}
        found = await thawed(far, SENT + 10)
        assert numbers([packet for packet in found if packet.topic == "other"]) == list(range(SENT))
        assert numbers([packet for packet in found if packet.topic == "load/0"]) == list(range(SENT - 10, SENT))
        check_ledger(session, offered=2 * SENT + 1, received=SENT + 11)


class TestUnlimited:
    """A limit of 0 means unlimited. mosquitto#2879: `max_queued_messages 0` dropped traffic."""

    async def test_queues(self, scene: SetScene) -> None:
        count = 300
        zero = {"live_messages": 0, "live_bytes": 0, "session_messages": 0, "session_bytes": 0, "total_bytes": 0}
        stage = await scene(queue=zero)
        publisher = await stage.join("publisher")
        far = await frozen(stage, publisher, 0)
        quality = await frozen(stage, publisher, 1, "quality")
        await publish(publisher, range(count), 1)
        for client_id in ("frozen", "quality"):
            assert lost(stage.session(client_id)) == {}
        assert numbers(await thawed(far, count)) == list(range(count))
        assert numbers(await thawed(quality, count)) == list(range(count))


class TestTotal:
    """`queue.total_bytes` and `queue.total_messages`: the fullest queues shed first."""

    async def test_what_nobody_can_give_is_refused(self, scene: SetScene) -> None:
        """A single message larger than the bound."""
        stage = await scene(queue={"total_bytes": 20_000})
        publisher = await stage.join("publisher")
        reader = await stage.join("reader", "load/#")
        await publisher.publish("load/0", bytes(50_000))
        session = stage.session("reader")
        found = await reader.fence()
        assert len(found) + sum(lost(session).values()) == session.offered == 1
        assert stage.waiting == (0, 0)
