"""Clients that have stopped reading, and what they missed.

Owns: opening them, filling everything between a publisher and their eyes, and counting at the end what reached them.

Promises: before a load begins, a frozen client's queue in the broker is full, and so is all that lies behind it: the
broker's own write buffer, and the kernel's buffers at both ends. When the load has ended the client reads again, all
there is, and ``thaw`` tells how many messages it missed, and whether its queue was full all the while: it was if it
missed at least as many messages as were sent from the beginning of the measured interval on.

What is missing is what was sent less what came; no broker's own counters are asked.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.network import links
from benchmarks.network.links import LoadError
from benchmarks.network.measure import Missed
from canopy_load.brokers import frames
from canopy_load.brokers.process import HOST

PLUGS: Final = 48  # large messages that fill the kernel's buffers and the broker's write buffer
PLUG_SIZE: Final = 16_384  # bytes of each
PEBBLE_SIZE: Final = 64  # bytes of the small messages behind them
FILL: Final = "frozen/+"
SILENCE: Final = 0.02  # seconds after which a broker is asked again whether there is more
THAW_LIMIT: Final = 30.0  # seconds for all frozen clients together to read what is there


@dataclass
class Frozen:
    """Connected clients that do not read; each has been sent ``filled`` messages beside those of a load."""

    socks: list[socket.socket]
    filled: int

    def thaw(self, sent: int, measured: int) -> Missed:
        """Let every client read all there is. ``sent`` messages of a load were for each, ``measured`` of them since
        the beginning of the measured interval. LoadError if a client that is connected gets no end of it."""
        limit = time.monotonic() + THAW_LIMIT
        missed = cut = 0
        full = True
        for sock in self.socks:
            received, ended = read_all(sock, limit)
            cut += ended
            missed += self.filled + sent - received
            full = full and (ended or self.filled + sent - received >= measured)
        return Missed(len(self.socks), missed, cut, full)


@contextmanager
def frozen_clients(port: int, count: int, pattern: str, pebbles: int) -> Iterator[Frozen]:
    """``count`` clients that subscribed to ``pattern`` at QoS 0 and have stopped reading; closed in the end.

    ``pebbles`` small messages, each on a topic of its own, are published to them behind the large ones: more than fit
    into a queue where it is to be full, fewer where other topics are to find a place in it.
    """
    names = [f"frozen-{number}" for number in range(count)]
    socks = links.open_clients(HOST, port, names, narrow=True)
    try:
        links.subscribe_all(socks, lambda _: [(pattern, 0), (FILL, 0)])
        yield Frozen(socks, _fill(port, pebbles))
    finally:
        links.close_all(socks)


def _fill(port: int, pebbles: int) -> int:
    """Publish to the frozen clients; how many messages, when the broker has dealt with the last one."""
    publishers = links.open_clients(HOST, port, ["fill"])
    try:
        sizes = [PLUG_SIZE] * PLUGS + [PEBBLE_SIZE] * pebbles
        for number, size in enumerate(sizes):
            publishers[0].sendall(frames.publish(f"frozen/{number:04d}", frames.payload(0, 0, size)))
        publishers[0].sendall(frames.PINGREQ)
        links.expect(publishers[0], frames.PINGRESP[0])
    except OSError as error:
        raise LoadError(f"the broker did not take the messages for clients that do not read ({error})") from error
    finally:
        links.close_all(publishers)
    return len(sizes)


def read_all(sock: socket.socket, limit: float) -> tuple[int, bool]:
    """Read until nothing more comes: PUBLISH packets received, and whether the broker has ended the connection.

    ``limit`` is a time of the monotonic clock. The end is a PINGRESP with no PUBLISH before it. A broker that falls
    silent before that is asked again: mosquitto may drop the answer to a client whose queue is full."""
    received = found = 0
    data = b""
    sock.settimeout(SILENCE)
    try:
        sock.sendall(frames.PINGREQ)
        while True:
            try:
                more = sock.recv(links.READ_SIZE)
            except TimeoutError:
                if time.monotonic() > limit:
                    raise LoadError("a client that reads again was not sent everything in time") from None
                sock.sendall(frames.PINGREQ)
                continue
            if not more:
                return received + found, True
            data += more
            offset = 0
            while (size := frames.packet_size(data, offset)) and offset + size <= len(data):
                if data[offset] & 0xF0 == frames.PUBLISH:
                    found += 1
                elif data[offset] == frames.PINGRESP[0]:
                    if not found:
                        return received, False
                    received, found = received + found, 0
                    sock.sendall(frames.PINGREQ)
                offset += size
            data = data[offset:]
    except OSError:
        return received + found, True
