"""One stream connection (TCP, TLS): what clients' connections and links have in common.

Owns the transport: writing to it, its room, reading from it, and closing it. It notices a transport that
takes nothing for the stall time; its owner asks (`stall_due`) and decides.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, cast

from canopy_mqtt import sockets
from canopy_mqtt.core.counters import Counters

FULL_READ: Final = 256_000
"""Bytes of a read that has filled uvloop's buffer."""

LINGER: Final = 2.0
"""Seconds a closing connection has to take its last packet; a reset would throw that packet away."""

WRITE_HIGH: Final = 65_536
"""Bytes in the transport's own buffer at which its owner stops writing."""

STALL: Final = 0.005
"""Seconds that a sender is held up when a subscriber's session has become half full, once for each time."""

STALL_ROUNDS: Final = 32
"""Rounds of the event loop that it is held up at least: on a busy machine the time alone may pass in a single one, and
no acknowledgement has been read then."""

STALL_LOOKS: Final = 4
"""A waiting write's progress is looked at this often within the stall time."""


class Stream:
    """The transport of one connection. Times in seconds of the loop's clock, sizes in bytes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, counters: Counters) -> None:
        self.loop = loop
        self._counters = counters
        # Set by `begin`.
        self.transport: asyncio.Transport
        # Hands bytes to the transport, which may say by this that it is full. Its caller counts them.
        self.send: Callable[[bytes], None]
        self.made = False
        # The transport has more than it can send: nothing is written until it says otherwise.
        self.full = False
        self.reading = True
        # What waited at the last look while it was full, and since when no less does.
        self._progress = -1
        self._progress_at = 0.0

    def begin(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        self.send = self.transport.write
        self.transport.set_write_buffer_limits(high=WRITE_HIGH)
        self.made = True

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport, and count them."""
        self._counters.bytes_sent += len(data)
        self.send(data)

    def filled(self) -> None:
        """Note that the transport is full (`pause_writing`)."""
        self.full = True
        self._progress = -1
        self._progress_at = self.loop.time()

    def stall_due(self, now: float, timeout: float) -> float:
        """When to look at the full transport again; 0.0 when it has made no progress for `timeout` seconds."""
        left = self.transport.get_write_buffer_size() + sockets.unsent(self.transport)
        if left != self._progress:
            self._progress = left
            self._progress_at = now
        elif now >= self._progress_at + timeout:
            return 0.0
        return min(now + timeout / STALL_LOOKS, self._progress_at + timeout)

    def why_stalled(self, timeout: float) -> str:
        """Say how the other end behaved in `timeout` seconds without progress, for the log."""
        if sockets.answers_nothing(self.transport.get_extra_info("socket"), timeout):
            return f"its machine has acknowledged nothing for {timeout:g} s: it, or the network to it, may be gone"
        return f"it has read nothing for {timeout:g} s"

    def low_latency(self, fresh: bool) -> None:
        """Tell the system if what is written from now on loses its worth while it waits.

        If it does, little of it may wait where the broker cannot drop it.
        """
        self.transport.set_write_buffer_limits(high=sockets.FRESH_BYTES if fresh else WRITE_HIGH)
        sockets.low_latency(self.transport.get_extra_info("socket"), fresh)

    # -- reading -------------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
        if self.reading:
            self.reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.reading and not self.transport.is_closing():
            self.reading = True
            self.transport.resume_reading()

    @property
    def peer_is_gone(self) -> bool:
        """Return whether the peer has closed the connection, even if nothing was read from it since, as far as can be
        told."""
        return sockets.is_gone(self.transport.get_extra_info("socket"))

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, last: bytes, half: bool, sending: bool = False) -> bool:
        """Write the last packet, if there is one, and close. Returns True if the peer's half is still open.

        `half`: where there is one, or the peer is `sending`, close our half only, and let the peer close the other one:
        what it has sent meanwhile would have the system reset the connection, and the packets that it has not read yet
        be lost, such as a CONNACK. What it sends is to be read, and forgotten, until then.
        """
        transport = self.transport
        if transport.is_closing():
            return False
        if last:
            self.write(last)
        if half and (last or sending):
            self.reading = True
            return close_half(transport)
        transport.close()
        return False


def close_half(transport: asyncio.Transport) -> bool:
    """Close our half of a transport, and read on, or close the whole where there is no half. False: it closes."""
    if transport.is_closing() or not transport.can_write_eof():
        transport.close()
        return False
    try:
        transport.write_eof()
    except OSError:
        # The peer has reset the connection meanwhile; only asyncio's own loop tells.
        transport.abort()
        return False
    transport.resume_reading()
    return True


def peer_name(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """The IP address of the peer ("": it has none, as over a Unix socket), and the whole address for the log."""
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple) and len(peer) >= 2:
        host = str(peer[0])
        return host, f"[{host}]:{peer[1]}" if ":" in host else f"{host}:{peer[1]}"
    if isinstance(peer, (str, bytes)):
        # A Unix socket; most clients' have no name.
        return "", f"unix:{os.fsdecode(peer)}" if peer else "unix"
    return "", "unknown"
