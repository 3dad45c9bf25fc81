"""What supervisor and worker say to each other: JSON objects, and sockets with them, over a pair of Unix sockets.

Owns the framing: four bytes of length, then the object. Sockets travel with the first byte of the object that they
belong to (SCM_RIGHTS), which says how many they are (`sockets`). Both sides are the same program: what cannot be read
is a fault of ours, and ends the conversation.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

Message: TypeAlias = dict[str, Any]

HEADER: Final = 4
"""Bytes of a frame's length."""

READ: Final = 262_144
"""Bytes that are read at a time."""

MOST_SOCKETS: Final = 250
"""Sockets that one call of the system carries (SCM_MAX_FD is 253)."""


class Frames:
    """Takes what comes apart."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._sockets: deque[socket.socket] = deque()

    def feed(self, data: bytes, descriptors: Sequence[int]) -> list[tuple[Message, list[socket.socket]]]:
        """The messages that are whole with this, each with its sockets.

        Raises:
            ValueError: it is no frame of ours.
        """
        self._data += data
        self._sockets += [socket.socket(fileno=each) for each in descriptors]
        found: list[tuple[Message, list[socket.socket]]] = []
        while len(self._data) >= HEADER:
            end = HEADER + int.from_bytes(self._data[:HEADER], "big")
            if len(self._data) < end:
                break
            message: Message = json.loads(self._data[HEADER:end])
            del self._data[:end]
            found.append((message, [self._sockets.popleft() for _ in range(message.get("sockets", 0))]))
        return found

    def close(self) -> None:
        """Close sockets that belong to no whole message."""
        while self._sockets:
            self._sockets.popleft().close()


def frame(message: Message, sockets: int = 0) -> bytes:
    """A message as bytes, with so many sockets."""
    body = json.dumps({**message, "sockets": sockets}).encode()
    return len(body).to_bytes(HEADER, "big") + body


def receive(sock: socket.socket) -> tuple[Message, list[socket.socket]]:
    """The first message of a conversation; it blocks.

    Raises:
        EOFError: the other side has gone.
    """
    frames = Frames()
    while True:
        # No more than what belongs to it: the rest is for a `Channel`.
        data, descriptors, _, _ = socket.recv_fds(sock, _lacking(frames), MOST_SOCKETS)
        if not data:
            raise EOFError("the other side has gone")
        found = frames.feed(data, descriptors)
        if found:
            return found[0]


def _lacking(frames: Frames) -> int:
    held = frames._data
    if len(held) < HEADER:
        return HEADER - len(held)
    return HEADER + int.from_bytes(held[:HEADER], "big") - len(held)


class Channel:
    """One side of a conversation, on the event loop's thread.

    `received` is called with each message and its sockets, `lost` once, when the other side has gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        received: Callable[[Message, list[socket.socket]], None],
        lost: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._received = received
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        # What is still to be sent: bytes, and the sockets that go with the first of them.
        self._out: deque[tuple[memoryview, list[socket.socket]]] = deque()
        self._open = True
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, message: Message, sockets: Sequence[socket.socket] = ()) -> None:
        """Send a message and duplicates of these sockets. Never waits; nothing happens where the other side is gone."""
        if not self._open:
            return
        own = [each.dup() for each in sockets]
        data = memoryview(frame(message, len(own)))
        # One byte at a time carries them, as long as there are more than one call takes.
        while len(own) > MOST_SOCKETS:
            self._out.append((data[:1], own[:MOST_SOCKETS]))
            data, own = data[1:], own[MOST_SOCKETS:]
        self._out.append((data, own))
        self._write()

    def close(self) -> None:
        """End the conversation from here. `lost` is not called."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._frames.close()
        while self._out:
            _close(self._out.popleft()[1])

    def drain(self) -> None:
        """Take what is there: the other side has ended."""
        while self._open and self._read():
            pass

    def _read(self) -> bool:
        """Whether there was anything."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, READ, MOST_SOCKETS)
            found = self._frames.feed(data, descriptors)
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            data, found = b"", []
        for message, sockets in found:
            self._received(message, sockets)
        if not data and self._open:
            self.close()
            self._lost()
        return bool(data)

    def _write(self) -> None:
        try:
            while self._out:
                data, sockets = self._out[0]
                sent = socket.send_fds(self._sock, [data], [each.fileno() for each in sockets])
                _close(sockets)
                self._out[0] = (data[sent:], [])
                if sent == len(data):
                    self._out.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._write)
            return
        except OSError:
            # It has gone: the reader notices.
            while self._out:
                _close(self._out.popleft()[1])
        self._loop.remove_writer(self._sock.fileno())


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()
