"""One client's connection: reads go to its `ServerProtocol`, and the messages of its outbox are written.

The writer task takes batches from the outbox and joins each to one write (a single piece is written at once). A peer
that does not read costs its outbox, one batch in the transport, and no more: nothing is written to a full transport,
and one without progress for `stall_timeout` seconds is closed. The broker does not read from a peer that does not read
its acknowledgements, nor from one that publishes too fast, until its time has come. A connection counts until its
protocol has ended, not until its socket is closed.
"""

from __future__ import annotations

import asyncio

from mypy_extensions import i64

from broker.core import causes
from broker.core.connection.protocol import ServerProtocol
from broker.core.queues.live.outbox import Outbox
from broker.net import sockets
from broker.net.connections.client import Client
from broker.net.connections.connection_table import ConnectionTable
from broker.net.connections.time_limits import TimeLimits
from broker.net.listening.terms import ListenerTerms
from broker.net.scheduling.hub import FlushScheduler
from broker.net.scheduling.turns import LARGE, MUCH
from broker.net.stream import FULL_READ, LINGER, Stream, peer_name


class Connection(Client):
    """The asyncio protocol of one client: an `asyncio.Protocol` by its methods, not by inheritance (it is compiled)."""

    def __init__(self, table: ConnectionTable, terms: ListenerTerms) -> None:
        hub = table.hub
        super().__init__(terms, Stream(hub.loop, hub.counters))
        # As in `Client`, what each read and each write touches comes first.
        self.hub: FlushScheduler = hub
        # The writer task, from the first batch on that is more than a single piece; what it waits for while it sleeps.
        self.writer: asyncio.Task[None] | None = None
        self._asleep: asyncio.Future[None] | None = None
        # Bytes that a transport has read and not handed on yet; only that of a WebSocket does so.
        self.in_transport = 0
        # Whether anything waited, in the decoder or before it, when `hold` was last called.
        self._holding = False
        self._opened = False
        # Once something in the outbox was worth less the longer it waits.
        self._fresh = False
        # A turn of the protocol has been asked for; and whether what was read has had one before.
        self._going_on = self._gone_on = False
        self._finished = False  # the last packet was written
        self._held: asyncio.TimerHandle | None = None
        self.table = table
        self.loop = hub.loop
        self.time_limits: TimeLimits  # by connection_made
        self._lost_by = ""  # the cause, once the peer or the socket is gone
        self._in_line = False  # it waits for its turn to end

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.stream.begin(transport)
        try:
            self._begin(transport)
        except Exception as error:
            self._fault(error)
            self.stream.abort()

    def _begin(self, transport: asyncio.BaseTransport) -> None:
        hub = self.hub
        if not self.address:
            self.host, self.address = peer_name(transport)
        tune = self.table.tune
        if tune is not None:
            tune(transport.get_extra_info("socket"))
        router = hub.router
        self.outbox = Outbox(router.peers.touched, hub.counters, hub.live_messages, hub.live_bytes)
        self.outbox.owner = self
        self.protocol = ServerProtocol(router, self.outbox, self.terms.origin(self.address, self.host))
        if router.access_control is not None:
            self.protocol.answer_later = self.admitted
        self.opened_at = self.hub.time()
        self.time_limits = TimeLimits(hub, self.protocol, self.stream, self.opened_at)
        hub.counters.connections += 1
        if not self.table.joined(self):
            self.stream.closing_at = self.opened_at
            self.stream.abort()
            return
        self.time_limits.begin(self)

    def data_received(self, data: bytes) -> None:
        if self.stream.closing_at > 0.0:
            return
        try:
            protocol = self.protocol
            turns = self.hub.turns
            # Little of what a round has no room for is acted on; not the end of a client for whom very much waits.
            work = turns.work
            if turns.spent and (len(data) > LARGE or self.outbox.messages >= MUCH):
                work = 0
            now: float = self.hub.time()
            eventful = protocol.receive(data, now, work)
            held: i64 = protocol.decoder.held_size + self.in_transport
            if held > 0 or self._holding:
                self.hold(held, len(data))
            if eventful:
                self._after_turn(now)
            else:
                self.hub.after_batch(now)
            turns.did(protocol.work_done)
            if len(data) >= FULL_READ and self.stream.reading:
                # There is more: uvloop would read on, up to 32 times, before it looks at any other connection.
                self.stream.pause_reading()
                self.loop.call_soon(self._read_on)
        except Exception as error:
            self.broke(error)

    def _read_on(self) -> None:
        try:
            self._resume_reading()
        except Exception as error:
            self.broke(error)

    def _after_turn(self, now: float) -> None:
        """After each turn of the protocol, which began at `now`: tell others, and see whether and when it goes on."""
        protocol = self.protocol
        if protocol.accepted is not self._opened:
            self._open()
        if protocol.renewed:
            protocol.renewed = False
            self.time_limits.watch_expiry(self)
        self.hub.after_batch(now)
        if protocol.close_cause:
            self._finish()
        elif protocol.unfinished or protocol.waiting or self.outbox.congested:
            self.stream.pause_reading()
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        """The rest of a read has its turn after the writers and the other connections, when nothing else is in its way:

        access control, which calls `admitted`; the writer, which calls `_resume_reading`; or the client's rate.
        """
        protocol = self.protocol
        blocked = protocol.waiting or self.outbox.congested or protocol.throttled
        if protocol.unfinished and not blocked and not self._going_on:
            self._going_on = True
            if protocol.held_until > 0.0:
                self._held = self.loop.call_at(protocol.held_until, self.hub.turns.go_on, self, True)
            elif protocol.hurried:
                self.hub.turns.stall(self)
            else:
                self.hub.turns.go_on(self, not self._gone_on)

    def turn(self, work: i64) -> i64:
        self._going_on = False
        self._held = None
        if self.stream.closing_at > 0.0 or self.stream.lost or self.protocol.waiting:
            return 0
        self._gone_on = True
        try:
            now: float = self.hub.time()
            self.protocol.go_on(now, work)
            self._went_on(now)
        except Exception as error:
            self.broke(error)
        return self.protocol.work_done

    def _went_on(self, now: float) -> None:
        """After a turn of the protocol with what it had before."""
        self.hold(self.protocol.decoder.held_size + self.in_transport, 0)
        self._after_turn(now)
        self._resume_reading()

    def broke(self, error: Exception) -> None:
        self._fault(error)
        if self.stream.lost:
            return
        try:
            self.abort(causes.INTERNAL_ERROR)
        except Exception as another:
            self._fault(another)
            self.stream.abort()

    def _fault(self, error: Exception) -> None:
        self.table.faults.broke("connection", error, address=self.address)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream.lost = True
        self.hub.wheel.remove(self)
        # Else a fault of ours has kept it from beginning: nobody knows of it.
        if self.opened_at > 0.0:
            self.gone(causes.WRITE_FAILED if isinstance(exc, BrokenPipeError) else causes.CONNECTION_LOST)

    def _end_in_turn(self) -> None:
        """Have `leave` be called: now, or in a round to come where much waits for the client, or much was done."""
        if self._in_line:
            return
        turns = self.hub.turns
        session = self.protocol.session
        waiting: i64 = self.outbox.messages
        if session is not None:
            waiting += session.queue.messages
        if turns.spent or (waiting >= MUCH and not turns.ending):
            self._in_line = True
            turns.end(self)
        else:
            self.leave()

    def leave(self) -> None:
        """Forget the connection, whose socket is gone; or end it: something took too long (`TimeLimits`)."""
        self._in_line = False
        before = self.hub.router.work
        limits = self.time_limits
        # Each by itself: whatever becomes of the session, the connection is forgotten.
        try:
            if self.stream.lost:
                self.protocol.lost(self._lost_by, self.hub.time())
            elif self.protocol.close_cause:
                pass  # meanwhile it was taken over, say
            elif self._lost_by:
                self._let_go(self._lost_by)
            elif limits.code:
                self.close(limits.cause, limits.code, limits.text)
            else:
                self.abort(limits.cause, limits.text)
        except Exception as error:
            self.broke(error)
        try:
            if self.stream.lost:
                self.table.left(self)
                self._release()
                self.hub.after_batch()
        except Exception as error:
            self._fault(error)
        self.hub.turns.did(self.hub.router.work - before)

    def pause_writing(self) -> None:
        self.stream.filled()
        self.time_limits.writing_waits(self)

    def was_suspended(self) -> None:
        if self.stream.full:
            self.stream.filled()
        self.time_limits.reads_on(self)

    def resume_writing(self) -> None:
        self.stream.full = False
        self._wake_writer()

    # -- writing -------------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """The outbox has something to take: called at most once for each batch that is routed.

        A single piece for a peer that keeps up is written here, while the writer task sleeps: where one message comes
        at a time, waking the task costs more than all else. Whatever can wait, or be more, is the task's.
        """
        stream = self.stream
        if stream.full or (self.writer is not None and self._asleep is None):
            # The writer goes on anyway: when the transport has room, or with the next round of the event loop.
            return
        if self.outbox.single and stream.reading and stream.closing_at == 0.0:
            try:
                if not self._write_batch(now):
                    if not self.waits_to_write:
                        self.outbox.woken()
                    return
            except Exception as error:
                # Not here, in the turn of whoever published.
                self.loop.call_soon(self.broke, error)
                return
        self._wake_writer()

    def _wake_writer(self) -> None:
        """Have the writer task look at the connection; a connection gets its task when there is work for it."""
        asleep = self._asleep
        if asleep is not None:
            self._asleep = None
            if not asleep.done():
                asleep.set_result(None)
        elif self.writer is None:
            self.writer = self.loop.create_task(self._write())

    async def _write(self) -> None:
        """The writer task: a batch of what waits, again and again, with the others in between; then the last packet."""
        while True:
            more = self._write_turn()
            if self._ended():
                return
            if more:
                await asyncio.sleep(0)
            else:
                asleep = self.loop.create_future()
                self._asleep = asleep
                await asleep

    def _ended(self) -> bool:
        return self._finished or self.stream.lost

    def _write_turn(self) -> bool:
        """One turn of the writer. True when there is more to write, and the transport has room for it."""
        stream = self.stream
        if stream.full or self._ended():
            # What waits in the outbox can still be shed; `resume_writing` goes on.
            return False
        try:
            if not stream.reading:
                self._resume_reading()
            more = self._write_batch(self.hub.time())
            if self.stream.full:  # not as before the call
                return False
            if not stream.reading:
                self._resume_reading()
            if more:
                return True
            if self.waits_to_write:
                return False
            if not self.protocol.close_cause:
                self.outbox.woken()
                return False
            # Nothing comes after the last packet [MQTT-3.14.4-1]: the writer ends here, and the connection with it
            # [MQTT-3.14.4-2]. The socket goes when the peer closes, or `LINGER` is over.
            self._finished = True
            sending = self.protocol.accepted and self.protocol.close_cause in causes.REFUSED_PACKETS
            stream.finish(self.protocol.final_packet, True, sending)
        except Exception as error:
            self.broke(error)
        return False

    def _write_batch(self, now: float) -> bool:
        """Write one batch of what waits in the outbox. True when there is more, or the transport has had enough."""
        hub = self.hub
        turns = hub.turns
        stream = self.stream
        outbox = self.outbox
        things: i64 = len(outbox.queue.items)
        # Where this round of the event loop has written enough, it waits for the next.
        if turns.full and turns.put_off(self, things, outbox.bytes):
            return False
        most = hub.write_batch_bytes
        if outbox.fresh or self._fresh:
            if outbox.fresh != self._fresh:
                self._fresh = outbox.fresh
                stream.keep_fresh(outbox.fresh)
            if outbox.fresh:
                most = min(most, sockets.FRESH_BYTES)
        data = outbox.take(most, now)
        if len(data) > 0:
            stream.write(data)
        turns.wrote(things, len(data))
        session = self.protocol.session
        if session is not None and session.backlog:
            if turns.full:
                turns.write_on(self)
                return False
            more = self.protocol.refill(now)
            turns.fetched(len(outbox.queue.items), session.streams is not None)
            return more or stream.full
        return not outbox.empty or stream.full

    def write_turn(self) -> None:
        if self._write_turn():
            self.hub.turns.write_on(self)
        elif self.writer is not None and self._ended():
            self._wake_writer()

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self, cause: str, reason_code: int, text: str) -> None:
        self.protocol.close(cause, reason_code, text, self.hub.time())
        self.hub.after_batch()
        self._finish()

    def abort(self, cause: str, text: str = "") -> None:
        """Give up a peer that takes nothing any more. `text`: for the log."""
        self._let_go(cause, text)
        self.stream.abort()

    def gone(self, cause: str) -> None:
        """The peer is gone. If its socket is still there, it closes by itself, or is aborted when it takes too long."""
        self.stream.full = True  # nothing is written any more
        self._lost_by = cause
        self._end_in_turn()

    def _let_go(self, cause: str, text: str = "") -> None:
        self.protocol.lost(cause, self.hub.time(), text)
        self.hub.after_batch()
        self._closed()

    def _finish(self) -> None:
        """The protocol is over: let the writer say what is left, and see that the socket goes."""
        if self.stream.closing_at == 0.0:
            self._closed()
            if not self.stream.full:
                self._wake_writer()

    def ended_by_core(self) -> None:
        """The protocol was closed while another connection was served: taken over."""
        if self.protocol.close_cause:
            self._finish()

    def _closed(self) -> None:
        if self.stream.closing_at > 0.0:
            return
        self._over()
        # What comes behind the last packet of a client is not read.
        cause = self.protocol.close_cause
        silent = cause in (causes.CLIENT_DISCONNECT, causes.CLIENT_DISCONNECT_WITH_WILL, causes.STALLED)
        if silent and self.stream.reading:
            self.stream.transport.pause_reading()
        self.hub.wheel.add(self, self.stream.closing_at + LINGER)

    def _over(self) -> None:
        """The protocol is over, whatever becomes of the socket: nothing counts this connection any more."""
        self.stream.closing_at = self.hub.time()
        self.hub.partial.remove(self)
        self.protocol.decoder.clear()
        if self._held is not None:
            self._held.cancel()
            self._held = None
        self.table.ended(self)

    def _release(self) -> None:
        """The transport is gone: nothing may wait for it any more."""
        if self.stream.closing_at == 0.0:
            self._over()
        # A writer that sleeps ends.
        if self.writer is not None:
            self._wake_writer()
            self.writer = None
        # Nor may it keep anything: what is left of a connection goes at once, and leaves no cycles for the collector.
        self.outbox.owner = None
        self.outbox.peer = None

    # -- timers --------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> float:
        """Called by the wheel: has anything taken too long?"""
        if self.stream.lost or self._in_line:
            return 0.0
        if self.stream.closing_at > 0.0:
            return self.stream.linger_due(now)
        if self.protocol.close_cause:
            self._finish()
            return 0.0
        again = self.time_limits.look(now)
        if self.time_limits.cause:
            # In its turn: of those who read nothing thousands may be found at once.
            self._end_in_turn()
        return again

    # -- reading -------------------------------------------------------------------------------------------------------

    def admitted(self, reason_code: int) -> None:
        if self.stream.lost or self.stream.closing_at > 0.0:
            return
        try:
            now: float = self.hub.time()
            # Very many may be answered at once, and each may have sent a whole read behind its CONNECT.
            self.protocol.admitted(reason_code, now, self.hub.turns.work)
            self._went_on(now)
            self.hub.turns.did(self.protocol.work_done)
        except Exception as error:
            self.broke(error)

    def _open(self) -> None:
        self._opened = True
        if self.table.opened(self):
            self.time_limits.opened(self)

    def hold(self, held: int, read: int) -> None:
        """After `read` bytes `held` wait, in the decoder or before it: count them, and see that the rest comes."""
        if self.stream.closing_at > 0.0:
            return
        self._holding = held > 0
        oldest = self.time_limits.hold(self, held, read)
        if oldest:
            self.table.give_way(oldest)

    def _resume_reading(self) -> None:
        stream = self.stream
        if stream.reading or stream.transport.is_closing():
            return
        # At the end what comes is read and forgotten: its rest would have the system reset the connection.
        protocol = self.protocol
        if stream.closing_at == 0.0 and (protocol.waiting or self.outbox.congested or protocol.unfinished):
            self._go_on_soon()
            return
        self._gone_on = False
        self.time_limits.reads_on(self)
        stream.resume_reading()
