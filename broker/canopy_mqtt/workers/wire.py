"""What the supervisor and a worker say to each other, over a pair of Unix sockets, and the descriptors that go along.

A frame has a header, the length of its body and its kind, and a body. A frame of the kind `CONNECTION` comes with one
descriptor, which travels with its first byte (SCM_RIGHTS); all others have none. Both sides are the same program: what
cannot be read is a fault of ours, and ends the conversation.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

HEADER: Final = struct.Struct("!IB")

SAYS: Final = 0
"""A JSON object."""
STARTS: Final = 1
"""The first frame, to a worker: a pickled object."""
CONNECTION: Final = 2
"""A connection: the number of its listener, and the bytes that were read of it."""
TAKEN: Final = 3
"""A worker has one more of the connections, in their order. No body: it goes before the worker touches it."""

READ: Final = 262_144
"""Bytes of one read."""

MAX_DESCRIPTORS: Final = 64
"""Descriptors of one read: as many connections as are on their way to a worker at most (`lines.UNTAKEN`)."""

LISTENER: Final = struct.Struct("!H")

Said: TypeAlias = dict[str, Any]


class Frame(NamedTuple):
    """One frame. `sock`: that of a connection."""

    kind: int
    body: bytes
    sock: socket.socket | None = None

    def said(self) -> Said:
        """Return the object of a frame that says something."""
        found: Said = json.loads(self.body)
        return found


def says(said: Said) -> Frame:
    return Frame(SAYS, json.dumps(said).encode())


def starts(first: object) -> Frame:
    return Frame(STARTS, pickle.dumps(first))


def connection(listener: int, data: bytes, sock: socket.socket) -> Frame:
    return Frame(CONNECTION, LISTENER.pack(listener) + data, sock)


def encoded(frame: Frame) -> bytes:
    return HEADER.pack(len(frame.body), frame.kind) + frame.body


class Frames:
    """Takes frames out of what is read."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._sockets: deque[socket.socket] = deque()

    def feed(self, data: bytes, descriptors: list[int]) -> list[Frame]:
        """Return the frames that are whole with these bytes. Raises ValueError: a connection has no descriptor."""
        self._data += data
        self._sockets += [socket.socket(fileno=each) for each in descriptors]
        found: list[Frame] = []
        at = 0
        while len(self._data) - at >= HEADER.size:
            length, kind = HEADER.unpack_from(self._data, at)
            end = at + HEADER.size + length
            if len(self._data) < end:
                break
            if kind == CONNECTION and not self._sockets:
                raise ValueError("a connection without a descriptor")
            sock = self._sockets.popleft() if kind == CONNECTION else None
            found.append(Frame(kind, bytes(self._data[at + HEADER.size : end]), sock))
            at = end
        del self._data[:at]
        return found

    def close(self) -> None:
        """Close the sockets that belong to no whole frame."""
        while self._sockets:
            self._sockets.popleft().close()


def first_frame(sock: socket.socket) -> Frame:
    """Return the first frame of a conversation, which is waited for. Raises EOFError: the other side is gone."""
    head = _exactly(sock, HEADER.size)
    length, kind = HEADER.unpack(head)
    return Frame(kind, _exactly(sock, length))


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise EOFError("the other side is gone")
        data += piece
    return bytes(data)


class Channel:
    """One side of a conversation, on the event loop.

    `received` is called with each frame, `lost` once, when the other side is gone and all that it had sent is received.
    """

    def __init__(self, sock: socket.socket, received: Callable[[Frame], None], lost: Callable[[], None]) -> None:
        self._sock = sock
        self._received = received
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        # What is still to be sent, and the socket that goes with the first of these bytes.
        self._out: deque[tuple[memoryview, socket.socket | None]] = deque()
        self.open = True
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, frame: Frame) -> None:
        """Send a frame. It never waits. The frame's socket has to stay open until the other side has it."""
        if self.open:
            idle = not self._out
            self._out.append((memoryview(encoded(frame)), frame.sock))
            if idle:
                self._write()

    def close(self) -> None:
        """End the conversation. `lost` is not called."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._frames.close()
            self._out.clear()

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, READ, MAX_DESCRIPTORS)
            found = self._frames.feed(data, descriptors)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, found = b"", []
        for frame in found:
            self._received(frame)
        if not data and self.open:
            self.close()
            self._lost()

    def _write(self) -> None:
        try:
            while self._out:
                data, sock = self._out[0]
                descriptors = [] if sock is None else [sock.fileno()]
                sent = socket.send_fds(self._sock, [data], descriptors)
                if sent < len(data):
                    self._out[0] = (data[sent:], None)
                else:
                    self._out.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._write)
            return
        except OSError:
            # The other side is gone: the reader tells.
            self._out.clear()
        self._loop.remove_writer(self._sock.fileno())
