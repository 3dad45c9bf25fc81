"""Carries what the supervisor and a worker say to each other, and descriptors, over a pair of Unix sockets.

A frame has a header, the length of its body and whether a descriptor comes with it, and a body: pickled objects, of
which the first is a name, what to do, or what was done. The first frame alone is what a worker begins with
(`process.Start`). A descriptor travels with the first byte of its frame (SCM_RIGHTS). Both sides are the same program:
what cannot be read is a fault of ours, and ends the conversation. Questions between all processes (`asking`), and their
answers, are such frames, too.
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

from canopy_mqtt.core.hooks import Origin, PeerCertificate

HEADER: Final = struct.Struct("!I?")

READ: Final = 262_144
"""Bytes of one read."""

READS: Final = 64
"""Reads in one turn of the event loop. One takes a single connection."""

ANY: Final = 255
"""In place of a worker: any of them."""

SHORTAGE: Final = frozenset({errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM, errno.EMFILE})
"""Errors of the system that pass: too many descriptors are on their way, or it is short of memory."""

PAUSE: Final = 0.05
"""Seconds until it is asked again."""


class Source(NamedTuple):
    """Where a TLS connection comes from, as the worker that made its handshake tells the one that serves it: fields of
    an `Origin`, and of its certificate."""

    text: str
    host: str
    port: int
    certificate: tuple[Any, ...] | None

    @classmethod
    def of(cls, origin: Origin) -> Source:
        shown = origin.certificate
        certificate = None
        if shown is not None:
            certificate = (shown.subject, shown.common_name, shown.dns, shown.emails, shown.uris, shown.fingerprint)
        return cls(origin.text, origin.host, origin.port, certificate)

    def tell(self, origin: Origin) -> None:
        """Have the origin of a connection here say the same."""
        origin.text, origin.host, origin.port, certificate = self
        origin.secure = True
        if certificate is not None:
            origin.certificate = PeerCertificate(*certificate)


class Arrival(NamedTuple):
    """A connection, its worker, or `ANY`, and what was read of it.

    `version`: the protocol level, 0: not known. `upgraded`: the request for a WebSocket was answered, and is not among
    the bytes. `source`: of one whose TLS handshake another worker has made; None: its socket says it. `number`: of one
    that the supervisor counts (`gate`), 0: it does not; `code`: with which it is to be refused; `placed`: a place comes
    with it. `until`: how long it may wait, on its way and for its CONNECT; seconds of the clock that all processes of a
    machine have in common, 0.0: no time is set.
    """

    listener: int
    worker: int
    version: int
    upgraded: bool
    source: Source | None
    data: bytes
    number: int = 0
    code: int = 0
    placed: bool = False
    until: float = 0.0


class Frame(NamedTuple):
    """One frame. `sock`: what came with it; None: nothing, or this process had no descriptor left for it."""

    body: bytes
    sock: socket.socket | None

    def said(self) -> tuple[Any, ...]:
        """Return its objects, made by the process at the other side: one of ours."""
        found: tuple[Any, ...] = pickle.loads(self.body)
        return found


def encoded(*said: object, descriptor: bool = False) -> bytes:
    """Return a frame with these objects. `descriptor`: one goes along."""
    body = pickle.dumps(said)
    return HEADER.pack(len(body), descriptor) + body


class Frames:
    """Takes frames out of what is read."""

    def __init__(self) -> None:
        self._data = bytearray()
        # Those of frames that are not whole yet, in their order.
        self._sockets: deque[socket.socket | None] = deque()

    def feed(self, data: bytes, descriptors: list[int], lost: bool = False) -> list[Frame]:
        """Return the frames that are whole with these bytes. `lost`: a descriptor came, and could not be taken.

        Raises ValueError: one is missing.
        """
        self._data += data
        # One call of the system takes no more than one.
        self._sockets += [socket.socket(fileno=each) for each in descriptors] or [None] * lost
        found: list[Frame] = []
        at = 0
        while len(self._data) - at >= HEADER.size:
            length, descriptor = HEADER.unpack_from(self._data, at)
            end = at + HEADER.size + length
            if len(self._data) < end:
                break
            if descriptor and not self._sockets:
                raise ValueError("a frame without its descriptor")
            sock = self._sockets.popleft() if descriptor else None
            found.append(Frame(bytes(self._data[at + HEADER.size : end]), sock))
            at = end
        del self._data[:at]
        return found

    def close(self) -> None:
        """Close the sockets that belong to no whole frame."""
        while self._sockets:
            sock = self._sockets.popleft()
            if sock is not None:
                sock.close()


def first_said(sock: socket.socket) -> tuple[Any, ...]:
    """Wait for the first frame of a conversation, and return what it says. Raises EOFError: the other side is gone."""
    head = sock.recv(HEADER.size, socket.MSG_WAITALL)
    if len(head) == HEADER.size:
        length, _ = HEADER.unpack(head)
        body = sock.recv(length, socket.MSG_WAITALL)
        if len(body) == length:
            return Frame(body, None).said()
    raise EOFError("the other side is gone")


class Channel:
    """One side of a conversation, on the event loop.

    `received` is called with what comes with each frame, and what this says; `lost` once, when the other side is gone,
    or cannot be told anything any more, and all that it had sent is received. An exception of what one frame does goes
    to `broke`, and costs no other frame.
    """

    def __init__(
        self,
        sock: socket.socket,
        received: Callable[..., None],
        lost: Callable[[], None],
        broke: Callable[[str, Exception], None],
    ) -> None:
        self._sock = sock
        self._received = received
        self._lost = lost
        self._broke = broke
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        # What is still to be sent, the socket that goes with the first of these bytes, and what is called then.
        self._out: deque[tuple[memoryview, socket.socket | None, Callable[[], object] | None]] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self.open = True
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, *said: object, sock: socket.socket | None = None, then: Callable[[], object] | None = None) -> None:
        """Say something. It never waits. `sock` goes along, and has to stay open until the other side has it.

        `then` is called once all of it is sent, or, to close its socket, if it never is.
        """
        idle = not self._out
        self._out.append((memoryview(encoded(*said, descriptor=sock is not None)), sock, then))
        if not self.open:
            self._drop()
        elif idle:
            self._write()

    @property
    def sending(self) -> bool:
        """Return whether something is still to be sent."""
        return bool(self._out)

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
                self._do(then)

    def _hear(self, frame: Frame) -> None:
        self._received(frame.sock, *frame.said())

    def _do(self, what: Callable[..., object], *given: object) -> None:
        try:
            what(*given)
        except Exception as error:
            self._broke("workers", error)

    def _read(self) -> bool:
        """Read the bytes that have come, but not for ever. Returns whether there were any."""
        found: list[Frame] = []
        some = over = False
        try:
            for _ in range(READS):
                data, descriptors, flags, _ = socket.recv_fds(self._sock, READ, 1)
                found += self._frames.feed(data, descriptors, flags & socket.MSG_CTRUNC != 0)
                if not data:
                    over = True
                    break
                some = True
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            over = True
        for frame in found:
            self._do(self._hear, frame)
        if over and self.open:
            self.close()
            self._lost()
        return some

    def _write(self) -> None:
        self._retry = None
        try:
            while self._out:
                data, sock, then = self._out[0]
                # The socket has gone with the first part of these bytes.
                gone = data.nbytes < memoryview(data.obj).nbytes
                sent = socket.send_fds(self._sock, [data], [] if sock is None or gone else [sock.fileno()])
                if sent < len(data):
                    self._out[0] = (data[sent:], sock, then)
                    continue
                self._out.popleft()
                if then is not None:
                    self._do(then)
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
