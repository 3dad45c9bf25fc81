"""What the supervisor and a worker say to each other, over a pair of Unix sockets, and the descriptors that go along.

A frame has a header, the length of its body and its kind, and a body. A frame of a connection (`CONNECTION`, `HTTP`)
comes with one descriptor, which travels with its first byte (SCM_RIGHTS); all others have none. It goes to a worker, or
to the supervisor for another worker. Both sides are the same program: what cannot be read is a fault of ours, and ends
the conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import pickle
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

HEADER: Final = struct.Struct("!IB")

SAYS: Final = 0
"""Pickled objects: first what a worker begins with (`process.Start`); then what to do, or was done, by name."""
CONNECTION: Final = 1
"""A connection (`Arrival`)."""
TAKEN: Final = 2
"""A worker has so many more of the connections, in their order: one byte. It goes before the worker touches them."""
HTTP: Final = 3
"""A connection of `[http]`: the number of its address, two bytes."""

READ: Final = 262_144
"""Bytes of one read."""

READS: Final = 64
"""Reads in one turn of the event loop. One takes a single connection."""

HEAD: Final = struct.Struct("!HBB??BQId")
"""Of a connection: its listener, its worker, the protocol level, whether it is a WebSocket, and has a place; the reason
code of its refusal, its number, bytes of its origin, until when it has time for its CONNECT."""

ANY: Final = 255
"""In place of a worker: any of them."""

SHORTAGE: Final = frozenset({errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM, errno.EMFILE})
"""Errors of the system that pass: too many descriptors are on their way, or it is short of memory."""

PAUSE: Final = 0.05
"""Seconds until it is asked again."""


class Frame(NamedTuple):
    """One frame. `sock`: that of a connection; None: this process had no descriptor left for it, and it is lost."""

    kind: int
    body: bytes
    sock: socket.socket | None = None

    def said(self) -> tuple[Any, ...]:
        """Return the objects of a frame that says something, made by the process at the other side: one of ours."""
        found: tuple[Any, ...] = pickle.loads(self.body)
        return found


def says(*said: object) -> Frame:
    return Frame(SAYS, pickle.dumps(said))


def taken(count: int) -> Frame:
    return Frame(TAKEN, bytes((count,)))


class Arrival(NamedTuple):
    """A connection, its worker, or `ANY`, and what was read of it.

    `version`: the protocol level, 0: not known. `upgraded`: the request for a WebSocket was answered, and is not among
    the bytes. `origin`: where it comes from, if the socket does not say it; a JSON object, or empty. `number`: of one
    that the supervisor counts (`gate`), 0: it does not; `code`: with which it is to be refused; `placed`: a place comes
    with it. `until`: how long it may wait, on its way and for its CONNECT; seconds of the clock that all processes of a
    machine have in common, 0.0: no time is set.
    """

    listener: int
    worker: int
    version: int
    upgraded: bool
    origin: bytes
    data: bytes
    number: int = 0
    code: int = 0
    placed: bool = False
    until: float = 0.0

    def frame(self, sock: socket.socket) -> Frame:
        flags, size = (self.upgraded, self.placed), len(self.origin)
        head = HEAD.pack(self.listener, self.worker, self.version, *flags, self.code, self.number, size, self.until)
        return Frame(CONNECTION, head + self.origin + self.data, sock)


def arrival(body: bytes) -> Arrival:
    """Return the connection in the body of a frame."""
    listener, worker, version, upgraded, placed, code, number, size, until = HEAD.unpack_from(body)
    end = HEAD.size + size
    return Arrival(listener, worker, version, upgraded, body[HEAD.size : end], body[end:], number, code, placed, until)


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
            comes_with_one = kind in (CONNECTION, HTTP)
            if comes_with_one and not self._sockets:
                raise ValueError("a connection without a descriptor")
            sock = self._sockets.popleft() if comes_with_one else None
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
    head = sock.recv(HEADER.size, socket.MSG_WAITALL)
    if len(head) == HEADER.size:
        length, kind = HEADER.unpack(head)
        body = sock.recv(length, socket.MSG_WAITALL)
        if len(body) == length:
            return Frame(kind, body)
    raise EOFError("the other side is gone")


class Channel:
    """One side of a conversation, on the event loop.

    `received` is called with the frames of each turn, `lost` once, when the other side is gone, or cannot be told
    anything any more, and all that it had sent is received.
    """

    def __init__(self, sock: socket.socket, received: Callable[[list[Frame]], None], lost: Callable[[], None]) -> None:
        self._sock = sock
        self._received = received
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        # What is still to be sent, the socket that goes with the first of these bytes, and what is called then.
        self._out: deque[tuple[memoryview, socket.socket | None, Callable[[], object] | None]] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self.open = True
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, frame: Frame, then: Callable[[], object] | None = None) -> None:
        """Send a frame. It never waits. Its socket has to stay open until the other side has it.

        `then` is called once all of it is sent, or, to close its socket, if it never is.
        """
        idle = not self._out
        self._out.append((memoryview(encoded(frame)), frame.sock, then))
        if not self.open:
            self._drop()
        elif idle:
            self._write()

    def finish(self) -> None:
        """Receive all that the other side had sent before its end, and close."""
        while self.open and self._read():
            pass
        self.close()

    def close(self) -> None:
        """End the conversation. `lost` is not called."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            if self._retry is not None:
                self._retry.cancel()
            self._sock.close()
            self._frames.close()
            self._drop()

    def _drop(self) -> None:
        while self._out:
            _, sock, then = self._out.popleft()
            if sock is not None and then is not None:
                then()

    def _read(self) -> bool:
        """Read what is there, but not for ever. Returns whether there was anything."""
        found: list[Frame] = []
        over = False
        try:
            for _ in range(READS):
                data, descriptors, flags, _ = socket.recv_fds(self._sock, READ, 1)
                found += self._frames.feed(data, descriptors, flags & socket.MSG_CTRUNC != 0)
                if not data:
                    over = True
                    break
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            over = True
        if found:
            self._received(found)
        if over and self.open:
            self.close()
            self._lost()
        return bool(found)

    def _write(self) -> None:
        self._retry = None
        try:
            while self._out:
                data, sock, then = self._out[0]
                # It has gone with the first part of these bytes.
                gone = data.nbytes < memoryview(data.obj).nbytes
                sent = socket.send_fds(self._sock, [data], [] if sock is None or gone else [sock.fileno()])
                if sent < len(data):
                    self._out[0] = (data[sent:], sock, then)
                    continue
                self._out.popleft()
                if then is not None:
                    then()
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._write)
            return
        except OSError as error:
            if error.errno in SHORTAGE:
                self._retry = self._loop.call_later(PAUSE, self._write)
            else:
                # The rest would be misread behind half a frame. The reader tells, after what the other side has said.
                self._drop()
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
        self._loop.remove_writer(self._sock.fileno())
