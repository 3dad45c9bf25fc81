"""The connection over a transport that the test holds: who writes, when, and what a failing write costs others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.hooks import LATER
from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.net.connections import time_limits
from canopy_mqtt.net.connections.admission import UNACCEPTED_ROOM, Admission
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.ends import CLOSE
from canopy_mqtt.net.rounds import LITTLE
from tests.e2e import wire
from tests.net.transports import Client, Embed, Transport, lose_all, rounds
from tests.support.gate import Gate
from tests.support.waiting import until


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(Settings(listen=["mqtt://127.0.0.1:0"])) as running:
        yield running
        lose_all(running)


async def subscriber(broker: Broker, name: str) -> Client:
    client = Client(broker, name)
    client.connection.data_received(wire.subscribe(1, [("t", 0)]))
    await rounds()
    client.take()
    return client


async def test_a_read_has_one_time(broker: Broker) -> None:
    """However many writes it leads to: to ask the clock costs as much as to route a message."""
    source = Client(broker, "source")
    there = [await subscriber(broker, f"there{number}") for number in range(3)]
    source.take()
    clock, asked = broker.rounds.time, []

    def counted_time() -> float:
        asked.append(clock())
        return asked[-1]

    broker.rounds.time = counted_time
    source.connection.data_received(wire.publish("t", b"x", qos=1, packet_id=7))
    assert [client.take() for client in there] == [wire.publish("t", b"x")] * 3
    assert source.take() == b"\x40\x02\x00\x07"
    assert len(asked) == 1


async def test_none_overtakes_what_the_writer_has_yet_to_take(broker: Broker) -> None:
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    frames = [wire.publish("t", b"%d" % number) for number in range(3)]
    # Each is a piece by itself, since its frame is made when it is written.
    many = [wire.publish("t", b"%d" % number, props=[(wire.MESSAGE_EXPIRY, 60)]) for number in range(3, 4 + LITTLE)]
    source.connection.data_received(frames[0])
    assert there.take() == frames[0]
    source.connection.data_received(b"".join(many[:LITTLE]))
    assert (there.take(), there.connection.writer) == (b"".join(many[:LITTLE]), None)
    source.connection.data_received(b"".join(many))
    source.connection.data_received(frames[1])
    assert there.take() == b""
    assert there.connection.writer is not None
    await rounds(1)
    source.connection.data_received(frames[2])
    await rounds()
    assert there.take() == b"".join([*many, frames[1], frames[2]])


async def test_a_full_transport_is_waited_for(broker: Broker) -> None:
    """Not a byte goes to a transport that has said stop, and all of it when it has room."""
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    there.connection.pause_writing()
    frames = [wire.publish("t", b"%d" % number) for number in range(3)]
    source.connection.data_received(frames[0])
    await rounds()
    source.connection.data_received(frames[1])
    source.connection.data_received(frames[2])
    await rounds()
    assert there.take() == b""
    there.connection.resume_writing()
    await rounds()
    assert there.take() == b"".join(frames)


async def test_a_write_that_fills_the_transport_is_the_last(broker: Broker) -> None:
    """Also where it was no writer's: the transport's own buffer has no bound but this."""
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    there.transport.connection = there.connection
    frames = [wire.publish("t", b"%d" % number) for number in range(5)]
    for frame in frames:
        source.connection.data_received(frame)
        await rounds()
    assert there.take() == frames[0]
    there.transport.connection = None
    there.connection.resume_writing()
    await rounds()
    assert there.take() == b"".join(frames[1:])


async def test_a_write_that_fails_ends_its_own_connection_alone(broker: Broker) -> None:
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    other = await subscriber(broker, "other")
    there.transport.failing = True
    frame = wire.publish("t", b"x")
    source.connection.data_received(frame)
    await rounds()
    assert there.transport.aborted
    assert not source.transport.aborted
    assert other.take() == frame
    assert "there" not in {session.client_id for session in broker.router.peers.send_buffers}


PARTS = Connection, ServerProtocol, SendBuffer, Session


@pytest.mark.parametrize(
    "ending", [b"", b"\xe0\x00", b"\xff\xff\xff\xff\xff"], ids=["lost", "left", "broke the protocol"]
)
async def test_what_is_left_of_a_connection_goes_at_once(
    made: Callable[..., list[object]], broker: Broker, ending: bytes
) -> None:
    """No cycle keeps it until the garbage collector comes, which the daemon has come seldom."""
    client = await subscriber(broker, "there")
    client.connection.data_received(ending)
    await rounds()
    client.connection.connection_lost(None)
    del client
    await rounds()
    assert not made(*PARTS)


# ------------------------------------------------------------------------------------------------ how many may come

HERE, THERE = "192.0.2.1", "192.0.2.2"


def counted(broker: Broker) -> Admission:
    """The admission control of a broker whose settings ask for it."""
    assert broker.admission is not None
    return broker.admission


def connected(broker: Broker) -> set[str]:
    """Who is connected, in the core's eyes."""
    return {session.client_id for session in broker.router.peers.send_buffers}


def stall(client: Client) -> None:
    client.connection.pause_writing()
    now = client.connection.loop.time()
    # The first look takes down what there is, the second finds no progress.
    client.connection.check(now)
    client.connection.check(now + 31.0)


def be_silent(client: Client) -> None:
    client.connection.check(client.connection.loop.time() + 1_000.0)


def break_the_protocol(client: Client) -> None:
    client.connection.data_received(b"\xff\xff\xff\xff\xff")


def fail_to_write(client: Client) -> None:
    client.connection.connection_lost(BrokenPipeError())


def lose(client: Client) -> None:
    client.connection.connection_lost(None)


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        (stall, "stalled"),
        (be_silent, "keep-alive"),
        (break_the_protocol, "protocol-error"),
        (fail_to_write, "write-failed"),
        (lose, "connection-lost"),
    ],
)
async def test_a_connection_that_is_over_counts_for_nothing(
    embed: Embed, ending: Callable[[Client], None], cause: str
) -> None:
    """At once: not in the limits, not in a fanout. Its socket may take `LINGER` seconds, or the system's time-out."""
    broker = await embed(limits={"max_connections_per_address": 1, "max_connections": 2})
    there = Client(broker, "there", HERE, says=wire.connect("there", keep_alive=60))
    source = Client(broker, "source", THERE)
    there.connection.data_received(wire.subscribe(1, [("t", 0)]))
    await rounds()
    there.take()
    assert counted(broker).by_address.get(HERE, 0) == 1
    ending(there)
    if ending in (stall, be_silent):
        # In a turn of its own: thousands may be found at once.
        await rounds()
    assert there.connection.protocol.close_cause == cause
    assert connected(broker) == {"source"}
    assert (counted(broker).by_address.get(HERE, 0), counted(broker).open) == (0, 1)
    source.connection.data_received(wire.publish("t", b"x") * 100)
    assert there.connection.send_buffer.messages == 0
    again = Client(broker, "again", HERE)
    await rounds()
    assert again.take()[:1] == b"\x20"
    assert connected(broker) == {"source", "again"}
    # The late end of the socket changes nothing any more.
    if cause not in ("write-failed", "connection-lost"):
        there.connection.connection_lost(None)
    assert broker.connection_table._closing == {}
    assert (counted(broker).by_address.get(HERE, 0), counted(broker).open) == (1, 2)


async def test_a_connection_that_could_not_begin_leaves_nothing(broker: Broker) -> None:
    def fail(_: object) -> None:
        raise OSError("no such option")

    broker.connection_table.tune = fail
    connection = Connection(broker.connection_table, broker.listeners.all[0].terms)
    transport = Transport()
    connection.connection_made(cast(asyncio.Transport, transport))
    assert transport.aborted
    connection.connection_lost(None)
    assert not broker.connections
    assert broker.faults.counts == {"connection": 1}


async def test_who_takes_over_from_another_address_of_its_network(embed: Embed) -> None:
    """With IPv6 a device comes back under another address of its /64; another network is kept out."""
    broker = await embed(limits={"max_connections_per_address": 1})
    Client(broker, "there", "2001:db8::1")
    Client(broker, "there too", "2001:db8:0:1::1")
    await rounds()
    other, new = Client(broker, "there", "2001:db8:0:1::2"), Client(broker, "there", "2001:db8::2")
    await rounds()
    assert (other.take()[3:4], new.take()[3:4]) == (b"\x97", b"\x00")
    assert connected(broker) == {"there", "there too"}
    assert counted(broker).by_address == {"2001:db8::/64": 1, "2001:db8:0:1::/64": 1}


async def test_a_place_that_somebody_else_took_meanwhile(embed: Embed) -> None:
    """The limit holds whatever the order: a client that was let in and finds no place is told to go."""
    access_control = Gate()
    broker = await embed(access_control, limits={"max_connections_per_address": 1})
    old = Client(broker, "there", HERE)
    await rounds()
    access_control.answer = LATER
    new = Client(broker, "there", HERE)
    old.connection.connection_lost(None)
    access_control.answer = 0
    Client(broker, "third", HERE)
    new.connection.admitted(0)
    await rounds()
    assert connected(broker) == {"third"}
    assert b"\xe0" in new.take()
    assert new.connection.protocol.close_text == "too many connections from this address"
    assert (counted(broker).by_address.get(HERE, 0), counted(broker).open) == (1, 1)


@pytest.mark.parametrize(
    ("says", "text"), [(b"\x10", "no CONNECT in time"), (None, "no answer to its CONNECT in time")]
)
async def test_a_time_that_is_over_names_who_was_late(embed: Embed, says: bytes | None, text: str) -> None:
    """The client, or whoever decides about it; a session that comes from another node may be late, too."""
    access_control = Gate()
    access_control.answer = LATER
    broker = await embed(access_control, limits={"connect_timeout": 0.01})
    client = Client(broker, "late", says=says)
    await until(lambda: client.connection.protocol.close_text == text)


@pytest.mark.parametrize(
    ("waits", "limit", "earlier"), [(3.0, 10.0, 7.0), (20.0, 10.0, 0.0), (3.0, 0.0, 0.0), (None, 10.0, 0.0)]
)
async def test_time_that_it_has_waited_elsewhere_counts(
    embed: Embed, waits: float | None, limit: float, earlier: float
) -> None:
    """`waits`: how long it may still wait for its CONNECT, as those say who had it before; None: nobody had it."""
    broker = await embed(limits={"connect_timeout": limit})
    connection = Client(broker, "", says=b"").connection
    opened = connection.opened_at
    time_limits.end_by(connection, 0.0 if waits is None else opened + waits)
    assert connection.opened_at == pytest.approx(opened - earlier)


async def test_a_client_that_has_waited_elsewhere_is_late_earlier(embed: Embed) -> None:
    broker = await embed(limits={"connect_timeout": 60.0})
    connection = Client(broker, "", says=b"\x10").connection
    time_limits.end_by(connection, broker.loop.time() + 0.01)
    await until(lambda: connection.protocol.close_text == "no CONNECT in time")


async def test_sockets_that_linger_make_room(embed: Embed) -> None:
    """Connections that are over leave room at once, and their sockets do not pile up: the oldest goes first."""
    broker = await embed(limits={"max_connections": 1})
    lingering = [
        Client(broker, f"{number}", says=wire.connect("") + b"\x00\x00", half=True)
        for number in range(1 + UNACCEPTED_ROOM)
    ]
    await rounds(5)
    assert counted(broker).open == 0
    assert not any(client.transport.aborted for client in lingering)
    new = Client(broker, "new")
    assert [client.transport.aborted for client in lingering[:3]] == [True, False, False]
    await rounds()
    assert new.take()[3:4] == b"\x00"


async def test_no_time_out(embed: Embed) -> None:
    """A time-out of 0 is none: nobody is looked at for it."""
    broker = await embed(limits={"connect_timeout": 0.0}, queue={"stall_timeout": 0.0})
    mute = Client(broker, "", says=b"")
    there = await subscriber(broker, "there")
    there.connection.pause_writing()
    assert len(broker.rounds.wheel) == 0
    later = broker.loop.time() + 1e6
    assert [client.connection.check(later) for client in (mute, there)] == [0.0, 0.0]
    assert [client.connection.protocol.close_cause for client in (mute, there)] == ["", ""]


# ----------------------------------------------------------------------------------------- how fast one may publish


async def test_a_burst_is_no_longer_than_it_may_be(embed: Embed) -> None:
    """Publishes that go the same way are taken as one run: it may be as long as a burst, and goes on credit once."""
    broker = await embed(limits={"max_publish_rate": 5.0})
    there = await subscriber(broker, "there")
    fast = Client(broker, "fast", says=wire.connect("fast") + wire.publish("t", b"x") * 60)
    await rounds()
    assert there.take().count(wire.publish("t", b"x")) <= 10
    assert not fast.transport.reading


@pytest.mark.parametrize("ending", [b"", b"taken over", b"stopped"], ids=["lost", "taken over", "closed"])
async def test_a_connection_that_ends_while_it_is_held_leaves_no_timer(
    made: Callable[..., list[object]], embed: Embed, ending: bytes
) -> None:
    """It might have been held for minutes; it is not kept for as long."""
    broker = await embed(limits={"max_publish_rate": 0.01, "publish_patience": 0.0})
    await rounds()
    client = Client(broker, "fast")
    client.connection.data_received(wire.publish("t", b"x", qos=1, packet_id=1) * 10)
    await rounds()
    assert client.connection.protocol.held_until > broker.loop.time() + 60.0
    if ending == b"taken over":
        other = Client(broker, "fast")
        await rounds()
        other.connection.connection_lost(None)
        del other
    elif ending:
        client.connection.end(CLOSE, "shutdown", 0x8B)
        await rounds()
        # So that the end of the connection is seen.
        assert client.transport.aborted
    client.connection.connection_lost(None)
    del client
    await rounds()
    assert not made(*PARTS)


async def test_little_is_written_ahead_where_a_newer_message_would_replace_it(broker: Broker) -> None:
    """A message that the transport or the system holds can be neither replaced nor dropped any more."""
    plain = await subscriber(broker, "plain")
    fresh = Client(broker, "fresh")
    options = [(wire.USER_PROPERTY, ("canopy-queue", "latest"))]
    fresh.connection.data_received(wire.subscribe(1, [("t", 0)], options))
    await rounds()
    for client in (plain, fresh):
        client.transport.connection = client.connection
        client.take()
    publisher = Client(broker, "publisher")
    for number in range(64):
        publisher.connection.data_received(wire.publish("t", bytes((number,)) * 1_000, version=5))
    for number in range(64):
        publisher.connection.data_received(wire.publish(f"u/{number}", b"", version=5))
    await rounds()
    assert fresh.transport.most < plain.transport.most
    # One write each; then both transports have had enough.
    assert plain.take().count(b"\0" * 1_000) == 1
    assert fresh.take().count(b"\0" * 1_000) == 1
    assert plain.connection.send_buffer.messages == 63
    assert fresh.connection.send_buffer.messages == 1
    for client in (plain, fresh):
        client.transport.connection = None
        client.connection.resume_writing()
    await rounds(8)
    assert plain.take().count(bytes((62,)) * 1_000) == 1
    told = fresh.take()
    assert bytes((63,)) * 1_000 in told
    assert b"62;replaced-by-latest" in told
    # Without that subscription as much is written ahead as for the other one.
    fresh.connection.data_received(wire.unsubscribe(2, ["t"]) + wire.subscribe(3, [("v", 0)]))
    for _ in range(2):
        publisher.connection.data_received(wire.publish("v", b"", version=5))
        await rounds()
    assert fresh.transport.most == plain.transport.most
