"""Connections of a load over socket pairs: the test plays the broker, and may lose, repeat and hold back what it
likes."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from benchmarks.network.links import Loop
from benchmarks.network.loads import Shape
from canopy_load.brokers import frames

SHAPE = Shape(window=8, burst=4)


class Wires:
    """Socket pairs: the load's ends and the broker's ends, all non-blocking."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.loop = stack.enter_context(Loop())

    def pair(self) -> tuple[socket.socket, socket.socket]:
        near, far = (self.stack.enter_context(end) for end in socket.socketpair())
        near.setblocking(False)
        far.setblocking(False)
        return near, far

    def turn(self) -> None:
        self.loop.turn(0)


def waiting(sock: socket.socket) -> bytes:
    """Everything that can be read now."""
    data = b""
    try:
        while more := sock.recv(1 << 16):
            data += more
    except BlockingIOError:
        pass
    return data


def packets(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while size := frames.packet_size(data, offset):
        found.append(data[offset : offset + size])
        offset += size
    return found
