"""Sockets of the load generator, and the epoll loop that serves them.

Owns: opening many clients (CONNECT, SUBSCRIBE and their answers), sending without blocking, and the loop.

Promises: nothing here waits without a limit; a broker that closes a connection, or refuses one, is an error that names
the connection. Opening goes in batches smaller than the usual listen backlog of 100.

No threads and no asyncio: at a million messages a second a task switch for each read would be the limit measured.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final

from canopy_load.brokers import frames
from canopy_load.brokers.listeners import WANTS, Listener, client_handshakes

OPEN_BATCH: Final = 64  # clients connecting at the same time
ANSWER_TIMEOUT: Final = 20.0  # seconds for a CONNACK, SUBACK or UNSUBACK
READ_SIZE: Final = 1 << 18  # bytes of the shared read buffer
RECEIVE_BUFFER: Final = 1 << 20  # bytes asked of the kernel for subscribers, so that they are never the limit
NARROW_BUFFER: Final = 4096  # bytes asked of the kernel, which doubles them, for those who are not to receive much
# Bytes of a segment as on Ethernet: with those of the loopback device, the sender's kernel takes 2.6 MB for a socket.
NARROW_SEGMENT: Final = 1460
SELECT_LIMIT: Final = 1024  # file descriptors select(2) can name
IP_BIND_ADDRESS_NO_PORT: Final = 24  # ip(7); not in the socket module of every Python
SLICE: Final = 0.05  # longest wait in seconds before the time is looked at again


class LoadError(Exception):
    """The load could not be put on the broker: it refused, closed, or did not answer."""


class Loop:
    """A level-triggered epoll loop: read and write callbacks by file descriptor. Use as a context manager."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._fine = self._epoll.fileno() < SELECT_LIMIT
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self.buffer = memoryview(bytearray(READ_SIZE))

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._epoll.close()

    def add(self, sock: socket.socket, reader: Callable[[], None], writer: Callable[[], None] | None = None) -> None:
        """Call ``reader`` whenever the socket has something to read, or has been closed by the other side."""
        number = sock.fileno()
        self._readers[number] = reader
        if writer is not None:
            self._writers[number] = writer
        self._epoll.register(number, select.EPOLLIN)

    def want_write(self, sock: socket.socket, wanted: bool) -> None:
        """Turn the socket's write callback on or off."""
        self._epoll.modify(sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def turn(self, timeout: float) -> None:
        """Wait for at most ``timeout`` seconds and serve whatever is ready.

        Exact to the microsecond in a loop that was made before the process had a thousand files open, else to the
        millisecond: paced loads make their loop first.
        """
        if self._fine and 0 < timeout < 0.01:
            # epoll counts in milliseconds; select() on the epoll descriptor counts in microseconds.
            select.select((self._epoll,), (), (), timeout)
            timeout = 0
        readers = self._readers
        for number, mask in self._epoll.poll(timeout):
            if mask & select.EPOLLOUT:
                self._writers[number]()
            if mask & ~select.EPOLLOUT:
                readers[number]()

    def run_until(self, deadline: float, tick: Callable[[float], float] | None = None) -> None:
        """Serve until ``time.monotonic()`` reaches ``deadline``; ``tick(now)`` is called each turn and returns when it
        next wants to be."""
        turn, clock = self.turn, time.monotonic
        now = clock()
        while now < deadline:
            wake = deadline if tick is None else min(tick(now), deadline)
            turn(max(0.0, min(SLICE, wake - clock())))
            now = clock()


class Link:
    """A sending connection: what the kernel will not take at once is kept and sent when it will."""

    def __init__(self, loop: Loop, sock: socket.socket, reader: Callable[[], None] | None = None) -> None:
        self.sock = sock
        self._loop = loop
        self._pending: list[memoryview] = []
        loop.add(sock, reader or self._unexpected, self._flush)

    def send(self, data: memoryview | bytes | bytearray) -> None:
        """Send now, or queue behind what waits already."""
        if self._pending:
            self._pending.append(memoryview(bytes(data)))
            return
        try:
            sent = self.sock.send(data)
        except WANTS:
            sent = 0
        except OSError as error:
            raise LoadError(f"the broker closed a publisher's connection ({error})") from error
        if sent < len(data):
            self._pending.append(memoryview(bytes(data[sent:])))
            self._loop.want_write(self.sock, True)

    def _flush(self) -> None:
        while self._pending:
            head = self._pending[0]
            try:
                sent = self.sock.send(head)
            except WANTS:
                return
            except OSError as error:
                raise LoadError(f"the broker closed a publisher's connection ({error})") from error
            if sent < len(head):
                self._pending[0] = head[sent:]
                return
            self._pending.pop(0)
        self._loop.want_write(self.sock, False)

    def _unexpected(self) -> None:
        size = receive(self.sock, self._loop.buffer)
        if size:
            raise LoadError(f"the broker sent {frames.packet_name(self._loop.buffer[0])} to a QoS 0 publisher")


def receive(sock: socket.socket, buffer: memoryview) -> int:
    """Read once without waiting; 0 if there was nothing, LoadError if the broker closed the connection."""
    try:
        size = sock.recv_into(buffer)
    except WANTS:
        return 0
    except OSError as error:
        raise LoadError(f"the broker broke a connection ({error})") from error
    if not size:
        raise LoadError("the broker closed a connection in the middle of the load")
    return size


def read_packet(sock: socket.socket) -> bytes:
    """One whole packet from a blocking socket, and not a byte more."""
    data = b""
    while not (size := frames.packet_size(data)) or len(data) < size:
        missing = size - len(data) if size else 1
        try:
            more = sock.recv(missing)
        except TimeoutError as error:
            raise LoadError(f"no answer from the broker within {ANSWER_TIMEOUT:g} s") from error
        except OSError as error:
            raise LoadError(f"the broker broke a connection ({error})") from error
        if not more:
            raise LoadError("the broker closed a connection instead of answering")
        data += more
    return data


def expect(sock: socket.socket, first: int) -> bytes:
    """The next packet, which must be of the type with this first byte."""
    packet = read_packet(sock)
    if packet[0] != first:
        raise LoadError(f"the broker sent {frames.packet_name(packet[0])}, not {frames.packet_name(first)}")
    return packet


def _connected(host: str, port: int, timeout: float, source: str, narrow: bool) -> socket.socket:
    if not source and not narrow:
        return socket.create_connection((host, port), timeout)
    sock = socket.socket()
    try:
        if narrow:  # now, before window and segment size are told to the other end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BUFFER)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, NARROW_SEGMENT)
        if source:
            # The port is chosen when the other end is known: as many from each address as there are ports.
            sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((source, 0))
        sock.settimeout(timeout)
        sock.connect((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def open_clients(
    host: str,
    port: int,
    client_ids: Sequence[str],
    level: int = frames.MQTT_3_1_1,
    timeout: float = ANSWER_TIMEOUT,
    keep_alive: int = 0,
    source: Callable[[int], str] | None = None,
    narrow: bool = False,
    listener: Listener | None = None,
) -> list[socket.socket]:
    """Connected blocking sockets, each with its CONNACK read; on an error none stays open.

    ``keep_alive`` is asked for in seconds (0: none); ``source(n)`` is the local address client ``n`` connects from;
    ``narrow`` makes the kernel hold little of what a client does not read; ``listener`` is the one they connect
    to, where it is not the broker's first."""
    opened: list[socket.socket] = []
    try:
        for begin in range(0, len(client_ids), OPEN_BATCH):
            batch = client_ids[begin : begin + OPEN_BATCH]
            for client_id in batch:
                address = "" if source is None else source(len(opened))
                sock = _connected(host, port, timeout, address, narrow)
                opened.append(sock)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if listener is None:
                    sock.sendall(frames.connect(client_id, level, keep_alive))
            if listener is not None:
                opened[begin:] = client_handshakes(listener, opened[begin:])
                for client_id, sock in zip(batch, opened[begin:], strict=True):
                    sock.sendall(frames.connect(client_id, level, keep_alive))
            for sock in opened[begin:]:
                connack = expect(sock, frames.CONNACK)
                if connack[3]:
                    raise LoadError(f"the broker refused CONNECT with code 0x{connack[3]:02x}")
    except OSError as error:
        close_all(opened)
        raise LoadError(f"cannot connect client {len(opened) + 1} ({error})") from error
    except BaseException:
        close_all(opened)
        raise
    return opened


def subscribe_all(
    socks: Sequence[socket.socket],
    filters: Callable[[int], Sequence[tuple[str, int]]],
    level: int = frames.MQTT_3_1_1,
    per_packet: int = 64,
) -> None:
    """Subscribe client ``n`` to ``filters(n)``, ``per_packet`` filters in a SUBSCRIBE, clients in turn by batches."""
    for begin in range(0, len(socks), OPEN_BATCH):
        asked: list[tuple[socket.socket, int]] = []
        for number, sock in enumerate(socks[begin : begin + OPEN_BATCH], begin):
            wanted = list(filters(number))
            pieces = [wanted[at : at + per_packet] for at in range(0, len(wanted), per_packet)]
            sock.sendall(b"".join(frames.subscribe(at, piece, level) for at, piece in enumerate(pieces, 1)))
            asked.extend((sock, len(piece)) for piece in pieces)
        for sock, count in asked:
            codes = expect(sock, frames.SUBACK)[-count:]
            if max(codes) >= 0x80:
                raise LoadError(f"the broker refused SUBSCRIBE with code 0x{max(codes):02x}")


def prepare(socks: Iterable[socket.socket]) -> None:
    """Make sockets non-blocking, with room to receive, for the loop."""
    for sock in socks:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)


def close_all(socks: Iterable[socket.socket]) -> None:
    """Send DISCONNECT where possible, and close, whatever state the sockets are in."""
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(frames.DISCONNECT)
        sock.close()
