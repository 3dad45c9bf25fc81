"""Bounds what clients make the broker hold that never finish what they began, or never read their answers."""

from __future__ import annotations

import random
import resource

import pytest

from canopy_mqtt.core.causes import PACKET_TIMEOUT, PARTIAL_PACKETS, PROTOCOL_ERROR
from canopy_mqtt.core.codec.framing import DECODED
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.codec.reason_codes import SUCCESS
from canopy_mqtt.core.hooks import LATER, AccessControl, Origin, Ticket
from canopy_mqtt.core.jobs import TURN_WORK
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.protocol.server_protocol import LARGE_READ
from canopy_mqtt.net.connections.admission import UNACCEPTED_ROOM
from canopy_mqtt.net.connections.connection_table import MAX_SKIPPED, PartialPackets
from canopy_mqtt.net.connections.ends import CLOSE
from canopy_mqtt.net.rounds import LITTLE_BYTES, WAKES
from canopy_mqtt.net.stream import FULL_READ
from canopy_mqtt.net.timers import WheelItem
from tests.e2e import wire
from tests.net.transports import Client, Embed, rounds
from tests.support.gate import Gate


class Known(AccessControl):
    """It knows clients by the user names that they give."""

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        ticket.principal = Principal(user_name=connect.user_name, host=origin.host, authenticator="known")
        return SUCCESS


def begun(size: int) -> bytes:
    """The first half of a PUBLISH whose payload takes `size` bytes."""
    return wire.publish("t", bytes(size))[: size // 2]


# ------------------------------------------------------------------------------------------------------- before CONNECT


async def test_a_stranger_cannot_make_the_broker_hold_much(embed: Embed) -> None:
    """As soon as the fixed header says how long it will be, before any of it is held."""
    broker = await embed()
    client = Client(broker, "", says=b"\x10" + wire.varint(100_000))
    assert client.connection.protocol.close_cause == PROTOCOL_ERROR
    assert client.connection.protocol.decoder.held_size == 0
    longest = Client(broker, "", says=b"\x10" + wire.varint(99_996) + bytes(50_000))
    assert longest.connection.protocol.close_cause == ""


async def test_a_client_that_was_accepted_may_send_more(embed: Embed) -> None:
    broker = await embed(limits={"max_connect_size": 1_000})
    there, source = Client(broker, "there"), Client(broker, "source")
    there.connection.data_received(wire.subscribe(1, [("t", 0)]))
    await rounds()
    there.take()
    source.connection.data_received(wire.publish("t", bytes(200_000)))
    await rounds()
    assert there.take() == wire.publish("t", bytes(200_000))


async def test_a_flood_is_read_once_before_others_have_their_turn(embed: Embed) -> None:
    """uvloop reads a socket up to 32 times in a row while there is more; a read that is not full is the last anyway."""
    broker = await embed()
    client = Client(broker, "flood")
    await rounds()
    packet = wire.publish("nobody", bytes(1_000))
    reading: list[bool] = []
    for more in (-1, 1):
        client.connection.data_received(packet * (FULL_READ // len(packet) + more))
        reading.append(client.transport.reading)
    assert not client.connection.protocol.unfinished
    await rounds()
    assert [*reading, client.transport.reading] == [True, False, True]


@pytest.mark.parametrize(("size", "accepted"), [(0, True), (1_000, False), (2_000, True)])
async def test_how_long_a_connect_may_be(embed: Embed, size: int, accepted: bool) -> None:
    broker = await embed(limits={"max_connect_size": size})
    client = Client(broker, "", says=wire.connect("c", user="u", password=bytes(1_500)))
    await rounds()
    assert client.connection.protocol.accepted is accepted


async def test_authentication_is_held_to_the_same(embed: Embed) -> None:
    """`max_packet_size` bounds it where that is less."""
    broker = await embed(limits={"max_connect_size": 2_000, "max_packet_size": 1_000})
    client = Client(broker, "", says=wire.connect("c", user="u", password=bytes(1_500)))
    assert client.connection.protocol.close_cause == PROTOCOL_ERROR


# ---------------------------------------------------------------------------------------------------- over all clients


async def test_the_oldest_unfinished_packet_goes_first(embed: Embed) -> None:
    """Whoever goes on sending is not the oldest, however much it sends."""
    broker = await embed(limits={"max_partial_bytes": 300_000})
    there = Client(broker, "there")
    there.connection.data_received(begun(60_000))
    trickling = [Client(broker, f"slow{number}") for number in range(8)]
    for client in trickling:
        client.connection.data_received(begun(60_000))
    assert broker.connection_table.partial.bytes == 9 * 30_000
    # It finishes its packet and begins another: now it is the youngest.
    there.connection.data_received(wire.publish("t", bytes(60_000))[30_000:] + begun(60_000))
    late = Client(broker, "late")
    late.connection.data_received(begun(120_000))
    await rounds()
    gone = [client.connection.protocol.close_cause for client in trickling]
    assert gone == [PARTIAL_PACKETS] + [""] * 7
    assert b"\x97" in trickling[0].take()
    assert broker.connection_table.partial.bytes <= 300_000
    for client in (there, late):
        assert not client.transport.aborted
        assert client.connection.protocol.close_cause == ""


async def test_strangers_end_no_upload_of_others(embed: Embed) -> None:
    """A connection costs them nothing, and they are never at their end: who holds most gives way, by address."""
    broker = await embed(limits={"max_partial_bytes": 1_000_000})
    slow = Client(broker, "slow", "192.0.2.1")
    slow.connection.data_received(begun(200_000))
    strangers = [
        Client(broker, "", f"2001:db8::{number:x}", says=wire.connect("c", password=bytes(60_000))[:50_000])
        for number in range(100)
    ]
    assert broker.connection_table.partial.bytes <= 1_000_000
    assert slow.connection.protocol.close_cause == ""
    gone = [client.connection.protocol.close_cause for client in strangers]
    assert gone == [PARTIAL_PACKETS] * 82 + [""] * 18
    slow.connection.data_received(wire.publish("t", bytes(200_000))[100_000:])
    assert slow.connection.protocol.messages_received == 1


async def test_a_user_is_not_ended_for_others_at_its_address(embed: Embed) -> None:
    broker = await embed(limits={"max_partial_bytes": 1_000_000})
    broker.rounds.router.access_control = Known()
    user = Client(broker, "", says=wire.connect("user", user="alice", password=b"p"))
    user.connection.data_received(begun(200_000))
    others = [Client(broker, f"other{number}") for number in range(20)]
    for client in others:
        client.connection.data_received(begun(200_000))
    assert user.connection.protocol.close_cause == ""
    assert [client.connection.protocol.close_cause for client in others] == [PARTIAL_PACKETS] * 11 + [""] * 9


async def test_connects_that_are_decided_on_count_until_they_are(embed: Embed) -> None:
    """For what may have been made of them: a text has up to four bytes for each byte. The oldest goes first."""
    broker = await embed(limits={"max_partial_bytes": 500_000, "packet_timeout": 5})
    broker.rounds.router.access_control = Gate(LATER)
    says = wire.connect("", user="u" * 20_000, password=bytes(30_000), clean=True)
    clients = [Client(broker, "", says=says) for _ in range(10)]
    assert broker.connection_table.partial.bytes <= 500_000
    assert broker.connection_table.partial.bytes == DECODED * len(says) * len(broker.connection_table.partial)
    assert all(len(client.connection.protocol.decoder.buffer) == 0 for client in clients)
    gone = [client.connection.protocol.close_cause for client in clients]
    assert gone == [PARTIAL_PACKETS] * 8 + [""] * 2
    clients[-1].connection.admitted(0)
    assert broker.connection_table.partial.bytes == DECODED * len(says)
    # And nothing of it is incomplete any more, however long it is silent.
    later = broker.loop.time() + 60.0
    clients[-1].connection.check(later)
    assert clients[-1].connection.protocol.close_cause == ""


async def test_who_holds_little_is_not_ended_for_those_who_hold_much(embed: Embed) -> None:
    """Untrusted clients with CONNECTs of 100 kB do not keep others from being decided on, however long that takes."""
    broker = await embed(limits={"max_partial_bytes": 2_000_000})
    broker.rounds.router.access_control = Gate(LATER)
    waiting = [Client(broker, f"c{number}") for number in range(100)]
    says = wire.connect("", user="u" * 45_000, password=bytes(45_000), clean=True)
    hostile = [Client(broker, "", says=says) for _ in range(40)]
    await rounds()
    assert broker.connection_table.partial.bytes <= 2_000_000
    assert broker.connection_table.partial.evicted >= 34
    assert [client.connection.protocol.close_cause for client in waiting] == [""] * 100
    assert hostile[0].connection.protocol.close_cause == PARTIAL_PACKETS


def test_very_many_who_hold_little_hide_nobody_for_long() -> None:
    """One look passes over so many and no more; the next goes on behind them."""
    partial = PartialPackets(1_000_000)
    for _ in range(2 * MAX_SKIPPED):
        partial.update(WheelItem(), 10, True, "address 192.0.2.1")
    large = WheelItem()
    partial.update(large, 990_000, True, "address 192.0.2.1")
    looks = 0
    while partial.bytes > 1_000_000:
        gone = partial.take_oldest()
        looks += 1
    assert large in gone
    assert looks == 2 < partial.evicted


async def test_many_that_trickle(embed: Embed) -> None:
    """A hundred clients with most of a largest packet each: together no more than the bound and one read."""
    broker = await embed(limits={"max_partial_bytes": 2_000_000})
    clients = [Client(broker, f"c{number}") for number in range(100)]
    most = 0
    for at in range(4):
        for client in clients:
            client.connection.data_received(wire.publish("t", bytes(1_000_000))[at * 200_000 : (at + 1) * 200_000])
            held = sum(each.connection.protocol.decoder.held_size for each in clients)
            assert held == broker.connection_table.partial.bytes
            most = max(most, held)
    assert 1_000_000 < most <= 2_200_000
    assert broker.connection_table.partial.evicted >= 90
    assert len(broker.router.peers.send_buffers) == 100 - broker.connection_table.partial.evicted


async def test_no_bound(embed: Embed) -> None:
    broker = await embed(limits={"max_partial_bytes": 0})
    clients = [Client(broker, f"c{number}") for number in range(50)]
    for client in clients:
        client.connection.data_received(begun(900_000))
    assert broker.connection_table.partial.evicted == 0
    assert broker.connection_table.partial.bytes == 50 * 450_000


async def test_the_account_is_exact(embed: Embed) -> None:
    """Packets in pieces of any size, connections that end anyhow: nothing is left over."""
    chance = random.Random(5)
    broker = await embed(limits={"max_partial_bytes": 0, "max_publish_rate": 50.0})
    packets = b"".join(wire.publish("t", bytes(size)) for size in (0, 10, 3_000, 70_000, 0, 0, 500)) + wire.PING * 5
    clients = [Client(broker, f"c{number}") for number in range(10)]
    rest = dict.fromkeys(clients, packets * 3)
    while rest:
        client = chance.choice(list(rest))
        size = chance.choice([1, 2, 7, 1_000, 100_000])
        if client.transport.aborted or chance.random() < 0.005:
            client.connection.connection_lost(None)
            del rest[client]
        elif client.transport.reading:
            client.connection.data_received(rest[client][:size])
            rest[client] = rest[client][size:]
            if not rest[client]:
                client.connection.end(CLOSE, "shutdown", 0x8B)
                del rest[client]
        else:
            client.connection.protocol.held_until = min(client.connection.protocol.held_until, broker.loop.time())
            client.connection.turn(TURN_WORK)
        held = sum(each.connection.protocol.decoder.held_size for each in clients)
        assert broker.connection_table.partial.bytes == held
    assert (broker.connection_table.partial.bytes, len(broker.connection_table.partial)) == (0, 0)


# -------------------------------------------------------------------------------------------------------------- in time


async def test_a_packet_that_is_not_gone_on_with(embed: Embed) -> None:
    """Without a keep alive too; a packet that comes slowly but does come has all the time it takes."""
    broker = await embed(limits={"packet_timeout": 30.0})
    trickling, slow = Client(broker, "trickling"), Client(broker, "slow")
    for client in (trickling, slow):
        client.connection.data_received(begun(200_000)[:100])
    now = broker.loop.time()
    for _ in range(5):
        trickling.connection.data_received(b"x")
        slow.connection.data_received(bytes(LARGE_READ))
    assert 0.0 < trickling.connection.check_at <= now + 31.0
    for client in (trickling, slow):
        client.connection.sign_at -= 29.0
        assert client.connection.check(broker.loop.time()) > 0.0
    slow.connection.data_received(bytes(LARGE_READ))
    assert trickling.connection.protocol.close_cause == slow.connection.protocol.close_cause == ""
    late = broker.loop.time() + 2.0
    trickling.connection.check(late)
    slow.connection.check(late)
    await rounds()
    assert trickling.connection.protocol.close_cause == PACKET_TIMEOUT
    assert b"\x83" in trickling.take()
    assert slow.connection.protocol.close_cause == ""


async def test_between_packets_nobody_is_hurried(embed: Embed) -> None:
    broker = await embed(limits={"packet_timeout": 30.0})
    client = Client(broker, "c")
    client.connection.data_received(wire.PING + wire.PING[:1])
    client.connection.data_received(wire.PING[1:])
    assert client.connection.check(broker.loop.time() + 1e6) == 0.0
    assert client.connection.protocol.close_cause == ""


async def test_no_packet_timeout(embed: Embed) -> None:
    broker = await embed(limits={"packet_timeout": 0.0})
    client = Client(broker, "c")
    client.connection.data_received(begun(1_000))
    assert client.connection.check(broker.loop.time() + 1e6) == 0.0


# ---------------------------------------------------------------------------------------------------------- connections


@pytest.mark.parametrize(
    ("soft", "most"), [(1024, 832), (65_536, 65_344), (300, 150), (1, 1), (resource.RLIM_INFINITY, 0)]
)
async def test_connections_fit_into_the_file_descriptors(
    embed: Embed, soft: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    broker = await embed()
    assert broker.router.limits.max_connections == most
    assert (broker.admission is None) is (most == 0)


async def test_connections_that_say_nothing_keep_nobody_out(embed: Embed) -> None:
    """Where every place is taken, the one that has been silent for longest makes room."""
    broker = await embed(limits={"max_connections": 3})
    there = Client(broker, "there")
    mute = [Client(broker, "", says=b"") for _ in range(2 + UNACCEPTED_ROOM)]
    assert not any(client.transport.aborted for client in mute)
    late = Client(broker, "late")
    await rounds()
    assert late.take()[:4] == b"\x20\x26\x00\x00" or late.connection.protocol.accepted
    assert [client.transport.aborted for client in mute[:3]] == [True, False, False]
    assert not there.transport.aborted
    for client in mute[:1]:
        client.connection.connection_lost(None)
    assert broker.admission is not None
    assert broker.admission.open == 3 + UNACCEPTED_ROOM
    # Clients that were accepted make no room for anybody.
    last = Client(broker, "last")
    assert last.connection.protocol.accepted
    full = Client(broker, "full")
    await rounds()
    assert not full.connection.protocol.accepted
    assert not any(client.transport.aborted for client in (there, late, last))


# -------------------------------------------------------------------------------------------------------------- answers


async def test_a_message_for_very_many_is_written_in_turns(embed: Embed) -> None:
    """Not all of it in the call of whoever published; and whoever comes in between does not wait for the rest."""
    broker = await embed()
    crowd = [Client(broker, "", says=wire.connect(f"c{number}")) for number in range(3 * WAKES)]
    for client in crowd:
        client.connection.data_received(wire.subscribe(1, [("t", 0)]))
    source, other = Client(broker, "source"), Client(broker, "other")
    await rounds(20)
    for client in (*crowd, other):
        client.take()
    frame = wire.publish("t", b"x")
    source.connection.data_received(frame)
    told = [sum(client.transport.written != [] for client in crowd)]
    other.connection.data_received(wire.PING)
    assert other.take() == b"\xd0\x00"
    while broker.rounds.writing:
        await rounds(1)
        told.append(sum(client.transport.written != [] for client in crowd))
    assert told == [WAKES, 2 * WAKES, 3 * WAKES]
    assert all(client.take() == frame for client in crowd)


async def test_what_is_left_of_some_batches_has_its_turn_together(embed: Embed) -> None:
    """Batches for a little more than one turn has room for do not need a further turn each."""
    broker = await embed()
    sources = [Client(broker, f"source{number}") for number in range(3)]
    crowd: list[Client] = []
    for number in range(len(sources)):
        for _ in range(WAKES + 10):
            client = Client(broker, "", says=wire.connect(f"c{len(crowd)}"))
            client.connection.data_received(wire.subscribe(1, [(f"t/{number}", 0)]))
            crowd.append(client)
    await rounds(20)
    for client in crowd:
        client.take()
    for number, source in enumerate(sources):
        source.connection.data_received(wire.publish(f"t/{number}", b"x"))
    assert sum(client.transport.written != [] for client in crowd) == 3 * WAKES
    await rounds(1)
    assert all(len(client.transport.written) == 1 for client in crowd)
    assert not broker.rounds.writing


async def test_whoever_is_woken_finds_room(embed: Embed) -> None:
    """A burst of some kilobytes for very many: nobody is woken to write only to be put off to another round."""
    broker = await embed()
    crowd = [Client(broker, "", says=wire.connect(f"c{number}")) for number in range(5 * WAKES)]
    for client in crowd:
        client.connection.data_received(wire.subscribe(1, [("t", 0)]))
    source = Client(broker, "source")
    await rounds(20)
    for client in crowd:
        client.take()
    burst = wire.publish("t", b"x" * 64) * (LITTLE_BYTES // 64)
    assert len(burst) > LITTLE_BYTES
    source.connection.data_received(burst)
    while True:
        assert not any(client.connection.waits_to_write for client in crowd)
        if not broker.rounds.writing and not source.connection.protocol.unfinished:
            break
        await rounds(1)
    await rounds(20)
    assert all(client.take() == burst for client in crowd)


async def test_who_publishes_to_very_many_waits_for_them(embed: Embed) -> None:
    """A read of many messages: none is routed while those whom the last ones reached are not written to."""
    broker = await embed()
    crowd = [Client(broker, "", says=wire.connect(f"c{number}")) for number in range(4 * WAKES)]
    for client in crowd:
        client.connection.data_received(wire.subscribe(1, [("t", 0)]))
    source = Client(broker, "source")
    await rounds(20)
    for client in crowd:
        client.take()
    count = 8 * TURN_WORK // len(crowd)
    source.connection.data_received(wire.publish("t", b"x") * count)
    most = 0
    while source.connection.protocol.unfinished or broker.rounds.writing:
        most = max(most, *(client.connection.send_buffer.messages for client in crowd))
        await rounds(1)
    # No more than two turns, each of which may end with a run of messages that is taken whole.
    assert most <= count * 5 // 8
    await rounds(20)
    assert all(client.take() == wire.publish("t", b"x") * count for client in crowd)
