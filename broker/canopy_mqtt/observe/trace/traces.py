"""The traces of one broker: starts and ends them, and selects the connections that they watch.

Owns the masks that tell a connection which traces want its packets (`packet_watch`). Without a trace, no connection
knows of this, and a connect costs one comparison. A client's CONNECT is traced too: while a trace waits for a client,
each new connection is watched until its client is known.

Promises: a trace ends by its time, by its size, or with the broker; when it begins or ends, it visits the connections
in turns. A fault here ends the watching of one connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import V311, Subscribe, Unsubscribe
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import matches, overlaps, parse_shared, validate_filter
from canopy_mqtt.core.refusals import KINDS, SUBSCRIBE, Refusal, RefusalListener, Refused
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.connection_table import ConnectionObserver
from canopy_mqtt.net.connections.ends import GONE
from canopy_mqtt.observe.trace.entries import (
    CLOSED,
    OPENED,
    PACKET,
    REFUSED,
    Denied,
    Entry,
    Kind,
    State,
    Trace,
    TracedConnection,
)
from canopy_mqtt.observe.trace.masking import masked
from canopy_mqtt.observe.trace.packet_watch import MARKED, PacketSink, PacketWatch
from canopy_mqtt.observe.trace.trace_files import save

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server
    from canopy_mqtt.observe.spans import Spans
    from canopy_mqtt.settings import Tracing

MAX_TRACES: Final = 8
"""Kept traces, running ones included, so that `tracing.max_bytes` bounds the memory of all. A further one replaces the
oldest ended one."""

PACKET_BYTES: Final = 65_536
"""Bytes that are kept of one packet; the rest of a longer one is missing. The trace's own bound holds for all
packets."""

BITS: Final = 60
"""Bits of a mask, and so the number of traces that can be told apart."""

TURN: Final = 64
"""Connections that are visited in one turn: half a millisecond."""

EARLY_PACKETS: Final = 32
"""Packets that are kept of a connection whose client is not known yet: a client may send on behind its CONNECT without
waiting."""

MAX_FILTERS_BYTES: Final = 2_048
"""Bytes of a SUBSCRIBE or UNSUBSCRIBE up to which its filters are checked: 500 filters, half a millisecond for each
trace. A longer one counts as about every topic."""

MAX_VALUE_LENGTH: Final = 65_535
"""Characters of a client identifier or a topic filter (section 1.5.4)."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class TraceError(ValueError):
    """A trace cannot begin; the text gives the reason in one line."""


class TraceExists(TraceError):
    """A trace of this name exists."""


class Traces(ConnectionObserver):
    """The traces of one broker, by name."""

    def __init__(self, broker: Server) -> None:
        self._broker = broker
        self._settings = broker.settings.tracing
        self.all: dict[str, Trace] = {}
        # Those that run, by their bits; bits of traces that have ended and of which some connections know still.
        self._running: dict[int, Trace] = {}
        self._fading = 0
        self._networks: dict[int, Network] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._known: dict[bytes, int] = {}
        self._tracers: dict[Connection, ConnectionTracer] = {}
        self._met = self._begun = 0
        self._tasks: set[asyncio.Task[None]] = set()
        # Makes spans of messages that carry a trace context; from the broker's start on, or None.
        self.spans: Spans | None = None
        self._sink = RefusalSink(broker.router, self._tracers, self.failed)

    def change(self, settings: Tracing) -> None:
        """Apply other bounds from now on; a running trace keeps its own."""
        self._settings = settings

    def set_spans(self, spans: Spans) -> None:
        """Let spans watch all connections; there are no connections yet."""
        self.spans = spans
        self._broker.connection_table.observer = self

    # -- what an operator asks for -------------------------------------------------------------------------------------

    def start(
        self, kind: Kind, value: str, name: str = "", seconds: float | None = None, max_bytes: int | None = None
    ) -> Trace:
        """Begin a trace of a client, a topic filter, or an address or network.

        `seconds` and `max_bytes` are no more than the settings allow, which is what None asks for.

        Raises:
            TraceError: the subject is invalid, or there are too many traces.
        """
        settings = self._settings
        network = _checked(kind, value)
        self._begun += 1
        name = name or f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{self._begun}"
        if not _NAME.match(name):
            raise TraceError("a name has 1 to 64 letters, digits, dots, hyphens and underscores")
        if name in self.all:
            raise TraceExists(f"there is a trace {name} already")
        seconds = settings.max_seconds if seconds is None else seconds
        if not 0 < seconds <= settings.max_seconds:
            raise TraceError(f"a trace lasts more than 0 and at most {settings.max_seconds:g} seconds")
        max_bytes = settings.max_bytes if max_bytes is None else max_bytes
        if not 0 < max_bytes <= settings.max_bytes:
            raise TraceError(f"a trace has at most {settings.max_bytes} bytes")
        bit = self._reserve_bit()
        trace = Trace(name, kind, value, seconds, max_bytes, bit)
        self.all[name] = trace
        self._running[bit] = trace
        if network is not None:
            self._networks[bit] = network
        self._known.clear()
        self._broker.connection_table.observer = self
        self._broker.router.counters.refusals.listener = self._sink
        self._timers[name] = self._broker.loop.call_later(seconds, self.end, trace, "time over")
        self._broker.log.info(
            "trace started", trace=name, type=kind, value=value[:256], seconds=seconds, max_bytes=max_bytes
        )
        self._visit(self._broker.connections)
        return trace

    def stop(self, name: str) -> Trace:
        """End a trace and keep its packets. Raises KeyError if it does not exist."""
        trace = self.all[name]
        self.end(trace, "stopped")
        return trace

    def remove(self, name: str) -> None:
        """End a trace and delete its packets. Raises KeyError if it does not exist."""
        self.stop(name)
        del self.all[name]

    async def close(self) -> None:
        """End all traces: the broker stops."""
        for trace in list(self._running.values()):
            self.end(trace, "broker stopped")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for tracer in list(self._tracers.values()):
            self.forget(tracer)
        self._broker.connection_table.observer = None
        spans, self.spans = self.spans, None
        if spans is not None:
            await spans.close()

    # -- beginning and ending ------------------------------------------------------------------------------------------

    def _reserve_bit(self) -> int:
        """Reserve a bit for one more trace. Raises TraceError."""
        if len(self.all) >= MAX_TRACES:
            ended = next((trace.name for trace in self.all.values() if not trace.running), None)
            if ended is None:
                raise TraceError(f"{len(self.all)} traces run, and no more may")
            del self.all[ended]
        for place in range(BITS):
            bit = 1 << place
            if bit not in self._running and not self._fading & bit:
                return bit
        raise TraceError("too many traces have just ended")

    def end(self, trace: Trace, state: State) -> None:
        """End a trace that runs."""
        if not trace.running:
            return
        self._timers.pop(trace.name).cancel()
        del self._running[trace.bit]
        self._networks.pop(trace.bit, None)
        self._known.clear()
        self._fading |= trace.bit
        trace.end(state)
        self._broker.log.info("trace ended", trace=trace.name, why=state, packets=trace.packets, bytes=trace.bytes)
        if self._settings.directory:
            self._begin(self._save(trace))
        self._visit(self._tracers, trace.bit)

    async def _save(self, trace: Trace) -> None:
        """Write an ended trace to a file in a thread."""
        settings = self._settings
        try:
            await asyncio.to_thread(save, Path(settings.directory), trace)
        except OSError as error:
            self._broker.log.warning("trace not written", trace=trace.name, reason=error.strerror or str(error))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = self._broker.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _visit(self, connections: Iterable[Connection], fading: int = 0) -> None:
        """Tell connections which traces want them now; afterwards another trace may use the bit of an ended one."""
        self._begin(self._settle_all(list(connections), fading))

    async def _settle_all(self, connections: list[Connection], fading: int) -> None:
        for number, connection in enumerate(connections, 1):
            if connection in self._broker.connections:
                self._settle(connection, False)
            if number % TURN == 0:
                await asyncio.sleep(0)
        self._fading &= ~fading
        if not self._running:
            self._broker.router.counters.refusals.listener = None
        if not self._running and not self._tracers and self.spans is None:
            self._broker.connection_table.observer = None

    # -- connections ---------------------------------------------------------------------------------------------------

    def joined(self, connection: Connection) -> None:
        """Watch a new connection if a trace may want it."""
        self._settle(connection, True)

    def left(self, connection: Connection) -> None:
        """Note that a connection's socket is closed."""
        tracer = self._tracers.get(connection)
        if tracer is not None:
            try:
                tracer.closed()
            except Exception as error:
                self.failed(error)
            self.forget(tracer)

    def _settle(self, connection: Connection, begun: bool) -> None:
        """Start, change or end the watching of a connection, as the traces want it."""
        try:
            tracer = self._tracers.get(connection)
            if connection.state == GONE:
                return
            if tracer is None:
                client_id = connection.protocol.client_id
                every, topical = self.wanted(connection.host, client_id, not client_id)
                if every or topical or self.spans is not None:
                    self._met += 1
                    tracer = ConnectionTracer(self, connection, self._met, begun, PACKET_BYTES, self._known)
                    self._tracers[connection] = tracer
                    tracer.want(every, topical)
                    tracer.watch.begin()
                return
            tracer.settle()
        except Exception as error:
            self._broker.faults.broke("trace", error)

    def wanted(self, host: str, client_id: str, undecided: bool) -> tuple[int, bool]:
        """Return the mask of traces that want every packet of such a connection, and whether one is about topics."""
        every = 0
        topical = False
        for bit, trace in self._running.items():
            if trace.kind == "topic":
                topical = True
            elif trace.kind == "clientid":
                if undecided or trace.value == client_id:
                    every |= bit
            elif _within(host, self._networks[bit]):
                every |= bit
        return every, topical

    def forget(self, tracer: ConnectionTracer) -> None:
        """Stop watching a connection."""
        self._tracers.pop(tracer.connection, None)
        try:
            tracer.watch.end()
        except Exception as error:
            self._broker.faults.broke("trace", error)

    def about(self, topic: str) -> int:
        """Return the mask of traces that want messages of a topic."""
        return sum(bit for bit, trace in self._topical() if matches(trace.value, topic))

    def about_filters(self, filters: list[str]) -> int:
        """Return the mask of traces that want subscriptions to these filters."""
        wanted = self._topical()
        return sum(bit for bit, trace in wanted if any(_overlaps(trace.value, each) for each in filters))

    @property
    def topical(self) -> int:
        """The mask of traces that are about topics."""
        return sum(bit for bit, _ in self._topical())

    def _topical(self) -> list[tuple[int, Trace]]:
        return [(bit, trace) for bit, trace in self._running.items() if trace.kind == "topic"]

    def of(self, mask: int) -> list[Trace]:
        """Return the running traces of a mask."""
        return [trace for bit, trace in self._running.items() if bit & mask]

    def failed(self, error: Exception) -> None:
        """Log a fault in the watching of a connection."""
        self._broker.faults.broke("trace", error)


class ConnectionTracer(PacketSink):
    """Watches one connection for traces."""

    def __init__(
        self,
        traces: Traces,
        connection: Connection,
        number: int,
        begun: bool,
        packet_bytes: int,
        known: dict[bytes, int],
    ) -> None:
        super().__init__()
        self._traces = traces
        self.connection = connection
        self._opened = time.time_ns()
        protocol = connection.protocol
        self._traced = TracedConnection(
            number,
            connection.host,
            connection.address,
            _local(connection.stream.transport.get_extra_info("sockname")),
            connection.terms.name,
            protocol.client_id,
            protocol.version,
            begun,
        )
        self._decided = bool(protocol.client_id)
        # Until it is known whose connection it is: packets with the traces that may want them.
        self._early: list[tuple[Entry, list[Trace]]] = []
        self.watch = PacketWatch(connection, self, known, packet_bytes)

    def want(self, every: int, topical: bool) -> None:
        """Set the traces that get every packet, and whether topics are checked."""
        self.watch.every = every
        self.watch.topical = topical
        spans = self._traces.spans
        self.watch.marker = b"" if spans is None else spans.marker

    def settle(self) -> None:
        """Ask again which traces want the connection, and end the watching if none does."""
        every, topical = self._traces.wanted(self._traced.host, self._traced.client_id, not self._decided)
        self.want(every, topical)
        if not every and not topical and self._traces.spans is None:
            self._early.clear()
            self._traces.forget(self)

    # -- what the watch calls ------------------------------------------------------------------------------------------

    def packet(self, inward: bool, data: bytes, size: int, mask: int) -> None:
        """Handle a received or sent packet."""
        if mask & MARKED:
            mask &= ~MARKED
            spans = self._traces.spans
            if spans is not None:
                spans.packet(inward, data, size, self.connection.protocol.client_id)
            if not mask:
                return
        version = self.watch.version
        if not inward and version == 0:
            version = V311
        data = masked(data, version)
        entry = Entry(PACKET, time.time_ns(), self._traced, inward, data, size, version)
        self._traced.version = version
        wanting = self._traces.of(mask)
        if self._decided:
            self._keep(entry, wanting)
            return
        self._early.append((entry, wanting))
        name = self.connection.protocol.client_id
        if name or not inward or len(self._early) >= EARLY_PACKETS:
            self._decide(name)

    def _decide(self, name: str) -> None:
        """Decide about the packets that are kept early: the client is known, or never will be."""
        self._decided = True
        self._traced.client_id = name
        early, self._early = self._early, []
        for entry, wanting in early:
            self._keep(entry, [trace for trace in wanting if trace.kind != "clientid" or trace.value == name])
        self.settle()

    def _keep(self, entry: Entry, wanting: list[Trace]) -> None:
        for trace in wanting:
            if not trace.running:
                continue
            since = self._traced.begun and self._opened >= trace.started_at * 1e9
            if since and not trace.knows(self._traced):
                trace.add(Entry(OPENED, self._opened, self._traced))
            if not trace.add(entry):
                self._traces.end(trace, "full")

    def mask(self, topic: str, filters: bool) -> int:
        """Return the mask of traces that want a refusal about this topic or filter."""
        mask = self.watch.every
        if self.watch.topical:
            mask |= self._traces.about_filters([topic]) if filters else self._traces.about(topic)
        return mask

    def refused(self, denied: Denied, reason: str, mask: int) -> None:
        entry = Entry(REFUSED, time.time_ns(), self._traced, note=reason, denied=denied)
        self._keep(entry, self._traces.of(mask))

    def closed(self) -> None:
        protocol = self.connection.protocol
        if not self._decided:
            self._decide(protocol.client_id)
        why = f"{protocol.close_cause}: {protocol.close_text}" if protocol.close_text else protocol.close_cause
        entry = Entry(CLOSED, time.time_ns(), self._traced, note=why)
        for trace in self._traces.of(-1):
            if trace.knows(self._traced) and not trace.add(entry):
                self._traces.end(trace, "full")

    def wanting(self, topic: bytes) -> int:
        """Return the mask of traces that want messages of this topic."""
        return self._traces.about(topic.decode("utf-8", "replace")) if topic else 0

    def asking(self, data: bytes) -> int:
        """Return the mask of traces that want this SUBSCRIBE or UNSUBSCRIBE."""
        if len(data) > MAX_FILTERS_BYTES:
            return self._traces.topical
        decoder = Decoder(MAX_PACKET, True, self.watch.version)
        decoder.feed(data)
        try:
            packet = decoder.packet() if decoder.next_frame() else None
        except ProtocolError:
            return 0
        if isinstance(packet, Subscribe):
            return self._traces.about_filters([request.topic_filter for request in packet.requests])
        if isinstance(packet, Unsubscribe):
            return self._traces.about_filters(packet.topic_filters)
        return 0

    def unreadable(self, inward: bool) -> None:
        """Note that no packets can be read any more; the reason comes with the end of the connection."""

    def failed(self, error: Exception) -> None:
        """End the watching after a fault."""
        self._traces.failed(error)


class RefusalSink(RefusalListener):
    """Passes refusals on to the watched connections; a fault here costs only the entry."""

    def __init__(
        self, router: Router, tracers: Mapping[Connection, ConnectionTracer], failed: Callable[[Exception], None]
    ) -> None:
        super().__init__()
        self._router = router
        self._tracers = tracers
        self._failed = failed

    def refused(self, refused: Refused, refusal: Refusal) -> None:
        try:
            session = self._router.sessions.get(refused.client_id)
            send_buffer = None if session is None else session.send_buffer
            tracer = None if send_buffer is None else self._tracers.get(cast(Connection, send_buffer.owner))
            mask = 0 if tracer is None else tracer.mask(refusal.topic, refusal.kind == SUBSCRIBE)
            if tracer is None or not mask:
                return
            reason = refusal.settle(refused.principal, self._router.access_control)
            denied = Denied(KINDS[refusal.kind], refusal.topic, refusal.reason_code, int(refusal.count))
            tracer.refused(denied, reason, mask)
        except Exception as error:
            self._failed(error)


def _checked(kind: Kind, value: str) -> Network | None:
    """Check the subject of a trace, and return the network if it is one. Raises TraceError."""
    if not 0 < len(value) <= MAX_VALUE_LENGTH:
        raise TraceError("what is to be traced has 1 to 65,535 characters")
    if kind == "topic":
        try:
            validate_filter(value)
            if parse_shared(value)[0]:
                raise TraceError("a topic filter without $share: shared subscriptions are looked at with the others")
        except ProtocolError as error:
            raise TraceError(f"no topic filter: {error}") from error
    elif kind == "ip_address":
        try:
            return ipaddress.ip_network(value, strict=False)
        except ValueError as error:
            raise TraceError(f"no address or network: {value[:64]!r}") from error
    return None


def _within(host: str, network: Network) -> bool:
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        # A Unix socket has none.
        return False


def _overlaps(wanted: str, topic_filter: str) -> bool:
    return overlaps(wanted, parse_shared(topic_filter)[1])


def _local(name: object) -> tuple[str, int] | None:
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return None
