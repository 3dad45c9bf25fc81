"""The traces of one broker: who may begin how many, which connections they look at, and when they end.

Owns the masks by which connections know what is wanted of them (`packet_watch`). While nothing is traced, no
connection knows of any of this, and a connect costs one comparison. A client's CONNECT is traced too: while a trace
waits for a client, each new connection is looked at until it has said who it is.

Promises: a trace ends by its time, by its size, or with the broker; begun and ended, it goes over the connections in
turns. A fault here ends the looking at one connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from broker.core.codec.decoder import Decoder
from broker.core.codec.errors import ProtocolError
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.packets import V311, Subscribe, Unsubscribe
from broker.core.codec.topic_names import matches, overlaps, parse_shared, validate_filter
from broker.core.refusals import KINDS, SUBSCRIBE, Refusal, RefusalListener, Refused
from broker.core.routing.router import Router
from broker.net.connections.client import Client
from broker.net.connections.connection import Connection
from broker.net.connections.connection_table import Onlooker
from broker.net.connections.packet_watch import MARKED, PacketSink, PacketWatch
from broker.observe.trace.folder import save
from broker.observe.trace.kept import CLOSED, OPENED, PACKET, REFUSED, Denied, Entry, Kind, Party, State, Trace
from broker.observe.trace.masking import masked

if TYPE_CHECKING:
    from broker.net.server import Server
    from broker.observe.spans import Spans
    from broker.settings import Tracing

MOST_TRACES: Final = 8
"""Traces that are kept, those that run among them, so that `tracing.max_bytes` bounds the memory of them all. One more
takes the place of the oldest that has ended."""

PACKET_BYTES: Final = 65_536
"""Bytes that are kept of one packet; of a longer one the rest is missing. The trace's own bound holds for all."""

BITS: Final = 60
"""Traces that can be told apart in a mask."""

TURN: Final = 64
"""Connections that are looked through in one turn: half a millisecond."""

EARLY_PACKETS: Final = 32
"""Packets that are kept of a connection of which it is not known yet whose it is. A client may send on behind its
CONNECT without waiting."""

ASKED_BYTES: Final = 2_048
"""Bytes of a SUBSCRIBE or UNSUBSCRIBE up to which its filters are looked at: 500 of them, half a millisecond for each
trace. A longer one is taken to be about every topic."""

LONGEST_VALUE: Final = 65_535
"""Characters of a client identifier or a topic filter (section 1.5.4)."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class TraceError(ValueError):
    """A trace cannot be begun, for a reason that its text says in one line."""


class TraceExists(TraceError):
    """There is one of that name."""


class Traces(Onlooker):
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
        self._lookings: dict[Connection, Looking] = {}
        self._met = self._begun = 0
        self._tasks: set[asyncio.Task[None]] = set()
        # Who makes spans of the messages that carry a trace context; from the broker's start on, if anybody does.
        self.spans: Spans | None = None
        self._sink = RefusalSink(broker.router, self._lookings, self.failed)

    def change(self, settings: Tracing) -> None:
        """Go by these bounds from now on; a trace that runs keeps to its own."""
        self._settings = settings

    def tell(self, spans: Spans) -> None:
        """Tell of messages that carry a trace context, from now on; there are no connections yet."""
        self.spans = spans
        self._broker.connection_table.onlooker = self

    # -- what an operator asks for -------------------------------------------------------------------------------------

    def start(
        self, kind: Kind, value: str, name: str = "", seconds: float | None = None, max_bytes: int | None = None
    ) -> Trace:
        """Begin a trace of a client, a topic filter, or an address or network.

        `seconds` and `max_bytes` are no more than the settings allow, which is what None asks for.

        Raises:
            TraceError: it is none, or there are too many.
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
        bit = self._place()
        trace = Trace(name, kind, value, seconds, max_bytes, bit)
        self.all[name] = trace
        self._running[bit] = trace
        if network is not None:
            self._networks[bit] = network
        self._known.clear()
        self._broker.connection_table.onlooker = self
        self._broker.router.counters.refusals.listener = self._sink
        self._timers[name] = self._broker.loop.call_later(seconds, self._end, trace, "time over")
        self._broker.log.info(
            "trace started", trace=name, type=kind, value=value[:256], seconds=seconds, max_bytes=max_bytes
        )
        self._go_over(cast("set[Connection]", self._broker.connections))
        return trace

    def stop(self, name: str) -> Trace:
        """End a trace, which is kept. Raises KeyError: there is none."""
        trace = self.all[name]
        self._end(trace, "stopped")
        return trace

    def remove(self, name: str) -> None:
        """End a trace and forget what it has. Raises KeyError: there is none."""
        self.stop(name)
        del self.all[name]

    async def close(self) -> None:
        """The broker stops: all end."""
        for trace in list(self._running.values()):
            self._end(trace, "broker stopped")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for looking in list(self._lookings.values()):
            self.forget(looking)
        self._broker.connection_table.onlooker = None
        spans, self.spans = self.spans, None
        if spans is not None:
            await spans.close()

    # -- beginning and ending ------------------------------------------------------------------------------------------

    def _place(self) -> int:
        """A bit for one more trace. Raises TraceError."""
        if len(self.all) >= MOST_TRACES:
            ended = next((trace.name for trace in self.all.values() if not trace.running), None)
            if ended is None:
                raise TraceError(f"{len(self.all)} traces run, and no more may")
            del self.all[ended]
        for place in range(BITS):
            bit = 1 << place
            if bit not in self._running and not self._fading & bit:
                return bit
        raise TraceError("too many traces have just ended")

    def _end(self, trace: Trace, state: State) -> None:
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
        self._go_over(self._lookings, trace.bit)

    def full(self, trace: Trace) -> None:
        """A trace has no room for what came."""
        self._end(trace, "full")

    async def _save(self, trace: Trace) -> None:
        """Have a file of a trace that has ended."""
        settings = self._settings
        try:
            await asyncio.to_thread(save, Path(settings.directory), trace)
        except OSError as error:
            self._broker.log.warning("trace not written", trace=trace.name, reason=error.strerror or str(error))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = self._broker.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _go_over(self, connections: Iterable[Connection], fading: int = 0) -> None:
        """Tell connections what is wanted of them now; then a bit that has ended may be another's."""
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
        if not self._running and not self._lookings and self.spans is None:
            self._broker.connection_table.onlooker = None

    # -- connections ---------------------------------------------------------------------------------------------------

    def joined(self, connection: Client) -> None:
        """A connection was made."""
        self._settle(cast(Connection, connection), True)

    def left(self, connection: Client) -> None:
        """A connection's socket is gone."""
        looking = self._lookings.get(cast(Connection, connection))
        if looking is not None:
            try:
                looking.closed()
            except Exception as error:
                self._broker.faults.broke("trace", error)
            self.forget(looking)

    def _settle(self, connection: Connection, begun: bool) -> None:
        """See what is wanted of a connection, and look at it, or no more."""
        try:
            looking = self._lookings.get(connection)
            if connection.stream.lost:
                return
            if looking is None:
                client_id = connection.protocol.client_id
                every, topical = self.wanted(connection.host, client_id, not client_id)
                if every or topical or self.spans is not None:
                    self._met += 1
                    looking = Looking(self, connection, self._met, begun, PACKET_BYTES, self._known)
                    self._lookings[connection] = looking
                    looking.want(every, topical)
                    looking.watch.begin()
                return
            looking.settle()
        except Exception as error:
            self._broker.faults.broke("trace", error)

    def wanted(self, host: str, client_id: str, undecided: bool) -> tuple[int, bool]:
        """The traces that want every packet of such a connection, and whether there are some about topics."""
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

    def forget(self, looking: Looking) -> None:
        """Nothing is wanted of a connection any more."""
        self._lookings.pop(looking.connection, None)
        try:
            looking.watch.end()
        except Exception as error:
            self._broker.faults.broke("trace", error)

    def about(self, topic: str) -> int:
        """The traces that want messages of a topic."""
        mask = 0
        for bit, trace in self._running.items():
            if trace.kind == "topic" and matches(trace.value, topic):
                mask |= bit
        return mask

    def about_filters(self, filters: list[str]) -> int:
        """The traces that want to know who subscribes to this."""
        mask = 0
        for bit, trace in self._running.items():
            if trace.kind == "topic" and any(_overlaps(trace.value, one) for one in filters):
                mask |= bit
        return mask

    @property
    def topical(self) -> int:
        """The traces that are about topics."""
        return sum(bit for bit, trace in self._running.items() if trace.kind == "topic")

    def of(self, mask: int) -> list[Trace]:
        """The traces of a mask that run."""
        return [trace for bit, trace in self._running.items() if bit & mask]

    def failed(self, error: Exception) -> None:
        """A fault of ours while a connection was looked at."""
        self._broker.faults.broke("trace", error)


class Looking(PacketSink):
    """One connection that is looked at."""

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
        self._party = Party(
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
        """Have these traces get every packet, and be asked about topics or not."""
        self.watch.every = every
        self.watch.topical = topical
        spans = self._traces.spans
        self.watch.marker = b"" if spans is None else spans.marker

    def settle(self) -> None:
        """See anew what is wanted, and end the looking where that is nothing."""
        every, topical = self._traces.wanted(self._party.host, self._party.client_id, not self._decided)
        self.want(every, topical)
        if not every and not topical and self._traces.spans is None:
            self._early.clear()
            self._traces.forget(self)

    # -- what the watch calls ------------------------------------------------------------------------------------------

    def packet(self, inward: bool, data: bytes, size: int, mask: int) -> None:
        """A packet that came or goes."""
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
        entry = Entry(PACKET, time.time_ns(), self._party, inward, data, size, version)
        self._party.version = version
        wanting = self._traces.of(mask)
        if self._decided:
            self._keep(entry, wanting)
            return
        self._early.append((entry, wanting))
        name = self.connection.protocol.client_id
        if name or not inward or len(self._early) >= EARLY_PACKETS:
            self._decide(name)

    def _decide(self, name: str) -> None:
        """It is known whose connection it is, or will not be."""
        self._decided = True
        self._party.client_id = name
        early, self._early = self._early, []
        for entry, wanting in early:
            self._keep(entry, [trace for trace in wanting if trace.kind != "clientid" or trace.value == name])
        self.settle()

    def _keep(self, entry: Entry, wanting: list[Trace]) -> None:
        for trace in wanting:
            if not trace.running:
                continue
            since = self._party.begun and self._opened >= trace.started_at * 1e9
            if since and not trace.knows(self._party):
                trace.add(Entry(OPENED, self._opened, self._party))
            if not trace.add(entry):
                self._traces.full(trace)

    def mask(self, topic: str, filters: bool) -> int:
        """The traces that want to know that something about a topic, or a filter, was refused."""
        mask = self.watch.every
        if self.watch.topical:
            mask |= self._traces.about_filters([topic]) if filters else self._traces.about(topic)
        return mask

    def refused(self, denied: Denied, reason: str, mask: int) -> None:
        """The client was refused something."""
        entry = Entry(REFUSED, time.time_ns(), self._party, note=reason, denied=denied)
        self._keep(entry, self._traces.of(mask))

    def closed(self) -> None:
        """The connection is gone."""
        protocol = self.connection.protocol
        if not self._decided:
            self._decide(protocol.client_id)
        why = f"{protocol.close_cause}: {protocol.close_text}" if protocol.close_text else protocol.close_cause
        entry = Entry(CLOSED, time.time_ns(), self._party, note=why)
        for trace in self._traces.of(-1):
            if trace.knows(self._party) and not trace.add(entry):
                self._traces.full(trace)

    def wanting(self, topic: bytes) -> int:
        """Which traces want messages of this topic."""
        return self._traces.about(topic.decode("utf-8", "replace")) if topic else 0

    def asking(self, data: bytes) -> int:
        """Which traces want this SUBSCRIBE or UNSUBSCRIBE."""
        if len(data) > ASKED_BYTES:
            return self._traces.topical
        decoder = Decoder(LARGEST_PACKET, True, self.watch.version)
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
        """No packets come any more: what the connection's end says of it is kept."""

    def failed(self, error: Exception) -> None:
        """The looking has raised, and is over."""
        self._traces.failed(error)


class RefusalSink(RefusalListener):
    """Passes refusals on to the connections that are looked at; a fault here costs the entry alone."""

    def __init__(
        self, router: Router, lookings: Mapping[Connection, Looking], failed: Callable[[Exception], None]
    ) -> None:
        super().__init__()
        self._router = router
        self._lookings = lookings
        self._failed = failed

    def refused(self, refused: Refused, refusal: Refusal) -> None:
        """See `RefusalListener`."""
        try:
            session = self._router.sessions.get(refused.client_id)
            outbox = None if session is None else session.outbox
            looking = None if outbox is None else self._lookings.get(cast(Connection, outbox.owner))
            mask = 0 if looking is None else looking.mask(refusal.topic, refusal.kind == SUBSCRIBE)
            if looking is None or not mask:
                return
            reason = refusal.settle(refused.principal, self._router.access_control)
            denied = Denied(KINDS[refusal.kind], refusal.topic, refusal.reason_code, int(refusal.count))
            looking.refused(denied, reason, mask)
        except Exception as error:
            self._failed(error)


def _checked(kind: Kind, value: str) -> Network | None:
    """What a trace is about, if that is a network. Raises TraceError."""
    if not 0 < len(value) <= LONGEST_VALUE:
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
    """The address that a client connected to."""
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return None
