"""The scripted server itself, held against a client that shares no code with it: it does what the script says, and its
books say what it did."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.e2e import wire
from tests.e2e.wire import Closed, Peer
from tests.loadtest.load.account import Account, Message
from tests.loadtest.load.script import DELIVER, DROP, Delivery, Fate, Script
from tests.loadtest.load.scripted import ScriptedServer


class Opened(ScriptedServer):
    """A scripted server with its clients, which go when it goes."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__(script)
        self.clients: list[Peer] = []

    async def open(self, version: int = 5) -> Peer:
        """A connection that has said nothing yet."""
        peer = await Peer.open("127.0.0.1", self.port, version)
        self.clients.append(peer)
        return peer

    async def client(self, name: str, *, version: int = 5, **more: Any) -> Peer:
        """A client that has its CONNACK."""
        peer = await self.open(version)
        await peer.send(wire.connect(name, version=version, **more))
        peer.connack = await peer.expect(wire.CONNACK)
        return peer

    async def __aexit__(self, *error: object) -> None:
        for peer in self.clients:
            peer.abort()
        await super().__aexit__(*error)


async def texts(peer: Peer) -> list[str]:
    """The payloads of all messages that came up to now."""
    found = []
    for packet in await peer.fence():
        if packet.kind == wire.PUBLISH:
            found.append(packet.payload.decode())
    return found


async def publish(peer: Peer, count: int, topic: str = "t", qos: int = 0) -> None:
    for number in range(count):
        await peer.publish(topic, str(number).encode(), qos=qos)


def by_number(fates: dict[int, Fate]) -> Script:
    """A script that singles messages out by their number."""
    return Script(fate=lambda delivery: fates.get(delivery.message.number, DELIVER))


@pytest.mark.parametrize(
    ("fate", "came", "counted"),
    [
        (DELIVER, "0 1 2 3", Account(4, 4)),
        (DROP, "0 2 3", Account(4, 3, lost=1)),
        (Fate(copies=3), "0 1 1 1 2 3", Account(4, 4, duplicates=2)),
        (Fate(hold=2), "0 2 3 1", Account(4, 4, reordered=1)),
        (Fate(payload=lambda _: b"x"), "0 x 2 3", Account(4, 4, altered=1)),
        (Fate(topic="t/other"), "0 1 2 3", Account(4, 4, altered=1)),
        (Fate(told=("3;full-messages", "1;age")), "0 1 2 3", Account(4, 4, told_lost=4)),
        (Fate(hold=9), "0 2 3", Account(4, 3, lost=1)),
    ],
)
async def test_a_fate_is_carried_out_and_entered(fate: Fate, came: str, counted: Account) -> None:
    async with Opened(by_number({1: fate})) as server:
        reader, sender = await server.client("s"), await server.client("p")
        await reader.subscribe("t/#")
        await publish(sender, 4)
        assert " ".join(await texts(reader)) == came
        assert server.books.account() == server.books.account(["p"], ["s"]) == counted
        assert server.violations == []


async def test_losses_are_told_as_user_properties() -> None:
    async with Opened(by_number({0: Fate(told=("2;age",))})) as server:
        reader, sender = await server.client("s"), await server.client("p")
        await reader.subscribe("t")
        await publish(sender, 1)
        assert (await reader.message()).all(wire.USER_PROPERTY) == [("canopy-lost", "2;age")]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_every_quality_both_ways(version: int, qos: int) -> None:
    async with Opened() as server:
        reader, sender = await server.client("s", version=version), await server.client("p", version=version)
        await reader.subscribe(("t", qos))
        await publish(sender, 3, qos=qos)
        found = [await reader.message() for _ in range(3)]
        await reader.fence()
        assert [(packet.qos, packet.payload) for packet in found] == [(qos, str(each).encode()) for each in range(3)]
        assert server.books.account() == Account(3, 3)
        assert not server.sessions["s"].in_flight
        assert server.most_in_flight == ({"p": 1} if qos else {})
        assert server.violations == []


async def test_a_copy_with_dup_has_the_packet_identifier_of_the_first() -> None:
    async with Opened(by_number({0: Fate(copies=2, dup=True)})) as server:
        reader, sender = await server.client("s"), await server.client("p")
        await reader.subscribe(("t", 1))
        await publish(sender, 1, qos=1)
        first, second = await reader.recv(), await reader.recv()
        assert (first.dup, second.dup) == (False, True)
        assert first.packet_id == second.packet_id
        assert server.books.account() == Account(1, 1, redelivered=1)


async def test_overlapping_filters_and_local_messages() -> None:
    async with Opened() as server:
        both = await server.client("b")
        await both.subscribe("t/#", "t/+", ("u", wire.NO_LOCAL))
        await publish(both, 2, topic="t/a")
        await publish(both, 2, topic="u")
        assert await texts(both) == ["0", "0", "1", "1"]
        assert server.books.account() == Account(2, 2, overlapping=2)


async def test_a_share_is_one_subscriber() -> None:
    async with Opened() as server:
        one, two, sender = await server.client("1"), await server.client("2"), await server.client("p")
        await one.subscribe("$share/g/t")
        await two.subscribe("$share/g/t")
        await publish(sender, 4)
        assert (await texts(one), await texts(two)) == (["0", "2"], ["1", "3"])
        assert server.books.account(["p"], ["$share/g/t"]) == server.books.account() == Account(4, 4)


async def test_retained_messages_come_with_the_subscription() -> None:
    async with Opened() as server:
        sender = await server.client("p")
        await sender.publish("t", b"old", retain=True)
        reader = await server.client("s")
        await reader.subscribe("t")
        found = await reader.message()
        assert (found.payload, found.retain) == (b"old", True)
        await sender.publish("t", b"new", retain=True)
        assert not (await reader.message()).retain
        assert server.books.account() == Account(1, 1, retained=1)


@pytest.mark.parametrize("leave", ["cut", "disconnect"])
async def test_a_will_is_published_after_a_cut_only(leave: str) -> None:
    async with Opened() as server:
        reader = await server.client("s")
        await reader.subscribe("w")
        mortal = await server.client("p", will=wire.Will("w", b"gone"))
        if leave == "cut":
            mortal.abort()
            assert (await reader.message()).payload == b"gone"
        else:
            await mortal.disconnect()
            assert await texts(reader) == []
        assert server.wills == (leave == "cut")


async def test_a_session_outlives_its_connection() -> None:
    async with Opened() as server:
        sender = await server.client("p")
        reader = await server.client("s", clean=False, props=[(wire.SESSION_EXPIRY, 60)])
        await reader.subscribe(("t", 1))
        await publish(sender, 1, qos=1)
        assert not (await reader.recv()).dup  # not acknowledged
        await reader.disconnect()
        await sender.publish("t", b"1", qos=1)
        again = await server.client("s", clean=False, props=[(wire.SESSION_EXPIRY, 60)])
        assert again.connack.session_present
        found = [await again.message() for _ in range(2)]
        assert [(packet.dup, packet.payload) for packet in found] == [(True, b"0"), (False, b"1")]
        assert server.books.account() == Account(2, 2, redelivered=1)


async def test_a_refused_publish_is_not_routed_and_an_ignored_one_is() -> None:
    async with Opened(Script(puback=lambda message: {0: 0x97, 1: None}.get(message.number, 0))) as server:
        reader, sender = await server.client("s"), await server.client("p")
        await reader.subscribe("t")
        assert await sender.publish("t", b"0", qos=1) == 0x97
        await sender.send(wire.publish("t", b"1", qos=1, packet_id=7))
        assert await sender.publish("t", b"2", qos=1) == 0
        assert await texts(reader) == ["1", "2"]
        assert [message.payload for message in server.refused_messages] == [b"0"]
        assert {payload for _, _, payload in server.answered} == {b"0", b"2"}


async def test_connections_are_refused_ignored_and_ended() -> None:
    codes = {0: 0x88, 1: None}
    script = Script(
        connack=lambda _, attempt: codes.get(attempt, 0),
        hangs_up=lambda _client, _connection, packet: getattr(packet, "topic", b"") == b"t",
    )
    async with Opened(script) as server:
        assert (await server.client("s")).connack.code == 0x88
        silent = await server.open()
        await silent.send(wire.connect("s"))
        third = await server.client("s")
        await third.send(wire.publish("t"))
        with pytest.raises(Closed):
            await third.recv()
        assert (len(server.connects), server.refused, server.messages) == (3, 1, [])


async def test_a_stall_holds_everything_up() -> None:
    script = Script(stall=lambda message: 0.05 if message.number == 1 else 0)
    async with Opened(script) as server:
        peer = await server.client("s")
        await peer.subscribe("t")
        await peer.send(wire.publish("t", b"0"), wire.publish("t", b"1"), wire.PING)
        assert (await peer.message()).payload == b"0"
        meanwhile = server.stalled
        assert (await peer.message()).payload == b"1"
        assert (meanwhile, server.stalled) == (True, False)
        await peer.expect(wire.PINGRESP)


@pytest.mark.parametrize(
    ("packets", "complaint"),
    [
        ([wire.publish("t", b"0", qos=1, packet_id=1)] * 2, "packet identifier 1 is in use"),
        ([wire.publish("t", str(n).encode(), qos=1, packet_id=n + 1) for n in range(3)], "Receive Maximum of 2"),
        ([wire.ack(wire.PUBACK, 9)], "PUBACK for 9, which is free"),
        ([wire.connect("s")], "a second CONNECT"),
        ([wire.publish("", b"", props=[(wire.TOPIC_ALIAS, 1)])], "topic alias 1 is unknown"),
        ([wire.publish("t", b"", props=[(wire.TOPIC_ALIAS, 9)])], "topic alias 9 is too large"),
    ],
)
async def test_what_a_client_does_wrong_is_noted(packets: list[bytes], complaint: str) -> None:
    limits = {wire.RECEIVE_MAXIMUM: 2, wire.TOPIC_ALIAS_MAXIMUM: 4}
    async with Opened(Script(puback=lambda _: None, connack_properties=limits)) as server:
        peer = await server.client("s")
        await peer.send(*packets, wire.PING)
        with contextlib.suppress(Closed):
            await peer.expect(wire.PINGRESP)
        [found] = server.violations
        assert complaint in found


def test_deliveries_are_counted_and_messages_known_again() -> None:
    message = Message("p", "t", b"x", 0, 0)
    assert Delivery(message, "s", 0).message.identity == ("p", "t", b"x")
