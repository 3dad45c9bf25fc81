"""Shared by the overload tests: brokers with clients near and far, fast readers, and the daemon seen from outside.

Owns: `Scene` (an embedded broker, a `FaultProxy` in front of it, clients on both ways), `Tap` (a subscriber that reads
as fast as it can, and remembers numbers and times), `serve` (a daemon whose settings suit these tests) and `Watch` (its
`$SYS` values).

Promises: waits are bounded; nothing that a test opened stays open. A message of these tests says who it is:
`stamped(number)` begins with its number and the time at which it was made.

Of an embedded broker it reads the sessions' ledgers, the sums of the queues, and how many messages wait for a client.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Self

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.session.session import Session
from tests.e2e import wire
from tests.e2e.clients.frozen import until
from tests.e2e.faults import FaultProxy, ProxiedConnection
from tests.e2e.wire import Packet, Peer, Properties
from tests.support.daemon import Daemon
from tests.support.losses import dropped_by_cause

SCALE: Final = float(os.environ.get("CANOPY_OVERLOAD_SCALE", "1"))
"""The factor of the big numbers in these tests."""

NEVER: Final = 600.0
"""A time-out in seconds that no test reaches."""

KEPT: Final = 3600
"""Seconds of a session's expiry that no test reaches."""

LOST: Final = "canopy-lost"
"""The user property that tells a subscriber of its losses, `count;cause`."""

PATIENCE: Final = 60.0
"""Seconds until something that goes on at full speed counts as stuck."""

PLUG: Final = bytes(384 * 1024)
"""A payload larger than all that a small link holds: socket buffers, proxy, and what the broker gives a transport."""


def scaled(number: int, least: int = 1) -> int:
    """A big number, to this run's scale."""
    return max(least, round(number * SCALE))


def stamped(number: int, size: int = 0) -> bytes:
    """A payload with its number and time, filled up to `size` bytes."""
    head = b"%d %.6f " % (number, time.monotonic())
    return head + bytes(max(0, size - len(head)))


def number_of(payload: bytes) -> int:
    """The number in a payload made by `stamped`."""
    return int(payload.split(b" ", 1)[0])


def told(packets: Sequence[Packet]) -> dict[str, int]:
    """Return the losses that these messages report, by cause, added up. Each message names a cause once."""
    found: dict[str, int] = {}
    for packet in packets:
        here = set()
        for value in packet.all(wire.USER_PROPERTY):
            assert isinstance(value, tuple)
            name, text = value
            if name == LOST:
                count, _, cause = text.partition(";")
                assert re.fullmatch("[1-9][0-9]*", count), text
                assert cause in DROP_CAUSES, text
                assert cause not in here, f"{cause} twice in one message"
                here.add(cause)
                found[cause] = found.get(cause, 0) + int(count)
    return found


def room_for_files(count: int) -> None:
    """Raise the limit of descriptors for this process and its children; skip if the system does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this system allows {hard} open files, {count} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


at_end: Final[list[Callable[[], None]]] = []
"""The calls that close the connections of a test after it, however it ended, and before the broker stops."""


async def close_all() -> None:
    """Nothing that the test opened stays open."""
    while at_end:
        at_end.pop()()
    # Sockets of closed transports are closed in the next turn.
    for _ in range(3):
        await asyncio.sleep(0)


async def join(
    port: int, client_id: str, *filters: str | tuple[str, int], wishes: Properties = (), **options: Any
) -> Peer:
    """A client that was accepted. Options are those of `wire.connect`; `filters` are subscribed to, with `wishes`."""
    peer = await Peer.join(port, client_id, *filters, wishes=wishes, **options)
    at_end.append(peer.abort)
    return peer


# ---------------------------------------------------------------------------------------------------- embedded brokers


class Far:
    """A client behind the fault proxy."""

    def __init__(self, peer: Peer, link: ProxiedConnection) -> None:
        self.peer = peer
        self.link = link

    def freeze(self) -> None:
        """Read no more."""
        self.link.down.freeze()

    def thaw(self) -> None:
        """Read again."""
        self.link.heal()

    def vanish(self) -> None:
        """As if the machine had lost its power."""
        self.link.freeze()


class Scene:
    """An embedded broker, and the ways to it. Made by the fixture `scene`."""

    def __init__(self, broker: Broker, proxy: FaultProxy) -> None:
        self.broker = broker
        self.proxy = proxy
        self.port = broker.ports[0]
        self._probe: Peer | None = None

    @classmethod
    async def start(
        cls, stack: AsyncExitStack, *, tiny: bool = False, log: Notes | None = None, **sections: Any
    ) -> Scene:
        """A broker with these sections of settings. Its end does not wait for clients that do not read.

        The system holds little for each of its connections; `tiny`: as little as it can.
        """
        sections.setdefault("shutdown", {"flush_timeout": 0.0})
        sections["queue"] = {"stall_timeout": NEVER, **sections.get("queue", {})}
        settings = Settings(listen=("mqtt://127.0.0.1:0",), **sections)
        broker = Broker(settings)
        if log is not None:
            broker.log = log
            broker.log_changed()
        await stack.enter_async_context(broker)
        _small_buffers(broker, 1 if tiny else 16_384)
        proxy = await stack.enter_async_context(FaultProxy(broker.ports[0]))
        return cls(broker, proxy)

    async def join(self, client_id: str, *filters: str | tuple[str, int], **options: Any) -> Peer:
        """A client with a good connection; see `join`."""
        return await join(self.port, client_id, *filters, **options)

    async def join_far(self, client_id: str, *filters: str | tuple[str, int], **options: Any) -> Far:
        """A client behind the proxy. One at a time."""
        number = len(self.proxy.came)
        peer = await join(self.proxy.port, client_id, *filters, **options)
        return Far(peer, await self.proxy.link(number))

    async def probe(self) -> Peer:
        """A client that only asks whether the broker has done what came before."""
        if self._probe is None:
            self._probe = await self.join("probe")
        return self._probe

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Give the broker turns until something holds."""
        await until(what, condition, await self.probe())

    def session(self, client_id: str) -> Session:
        """The session of a client."""
        return self.broker.router.sessions[client_id]

    def send_buffer(self, client_id: str) -> SendBuffer:
        """The queue of a connected client."""
        send_buffer = self.session(client_id).send_buffer
        assert send_buffer is not None
        return send_buffer

    @property
    def waiting(self) -> tuple[int, int]:
        """Messages and bytes in all queues together."""
        totals = self.broker.router.counters.totals
        return totals.messages, totals.bytes

    async def plug(self, far: Far, client_id: str, topic: str, publisher: Peer) -> None:
        """Freeze a client in the middle of a message: one larger than every buffer on the way, of QoS 0.

        From here on what is published for the client waits in its queues, and nothing leaves them.
        """
        send_buffer = self.send_buffer(client_id)
        far.freeze()
        await publisher.publish(topic, PLUG)
        await self.until("the plug is on its way", lambda: send_buffer.messages == 0)
        (connection,) = [found for found in self.broker.connections if found.send_buffer is send_buffer]
        assert connection.stream.transport.get_write_buffer_size() > 0, "the plug went through"


def _small_buffers(broker: Broker, size: int) -> None:
    """Connections inherit what the listener has; left to itself the system holds megabytes for who reads fast."""
    for place in broker.listeners.open:
        for listener in place.sockets:
            with socket.socket(fileno=os.dup(listener.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)


def lost(session: Session) -> dict[str, int]:
    """Return the messages that a session lost, by cause; causes without losses are left out."""
    return {DROP_CAUSES[cause]: count for cause, count in enumerate(dropped_by_cause(session)) if count}


def check_ledger(session: Session, *, offered: int, received: int, queued: int = 0) -> None:
    """offered = delivered + dropped + queued, and delivered is what the client counted."""
    dropped = sum(dropped_by_cause(session))
    found = {
        "offered": session.offered,
        "delivered": session.delivered_in_all(),
        "dropped": dropped,
        "queued": session.queued(),
    }
    expected = {"offered": offered, "delivered": received, "dropped": offered - received - queued, "queued": queued}
    assert found == expected, lost(session)


class Notes:
    """A log that remembers. Each entry: level, event, fields."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        def note(event: str, **fields: Any) -> None:
            self.entries.append((level, event, fields))

        return note

    def is_enabled_for(self, level: int) -> bool:
        """It remembers every level."""
        del level
        return True

    def about(self, client_id: str) -> list[dict[str, Any]]:
        """Entries that name a client."""
        return [
            {"level": level, "event": event, **fields}
            for level, event, fields in self.entries
            if fields.get("client_id") == client_id
        ]


# -------------------------------------------------------------------------------------------------------- fast readers


class Tap(asyncio.Protocol):
    """A client that connects, subscribes, reads as fast as it can, and acknowledges QoS 1.

    It reads payloads made by `stamped`: `numbers` and `ages` (seconds, at arrival) in the order of arrival.
    """

    def __init__(self, version: int, hello: bytes) -> None:
        self.version = version
        self.numbers: list[int] = []
        self.ages: list[float] = []
        self.bytes = 0
        self.ended = False
        self.rate = 0.0
        self.transport: asyncio.Transport
        self._hello = hello
        self._rest = bytearray()
        self._goal = 0
        self._reached = asyncio.Event()
        self._answered = {wire.CONNACK: asyncio.Event(), wire.SUBACK: asyncio.Event(), wire.PINGRESP: asyncio.Event()}

    @classmethod
    async def open(
        cls,
        port: int,
        client_id: str,
        *filters: tuple[str, int],
        version: int = 5,
        small: bool = False,
        reading: bool = True,
        rate: float = 0.0,
        **options: Any,
    ) -> Self:
        """Connected and subscribed. `small`: small socket buffers; not `reading`: frozen after the SUBACK.

        `rate`: bytes a second that it reads from then on; 0: as many as come.
        """
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if small:
                # Before connecting: both sides agree on the scale of the window in the first packets.
                for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                    connection.setsockopt(socket.SOL_SOCKET, option, 4096)
                # Segments of Ethernet: those of the loopback are 64 KiB, and the sender's buffer is forty of them.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1460)
            connection.setblocking(False)
            async with asyncio.timeout(PATIENCE):
                await loop.sock_connect(connection, ("127.0.0.1", port))
        except BaseException:
            connection.close()
            raise
        hello = wire.connect(client_id, version=version, **options)
        if filters:
            hello += wire.subscribe(1, filters, version=version)
        _, tap = await loop.create_connection(lambda: cls(version, hello), sock=connection)
        try:
            async with asyncio.timeout(PATIENCE):
                await tap._answered[wire.SUBACK if filters else wire.CONNACK].wait()
        except BaseException:
            tap.transport.abort()
            raise
        tap.rate = rate
        if not reading:
            tap.freeze()
        return tap

    def freeze(self) -> None:
        """Read no more."""
        self.transport.pause_reading()

    def thaw(self) -> None:
        """Read again, as fast as it can."""
        self.rate = 0.0
        self.transport.resume_reading()

    async def count(self, goal: int) -> None:
        """Until so many messages came."""
        self._goal = goal
        self._reached.clear()
        if len(self.numbers) < goal:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._reached.wait()
            except TimeoutError:
                raise AssertionError(f"{len(self.numbers)} of {goal} messages came") from None

    async def fence(self) -> None:
        """Until everything that the broker had to say before now is here."""
        self._answered[wire.PINGRESP].clear()
        self.transport.write(wire.PING)
        async with asyncio.timeout(PATIENCE):
            await self._answered[wire.PINGRESP].wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        at_end.append(transport.abort)
        transport.write(self._hello)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended = True
        self._reached.set()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self.rate:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(len(data) / self.rate, self.transport.resume_reading)
        rest = self._rest
        rest += data
        self.bytes += len(data)
        at = 0
        acks = bytearray()
        while len(rest) - at >= 2:
            length, start = rest[at + 1], at + 2
            if length > 127:
                length &= 127
                shift = 7
                while start < len(rest):
                    digit = rest[start]
                    start += 1
                    length |= (digit & 127) << shift
                    shift += 7
                    if digit < 128:
                        break
                else:
                    break
            if len(rest) - start < length:
                break
            kind = rest[at] >> 4
            if kind == wire.PUBLISH:
                packet_id = self._message(rest[at], bytes(rest[start : start + length]), now)
                if packet_id:
                    acks += b"\x40\x02" + packet_id
            elif kind in self._answered:
                self._answered[kind].set()
            at = start + length
        del rest[:at]
        if acks:
            self.transport.write(bytes(acks))
        if self._goal and len(self.numbers) >= self._goal:
            self._reached.set()

    def _message(self, first: int, body: bytes, now: float) -> bytes:
        """Book one PUBLISH; its packet identifier where it is to be acknowledged."""
        at = 2 + int.from_bytes(body[:2], "big")
        packet_id = b""
        if first & 6:
            assert first & 6 == 2, "a Tap subscribes with QoS 0 or 1"
            packet_id = body[at : at + 2]
            at += 2
        if self.version == 5:
            length = shift = 0
            while True:
                digit = body[at]
                at += 1
                length |= (digit & 127) << shift
                shift += 7
                if digit < 128:
                    break
            at += length
        number, made, _ = body[at : at + 64].split(b" ", 2)
        self.numbers.append(int(number))
        self.ages.append(now - float(made))
        return packet_id


# ----------------------------------------------------------------------------------------------------------- the daemon


def serve(settings: dict[str, object]) -> Daemon:
    """A `canopy serve` in a process of its own, with these settings and those that tests of overload need."""
    values = {"sys.interval": 0.1, "shutdown.flush_timeout": 0.0, "queue.stall_timeout": NEVER, **settings}
    return Daemon(*[part for name, value in values.items() for part in ("--set", f"{name}={value}")])


class Watch:
    """The `$SYS` values of a broker, as they come."""

    def __init__(self, peer: Peer, topic_filter: str) -> None:
        self.peer = peer
        self.values: dict[str, str] = {}
        self._filter = topic_filter

    @classmethod
    async def open(
        cls, port: int, topic_filter: str = "$SYS/broker/#", *, version: int = 5, client_id: str = "watch"
    ) -> Watch:
        """A client of its own that hears them."""
        peer = await join(port, client_id, version=version)
        assert await peer.subscribe(topic_filter) == (0,)
        return cls(peer, topic_filter)

    async def until(self, what: str, condition: Callable[[dict[str, str]], bool]) -> None:
        """Until the values, by topic below `$SYS/broker/`, are so."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._catch_up()
                while not condition(self.values):
                    self._note(await self.peer.wait_for(wire.PUBLISH))
        except TimeoutError:
            raise AssertionError(f"not within {PATIENCE:g} s: {what}; {self.values}") from None
        # The rest of the same pass over all values: it is retained before the first of it was sent.
        await self.peer.subscribe(self._filter)
        await self._catch_up()

    async def _catch_up(self) -> None:
        for packet in await self.peer.fence():
            self._note(packet)

    def _note(self, packet: Packet) -> None:
        assert packet.kind == wire.PUBLISH
        self.values[packet.topic.removeprefix("$SYS/broker/")] = packet.payload.decode()

    async def open_connections(self, count: int) -> None:
        """Until the broker has so many connections open, this one included."""
        await self.until(f"{count} connections", lambda values: values.get("connections/open") == str(count))

    def number(self, topic: str) -> int:
        """The latest of these values."""
        return int(self.values[topic])
