"""Byte streams between two nodes, as asyncio transports, with flow control.

Owns the pipes of this node: those that it opened, and those that others opened to it. Promises: bytes arrive once and
in order, or the pipe ends; at most `window` bytes are on the way that the reader has not taken, and the writer
keeps the rest (`pause_writing`); who closes gives what is written time to get there; a node that leaves ends its pipes.

A message on the bus: what it is, the number of the pipe, then bytes or a count. Each node numbers the pipes it opens.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, cast

from broker.mesh.bus import PIPES, Bus, ProtocolFault, Room

OPEN: Final = 0
"""A new pipe. With the bytes that may be on the way to who opened it."""

DATA: Final = 1
"""Bytes of a pipe."""

CREDIT: Final = 2
"""So many bytes more may be on the way. The first one answers `OPEN`."""

CLOSE: Final = 3
"""No more bytes come, and none are taken. With 1 if some may be lost, else 0."""

YOURS: Final = 0x80
"""Set where the receiver of the message opened the pipe."""

HEAD: Final = struct.Struct("!BI")
COUNT: Final = struct.Struct("!I")

PIECE: Final = 65_536
"""Bytes that one message carries at most: what else is said to a node comes in between."""

HIGH: Final = 65_536
"""Bytes that wait in a transport at which its protocol is asked to write no more, unless it says otherwise."""


class PipeTransport(asyncio.Transport):
    """One end of a pipe. `node`: who has the other end. It has no socket and closes both directions at once."""

    def __init__(self, pipes: Pipes, node: str, kind: int, number: int, protocol: asyncio.BaseProtocol | None) -> None:
        super().__init__({"node": node})
        self.node = node
        self._pipes = pipes
        self._loop = pipes.loop
        # What says to the other end which pipe is meant, with the type of the message added.
        self._kind = kind
        self._number = number
        self._protocol = protocol
        self._made = False
        # Writing: bytes that may go now, those that wait, and whether our protocol knows that many do.
        self._credit = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_size = 0
        self._high = HIGH
        self._low = HIGH // 4
        self._full = False
        # Reading: bytes that came while nobody reads, and those taken for which the other end has no credit yet.
        self._unread: deque[bytes] = deque()
        self._unread_size = 0
        self._taken = 0
        self._reading = True
        self._due: asyncio.Handle | None = None
        # We close; the other end has closed (None: it has not; otherwise whether bytes may be lost); all is over.
        self._closing = False
        self._ended: bool | None = None
        self._lost = False

    # -- of every transport --------------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have another protocol be told of what comes."""
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol."""
        return cast(asyncio.BaseProtocol, self._protocol)

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Read no more, and end the pipe when what was written is on its way."""
        if self._closing:
            return
        self._closing = True
        self._stop_reading()
        if not self._waiting:
            self._end(None)

    def abort(self) -> None:
        """End the pipe now; what waits is lost."""
        self._end(None, lossy=bool(self._waiting))

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, as soon as the other end takes them."""
        if self._lost or self._closing or not data:
            return
        self._waiting.append(bytes(data))
        self._waiting_size += len(data)
        self._send()
        if self._waiting_size > self._high and not self._full:
            self._full = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send the bytes of all of them."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """No: both directions close at once."""
        return False

    def write_eof(self) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError("a pipe closes both directions at once")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bytes that wait at which the protocol is asked to pause, and to go on."""
        if high is None:
            high = HIGH if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """`low` and `high`."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """Bytes that wait here for the other end to take others."""
        return self._waiting_size

    def _send(self) -> None:
        while self._waiting and self._credit:
            piece = self._waiting[0]
            size = min(self._credit, PIECE)
            if len(piece) > size:
                # The rest stays as a view: a large packet is not copied again for each piece.
                whole = memoryview(piece)
                self._waiting[0] = cast(bytes, whole[size:])
                piece = cast(bytes, whole[:size])
            else:
                self._waiting.popleft()
            self._credit -= len(piece)
            self._waiting_size -= len(piece)
            self._say(DATA, piece)

    def _say(self, kind: int, data: bytes) -> None:
        self._pipes.bus.send(self.node, PIPES, b"".join((HEAD.pack(self._kind | kind, self._number), data)))

    def granted(self, size: int) -> None:
        """The other end takes so many bytes more."""
        if self._lost:
            return
        self._credit += size
        self._send()
        if self._full and self._waiting_size <= self._low:
            self._full = False
            if not self._closing:
                self.get_protocol().resume_writing()
        if self._closing and not self._waiting:
            self._end(None)

    # -- reading -------------------------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        """Whether the protocol gets what comes."""
        return self._made and self._reading and not self._closing

    def pause_reading(self) -> None:
        """Give the protocol nothing more until `resume_reading`; the other end soon sends no more."""
        self._reading = False

    def resume_reading(self) -> None:
        """Give the protocol what came meanwhile, and what comes."""
        if self._reading or self._closing:
            return
        self._reading = True
        self._read_soon()

    def arrived(self, data: bytes) -> None:
        """Bytes came.

        Raises:
            ProtocolFault: more than may be on the way.
        """
        if self._closing or self._lost:
            return
        if self._unread_size + self._taken + len(data) > self._pipes.window:
            raise ProtocolFault("more bytes in a pipe than may be on the way")
        if self.is_reading() and not self._unread:
            self._hand_on(data)
        else:
            self._unread.append(data)
            self._unread_size += len(data)

    def ended(self, lossy: bool) -> None:
        """The other end has closed."""
        self._ended = lossy
        if not self._unread:
            self._end(ConnectionResetError("the other node has aborted the pipe") if lossy else None, tell=False)

    def _read_soon(self) -> None:
        if self._due is None and (self._unread or self._taken or self._ended is not None):
            self._due = self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._due = None
        while self._unread and self.is_reading():
            data = self._unread.popleft()
            self._unread_size -= len(data)
            self._hand_on(data)
        if self.is_reading():
            self._give_credit()
            if self._ended is not None:
                self.ended(self._ended)

    def _hand_on(self, data: bytes) -> None:
        self._taken += len(data)
        try:
            cast(asyncio.Protocol, self._protocol).data_received(data)
        except Exception as error:
            self._fault("data_received", error)
            return
        if self.is_reading():
            self._give_credit()

    def _give_credit(self) -> None:
        """Have the other end send as much as was taken, in portions of a quarter of the window."""
        if self._taken * 4 >= self._pipes.window and self._ended is None and not self._lost:
            self._say(CREDIT, COUNT.pack(self._taken))
            self._taken = 0

    def _stop_reading(self) -> None:
        self._unread.clear()
        self._unread_size = 0
        if self._due is not None:
            self._due.cancel()
            self._due = None

    # -- beginning and end ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Tell the protocol that the pipe is there, and then what came before it was told."""
        self._due = None
        self._made = True
        try:
            self.get_protocol().connection_made(self)
        except Exception as error:
            self._fault("connection_made", error)
            return
        self._read_soon()

    def begin_soon(self) -> None:
        """Tell the protocol in the next turn; what comes until then waits."""
        self._due = self._loop.call_soon(self.begin)

    def _fault(self, where: str, error: Exception) -> None:
        context = {"message": f"{where} of a pipe's protocol raised", "exception": error, "transport": self}
        self._loop.call_exception_handler({**context, "protocol": self._protocol})
        self._end(error, lossy=True)

    def refuse(self) -> None:
        """Nobody wants the pipe."""
        self._end(None, lossy=True)

    def reset(self, error: Exception) -> None:
        """The other node is gone."""
        self._end(error, tell=False)

    def _end(self, error: Exception | None, lossy: bool = False, tell: bool = True) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        if tell and self._ended is None:
            self._say(CLOSE, b"\1" if lossy else b"\0")
        self._stop_reading()
        self._waiting.clear()
        self._waiting_size = 0
        self._pipes.forget(self._kind, self.node, self._number)
        self._loop.call_soon(self._over, error)

    def _over(self, error: Exception | None) -> None:
        if self._protocol is None:
            return  # it was refused
        if not self._made:
            self.begin()
        self._protocol.connection_lost(error)


class Pipes(Room):
    """This node's pipes. `accept` makes the protocol of a pipe that another node opens, or None to refuse it.

    `window`: bytes that may be on the way to a protocol of ours, in each pipe.
    """

    def __init__(
        self,
        bus: Bus,
        window: int,
        accept: Callable[[str, PipeTransport], asyncio.BaseProtocol | None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.bus = bus
        self.window = window
        self.loop = loop or asyncio.get_running_loop()
        self._accept = accept
        # By node: those that we opened and those that it opened, by their numbers.
        self._ours: dict[str, dict[int, PipeTransport]] = {}
        self._theirs: dict[str, dict[int, PipeTransport]] = {}
        self._last = 0
        bus.attach(PIPES, self)

    def open(self, node: str, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> PipeTransport:
        """A new pipe to a node. The protocol hears `connection_made` in the next turn of the event loop.

        Raises:
            ConnectionError: the node is not there.
        """
        pipes = self._ours.get(node)
        if pipes is None:
            raise ConnectionError(f"the node {node} is not there")
        self._last += 1
        number = self._last
        pipes[number] = transport = PipeTransport(self, node, 0, number, protocol_factory())
        self.bus.send(node, PIPES, HEAD.pack(OPEN, number) + COUNT.pack(self.window))
        transport.begin_soon()
        return transport

    def forget(self, kind: int, node: str, number: int) -> None:
        """For transports: one is over."""
        table = self._theirs if kind & YOURS else self._ours
        table.get(node, {}).pop(number, None)

    # -- what the bus calls --------------------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """A node is there."""
        self._ours[node] = {}
        self._theirs[node] = {}

    def left(self, node: str) -> None:
        """A node is gone, and so are its pipes."""
        gone = [*self._ours.pop(node, {}).values(), *self._theirs.pop(node, {}).values()]
        error = ConnectionResetError(f"the node {node} has left")
        for transport in gone:
            transport.reset(error)

    def received(self, node: str, data: bytes) -> None:
        """What another node says of a pipe. Raises ProtocolFault."""
        try:
            kind, number = HEAD.unpack_from(data)
        except struct.error:
            raise ProtocolFault("a message about a pipe is too short") from None
        if kind == OPEN:
            self._opened(node, number, _count(data))
            return
        pipes = self._ours[node] if kind & YOURS else self._theirs[node]
        transport = pipes.get(number)
        kind &= ~YOURS
        if kind not in (DATA, CREDIT, CLOSE):
            raise ProtocolFault(f"no message about a pipe is of type {kind}")
        if transport is None:
            return  # it was closed here meanwhile
        if kind == DATA:
            transport.arrived(data[HEAD.size :])
        elif kind == CREDIT:
            transport.granted(_count(data))
        else:
            transport.ended(data[HEAD.size :] != b"\0")

    def _opened(self, node: str, number: int, credit: int) -> None:
        pipes = self._theirs[node]
        if number in pipes:
            raise ProtocolFault("a pipe is opened twice")
        pipes[number] = transport = PipeTransport(self, node, YOURS, number, None)
        protocol = self._accept(node, transport)
        if protocol is None:
            transport.refuse()
            return
        transport.set_protocol(protocol)
        self.bus.send(node, PIPES, HEAD.pack(YOURS | CREDIT, number) + COUNT.pack(self.window))
        transport.begin()
        transport.granted(credit)


def _count(data: bytes) -> int:
    try:
        (count,) = COUNT.unpack_from(data, HEAD.size)
    except struct.error:
        raise ProtocolFault("a message about a pipe is too short") from None
    return int(count)
