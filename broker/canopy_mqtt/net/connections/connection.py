"""One client's connection: reads go to its `ServerProtocol`, and the messages of its send buffer are written.

The writer task takes batches from the buffer and joins each to one write (a single piece is written at once). A peer
that does not read costs its buffer and one batch in the transport: the writer writes nothing to a full transport, and
a transport without progress for `stall_timeout` seconds is closed. The broker does not read from a peer that does not
read its acknowledgements, nor, for a time, from one that publishes too fast. A connection counts until its protocol has
ended, not until its socket is closed (`ends`).
"""

from __future__ import annotations

import asyncio

from mypy_extensions import i64

from canopy_mqtt import sockets
from canopy_mqtt.core import causes
from canopy_mqtt.core.hooks import Origin
from canopy_mqtt.core.jobs import BYTES_SHIFT, ITEM_WORK, WRITE_WORK
from canopy_mqtt.core.protocol.server_protocol import LARGE_READ, ServerProtocol
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.net.connections import ends, time_limits
from canopy_mqtt.net.connections.admission import ListenerTerms
from canopy_mqtt.net.connections.connection_table import ConnectionTable
from canopy_mqtt.net.connections.ends import ABORT, CLOSE, DRAINED, FLUSHING, LEFT, OPEN, PEER_CLOSED, SOCKET_LOST, TURN
from canopy_mqtt.net.rounds import LARGE, LITTLE, MUCH, NOTED, Rounds
from canopy_mqtt.net.stream import FULL_READ, LINGER, Stream, peer_name
from canopy_mqtt.net.timers import Endpoint


class Connection(Endpoint):
    """The asyncio protocol of one client: an `asyncio.Protocol` by its methods, not by inheritance (it is compiled)."""

    def __init__(self, table: ConnectionTable, terms: ListenerTerms) -> None:
        super().__init__()
        rounds = table.rounds
        # First what each read and each write touches: side by side it takes few lines of the processor's cache.
        self.stream = Stream(rounds.loop, rounds.counters)
        # By connection_made.
        self.send_buffer: SendBuffer
        self.protocol: ServerProtocol
        self.rounds: Rounds = rounds
        # Where it is on its way from the accepted socket to the closed one (`ends`).
        self.state: i64 = ends.NEW
        # The writer task, from the first batch on that is more than a single piece; the future on which it sleeps.
        self.writer: asyncio.Task[None] | None = None
        self._asleep: asyncio.Future[None] | None = None
        # Bytes that a WebSocket has read and not passed on yet.
        self.in_transport = 0
        # True if anything waited, in the decoder or before it, when `hold` was last called.
        self._holding = False
        self._opened = False
        # True if messages in the send buffer lose their worth while they wait.
        self._fresh = False
        # True if the rest of a read waits for a turn; and if it has had one before.
        self._resuming = self._resumed = False
        self._throttle: asyncio.TimerHandle | None = None
        self.table = table
        self.terms = terms
        self.loop = rounds.loop
        # Of a connection that another process has accepted, and counts: its number there, 0: none; and the reason code
        # with which it is to be refused.
        self.number: i64 = 0
        self.answered = 0
        # When it was made, and when its protocol ended (s, loop time); 0.0: not yet.
        self.opened_at = self.ended_at = 0.0
        # The peer: of the socket, unless a proxy has named it before.
        self.origin: Origin = terms.origin()
        # Bytes that wait in the decoder; their number, and the time, at the last progress of the packet.
        self.held: i64 = 0
        self._held_from: i64 = 0
        self.sign_at = 0.0
        # The strongest event that waits for a turn in which the connection ends, -1: none; and why it came.
        self.due: i64 = -1
        self._due_cause = self._due_text = ""
        self._due_code = 0

    @property
    def host(self) -> str:
        """Return the IP address of the peer ("": none)."""
        return self.origin.host

    @property
    def address(self) -> str:
        """Return the address of the peer for the log."""
        return self.origin.address

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.stream.begin(transport)
        try:
            self._begin(transport)
        except Exception as error:
            self._fault(error)
            self.end(ABORT)

    def _begin(self, transport: asyncio.BaseTransport) -> None:
        rounds = self.rounds
        origin = self.origin
        if not origin.address:
            peer = transport.get_extra_info("peername")
            if isinstance(peer, tuple) and len(peer) >= 2:
                origin.host, origin.port = str(peer[0]), int(peer[1])
            else:
                origin.text = peer_name(transport)[1]
        tune = self.table.tune
        if tune is not None:
            tune(transport.get_extra_info("socket"))
        router = rounds.router
        limits = router.limits
        self.send_buffer = SendBuffer(router.peers.touched, rounds.counters, limits.live_messages, limits.live_bytes)
        self.send_buffer.owner = self
        self.protocol = ServerProtocol(router, self.send_buffer, origin)
        if router.access_control is not None or router.shared is not None:
            self.protocol.answer_later = self.admitted
        self.opened_at = self.rounds.time()
        rounds.counters.connections += 1
        if not self.table.joined(self):
            self.end(CLOSE)
            return
        self.state = OPEN
        time_limits.begin(self)

    def data_received(self, data: bytes) -> None:
        if self.state != OPEN:
            return
        try:
            protocol = self.protocol
            rounds = self.rounds
            # In a spent round a client may do little; one that sends much, or reads nothing, waits for the next.
            work = rounds.work
            if (len(data) > LARGE or self.send_buffer.messages >= MUCH) and rounds.spent:
                work = 0
            now: float = self.rounds.time()
            eventful = protocol.receive(data, now, work)
            decoder = protocol.decoder
            if eventful or decoder.need > 0 or self.in_transport > 0 or self._holding:
                self.hold(decoder.held_size + self.in_transport, len(data))
            if eventful:
                self._after_turn(now)
            else:
                rounds.after_batch(now)
            if len(data) >= FULL_READ and self.stream.reading:
                # There is more: uvloop would read on, up to 32 times, before it looks at any other connection.
                self.stream.pause_reading()
                self.loop.call_soon(self._read_on)
        except Exception as error:
            self.failed(error)

    def _read_on(self) -> None:
        try:
            self._resume_reading()
        except Exception as error:
            self.failed(error)

    def _after_turn(self, now: float) -> None:
        """After each turn of the protocol, which began at `now`, inform the others and schedule the next turn."""
        protocol = self.protocol
        if protocol.accepted is not self._opened:
            self._open()
        if protocol.renewed:
            protocol.renewed = False
            time_limits.watch_expiry(self)
        self.rounds.after_batch(now)
        if protocol.close_cause:
            self.ended()
        elif protocol.unfinished or protocol.waiting or self.send_buffer.congested:
            self.stream.pause_reading()
            self._resume_later()

    def _resume_later(self) -> None:
        """Schedule the rest of a read after the writers and the other connections, when nothing else is in its way:

        access control, which calls `admitted`; the writer, which calls `_resume_reading`; or the client's rate.
        """
        protocol = self.protocol
        blocked = protocol.waiting or self.send_buffer.congested or protocol.throttled
        if protocol.unfinished and not blocked and not self._resuming:
            self._resuming = True
            if protocol.held_until > 0.0:
                self._throttle = self.loop.call_at(protocol.held_until, self.rounds.resume, self, True)
            elif protocol.hurried:
                self.rounds.resume_later(self)
            else:
                self.rounds.resume(self, not self._resumed)

    def limit_publishes(self) -> None:
        """Apply changed rates. One that is held goes on, and finds in its turn whether it still has to wait."""
        self.protocol.limit_publishes()
        if self._throttle is not None:
            self._throttle.cancel()
            self._throttle = None
            self.rounds.resume(self, True)

    def turn(self, work: i64) -> None:
        self._resuming = False
        self._throttle = None
        if self.state != OPEN or self.due >= 0 or self.protocol.waiting:
            return
        self._resumed = True
        try:
            now: float = self.rounds.time()
            self.protocol.go_on(now, work)
            self._after_resume(now)
        except Exception as error:
            self.failed(error)

    def _after_resume(self, now: float) -> None:
        """Update the connection after a turn that continued an earlier read."""
        self.hold(self.protocol.decoder.held_size + self.in_transport, 0)
        self._after_turn(now)
        self._resume_reading()

    def failed(self, error: Exception) -> None:
        """Log a fault of the broker while it served this connection, and end the connection."""
        self._fault(error)
        self.end(ABORT, causes.INTERNAL_ERROR)

    def _fault(self, error: Exception) -> None:
        self.table.faults.broke("connection", error, address=self.address)

    def eof_received(self) -> bool:
        """Let the transport close itself. It says so at once, unless it holds bytes that the peer does not take."""
        if self.state == OPEN and self.stream.transport.get_write_buffer_size() > 0:
            self.end(PEER_CLOSED, causes.CONNECTION_LOST)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        failed = exc is not None and isinstance(exc, BrokenPipeError)
        self.end(SOCKET_LOST, causes.WRITE_FAILED if failed else causes.CONNECTION_LOST)

    def pause_writing(self) -> None:
        self.stream.filled()
        time_limits.writing_waits(self)

    def was_suspended(self) -> None:
        if self.stream.full:
            self.stream.filled()
        time_limits.reads_on(self)

    def resume_writing(self) -> None:
        if self.state <= FLUSHING and self.due < PEER_CLOSED:
            self.stream.full = False
            self._wake_writer()

    # -- writing -------------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Write what the send buffer has, or wake the writer: called at most once for each batch that is routed.

        Few pieces for a peer that keeps up are written here, while the writer task sleeps: where one message comes at a
        time, waking the task costs more than all else. Whatever can wait, or be more, is the task's.
        """
        stream = self.stream
        try:
            if self.send_buffer.closed:
                self.ended()
            if stream.full or (self.writer is not None and self._asleep is None):
                # The writer goes on anyway: when the transport has room, or with the next round of the event loop.
                return
            few = len(self.send_buffer.items) <= LITTLE
            if not few or not stream.reading or self.state != OPEN or self._write_batch(now):
                self._wake_writer()
            elif not self.waits_to_write:
                self.send_buffer.listed = False
        except Exception as error:
            # Later, since other clients are written to now.
            self._fault(error)
            self.end_later(ABORT, causes.INTERNAL_ERROR)

    def _wake_writer(self) -> None:
        """Wake the writer task, or create it if the connection has none yet."""
        asleep = self._asleep
        if asleep is not None:
            self._asleep = None
            if not asleep.done():
                asleep.set_result(None)
        elif self.writer is None:
            self.writer = self.loop.create_task(self._write())

    async def _write(self) -> None:
        """Write batches, with turns of other connections between them, then the last packet: the writer task."""
        while True:
            more = self._write_turn()
            if self.state > FLUSHING:
                return
            if more:
                await asyncio.sleep(0)
            else:
                asleep = self.loop.create_future()
                self._asleep = asleep
                await asleep

    def _write_turn(self) -> bool:
        """Write in one turn. Returns True if there is more to write, and the transport has room for it."""
        stream = self.stream
        if stream.full:
            # The queue can still drop what waits in the send buffer; `resume_writing` continues.
            return False
        try:
            if not stream.reading:
                self._resume_reading()
            more = self._write_batch(self.rounds.time())
            if self.stream.full:  # not as before the call
                return False
            if not stream.reading:
                self._resume_reading()
            if more:
                return True
            if self.waits_to_write:
                return False
            if self.state == OPEN:
                self.send_buffer.listed = False
            else:
                self.end(DRAINED)
        except Exception as error:
            self.failed(error)
        return False

    def _write_batch(self, now: float) -> bool:
        """Write one batch of the send buffer. Returns True if there is more, or the transport is full."""
        rounds = self.rounds
        stream = self.stream
        send_buffer = self.send_buffer
        things: i64 = len(send_buffer.items)
        # If this round of the event loop has written enough, the batch waits for the next.
        if rounds.full and rounds.defer_write(self, things, send_buffer.bytes):
            return False
        most = rounds.write_batch_bytes
        if send_buffer.fresh or self._fresh:
            if send_buffer.fresh != self._fresh:
                self._fresh = send_buffer.fresh
                stream.low_latency(send_buffer.fresh)
            if send_buffer.fresh:
                most = min(most, sockets.FRESH_BYTES)
        data = send_buffer.take(most, now)
        size: i64 = len(data)
        if size > 0:
            stream.send(data)
        rounds.counters.bytes_sent += size
        rounds.written += WRITE_WORK + ITEM_WORK * things + (size >> BYTES_SHIFT)
        if rounds.written >= NOTED:
            rounds.note_writes()
        session = self.protocol.session
        if (
            session is not None
            # Else it has nothing that could wait: this is asked after every write.
            and (session.made_window is not None or session.made_queue is not None or session.streams is not None)
            and session.backlog
        ):
            if rounds.full:
                rounds.write_later(self)
                return False
            more = self.protocol.refill(now)
            rounds.charge_refill(len(send_buffer.items), session.streams is not None)
            return more or stream.full
        return len(send_buffer.items) > 0 or stream.full

    def write_turn(self) -> None:
        if self._write_turn():
            self.rounds.write_later(self)

    # -- ending --------------------------------------------------------------------------------------------------------

    def end(self, event: i64, cause: str = "", code: int = 0, text: str = "") -> None:
        """Handle an event that ends the connection, or takes its end further (`ends.TABLE`). Does not raise.

        `cause` and `text` are for the log; with CLOSE the client gets `code` and `text` if its protocol has them.
        """
        in_turn = event == TURN
        if self.due >= 0 and self.state == OPEN:
            # The first cause tells what happened to the client, and the strongest event what can still be done.
            cause, code, text = self._due_cause, self._due_code, self._due_text
            if in_turn or event < self.due:
                event = self.due
        found: i64 = ends.TABLE[(self.state << 3) + event]
        if found == 0:
            return
        if found & ends.Q and not in_turn and not self.protocol.close_cause:
            # The end of the protocol takes longer the more messages wait.
            session = self.protocol.session
            waiting: i64 = self.send_buffer.messages
            if session is not None and session.made_queue is not None:
                waiting += session.made_queue.messages
            rounds = self.rounds
            if not rounds.ending and (waiting >= MUCH or rounds.budget.used >= rounds.spent_at):
                self._put_off_end(event, cause, code, text)
                return
        # First: what the actions cause finds the connection in its next state.
        self.state = found & ends.STATE
        stream = self.stream
        batch = False
        try:
            if found & ends.P:
                batch = self._end_protocol(event, cause, code, text)
            if found & ends.T:
                self.rounds.wheel.add(self, self.ended_at + LINGER)
            if found & ends.S and stream.reading:
                stream.transport.pause_reading()
            if found & ends.W:
                # Nothing comes after the last packet [MQTT-3.14.4-1], and the connection ends with it [MQTT-3.14.4-2].
                sending = self.protocol.accepted and self.protocol.close_cause in causes.REFUSED_PACKETS
                if not stream.finish(self.protocol.final_packet, True, sending):
                    self.state = ends.CLOSING
            if found & ends.C:
                stream.transport.close()
            if found & ends.X:
                stream.transport.abort()
            if found & ends.F:
                # What waits for the transport, which is gone, goes, and no cycle stays for the garbage collector.
                self.rounds.wheel.remove(self)
                if self.writer is not None:
                    self._wake_writer()
                    self.writer = None
                # Else a fault has kept it from beginning.
                if self.opened_at > 0.0:
                    self.send_buffer.owner = None
                    self.send_buffer.peer = None
                    self.table.left(self)
            if found & ends.E:
                raise RuntimeError(f"{ends.EVENTS[event]} in the state {ends.STATES[self.state]}")
            if self.state > FLUSHING:
                stream.full = True  # nothing is written any more
            elif not stream.full and (self.writer is None or self._asleep is not None) and self._write_turn():
                self._wake_writer()
            if batch:
                self.rounds.after_batch()
        except Exception as error:
            self._fault(error)
            self.end(ABORT)

    def end_later(self, event: i64, cause: str = "", code: int = 0, text: str = "") -> None:
        """End the connection by this event in a turn of its own: very many may end at the same time."""
        if self.state == OPEN:
            self._put_off_end(event, cause, code, text)
        else:
            self.end(event, cause, code, text)

    def end_in_turn(self) -> None:
        self.end(TURN)

    def ended(self) -> None:
        """End the connection whose protocol the core has closed: its client left, or was taken over, say."""
        cause = self.protocol.close_cause
        if cause:
            self.end(LEFT if cause in (causes.CLIENT_DISCONNECT, causes.CLIENT_DISCONNECT_WITH_WILL) else CLOSE)

    def _put_off_end(self, event: i64, cause: str, code: int, text: str) -> None:
        if self.due < 0:
            self._due_cause, self._due_code, self._due_text = cause, code, text
            self.rounds.end(self)
        if event > self.due:
            self.due = event
        if event in (PEER_CLOSED, SOCKET_LOST):
            self.stream.full = True  # nothing is written any more

    def _end_protocol(self, event: i64, cause: str, code: int, text: str) -> bool:
        """End the protocol, and count the connection no more, whatever raises and whatever becomes of the socket.

        Returns True if the core was informed, so that others may have something to write.
        """
        rounds = self.rounds
        protocol = self.protocol
        # A round may have taken long, and the delay of a will counts from the end on (section 3.1.3.2.2).
        now: float = max(rounds.time(), rounds.precise())
        self.ended_at = now
        # A fault may have come between the core's end of the protocol and what follows from it.
        informed = event == ABORT or not protocol.close_cause
        if informed:
            try:
                if event == CLOSE:
                    if rounds.delays.end(self):
                        self._write_batch(now)
                    protocol.close(cause, code, text, now)
                else:
                    protocol.end(cause, now, text)
            except Exception as error:
                self._fault(error)
                try:
                    # The core was informed first: it has the rest of the events.
                    protocol.end(cause, now, text)
                except Exception as another:
                    self._fault(another)
        try:
            if self.held > 0:
                self.table.partial.remove(self)
                protocol.decoder.clear()
            if self._throttle is not None:
                self._throttle.cancel()
                self._throttle = None
            if self.delay is not None:
                rounds.delays.end(self)
            self.table.ended(self)
        except Exception as error:
            self._fault(error)
        return informed

    # -- timers --------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> float:
        """Check the time limits; the wheel calls this."""
        if self.state != OPEN:
            if now < self.ended_at + LINGER:
                return self.ended_at + LINGER
            self.end(ends.TIMEOUT)
            return 0.0
        if self.due >= 0:
            return 0.0
        if self.protocol.close_cause:
            self.ended()
            return 0.0
        return time_limits.check(self, now)

    # -- reading -------------------------------------------------------------------------------------------------------

    def admitted(self, reason_code: int) -> None:
        if self.state != OPEN or self.due >= 0:
            return
        try:
            now: float = self.rounds.time()
            # Thousands may be answered at once, and each may have sent a whole read after its CONNECT.
            self.protocol.admitted(reason_code, now, self.rounds.work)
            self._after_resume(now)
        except Exception as error:
            self.failed(error)

    def _open(self) -> None:
        self._opened = True
        if self.table.opened(self):
            time_limits.accepted(self)

    def hold(self, held: i64, read: i64) -> None:
        """Count the bytes that wait in the decoder or before it (`held`) after a read. Limit the time of the rest."""
        if self.state != OPEN:
            return
        self._holding = held > 0
        before: i64 = self.held
        if held == 0 and before == 0:
            return
        completed = held < before + read
        self.held = held
        if held > 0 and (before == 0 or completed or held - self._held_from >= LARGE_READ):
            self._held_from = held
            time_limits.progressed(self)
        self.table.hold(self, held, completed)

    def _resume_reading(self) -> None:
        stream = self.stream
        if stream.reading or stream.transport.is_closing():
            return
        # At the end what comes is read and forgotten: its rest would have the system reset the connection.
        protocol = self.protocol
        if self.state == OPEN and (protocol.waiting or self.send_buffer.congested or protocol.unfinished):
            self._resume_later()
            return
        self._resumed = False
        time_limits.reads_on(self)
        stream.resume_reading()
