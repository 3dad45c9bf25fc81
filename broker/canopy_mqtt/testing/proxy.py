"""The wire between the clients of a test and its broker, which can be made to fail.

Owns a listener and, for each client, a `ProxiedConnection`: two connections and a `Flow` in each direction. A flow
reads whole packets by the core's codec, asks the faults about each, and passes the bytes on as they came. Bytes that
are no MQTT pass as they are, and so does all that follows. Everything runs in the broker's loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from canopy_mqtt.core.codec import encoder, properties
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import Connack, Connect, Packet, Publish
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.sockets import stop_listening

BUFFER: Final = 65_536
"""Bytes that wait for a slow link, and of the system's buffers towards the broker: the broker is to notice soon."""

TICK: Final = 0.02
"""Seconds' worth of bytes that a slow link passes at once."""

RESET: Final = struct.pack("ii", 1, 0)


class ConnectionFault:
    """A fault of one connection: `start` begins it, `stop` heals it. `client_id` None: the next connection's."""

    def __init__(
        self,
        client_id: str | None,
        start: Callable[[ProxiedConnection], None],
        stop: Callable[[ProxiedConnection], None],
    ) -> None:
        self.client_id = client_id
        self.happened = 0
        self._start = start
        self._stop = stop
        self._link: ProxiedConnection | None = None

    def bind(self, link: ProxiedConnection) -> None:
        """Use this connection for the fault."""
        self._link = link
        self.happened += 1
        self._start(link)

    def end(self) -> None:
        """Heal the connection, if it is still there."""
        if self._link is not None and not self._link.over:
            self._stop(self._link)


class PacketInTransit(NamedTuple):
    """A packet that is about to be passed."""

    flow: Flow
    packet: Packet
    frame: bytes


class PacketFault:
    """A fault of single packets: of those that it counts, the `nth` and the `count - 1` after it.

    `client_id` None: any client's. `down`: packets from the broker.
    """

    def __init__(
        self,
        client_id: str | None,
        down: bool,
        counts: Callable[[PacketInTransit], bool],
        nth: int = 1,
        count: int = 1,
    ) -> None:
        """`counts`: whether a packet is one of those that are counted."""
        if nth < 1 or count < 1:
            raise ValueError("nth and count are 1 or more")
        self.client_id = client_id
        self.happened = 0
        self._down = down
        self._counts = counts
        self._nth = nth
        self._count = count
        self._seen = 0

    def takes(self, passing: PacketInTransit) -> bool:
        """Act on this packet if it is the fault's turn; True: the packet is dealt with and must not be passed on."""
        flow = passing.flow
        if flow.down is not self._down or (self.client_id is not None and flow.link.client_id != self.client_id):
            return False
        if not self._counts(passing):
            return False
        self._seen += 1
        if not self._nth <= self._seen < self._nth + self._count:
            return False
        self.happened += self.act(passing)
        return True

    def act(self, passing: PacketInTransit) -> int:
        """Act on a packet whose turn has come. Returns 1, or 0 if it does not count yet."""
        raise NotImplementedError

    def end(self) -> None:
        """Called when the fault will not be asked again."""


class Flow:
    """The bytes from one side of a link to the other. `down`: from the broker to the client."""

    def __init__(self, link: ProxiedConnection, down: bool, most: int) -> None:
        """`most`: bytes of the largest packet that is looked into."""
        self.link = link
        self.down = down
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.decoder = Decoder(most, not down)
        # Bytes that have passed, and how many may until the link is cut; -1: all.
        self.passed = 0
        self.cut_after = -1
        self.cut_reset = True
        # A slow link: bytes a second (0: any number), and seconds that each byte takes.
        self.rate = 0.0
        self.latency = 0.0
        self._free_at = 0.0
        # What is on its way, with when it arrives; None: the end of the connection.
        self._line: deque[tuple[float, bytes | None]] = deque()
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self.frozen = False
        self._transparent = False
        # Why the source is not read from at present.
        self._held: set[str] = set()

    def feed(self, data: bytes) -> None:
        """Take bytes that have come from the source."""
        if self._transparent:
            self.put(data)
            return
        decoder = self.decoder
        decoder.feed(data)
        while not self.link.over:
            try:
                if not decoder.next_frame():
                    return
            except ProtocolError:
                self._transparent = True
                self.put(decoder.begun())
                return
            frame = decoder.buffer[decoder.start : decoder.end]
            try:
                packet = decoder.packet()
            except ProtocolError:
                self.put(frame)
                continue
            self.link.meet(self, packet, frame)

    def put(self, data: bytes) -> None:
        """Pass bytes on, as fast as the connection is."""
        now = self.link.loop.time()
        if self.rate:
            size = max(1, int(self.rate * TICK))
            for at in range(0, len(data), size):
                piece = data[at : at + size]
                self._free_at = max(now, self._free_at) + len(piece) / self.rate
                self._queue(self._free_at + self.latency, piece)
        elif self.latency or self._line or self.frozen:
            self._queue(now + self.latency, data)
        else:
            self._write(data)
            return
        self._pump()

    def finish(self) -> None:
        """End the sink when it has got all that came before the end of the source."""
        self._line.append((0.0, None))
        self._pump()

    def freeze(self) -> None:
        """Read nothing, pass nothing, not even that the source ends."""
        self.frozen = True
        self.hold("frozen")

    def thaw(self) -> None:
        """Go on, at full speed."""
        self.frozen = False
        self.rate = self.latency = self._free_at = 0.0
        self._line = deque((0.0, data) for _, data in self._line)
        self.release("frozen")
        self._pump()

    def hold(self, reason: str) -> None:
        """Stop reading from the source, for this reason."""
        self._held.add(reason)
        if self.source is not None and not self.source.is_closing():
            self.source.pause_reading()

    def release(self, reason: str) -> None:
        """Read again, if there is no other reason against it."""
        self._held.discard(reason)
        if not self._held and self.source is not None and not self.source.is_closing():
            self.source.resume_reading()

    def close(self) -> None:
        """Close both transports of the flow."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._line.clear()
        self.decoder.clear()

    def _queue(self, at: float, data: bytes) -> None:
        self._line.append((at, data))
        self._waiting += len(data)
        if self._waiting > BUFFER:
            self.hold("line")

    def _pump(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self.link.loop.time()
        while self._line and not self.frozen and not self.link.over:
            at, data = self._line[0]
            if at > now:
                self._timer = self.link.loop.call_at(at, self._pump)
                return
            self._line.popleft()
            if data is None:
                if self.sink is not None:
                    self.sink.close()
                return
            self._waiting -= len(data)
            self._write(data)
        if "line" in self._held and self._waiting <= BUFFER // 2:
            self.release("line")

    def _write(self, data: bytes) -> None:
        if self.sink is None or self.sink.is_closing():
            return
        if self.cut_after >= 0:
            data = data[: self.cut_after]
            self.cut_after -= len(data)
        self.sink.write(data)
        self.passed += len(data)
        if self.cut_after == 0:
            self.link.cut(self.cut_reset)


class Side(asyncio.Protocol):
    """One of the two connections of a link: what it reads goes into `reads`, what it is written comes from `writes`."""

    def __init__(self, link: ProxiedConnection, reads: Flow, writes: Flow) -> None:
        self._link = link
        self._reads = reads
        self._writes = writes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._reads.source = self._writes.sink = transport
        # In the next round: asyncio of Python 3.11.2 begins to read after this call, even if the call pauses reading.
        self._link.loop.call_soon(self._link.joined, self._reads)

    def data_received(self, data: bytes) -> None:
        self._reads.feed(data)

    def pause_writing(self) -> None:
        self._writes.hold("full")

    def resume_writing(self) -> None:
        self._writes.release("full")

    def connection_lost(self, error: Exception | None) -> None:
        self._link.lost(self._reads, error)


class ProxiedConnection:
    """One client's connection through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.loop = proxy.loop
        self.proxy = proxy
        self.up = Flow(self, False, proxy.max_packet_size)
        self.down = Flow(self, True, proxy.max_packet_size)
        self.client_id = ""
        self.version = 0
        self.over = False
        self._left = 0
        # Topics by alias, of the client's; those that the broker has not been told of.
        self.aliases: dict[int, str] = {}
        self.untold: dict[int, str] = {}

    def joined(self, flow: Flow) -> None:
        """Called when one side is connected. The client's is read from when the broker's is there."""
        if not flow.down:
            self.proxy.accepted(self)
            flow.hold("opening")

    def opened(self) -> None:
        """Called when both sides are connected."""
        self.up.release("opening")
        # A fault may have come before there was anything to hold.
        for flow in (self.up, self.down):
            if flow._held:
                flow.hold(next(iter(flow._held)))

    def meet(self, flow: Flow, packet: Packet, frame: bytes) -> None:
        """Learn from a packet that is about to be passed, and offer it to the faults first."""
        if isinstance(packet, Connect):
            self.version = self.down.decoder.version = packet.version
            self._named(packet.client_id)
        elif isinstance(packet, Connack):
            assigned = packet.properties.strings.get(properties.ASSIGNED_CLIENT_IDENTIFIER)
            if assigned:
                self._named(assigned)
        elif isinstance(packet, Publish) and not flow.down and packet.topic_alias:
            if packet.topic:
                self.aliases[packet.topic_alias] = packet.topic.decode()
                self.untold.pop(packet.topic_alias, None)
            elif packet.topic_alias in self.untold:
                # A publish that the broker never saw had set this alias.
                packet.topic = self.untold.pop(packet.topic_alias).encode()
                frame = encoder.publish(packet, self.version)
        passing = PacketInTransit(flow, packet, frame)
        for fault in self.proxy.packet_faults:
            if fault.takes(passing):
                self.proxy.changed()
                return
        flow.put(frame)

    def topic_of(self, packet: Publish) -> str:
        """The topic of a client's publish, also where it is an alias."""
        return packet.topic.decode() if packet.topic else self.aliases.get(packet.topic_alias, "")

    def _named(self, client_id: str) -> None:
        self.client_id = client_id
        if client_id:
            self.proxy.clients[client_id] = self
        self.proxy.named(self)

    def freeze(self) -> None:
        """Pass nothing in either direction, and tell neither side of the end of the other."""
        self.up.freeze()
        self.down.freeze()

    def heal(self) -> None:
        """Pass everything again, at full speed."""
        for flow in (self.up, self.down):
            flow.cut_after = -1
            flow.thaw()

    @property
    def silent(self) -> bool:
        """True if one side would not learn that the other has ended."""
        return self.up.frozen or self.down.frozen

    def cut(self, reset: bool = True) -> None:
        """End both connections: with a reset, what is under way is lost; without, each side reads what it was sent."""
        if self.over:
            return
        self.over = True
        for transport in (self.up.source, self.up.sink):
            if transport is None:
                continue
            if reset and transport.get_write_buffer_size() == 0:
                if not transport.is_closing():
                    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                transport.abort()
            else:
                transport.close()
        self._end()

    def abort(self) -> None:
        """Close everything at once."""
        self.over = True
        for transport in (self.up.source, self.up.sink):
            if transport is not None:
                transport.abort()
        self._end()

    def lost(self, flow: Flow, error: Exception | None) -> None:
        """Called when the side that this flow reads from has ended."""
        if self.over:
            return
        self._left += 1
        other = self.down if flow is self.up else self.up
        if self._left == 2 or other.source is None:
            self.over = True
            self._end()
        elif isinstance(error, ConnectionError):
            self.cut()
        else:
            flow.finish()

    def _end(self) -> None:
        self.up.close()
        self.down.close()
        self.proxy.ended(self)


class Proxy:
    """A listener on 127.0.0.1 whose connections go on to the broker. Its port stays over restarts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        """`changed` is called when something has happened to a link or a fault."""
        self.loop = loop
        self.changed = changed
        self.port = 0
        self.max_packet_size = 0
        self.links: set[ProxiedConnection] = set()
        self.clients: dict[str, ProxiedConnection] = {}
        self.packet_faults: list[PacketFault] = []
        # Those that wait for their client, or for the next connection, in the order in which they were asked for.
        self.link_faults: list[ConnectionFault] = []
        self._target = 0
        self._server: asyncio.Server | None = None
        self._opening: set[asyncio.Task[None]] = set()

    async def open(self, target: int, max_packet_size: int) -> None:
        """Listen, for a broker on the port `target`."""
        self._target = target
        self.max_packet_size = max_packet_size
        self._server = await self.loop.create_server(self._side, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse new connections; existing ones go on."""
        server, self._server = self._server, None
        if server is not None:
            await stop_listening(server)
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def abort(self) -> None:
        """End all connections at once."""
        for link in list(self.links):
            link.abort()

    def accepted(self, link: ProxiedConnection) -> None:
        """Called when a client has connected."""
        self.links.add(link)
        self._bind(link, None)
        task = self.loop.create_task(self._connect(link))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def named(self, link: ProxiedConnection) -> None:
        """Called when the client identifier of a connection is known."""
        self._bind(link, link.client_id)
        self.changed()

    def ended(self, link: ProxiedConnection) -> None:
        """Called when a connection is over."""
        self.links.discard(link)
        if self.clients.get(link.client_id) is link:
            del self.clients[link.client_id]
        self.changed()

    def begin(self, fault: ConnectionFault) -> None:
        """Begin a fault: now if its client is connected, else when it connects."""
        link = self.clients.get(fault.client_id) if fault.client_id is not None else None
        if link is not None:
            fault.bind(link)
        else:
            self.link_faults.append(fault)

    def _bind(self, link: ProxiedConnection, client_id: str | None) -> None:
        for fault in [fault for fault in self.link_faults if fault.client_id == client_id]:
            self.link_faults.remove(fault)
            fault.bind(link)

    def _side(self) -> Side:
        link = ProxiedConnection(self)
        return Side(link, link.up, link.down)

    async def _connect(self, link: ProxiedConnection) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self.loop.sock_connect(sock, ("127.0.0.1", self._target))
            await self.loop.create_connection(lambda: Side(link, link.down, link.up), sock=sock)
        except BaseException as error:
            sock.close()
            link.abort()
            if not isinstance(error, OSError):
                raise
        else:
            if link.over:
                link.abort()
            else:
                link.opened()
