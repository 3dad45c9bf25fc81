"""Lets messages to a peer wait for more, so that one write takes all of a window (`queue.max_delay`).

A window begins with the first packet that may wait, and ends before the peer's delay has passed. It ends early when the
peer's queue is half full, when its send quota is used up or more waits for room, and when a packet comes that may not
wait: any control packet but a PUBACK, and this as well unless the client's CONNECT has requested a delay. Nothing
overtakes: all that waits leaves together. While no delay is set, no buffer comes here.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from mypy_extensions import i64

from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.core.queues.queue_terms import UNSET
from canopy_mqtt.core.queues.send_buffer import MAX_CONTROL_BYTES, SendBuffer
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.net.timers import Endpoint

RESOLUTION: Final = 0.002
"""Seconds between the times at which windows end: one ends by less than this early, and never late."""

ENDS: Final = 128
"""Windows that end in one turn, each with a write. The others follow at once, after the loop's other work."""

PUBACK: Final = 0x40
"""The first byte of a PUBACK."""

NOT_OPEN: Final = -1
"""The slot of a window that is not open."""


class PeerDelay:
    """The delay of one peer, in seconds, and its window."""

    def __init__(self, endpoint: Endpoint, seconds: float, version: i64, requested: i64) -> None:
        self.endpoint = endpoint
        self.seconds = seconds
        # What the delay was computed from: the settings, and what the client requests.
        self.version: i64 = version
        self.requested: i64 = requested
        # When the window ends, in units of `RESOLUTION` of the loop's time.
        self.slot: i64 = NOT_OPEN
        # Bytes of the control packets of this window, of which each may wait.
        self.control_bytes: i64 = 0


class Delays:
    """The windows of all connections of one server."""

    def __init__(self, router: Router, loop: asyncio.AbstractEventLoop) -> None:
        self._limits = router.limits
        self._peers = router.peers
        self._loop = loop
        # The open windows, by the time at which they end, and the timer for the first of these times.
        self._slots: dict[int, set[PeerDelay]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._first: i64 = 0

    def take_waiting(self, touched: list[SendBuffer], now: float) -> None:
        """Take the buffers whose packets may wait out of a list of those that have something to write."""
        kept: i64 = 0
        for send_buffer in touched:
            owner = send_buffer.owner
            if owner is not None and self._may_wait(send_buffer, cast(Endpoint, owner), now):
                # The next offer lists it again, and then it is looked at again.
                send_buffer.listed = False
            else:
                touched[kept] = send_buffer
                kept += 1
        del touched[kept:]

    def end(self, endpoint: Endpoint) -> bool:
        """End the window of a connection, whose packets the caller writes. Return False if none is open."""
        delay = endpoint.delay
        if not isinstance(delay, PeerDelay) or delay.slot == NOT_OPEN:
            return False
        waiting = self._slots[delay.slot]
        waiting.discard(delay)
        if not waiting:
            del self._slots[delay.slot]
        delay.slot = NOT_OPEN
        return True

    def close(self) -> None:
        for waiting in self._slots.values():
            for delay in waiting:
                delay.slot = NOT_OPEN
        self._slots.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- a packet came -------------------------------------------------------------------------------------------------

    def _may_wait(self, send_buffer: SendBuffer, endpoint: Endpoint, now: float) -> bool:
        """Return whether the packets of a connection go on waiting; begin its window if none is open."""
        peer = send_buffer.peer
        if not isinstance(peer, ServerProtocol):
            return False
        session = peer.session
        if session is None or send_buffer.closed:
            self.end(endpoint)
            return False
        requested: i64 = UNSET if session.requested_delays is None else session.requested_delays.smallest
        delay = endpoint.delay
        if (
            not isinstance(delay, PeerDelay)
            or delay.version != self._peers.delays_version
            or delay.requested != requested
        ):
            # What waits by the delay that it had before leaves at once.
            waits = self.end(endpoint)
            delay = PeerDelay(endpoint, peer.max_delay(), self._peers.delays_version, requested)
            endpoint.delay = delay
            if waits:
                return False
        if delay.seconds == 0.0:
            return False
        present: i64 = _slot(now)
        begins = delay.slot == NOT_OPEN
        slot: i64 = delay.slot
        if begins:
            delay.control_bytes = 0
            slot = int((now + delay.seconds) / RESOLUTION)
        if (
            slot <= present
            or _is_pressed(send_buffer, session)
            or (
                send_buffer.control_bytes != delay.control_bytes
                and not self._may_control_wait(send_buffer, session, delay)
            )
        ):
            self.end(endpoint)
            session.hurries = False
            return False
        if begins:
            self._begin(delay, slot)
        return True

    def _may_control_wait(self, send_buffer: SendBuffer, session: Session, delay: PeerDelay) -> bool:
        """Return whether the control packets that came since the last look may wait.

        They may if the client has asked for that, all of them are PUBACKs, and too few for it to have to stop.
        """
        requested = session.requested_delays
        if (
            requested is None
            or not requested.acknowledgements
            or send_buffer.control_bytes * 2 > MAX_CONTROL_BYTES
            or send_buffer.unwritten * 2 >= self._limits.receive_maximum
        ):
            return False
        items = send_buffer.items
        new: i64 = send_buffer.control_bytes - delay.control_bytes
        at: i64 = len(items)
        # No control packet leaves a window before it ends, nor is one dropped.
        while new > 0 and at > 0:
            at -= 1
            item = items[at]
            if isinstance(item, bytes) and item[0] & 0xF0 != 0x30:
                if item[0] != PUBACK:
                    return False
                new -= len(item)
        delay.control_bytes = send_buffer.control_bytes
        return True

    # -- windows end ---------------------------------------------------------------------------------------------------

    def _begin(self, delay: PeerDelay, slot: i64) -> None:
        delay.slot = slot
        self._slots.setdefault(slot, set()).add(delay)
        if self._timer is None or slot < self._first:
            self._arm(slot)

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._first = slot
        self._timer = self._loop.call_at(slot * RESOLUTION, self._end_due)

    def _end_due(self) -> None:
        """End the windows whose time has come, and write what waits."""
        self._timer = None
        present: i64 = _slot(self._loop.time())
        left: i64 = ENDS
        while self._slots:
            first: i64 = min(self._slots)
            if first > present or left == 0:
                # A write may have begun a window; in front of this one only where the clock was put back.
                self._arm(first)
                return
            left -= 1
            endpoint = next(iter(self._slots[first])).endpoint
            self.end(endpoint)
            try:
                endpoint.write_turn()
            except Exception as error:
                endpoint.failed(error)


def _slot(now: float) -> i64:
    """Return the slot that has come. A clock of whole milliseconds is exact, and the quotient a little less."""
    return int(now / RESOLUTION + 0.001)


def _is_pressed(send_buffer: SendBuffer, session: Session) -> bool:
    """Return whether waiting might lose a message, or would gather none: the peer has to read, or to acknowledge."""
    window = session.made_window
    return (
        session.hurries
        or send_buffer.messages * 2 >= send_buffer.max_messages
        or send_buffer.bytes * 2 >= send_buffer.max_bytes
        or session.backlog
        or (window is not None and (window.quota <= 0 or window.bytes * 2 >= window.max_bytes))
    )
