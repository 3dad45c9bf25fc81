"""One network connection to an upstream broker: what comes in goes to its `Uplink`, what waits goes out.

Owns the transport, from the CONNECT to the close. Reads and writes as `broker.net.connection` does for clients.

Promises:
- An upstream that does not read costs the outbox, one batch in the transport, and no more; one that makes no progress
  for the stall time, that does not answer a PINGREQ within the keep alive, or that sends no CONNACK, is given up.
- The upstream is not read from while its messages are worked off here, and half-full queues are emptied in between.
- Its owner is told once that it opened, and once that it is over.

Refuses: when to connect again (`link`), and the protocol (`uplink`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from mypy_extensions import mypyc_attr

from broker.core.codec import reasons
from broker.net import sockets
from broker.net.hub import FlushScheduler, Link
from broker.upstream.protocol.uplink import CLOSED, Uplink

LINGER: Final = 2.0
"""Seconds a closing connection has to get its last packet out."""

WRITE_HIGH: Final = 65_536
"""Bytes in the transport's own buffer at which writing stops."""

BATCHES: Final = 8
"""Batches that are written before others have their turn."""

LOOKS: Final = 4
"""How often within a time limit it is looked at whether that is over."""

LOOK: Final = 5.0
"""Seconds between two looks at whether a doubtful message is to be tried again."""

STALL: Final = 0.005
"""Seconds that the upstream is held up when a subscriber's session has become half full."""

PING_AT: Final = 0.75
"""The part of the keep alive time after which a PINGREQ goes, whatever else does: it asks as well as it tells."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Owner:
    """Whoever opened a connection."""

    def opened(self) -> None:
        """The upstream has accepted us."""

    def ended(self) -> None:
        """The connection is over; its `uplink` tells why."""

    def moved(self) -> None:
        """A batch came in: what the upstream holds or refuses may have changed."""

    def broke(self, error: Exception) -> None:
        """A fault of ours, for the log."""


class UpstreamConnection(Link):
    """The asyncio protocol of one connection: an `asyncio.Protocol` by its methods, not by inheritance."""

    def __init__(self, hub: FlushScheduler, uplink: Uplink, owner: Owner, clean_start: bool, timeout: float) -> None:
        super().__init__()
        self.hub = hub
        self.uplink = uplink
        self.owner = owner
        self.clean_start = clean_start
        self.loop = hub.loop
        self.timeout = timeout
        self.transport: asyncio.Transport
        self._send: Callable[[bytes], None]
        self.made = False
        self._full = False
        self._reading = True
        self.was_open = False
        self._over = False
        self._going_on = False
        self._opened_at = 0.0
        self._pinged_at = 0.0
        self._progress = -1
        self._progress_at = 0.0
        self._closing_at = 0.0

    @property
    def over(self) -> bool:
        """Whether the network connection is gone, or will be as soon as it is made."""
        return self._over

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The network connection is there: say who we are."""
        self.transport = cast(asyncio.Transport, transport)
        self.made = True
        self._send = self.transport.write
        self.transport.set_write_buffer_limits(high=WRITE_HIGH)
        self._opened_at = self.loop.time()
        self.uplink.outbox.owner = self
        if self._over:
            self.transport.abort()
            return
        hello = self.uplink.hello(self.clean_start)
        self.hub.counters.bytes_sent += len(hello)
        self._send(hello)
        self.hub.wheel.add(self, self._opened_at + self.timeout)

    def data_received(self, data: bytes) -> None:
        """A read came in."""
        if self._closing_at > 0.0 or self._over:
            return
        try:
            self.uplink.receive(data, self.hub.time())
            self._after_turn()
        except Exception as error:
            self.broke(error)

    def broke(self, error: Exception) -> None:
        """A fault of ours: this connection ends, the others go on, and the log has the place."""
        self.owner.broke(error)
        if self._over:
            return
        try:
            self.abort("an internal error")
        except Exception as another:
            self.owner.broke(another)
            self.transport.abort()

    def _after_turn(self) -> None:
        uplink = self.uplink
        if not self.was_open and uplink.accepted:
            self.was_open = True
            self._pinged_at = self.loop.time()
            self._look_at(self._pinged_at)
            self.owner.opened()
        self.hub.after_batch()
        if uplink.state == CLOSED:
            self._finish()
            return
        due = uplink.answer_due
        if due > 0.0:
            self.hub.wheel.add(self, due)
        if uplink.unfinished or uplink.outbox.congested:
            if self._reading:
                self._reading = False
                self.transport.pause_reading()
            if uplink.unfinished and not uplink.outbox.congested and not self._going_on:
                self._going_on = True
                if uplink.hurried:
                    self.loop.call_later(STALL, self._go_on)
                else:
                    self.loop.call_soon(self._go_on)
        elif not self._reading:
            self._reading = True
            self.transport.resume_reading()
        self.owner.moved()

    def _go_on(self) -> None:
        self._going_on = False
        if self._closing_at > 0.0 or self._over:
            return
        try:
            self.uplink.go_on(self.loop.time())
            self._after_turn()
        except Exception as error:
            self.broke(error)

    def eof_received(self) -> bool:
        """The upstream will send no more: the same as a lost connection, in MQTT."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._over = True
        self.hub.wheel.remove(self)
        text = "the connection was lost" if exc is None else f"the connection was lost: {exc}"
        # A network that is gone is another matter.
        closed = exc is None or isinstance(exc, (ConnectionError, ssl.SSLError))
        try:
            self.uplink.lost(text, self.loop.time(), closed)
            self.hub.after_batch()
        except Exception as error:
            self.owner.broke(error)
        # Nothing is kept of it, and no cycle is left for the collector.
        self.uplink.outbox.owner = None
        self.uplink.outbox.peer = None
        self.owner.ended()

    def pause_writing(self) -> None:
        """The transport has more than it can send."""
        self._full = True
        self._progress = -1
        self._progress_at = self.loop.time()
        self._look_at(self._progress_at)

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._full = False
        self._write_on()

    # -- writing -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """The outbox has something to take."""
        if not self._full and self._closing_at == 0.0:
            self._write()

    def _write(self) -> None:
        """Write what waits, a few batches at most, as long as the transport takes it."""
        uplink = self.uplink
        outbox = uplink.outbox
        if self._over or not self.made or self._closing_at > 0.0:
            # Nothing comes after the last packet [MQTT-3.14.4-1].
            return
        now = self.hub.time()
        left = BATCHES
        while not self._full and left > 0:
            data = outbox.take(self.hub.write_batch_bytes, now)
            if data:
                self.hub.counters.bytes_sent += len(data)
                self._send(data)
            if not uplink.refill(now):
                outbox.woken()
                if not self._reading and not uplink.outbox.congested and not self._going_on:
                    # It was not read from for its acknowledgements' sake.
                    self._going_on = True
                    self.loop.call_soon(self._go_on)
                return
            left -= 1
        if not self._full:
            self.loop.call_soon(self._write_on)

    def _write_on(self) -> None:
        if self._full:
            return
        try:
            self._write()
            self.hub.after_batch()
        except Exception as error:
            self.broke(error)

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self, text: str, forget: bool) -> None:
        """End the connection in order. `forget`: the upstream need not keep our session."""
        if not self.made:
            self._over = True
            return
        self.uplink.close(reasons.SUCCESS, text, forget, self.loop.time())
        self.hub.after_batch()
        self._finish()

    def abort(self, text: str) -> None:
        """Give the upstream up."""
        self.uplink.lost(text, self.loop.time())
        self.hub.after_batch()
        self._finish()
        self.transport.abort()

    def ended_by_core(self) -> None:
        """The outbox was closed."""
        if self.uplink.state == CLOSED:
            self._finish()

    def _finish(self) -> None:
        """The protocol is over: write the last packet and close."""
        if self._closing_at > 0.0 or self._over:
            return
        self._closing_at = self.loop.time()
        transport = self.transport
        if not transport.is_closing():
            rest = self.uplink.outbox.take(self.hub.write_batch_bytes, self._closing_at) + self.uplink.final_packet
            if rest:
                self.hub.counters.bytes_sent += len(rest)
                self._send(rest)
            transport.close()
        self.hub.wheel.add(self, self._closing_at + LINGER)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _look_at(self, now: float) -> None:
        """See that `check` comes in time for whatever is first."""
        due = self._due(now)
        if due > 0.0:
            self.hub.wheel.add(self, due)

    def _due(self, now: float) -> float:
        due = 0.0
        keep_alive = self.uplink.keep_alive
        if keep_alive > 0:
            due = now + keep_alive * PING_AT / LOOKS
        if self._full and self.hub.stall_timeout > 0.0:
            stall = now + self.hub.stall_timeout / LOOKS
            if due == 0.0 or stall < due:
                due = stall
        if self.uplink.session.trial.on and (due == 0.0 or now + LOOK < due):
            due = now + LOOK
        answer = self.uplink.answer_due
        if answer > 0.0 and (due == 0.0 or answer < due):
            due = answer
        return due

    def check(self, now: float) -> float:
        """Look whether the upstream is still there."""
        uplink = self.uplink
        if self._over:
            return 0.0
        if self._closing_at > 0.0:
            if now >= self._closing_at + LINGER:
                self.transport.abort()
                return 0.0
            return self._closing_at + LINGER
        if not self.was_open:
            if now >= self._opened_at + self.timeout:
                self.abort("the upstream sent no CONNACK in time")
                return 0.0
            return self._opened_at + self.timeout
        if 0.0 < uplink.answer_due <= now:
            uplink.hurry(now)
            self.hub.after_batch()
        if uplink.session.trial.on:
            uplink.look(now)
            self.hub.after_batch()
        keep_alive = uplink.keep_alive
        if keep_alive > 0:
            if uplink.ping_sent > 0.0 and now >= max(uplink.ping_sent, uplink.last_received) + keep_alive:
                self.abort(f"the upstream did not answer a PINGREQ within {keep_alive} s")
                return 0.0
            if uplink.ping_sent == 0.0 and now >= self._pinged_at + keep_alive * PING_AT:
                self._pinged_at = now
                uplink.ping(now)
                self.hub.after_batch()
        if self._full and self.hub.stall_timeout > 0.0:
            left = self.transport.get_write_buffer_size() + sockets.unsent(self.transport)
            if left != self._progress:
                self._progress = left
                self._progress_at = now
            elif now >= self._progress_at + self.hub.stall_timeout:
                self.abort(f"the upstream has read nothing for {self.hub.stall_timeout:g} s")
                return 0.0
        return self._due(now)
