"""What the supervisor and a worker say to each other, over a pair of Unix sockets, and the descriptors that go along.

A frame has a header, the length of its body and its kind, and a body. A frame of the kind `CONNECTION` comes with one
descriptor, which travels with its first byte (SCM_RIGHTS); all others have none. It goes to a worker, or to the
supervisor for another worker. Both sides are the same program: what
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
RELOADS: Final = 4
"""To a worker: True and settings to take up, or False and settings to check; pickled."""
CONNECTION: Final = 2
"""A connection (`Arrival`)."""
TAKEN: Final = 3
"""A worker has one more of the connections, in their order. No body: it goes before the worker touches it."""

READ: Final = 262_144
"""Bytes of one read."""

HEAD: Final = struct.Struct("!HBBBI")
"""Of a connection: its listener, its worker, the protocol level, 1: it is a WebSocket, bytes of its origin."""

Said: TypeAlias = dict[str, Any]


class Frame(NamedTuple):
    """One frame. `sock`: that of a connection; None: this process had no descriptor left for it, and it is lost."""

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


def reloads(takes: bool, settings: object) -> Frame:
    return Frame(RELOADS, pickle.dumps((takes, settings)))


class Arrival(NamedTuple):
    """A connection whose worker is known, and what was read of it.

    `version`: the protocol level, 0: not known. `upgraded`: the request for a WebSocket was answered, and is not among
    the bytes. `origin`: where it comes from, if the socket does not say it; a JSON object, or empty.
    """

    listener: int
    worker: int
    version: int
    upgraded: bool
    origin: bytes
    data: bytes

    def frame(self, sock: socket.socket) -> Frame:
        head = HEAD.pack(self.listener, self.worker, self.version, self.upgraded, len(self.origin))
        return Frame(CONNECTION, head + self.origin + self.data, sock)


def arrival(body: bytes) -> Arrival:
    """Return the connection in the body of a frame."""
    listener, worker, version, upgraded, size = HEAD.unpack_from(body)
    end = HEAD.size + size
    return Arrival(listener, worker, version, bool(upgraded), body[HEAD.size : end], body[end:])


def encoded(frame: Frame) -> bytes:
    return HEADER.pack(len(frame.body), frame.kind) + frame.body


class Frames:
    """Takes frames out of what is read."""

    def __init__(self) -> None:
        self._data = bytearray()
        # Those of the connections that are not whole yet, in their order.
        self._sockets: deque[socket.socket | None] = deque()

    def feed(self, data: bytes, descriptors: list[int], lost: bool = False) -> list[Frame]:
        """Return the frames that are whole with these bytes. `lost`: a descriptor came, and could not be taken.

        Raises ValueError: a connection came without one.
        """
        self._data += data
        # One call of the system takes no more than one.
        self._sockets += [socket.socket(fileno=each) for each in descriptors] or [None] * lost
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
            sock = self._sockets.popleft()
            if sock is not None:
                sock.close()


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
        # What is still to be sent, the socket that goes with the first of these bytes, and whether it is closed then.
        self._out: deque[tuple[memoryview, socket.socket | None, bool]] = deque()
        self.open = True
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, frame: Frame, closes: bool = False) -> None:
        """Send a frame. It never waits. `closes`: close the frame's socket here once it is sent; else it has to stay
        open until the other side has it."""
        if self.open:
            idle = not self._out
            self._out.append((memoryview(encoded(frame)), frame.sock, closes))
            if idle:
                self._write()
        elif closes and frame.sock is not None:
            frame.sock.close()

    def close(self) -> None:
        """End the conversation. `lost` is not called."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._frames.close()
            self._drop()

    def _drop(self) -> None:
        while self._out:
            _, sock, closes = self._out.popleft()
            if closes and sock is not None:
                sock.close()

    def _read(self) -> None:
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._sock, READ, 1)
            found = self._frames.feed(data, descriptors, flags & socket.MSG_CTRUNC != 0)
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
                data, sock, closes = self._out[0]
                descriptors = [] if sock is None else [sock.fileno()]
                sent = socket.send_fds(self._sock, [data], descriptors)
                if closes and sock is not None:
                    sock.close()
                if sent < len(data):
                    self._out[0] = (data[sent:], None, False)
                else:
                    self._out.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._write)
            return
        except OSError:
            # The other side is gone: the reader tells.
            self._drop()
        self._loop.remove_writer(self._sock.fileno())
