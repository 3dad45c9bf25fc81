"""One client's connection: what comes in goes to its `ServerProtocol`, what waits in its outbox goes out.

The writer task takes batches from the outbox and joins each to one write (a single piece is written in its place). A
peer that does not read costs its outbox, one batch in the transport, and no more: nothing is written to a transport
that is full, and one that makes no progress for `stall_timeout` seconds is given up. A peer that sends and does not
read its acknowledgements is not read from until it does; nor is one that publishes too fast, until its time has come.
A connection counts as one until its protocol is over, and not for as long as its socket lives.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from broker.core import causes
from broker.core.codec import reasons
from broker.core.connection.phases import CONNECTED
from broker.core.connection.protocol import LARGE_READ, ServerProtocol
from broker.core.hooks import Origin
from broker.core.queues.outbox import Outbox
from broker.net import sockets
from broker.net.hub import FlushScheduler, Link
from broker.net.partial_packets import EVICTIONS
from broker.net.stream import FULL_READ, LINGER, STALL, STALL_LOOKS, STALL_ROUNDS, Stream

if TYPE_CHECKING:
    from broker.net.listeners import Listener
    from broker.net.server import Server

GRACE: Final = 1.5
"""A client may be silent for this many keep alive times, section 3.1.2.10 [MQTT-3.1.2-22]."""

CLOCK_LOOKS: Final = 600.0
"""Seconds after which the time at which credentials expire is held against the system's clock again: it may be set."""


class Connection(Link):
    """The asyncio protocol of one client: an `asyncio.Protocol` by its methods, not by inheritance (it is compiled)."""

    def __init__(self, server: Server, listener: Listener) -> None:
        super().__init__()
        self.server = server
        self.listener = listener
        self.hub: FlushScheduler = server.hub
        self.loop = self.hub.loop
        self.opened_at = 0.0
        # The peer as the log has it, and its IP address ("": none): of the socket, unless a proxy has told before.
        self.address = ""
        self.host = ""
        self.stream = Stream(self.loop, self.hub.counters)
        self.outbox: Outbox  # by connection_made
        self.protocol: ServerProtocol
        # The writer task, from the first batch on that is more than a single piece; what it waits for while it sleeps.
        self.writer: asyncio.Task[None] | None = None
        self._asleep: asyncio.Future[None] | None = None
        # A turn of the protocol has been asked of the event loop.
        self._going_on = False
        # The last packet was written.
        self._finished = False
        self._held: asyncio.TimerHandle | None = None
        # Once something in the outbox was worth less the longer it waits.
        self._fresh = False
        self._opened = False
        # Bytes that a transport has read and not handed on yet; only that of a WebSocket does so.
        self.in_transport = 0
        # Bytes that wait in the decoder; how many, and when, at the last sign that the packet is coming.
        self._partial = 0
        self._partial_from = 0
        self._partial_at = 0.0

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the protocol and the outbox of a new connection."""
        self.stream.begin(transport)
        try:
            self._begin(transport)
        except Exception as error:
            self._fault(error)
            self.stream.abort()

    def _begin(self, transport: asyncio.BaseTransport) -> None:
        hub = self.hub
        if not self.address:
            self.host, self.address = sockets.peer_name(transport)
        if not sockets.INHERITED:
            sockets.tune(transport.get_extra_info("socket"), self.server.settings)
        router = hub.router
        self.outbox = Outbox(router.fanout.touched, hub.counters, hub.live_messages, hub.live_bytes)
        self.outbox.owner = self
        origin = Origin(self.address, self.host, self.listener.name)
        self.protocol = ServerProtocol(router, self.outbox, origin)
        if router.access_control is not None:
            self.protocol.answer_later = self.admitted
        self.opened_at = self.loop.time()
        hub.counters.connections += 1
        if not self.server.joined(self):
            # Not even listened to.
            self.stream.closing_at = self.opened_at
            self.stream.abort()
            return
        if hub.connect_timeout > 0.0:
            hub.wheel.add(self, self.opened_at + hub.connect_timeout)

    def data_received(self, data: bytes) -> None:
        """A read came in."""
        if self.stream.closing_at > 0.0:
            return
        try:
            protocol = self.protocol
            eventful = protocol.receive(data, self.hub.time())
            held = protocol.decoder.held_size + self.in_transport
            if held > 0 or self._partial > 0:
                self.hold(held, len(data))
            if eventful:
                self._after_turn()
            else:
                self.hub.after_batch()
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

    def _after_turn(self) -> None:
        """After each turn of the protocol: tell others, and see whether and when it goes on."""
        protocol = self.protocol
        if protocol.accepted is not self._opened:
            self._open()
        self.hub.after_batch()
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
                self._held = self.loop.call_at(protocol.held_until, self._go_on)
            elif protocol.hurried:
                self.loop.call_later(STALL, self._stalled, STALL_ROUNDS)
            else:
                self.loop.call_soon(self._go_on)

    def _stalled(self, rounds: int) -> None:
        if rounds > 0:
            self.loop.call_soon(self._stalled, rounds - 1)
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._going_on = False
        self._held = None
        if self.stream.closing_at > 0.0 or self.stream.lost or self.protocol.waiting:
            return
        if self.hub.behind:
            # Those whom its last turn reached have to be written to first, or their queues fill.
            self._going_on = True
            self.loop.call_soon(self._go_on)
            return
        try:
            self.protocol.go_on(self.loop.time())
            self.hold(self.protocol.decoder.held_size + self.in_transport, 0)
            self._after_turn()
            self._resume_reading()
        except Exception as error:
            self.broke(error)

    def broke(self, error: Exception) -> None:
        """A fault of ours: this connection ends, the others go on, and the log has the place."""
        self._fault(error)
        if self.stream.lost:
            return
        try:
            self.abort(causes.INTERNAL_ERROR)
        except Exception as another:
            self._fault(another)
            self.stream.abort()

    def _fault(self, error: Exception) -> None:
        self.server.faults.broke("connection", error, address=self.address)

    def eof_received(self) -> bool:
        """The peer will send no more: the same as a lost connection, in MQTT."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self.stream.lost = True
        self.hub.wheel.remove(self)
        cause = causes.WRITE_FAILED if isinstance(exc, BrokenPipeError) else causes.CONNECTION_LOST
        # Each by itself: whatever becomes of the session, the connection is forgotten.
        try:
            self.protocol.lost(cause, self.loop.time())
        except Exception as error:
            self._fault(error)
        try:
            self.server.left(self)
            self._release()
            self.hub.after_batch()
        except Exception as error:
            self._fault(error)

    def pause_writing(self) -> None:
        """The transport has more than it can send."""
        hub = self.hub
        self.stream.filled()
        if hub.stall_timeout > 0.0:
            hub.wheel.add(self, self.loop.time() + hub.stall_timeout / STALL_LOOKS)

    def resume_writing(self) -> None:
        """The transport has room again."""
        self.stream.full = False
        self._wake_writer()

    # -- writing -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
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
                if not self._write_batch():
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
        """Whether the writer has nothing to do any more."""
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
            more = self._write_batch()
            if self.stream.full:  # not as before the call
                return False
            if not stream.reading:
                self._resume_reading()
            if more:
                return True
            if self.protocol.close_cause:
                self._goodbye()
            else:
                self.outbox.woken()
        except Exception as error:
            self.broke(error)
        return False

    def _write_batch(self) -> bool:
        """Write one batch of what waits in the outbox. True when there is more, or the transport has had enough."""
        hub = self.hub
        stream = self.stream
        now: float = hub.time()
        most = hub.write_batch_bytes
        if self.outbox.fresh:
            if not self._fresh:
                self._fresh = True
                stream.keep_fresh()
            most = min(most, sockets.FRESH_BYTES)
        data = self.outbox.take(most, now)
        if data:
            stream.write(data)
        return self.protocol.refill(now) or stream.full

    def _goodbye(self) -> None:
        """Write the last packet and close our half; the rest goes when the peer closes or `LINGER` is over.

        Nothing comes after the last packet [MQTT-3.14.4-1]: the writer ends here, and the connection with it
        [MQTT-3.14.4-2].
        """
        self._finished = True
        self.stream.finish(self.protocol.final_packet, True)

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self, cause: str, reason_code: int, text: str) -> None:
        """End the connection from this side, with a DISCONNECT where the protocol has one."""
        self.protocol.close(cause, reason_code, text, self.loop.time())
        self.hub.after_batch()
        self._finish()

    def abort(self, cause: str) -> None:
        """Give up a peer that takes nothing any more."""
        self.gone(cause)
        self.stream.abort()

    def gone(self, cause: str) -> None:
        """The peer is gone; the socket closes by itself, or is aborted when it takes too long."""
        self.protocol.lost(cause, self.loop.time())
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
        self.stream.closing_at = self.loop.time()
        self.hub.partial.remove(self)
        self.protocol.decoder.clear()
        if self._held is not None:
            self._held.cancel()
            self._held = None
        self.server.ended(self)

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
        if self.stream.lost:
            return 0.0
        if self.stream.closing_at > 0.0:
            return self.stream.linger_due(now)
        protocol = self.protocol
        if protocol.close_cause:
            self._finish()
            return 0.0
        again = 0.0
        if protocol.state != CONNECTED:
            if self.hub.connect_timeout > 0.0:
                due = self.opened_at + self.hub.connect_timeout
                if now >= due:
                    self.close(causes.CONNECT_TIMEOUT, reasons.MAXIMUM_CONNECT_TIME, "no CONNECT in time")
                    return self.stream.linger_due(now)
                again = due
        elif protocol.keep_alive > 0 and protocol.held_until > 0.0:
            # It is not read from, and so cannot be silent; but it can be gone.
            if self.stream.peer_is_gone:
                self.abort(causes.CONNECTION_LOST)
                return 0.0
            again = now + GRACE * protocol.keep_alive
        elif protocol.keep_alive > 0 and self.stream.reading:
            due = protocol.last_received + GRACE * protocol.keep_alive
            if now >= due:
                text = f"nothing received for {GRACE} x {protocol.keep_alive} s"
                self.close(causes.KEEP_ALIVE, reasons.KEEP_ALIVE_TIMEOUT, text)
                return self.stream.linger_due(now)
            again = due
        due = self._expires(now)
        if due > 0.0:
            if now >= due:
                self.close(causes.EXPIRED, reasons.NOT_AUTHORIZED, "what the client logged in with has expired")
                return self.stream.linger_due(now)
            if again == 0.0 or due < again:
                again = due
        if self._partial > 0 and protocol.state == CONNECTED and self.hub.packet_timeout > 0.0:
            if not self.stream.reading:
                # It waits for us.
                self._partial_at = now
            due = self._partial_at + self.hub.packet_timeout
            if now >= due:
                text = f"less than {LARGE_READ} bytes of a packet in {self.hub.packet_timeout:g} s"
                self.close(causes.PACKET_TIMEOUT, reasons.IMPLEMENTATION_SPECIFIC_ERROR, text)
                return self.stream.linger_due(now)
            if again == 0.0 or due < again:
                again = due
        if self.stream.full and self.hub.stall_timeout > 0.0:
            due = self.stream.stall_due(now, self.hub.stall_timeout)
            if due == 0.0:
                self.abort(causes.STALLED)
                return 0.0
            if again == 0.0 or due < again:
                again = due
        return again

    def _expires(self, now: float) -> float:
        """When to see whether the client's credentials have expired (loop time); 0.0: they never do.

        The system's clock decides, which may be set meanwhile: so never much later than now.
        """
        session = self.protocol.session
        expires_at = 0.0 if session is None else session.principal.expires_at
        return 0.0 if expires_at == 0.0 else now + min(max(expires_at - time.time(), 0.0), CLOCK_LOOKS)

    # -- reading -------------------------------------------------------------------------------------------------------

    def admitted(self, reason_code: int) -> None:
        """Access control that answers late has made up its mind: what `Ticket.answer` comes to."""
        if self.stream.lost or self.stream.closing_at > 0.0:
            return
        try:
            self.protocol.admitted(reason_code, self.loop.time())
            self._after_turn()
            self._resume_reading()
        except Exception as error:
            self.broke(error)

    def _open(self) -> None:
        self._opened = True
        if self.protocol.refused != 0:
            # It took the place of a connection that the core has ended; here it may have to leave first.
            self.hub.after_batch()
            if not self.server.readmit(self):
                self.close(causes.REFUSED, reasons.QUOTA_EXCEEDED, "too many connections from this address")
                return
        self.server.opened(self)
        keep_alive = self.protocol.keep_alive
        if keep_alive > 0:
            self.hub.wheel.add(self, self.protocol.last_received + GRACE * keep_alive)
        expires = self._expires(self.loop.time())
        if expires > 0.0:
            self.hub.wheel.add(self, expires)

    def hold(self, held: int, read: int) -> None:
        """After `read` bytes `held` wait, in the decoder or before it: count them, and see that the rest comes."""
        hub = self.hub
        before = self._partial
        if self.stream.closing_at > 0.0 or (held == 0 and before == 0):
            return
        completed = held < before + read
        self._partial = held
        hub.partial.update(self, held, completed)
        if held == 0:
            return
        if before == 0 or completed or held - self._partial_from >= LARGE_READ:
            self._partial_from = held
            self._partial_at = self.loop.time()
            if hub.packet_timeout > 0.0 and self.protocol.state == CONNECTED:
                hub.wheel.add(self, self._partial_at + hub.packet_timeout)
        for _ in range(EVICTIONS):
            oldest = hub.partial.take_oldest()
            if oldest is None:
                break
            assert isinstance(oldest, Connection)
            text = "all clients together hold too much unfinished"
            oldest.close(causes.PARTIAL_PACKETS, reasons.QUOTA_EXCEEDED, text)

    def _resume_reading(self) -> None:
        stream = self.stream
        if stream.reading or stream.transport.is_closing():
            return
        # At the end what comes is read and forgotten: its rest would have the system reset the connection.
        protocol = self.protocol
        closing = stream.closing_at > 0.0
        if not closing and (protocol.waiting or self.outbox.congested or protocol.unfinished):
            self._go_on_soon()
            return
        self._partial_at = protocol.last_received = self.loop.time()
        stream.resume_reading()
        if protocol.keep_alive > 0 and not closing:
            self.hub.wheel.add(self, protocol.last_received + GRACE * protocol.keep_alive)
