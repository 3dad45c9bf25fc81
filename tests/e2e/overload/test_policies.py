"""A full queue as its client sees it: what the policy that is set for it keeps, and who is disconnected.

Every test freezes a client in the middle of a message (`Scene.plug`), so that all that follows waits in the broker.
Then the client reads again, and what it gets is what the policy promises. The ledger is compared with what was
received.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import KEPT, Far, Notes, Scene, check_ledger, lost, number_of, stamped
from tests.e2e.wire import Packet, Peer

ROOM: Final = 40
"""Messages that a queue holds in these tests."""
WINDOW: Final = 10
"""Messages that a client takes without acknowledging them."""
SENT: Final = 120
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


async def publish(publisher: Peer, numbers: range, qos: int) -> None:
    """Numbered messages."""
    for number in numbers:
        assert await publisher.publish("load/0", stamped(number, 100), qos=qos) == 0


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


class TestLatest:
    """Of each topic the newest, where the topic's first one stood."""

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
