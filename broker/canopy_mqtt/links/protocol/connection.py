"""One connection to another broker: reads go to its `Uplink`, and queued messages are written.

It lasts from the CONNECT to the close. An upstream that does not read costs the buffer, one batch in the transport, and
no more; one without progress for the stall time, without an answer to a PINGREQ within the keep alive, or without a
CONNACK is disconnected. It is not read from while its messages are processed here. The owner (`Owner`) is told once
that the connection opened and once that it ended, and decides when to connect again.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from mypy_extensions import i64, mypyc_attr

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.links.protocol.uplink import CLOSED, Uplink
from canopy_mqtt.net.rounds import LARGE, Rounds
from canopy_mqtt.net.stream import FULL_READ, LINGER, STALL_LOOKS, Stream
from canopy_mqtt.net.timers import Endpoint

BATCHES: Final = 8
"""Batches that are written before others have their turn."""

LOOK: Final = 5.0
"""Seconds between two looks at whether a doubtful message is to be tried again."""

PING_AT: Final = 0.75
"""The part of the time within which a PINGREQ has to be answered after which one goes, whatever else does: it asks as
well as it tells."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Owner:
    """The opener of a connection, which is told of its end."""

    def opened(self) -> None:
        """Called when the upstream has accepted us."""

    def ended(self) -> None:
        """Called when the connection is over; its `uplink` tells why."""

    def mistrusts(self, transport: asyncio.BaseTransport) -> str:
        """Return why the other end is not the upstream, before anything is sent; empty: it is."""
        del transport
        return ""

    def moved(self) -> None:
        """Called after a batch: what the upstream holds or refuses may have changed."""

    def broke(self, error: Exception) -> None:
        """Called after a fault of ours, for the log."""


class UpstreamConnection(Endpoint):
    """The asyncio protocol of one connection: an `asyncio.Protocol` by its methods, not by inheritance."""

    def __init__(self, rounds: Rounds, uplink: Uplink, owner: Owner, clean_start: bool, timeout: float) -> None:
        super().__init__()
        self.rounds = rounds
        self.uplink = uplink
        self.owner = owner
        self.clean_start = clean_start
        self.loop = rounds.loop
        self.timeout = timeout
        self.stream = Stream(rounds.loop, rounds.counters)
        self.was_open = False
        self._over = False
        # When its end began; 0.0: it has not.
        self._closing_at = 0.0
        # A turn of the protocol has been asked for; and whether what was read has had one before.
        self._resuming = self._resumed = False
        self._opened_at = 0.0
        self._pinged_at = 0.0

    @property
    def over(self) -> bool:
        """True if the network connection is gone, or will be as soon as it is made."""
        return self._over

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.stream.begin(transport)
        self._opened_at = self.loop.time()
        self.uplink.send_buffer.owner = self
        if self._over:
            self.stream.transport.abort()
            return
        wrong = self.owner.mistrusts(transport)
        if wrong:
            self.abort(wrong)
            return
        self.stream.write(self.uplink.hello(self.clean_start))
        self.rounds.wheel.add(self, self._opened_at + self.timeout)

    def data_received(self, data: bytes) -> None:
        if self._closing_at > 0.0 or self._over:
            return
        try:
            rounds = self.rounds
            # Little of what a round has no room for is acted on, as for a client.
            work = 0 if rounds.spent and len(data) > LARGE else rounds.work
            self.uplink.receive(data, self.rounds.time(), work)
            self._after_turn()
            if len(data) >= FULL_READ and self.stream.reading:
                # There is more: uvloop would read on, up to 32 times, before it looks at any other connection.
                self.stream.pause_reading()
                self.loop.call_soon(self._read_on)
        except Exception as error:
            self.failed(error)

    def _read_on(self) -> None:
        if self._closing_at == 0.0 and not self._over and not self._blocked:
            self.stream.resume_reading()

    @property
    def _blocked(self) -> bool:
        """True if nothing is read now: received packets wait to be processed, or the upstream does not read."""
        return self.uplink.unfinished or self.uplink.send_buffer.congested

    def failed(self, error: Exception) -> None:
        self.owner.broke(error)
        if self._over:
            return
        try:
            self.abort("an internal error")
        except Exception as another:
            self.owner.broke(another)
            self.stream.transport.abort()

    def _after_turn(self) -> None:
        uplink = self.uplink
        if not self.was_open and uplink.accepted:
            self.was_open = True
            self._pinged_at = self.loop.time()
            self._look_at(self._pinged_at)
            self.owner.opened()
        self.rounds.after_batch()
        if uplink.state == CLOSED:
            self._finish()
            return
        due = uplink.answer_due
        if due > 0.0:
            self.rounds.wheel.add(self, due)
        if self._blocked:
            self.stream.pause_reading()
            if uplink.unfinished and not uplink.send_buffer.congested and not self._resuming:
                self._resuming = True
                if uplink.hurried:
                    self.rounds.resume_later(self)
                else:
                    self.rounds.resume(self, not self._resumed)
        else:
            self._resumed = False
            self.stream.resume_reading()
        self.owner.moved()

    def turn(self, work: i64) -> None:
        self._resuming = False
        if self._closing_at > 0.0 or self._over:
            return
        self._resumed = True
        try:
            self.uplink.go_on(self.loop.time(), work)
            self._after_turn()
        except Exception as error:
            self.failed(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self.rounds.wheel.remove(self)
        text = "the connection was lost" if exc is None else f"the connection was lost: {exc}"
        # A network that is gone is another matter.
        closed = exc is None or isinstance(exc, (ConnectionError, ssl.SSLError))
        try:
            self.uplink.lost(text, self.loop.time(), closed)
            self.rounds.after_batch()
        except Exception as error:
            self.owner.broke(error)
        # Nothing is kept of it, and no cycle is left for the collector.
        self.uplink.send_buffer.owner = None
        self.uplink.send_buffer.peer = None
        self.owner.ended()

    def pause_writing(self) -> None:
        self.stream.filled()
        self._look_at(self.loop.time())

    def resume_writing(self) -> None:
        self.stream.full = False
        self._write_on()

    # -- writing -------------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        try:
            if self.uplink.send_buffer.closed and self.uplink.state == CLOSED:
                self._finish()
            if not self.stream.full and self._closing_at == 0.0:
                self._write(now)
        except Exception as error:
            # Later, since others are written to now.
            self.loop.call_soon(self.failed, error)

    def _write(self, now: float) -> None:
        """Write what waits, a few batches at most, as long as the transport takes it."""
        uplink = self.uplink
        send_buffer = uplink.send_buffer
        stream = self.stream
        if self._over or not stream.made or self._closing_at > 0.0:
            # Nothing comes after the last packet [MQTT-3.14.4-1].
            return
        left = BATCHES
        while not stream.full and left > 0:
            data = send_buffer.take(self.rounds.write_batch_bytes, now)
            if data:
                stream.write(data)
            if not uplink.refill(now):
                send_buffer.listed = False
                if not stream.reading and not uplink.send_buffer.congested and not self._resuming:
                    # The reads had stopped because of acknowledgements that waited.
                    self._resuming = True
                    self.rounds.resume(self, True)
                return
            left -= 1
        if not stream.full:
            self.loop.call_soon(self._write_on)

    def _write_on(self) -> None:
        if self.stream.full:
            return
        try:
            self._write(self.rounds.time())
            self.rounds.after_batch()
        except Exception as error:
            self.failed(error)

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self, text: str, forget: bool) -> None:
        """End the connection in order. `forget`: the upstream need not keep our session."""
        if not self.stream.made:
            self._over = True
            return
        self.uplink.close(reason_codes.SUCCESS, text, forget, self.loop.time())
        self.rounds.after_batch()
        self._finish()

    def abort(self, text: str) -> None:
        self.uplink.lost(text, self.loop.time())
        self.rounds.after_batch()
        self._finish()
        self.stream.transport.abort()

    def _finish(self) -> None:
        """Write the last packet and close, since the protocol is over."""
        stream = self.stream
        if self._closing_at > 0.0 or self._over:
            return
        self._closing_at = self.loop.time()
        rest = self.uplink.send_buffer.take(self.rounds.write_batch_bytes, self._closing_at) + self.uplink.final_packet
        # Both halves: an upstream that does not close its own would delay all that waits for the end.
        stream.finish(rest, False)
        self.rounds.wheel.add(self, self._closing_at + LINGER)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _look_at(self, now: float) -> None:
        """Schedule `check` for the earliest of its times."""
        due = self._due(now)
        if due > 0.0:
            self.rounds.wheel.add(self, due)

    def _due(self, now: float) -> float:
        due = 0.0
        within = self.uplink.answer_within
        if within > 0.0:
            due = now + within * PING_AT / STALL_LOOKS
        if self.stream.full and self.rounds.stall_timeout > 0.0:
            stall = now + self.rounds.stall_timeout / STALL_LOOKS
            if due == 0.0 or stall < due:
                due = stall
        if self.uplink.looks and (due == 0.0 or now + LOOK < due):
            due = now + LOOK
        answer = self.uplink.answer_due
        if answer > 0.0 and (due == 0.0 or answer < due):
            due = answer
        return due

    def check(self, now: float) -> float:
        uplink = self.uplink
        if self._over:
            return 0.0
        if self._closing_at > 0.0:
            if now < self._closing_at + LINGER:
                return self._closing_at + LINGER
            self.stream.transport.abort()
            return 0.0
        if not self.was_open:
            began = self._opened_at
            if uplink.terms.node:
                # The CONNACK of a node may be long: as long as parts of it come.
                began = max(began, uplink.last_received)
            if now >= began + self.timeout:
                self.abort("the other broker sent no CONNACK in time")
                return 0.0
            return began + self.timeout
        if 0.0 < uplink.answer_due <= now:
            uplink.hurry(now)
            self.rounds.after_batch()
        if uplink.looks:
            uplink.look(now)
            self.rounds.after_batch()
        within = uplink.answer_within
        if within > 0.0:
            if uplink.ping_sent > 0.0 and now >= max(uplink.ping_sent, uplink.last_received) + within:
                self.abort(f"the other broker did not answer a PINGREQ within {within:g} s")
                return 0.0
            if uplink.ping_sent == 0.0 and now >= self._pinged_at + within * PING_AT:
                self._pinged_at = now
                uplink.ping(now)
                self.rounds.after_batch()
        due = self._due(now)
        if self.stream.full and self.rounds.stall_timeout > 0.0:
            stall = self.stream.stall_due(now, self.rounds.stall_timeout)
            if stall == 0.0:
                self.abort(f"the other broker has read nothing for {self.rounds.stall_timeout:g} s")
                return 0.0
            if due == 0.0 or stall < due:
                due = stall
        return due
