"""Clients that do not keep up, or do not mean to: nobody else pays for them, and what is lost is counted.

The broker is embedded, so that its queues can be looked at; all else goes over sockets.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from broker.core.counters import DISCONNECTED, DROP_CAUSES, FULL_BYTES, FULL_MESSAGES
from broker.core.queues.live.outbox import CONTROL_LIMIT
from canopy import Broker
from tests.e2e import wire
from tests.e2e.clients.frozen import Frozen, until
from tests.e2e.embedded import (
    KEPT,
    NEVER_STALLED,
    PAYLOAD,
    Embed,
    join,
    outbox_of,
)
from tests.e2e.wire import Peer, Will
from tests.support.losses import dropped_by_cause

SOON = 0.8
"""A stall time-out in seconds that tests wait for."""


# A read of the event loop is 256 KiB at most; the smallest PUBLISH here has 10 bytes, its PUBACK 4.
ONE_READ = 262_144


async def fill(broker: Broker, frozen_id: str, publisher: Peer, readers: list[Peer], *, qos: int = 0) -> int:
    """Publish at the pace of those who read, until the frozen client's queue is full; how many messages that took.

    Each reader has to get every message. The frozen client's bounds hold all the time.
    """
    outbox = outbox_of(broker, frozen_id)
    session = broker.router.sessions[frozen_id]
    count = 0
    while not any(dropped_by_cause(session)):
        assert count < 5000, "the frozen client's queue is never full"
        for _ in range(10):
            count += 1
            assert await publisher.publish("load", b"%d " % count + PAYLOAD, qos=qos) == 0
            assert outbox.messages <= broker.settings.queue.live_messages
            assert outbox.bytes <= broker.settings.queue.live_bytes
        for reader in readers:
            for number in range(count - 9, count + 1):
                found = await reader.message()
                assert found.payload.split(b" ", 1)[0] == b"%d" % number
    return count


@pytest.mark.parametrize(
    ("queue", "cause"),
    [
        ({"live_messages": 20}, FULL_MESSAGES),
        ({"live_bytes": 100_000}, FULL_BYTES),
    ],
    ids=["messages", "bytes"],
)
async def test_a_frozen_subscriber_costs_its_bounds_and_nobody_else(
    embed: Embed, queue: dict[str, int], cause: int
) -> None:
    broker = await embed(queue={"stall_timeout": NEVER_STALLED, **queue}, sys={"interval": 0.2})
    await Frozen.join(broker.ports[0], wire.connect("frozen", keep_alive=0), ("load", 0))
    healthy = [await join(broker, f"healthy{number}", "load") for number in range(3)]
    publisher = await join(broker, "publisher")
    count = await fill(broker, "frozen", publisher, healthy)

    session = broker.router.sessions["frozen"]
    assert session.offered + outbox_of(broker, "frozen").queue.offered >= count
    dropped = dropped_by_cause(session)
    assert dropped[cause] > 0
    assert sum(dropped) == dropped[cause]
    # The broker tells how many, and why.
    watcher = await join(broker, "watcher", f"$SYS/broker/messages/dropped/{DROP_CAUSES[cause]}")
    while int((await watcher.message()).payload) != dropped[cause]:
        pass


@pytest.mark.parametrize("expiry", [0, KEPT], ids=["session ends", "session kept"])
async def test_a_frozen_subscriber_is_evicted(embed: Embed, expiry: int) -> None:
    """After the stall time-out: its Will is published, its session kept as its expiry says, and its socket is gone."""
    broker = await embed(queue={"stall_timeout": SOON, "live_messages": 20}, sys={"interval": 0.2})
    will = Will("wills", b"stalled")
    connect = wire.connect("frozen", keep_alive=0, will=will, props=[(wire.SESSION_EXPIRY, expiry)])
    frozen = await Frozen.join(broker.ports[0], connect, ("load", 0), ("wanted", 1))
    reader = await join(broker, "reader", "load")
    publisher = await join(broker, "publisher")
    watcher = await join(broker, "watcher", "wills")
    await fill(broker, "frozen", publisher, [reader])
    assert (await watcher.message()).payload == b"stalled"
    assert "frozen" not in [session.client_id for session in broker.router.peers.outboxes]
    await until("the socket is gone", lambda: len(broker.connections) == 3, publisher)
    assert broker.router.counters.dropped[DISCONNECTED] >= 20

    await publisher.publish("wanted", b"kept", qos=1)
    # What the dead socket still holds is data, then its end.
    await frozen.read_to_end()
    back = await join(broker, "frozen", clean=False)
    assert back.connack.session_present is (expiry > 0)
    if expiry:
        assert (await back.message()).payload == b"kept"


@pytest.mark.parametrize(
    ("cut", "why"), [(False, "it has read nothing"), (True, "its machine has acknowledged nothing")]
)
async def test_the_log_says_that_the_broker_ended_a_stalled_subscriber(
    embed: Embed, caplog: pytest.LogCaptureFixture, cut: bool, why: str
) -> None:
    """Never `connection-lost`, which is what the system's own time-out would make of it; and whose fault it may be."""
    caplog.set_level(logging.INFO, "canopy")
    broker = await embed(queue={"stall_timeout": SOON, "live_messages": 20}, sys={"interval": 0.0})
    frozen = await Frozen.join(broker.ports[0], wire.connect("frozen", keep_alive=0), ("load", 0))
    reader = await join(broker, "reader", "load")
    publisher = await join(broker, "publisher")
    if cut:
        frozen.cut()
    await fill(broker, "frozen", publisher, [reader])
    await until("the socket is gone", lambda: len(broker.connections) == 2, publisher)
    (ended,) = [
        record
        for record in caplog.records
        if getattr(record, "fields", {}).get("client_id") == "frozen" and "cause" in record.__dict__["fields"]
    ]
    assert ended.levelno == logging.WARNING
    fields = ended.__dict__["fields"]
    assert (ended.__dict__["event"], fields["cause"]) == ("client evicted", "stalled")
    assert fields["detail"].startswith(why)
    assert broker.connection_table.ends["stalled"] == 1


async def test_a_frozen_subscriber_that_only_gets_a_little_is_not_evicted(embed: Embed) -> None:
    """A client that has nothing to take is not stalled, however long it says nothing."""
    broker = await embed(queue={"stall_timeout": 0.2}, sys={"interval": 0.0})
    quiet = await Frozen.join(broker.ports[0], wire.connect("quiet", keep_alive=0), ("load", 0))
    publisher = await join(broker, "publisher")
    clock = await join(broker, "clock", "clock")
    await publisher.publish("load", b"a little")
    ticking = await join(
        broker, "ticking", will=Will("clock", b"", properties=[(wire.WILL_DELAY, 1)]), props=[(wire.SESSION_EXPIRY, 9)]
    )
    ticking.abort()
    await clock.message()
    assert "quiet" in broker.router.sessions
    thawed = await quiet.thaw()
    assert [packet.payload for packet in await thawed.fence()] == [b"a little"]


async def test_a_slow_subscriber_is_not_evicted_and_loses_nothing(embed: Embed) -> None:
    """Progress, however slow, is no stall: a megabyte taken in small sips over several stall time-outs."""
    broker = await embed(
        queue={"stall_timeout": 0.5, "live_messages": 5, "hold_publishers": 0.0}, sys={"interval": 0.0}
    )
    slow = await Frozen.join(broker.ports[0], wire.connect("slow", keep_alive=0), ("load", 1))
    publisher = await join(broker, "publisher")
    count = 600
    for number in range(count):
        assert await publisher.publish("load", b"%d " % number + PAYLOAD[:8000], qos=1) == 0
    loop = asyncio.get_running_loop()
    started = loop.time()
    taken = bytearray()
    async with asyncio.timeout(wire.TIMEOUT):
        while loop.time() < started + 4 * broker.settings.queue.stall_timeout:
            taken += await loop.sock_recv(slow.socket, 4096)
            await asyncio.sleep(0.02)  # this is what makes it slow
    assert "slow" in broker.router.sessions
    # The rest at full speed, with its acknowledgements.
    numbers: list[int] = []
    async with asyncio.timeout(wire.TIMEOUT):
        while len(numbers) < count:
            for packet_id, payload in _publishes(taken):
                numbers.append(int(payload.split(b" ", 1)[0]))
                await loop.sock_sendall(slow.socket, wire.ack(wire.PUBACK, packet_id))
            if len(numbers) < count:
                data = await loop.sock_recv(slow.socket, 65_536)
                assert data, f"closed after {len(numbers)} of {count} messages"
                taken += data
    assert numbers == list(range(count))


def _publishes(buffer: bytearray) -> list[tuple[int, bytes]]:
    """Packet identifier and payload of each whole QoS 1 PUBLISH at the start of a buffer, which is used up."""
    found = []
    while len(buffer) > 5:
        length = shift = 0
        at = 1
        while True:
            digit = buffer[at]
            length |= (digit & 0x7F) << shift
            shift += 7
            at += 1
            if not digit & 0x80:
                break
        if len(buffer) < at + length:
            break
        assert buffer[0] & 0xF6 == 0x32, buffer[:8].hex()
        packet = wire.parse(wire.PUBLISH, buffer[0] & 15, bytes(buffer[at : at + length]), 5)
        assert packet.packet_id is not None
        found.append((packet.packet_id, packet.payload))
        del buffer[: at + length]
    return found


@pytest.mark.parametrize("kind", ["PUBLISH", "PINGREQ", "SUBSCRIBE"])
async def test_who_does_not_read_answers_is_not_read_from(embed: Embed, kind: str) -> None:
    """Acknowledgements are never dropped, so the client that causes them without end has to wait; no other has."""
    broker = await embed(queue={"stall_timeout": NEVER_STALLED})
    flooder = await Frozen.join(broker.ports[0], wire.connect("flooder", version=4, keep_alive=0), version=4)
    other = await join(broker, "other", "news")
    requests = {
        "PUBLISH": [wire.publish("flood", b"", version=4, qos=1, packet_id=1 + i % 1000) for i in range(1000)],
        "PINGREQ": [wire.PING] * 1000,
        "SUBSCRIBE": [wire.subscribe(1 + i, [("flood", 0)], version=4) for i in range(1000)],
    }[kind]
    size = len(requests[0])
    answer = 2 if kind == "PINGREQ" else 5 if kind == "SUBSCRIBE" else 4
    block = b"".join(requests)
    start = flooder.sent
    outbox = outbox_of(broker, "flooder")
    (connection,) = [found for found in broker.connections if found.outbox is outbox]

    def pending() -> int:
        return outbox.queue.control_bytes + connection.stream.transport.get_write_buffer_size()

    bound = CONTROL_LIMIT + ONE_READ // size * answer + 2 * broker.settings.queue.write_batch_bytes
    rest = block
    blocked = 0
    async with asyncio.timeout(3 * wire.TIMEOUT):
        while blocked < 20 or not (outbox.congested or connection.protocol.throttled):
            assert flooder.sent < 50_000_000, "the broker reads without end from a client that does not read"
            went = flooder.push(rest)
            rest = rest[went:] or block
            # Served while the flood is on, and the reason why the broker has had its turn.
            await other.fence()
            assert pending() <= bound
            blocked = 0 if went else blocked + 1
    await other.publish("news", b"still served")
    assert [packet.payload for packet in await other.fence()] == [b"still served"]

    # Once it reads, every request is answered.
    flooder.widen()
    if rest is block:
        rest = b""
    expected = (flooder.sent - start + len(rest)) // size
    writing = asyncio.create_task(flooder.send(rest))
    answers = await flooder.read(expected * answer)
    await writing
    kinds = {"PUBLISH": wire.PUBACK, "PINGREQ": wire.PINGRESP, "SUBSCRIBE": wire.SUBACK}
    assert {answers[at] >> 4 for at in range(0, len(answers), answer)} == {kinds[kind]}


async def test_who_never_reads_answers_is_evicted(embed: Embed) -> None:
    broker = await embed(queue={"stall_timeout": SOON})
    connect = wire.connect("flooder", version=4, keep_alive=0, will=Will("wills", b"stalled"))
    flooder = await Frozen.join(broker.ports[0], connect, version=4)
    watcher = await join(broker, "watcher", "wills")
    outbox = outbox_of(broker, "flooder")
    block = wire.PING * 1000
    rest = block
    while not outbox.congested:
        rest = rest[flooder.push(rest) :] or block
        await watcher.send(wire.PING)
        await watcher.wait_for(wire.PINGRESP)
    assert (await watcher.message()).payload == b"stalled"
    await until("the socket is gone", lambda: len(broker.connections) == 1, watcher)


HALF_A_CONNECT = wire.connect("half")[:-2]


@pytest.mark.parametrize("data", [b"", b"\x10", HALF_A_CONNECT], ids=["nothing", "one byte", "half a CONNECT"])
async def test_a_half_open_connection_is_closed(embed: Embed, data: bytes) -> None:
    """[MQTT-3.1.4-5] leaves the time to the server: `limits.connect_timeout`."""
    broker = await embed(limits={"connect_timeout": 0.3})
    mute = [await Frozen.open(broker.ports[0]) for _ in range(20)]
    for connection in mute:
        await connection.send(data)
    other = await join(broker, "other")
    await until("all connections were made", lambda: len(broker.connections) == 21, other)
    for connection in mute:
        assert await connection.read_to_end() == b""
        connection.close()
    await until("their sockets are gone", lambda: len(broker.connections) == 1, other)
    assert list(broker.router.sessions) == ["other"]


async def test_dripping_bytes_do_not_keep_a_connection_half_open(embed: Embed) -> None:
    broker = await embed(limits={"connect_timeout": 0.3})
    other = await join(broker, "other")
    dripping = await Frozen.open(broker.ports[0])
    await dripping.send(b"\x10\xff\xff\x03")
    ended = asyncio.create_task(dripping.read_to_end())
    async with asyncio.timeout(wire.TIMEOUT):
        while not ended.done():
            try:
                dripping.push(b"\x00")
            except (ConnectionResetError, BrokenPipeError):
                break
            await other.fence()
    assert await ended == b""


async def test_a_frozen_client_that_is_never_read_from_again_is_reset_after_a_takeover(embed: Embed) -> None:
    """The old socket does not linger when nobody takes what it holds."""
    broker = await embed(queue={"stall_timeout": NEVER_STALLED, "live_messages": 50}, sys={"interval": 0.0})
    await Frozen.join(broker.ports[0], wire.connect("twin", keep_alive=0), ("load", 0))
    publisher = await join(broker, "publisher")
    await fill(broker, "twin", publisher, [])
    newcomer = await join(broker, "twin")
    await until("the old socket is gone", lambda: len(broker.connections) == 2, publisher)
    await newcomer.fence()
