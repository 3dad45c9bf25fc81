"""A bad network between a client and a broker: a TCP proxy that stalls, trickles, delays, cuts and forgets to tell.

Owns: `FaultProxy`, the `Link` of each connection through it, and the two `Flow`s of a link: `up` (client to broker)
and `down` (broker to client). Faults are set and healed by the test at any time, in each direction on its own.

Promises: without a fault every byte passes unchanged and in order, an end is passed on as an end and a reset as a
reset. Little is held on the way: `CHUNK` bytes in the proxy (`LINE` while a delay is set), and small socket buffers
with segments of Ethernet's size on both sides, so that a stall is felt after some ten kilobytes and not after
megabytes. Nothing is left after `async with`: no task, no socket.

It knows no MQTT.

    async with FaultProxy(broker.ports[0]) as proxy:
        peer = await Peer.open("127.0.0.1", proxy.port)
        link = await proxy.link(0)
        link.down.stall()
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

BUFFER: Final = 4096
"""Bytes asked for as socket buffers; the system doubles it and has its own minimum."""

SEGMENT: Final = 1460
"""Bytes of a TCP segment. On the loopback interface it is 64 KiB otherwise, and the sender's buffer begins at forty
times that, whatever the receiver takes."""

CHUNK: Final = 2048
"""Bytes read at once, and held at most where there is no delay."""

LINE: Final = 1 << 20
"""Bytes under way at most while a delay is set."""

TICK: Final = 0.02
"""Seconds between two reads of a trickle."""

PATIENCE: Final = 15.0
"""Seconds that a test waits for the proxy."""


class Flow:
    """One direction of a link. Use its link to cut."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.passed = 0
        self._source = source
        self._sink = sink
        self._rate = 0.0
        self._delay = 0.0
        # What is under way, each with the time at which it arrives. b"": the end of the stream; None: a reset.
        self._line: deque[tuple[float, bytes | None]] = deque()
        self._held = 0
        self._going = asyncio.Event()
        self._going.set()
        # Set whenever anything changes that a task may wait for; whoever waits looks again.
        self._news = asyncio.Event()

    def stall(self) -> None:
        """Stop reading: what the sender sends piles up in front of the proxy. Not even its end is noticed."""
        self._going.clear()
        self._tell()

    def trickle(self, bytes_per_second: float) -> None:
        """Pass no more than so many bytes a second."""
        assert bytes_per_second > 0
        self._rate = bytes_per_second
        self._tell()

    def delay(self, seconds: float) -> None:
        """Pass each byte so much later than it came; for what comes from now on."""
        self._delay = seconds
        self._tell()

    def heal(self) -> None:
        """Pass everything at once again."""
        self._rate = self._delay = 0.0
        self._line = deque((0.0, data) for _, data in self._line)
        self._going.set()
        self._tell()

    def _tell(self) -> None:
        self._news.set()

    async def _wait(self, seconds: float | None = None) -> None:
        """Until there are news, or so long."""
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def read(self) -> None:
        """Take from the source, for as long as it gives."""
        loop = asyncio.get_running_loop()
        data: bytes | None = b"-"
        allowed_at = loop.time()
        while data:
            await self._going.wait()
            if self._held >= (LINE if self._delay else 1):
                await self._wait()
                continue
            size = CHUNK
            if self._rate:
                if (early := allowed_at - loop.time()) > 0:
                    await self._wait(early)
                    continue
                size = max(1, min(CHUNK, int(self._rate * TICK)))
            try:
                data = await loop.sock_recv(self._source, size)
            except OSError:
                data = None
            now = loop.time()
            if data and self._rate:
                allowed_at = now + len(data) / self._rate
            self._line.append((now + self._delay, data))
            self._held += len(data or b"")
            self._tell()

    async def write(self) -> None:
        """Give to the sink what arrives. Raises ConnectionResetError where the source, or the sink, was reset."""
        loop = asyncio.get_running_loop()
        while True:
            await self._going.wait()
            if not self._line:
                await self._wait()
                continue
            arrives, data = self._line[0]
            if (early := arrives - loop.time()) > 0:
                await self._wait(early)
                continue
            if data is None:
                raise ConnectionResetError
            if not data:
                self._sink.shutdown(socket.SHUT_WR)
                return
            self._line.popleft()
            await loop.sock_sendall(self._sink, data)
            self._held -= len(data)
            self.passed += len(data)
            self._tell()


class Link:
    """One connection through the proxy: a socket towards the client and one towards the broker."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.up = Flow(client, broker)
        self.down = Flow(broker, client)
        self._sockets = (client, broker)
        self._task: asyncio.Task[None] | None = None

    def stall(self) -> None:
        """Stop reading on both sides."""
        self.up.stall()
        self.down.stall()

    def half_open(self) -> None:
        """The client's machine, or the network, vanished: both sides stay open, nothing passes, nothing is told.

        Not even that one side closes its end.
        """
        self.stall()

    def trickle(self, bytes_per_second: float) -> None:
        """Pass no more than so many bytes a second in each direction."""
        self.up.trickle(bytes_per_second)
        self.down.trickle(bytes_per_second)

    def delay(self, seconds: float) -> None:
        """Pass each byte so much later in each direction."""
        self.up.delay(seconds)
        self.down.delay(seconds)

    def heal(self) -> None:
        """Pass everything at once again."""
        self.up.heal()
        self.down.heal()

    @property
    def ended(self) -> bool:
        """Whether nothing is left of the connection."""
        return self._task is not None and self._task.done()

    async def wait_ended(self) -> None:
        """Until nothing is left of the connection."""
        async with asyncio.timeout(PATIENCE):
            assert self._task is not None
            await asyncio.wait([self._task])

    async def cut(self) -> None:
        """Reset both sides; what is under way is lost."""
        await cut([self])

    def start(self) -> None:
        """Begin to pass."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for flow in (self.up, self.down):
                    group.create_task(flow.read())
                    group.create_task(flow.write())
        except* (OSError, asyncio.CancelledError):
            self._reset()
        finally:
            for end in self._sockets:
                end.close()

    def _reset(self) -> None:
        for end in self._sockets:
            reset(end)


def reset(end: socket.socket) -> None:
    """Close a socket so that the other side sees a reset, and not an end."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


async def cut(links: list[Link]) -> None:
    """Reset both sides of these connections, all at once."""
    tasks = [link._task for link in links if link._task is not None]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def shrink(end: socket.socket) -> None:
    """Small buffers and segments; before connecting or listening, because both are agreed on in the first packets."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class FaultProxy:
    """A listener on a free port of 127.0.0.1 whose connections go on to `port` there.

    `greet` is called with each new link before anything passes: for faults that are there from the first byte.
    """

    def __init__(self, port: int, greet: Callable[[Link], None] | None = None) -> None:
        self.port = 0
        self.links: list[Link] = []
        self._target = port
        self._greet = greet
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._accepted = asyncio.Event()

    async def __aenter__(self) -> Self:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        shrink(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen(4096)
        listener.setblocking(False)
        self._listener = listener
        self.port = listener.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(listener))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._accepting is not None
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        assert self._listener is not None
        self._listener.close()
        await cut(self.links)

    async def link(self, number: int) -> Link:
        """The connection with this number, counted from 0 in the order in which they came; waits until it is there."""
        async with asyncio.timeout(PATIENCE):
            while len(self.links) <= number:
                self._accepted.clear()
                await self._accepted.wait()
        return self.links[number]

    async def cut(self) -> None:
        """Reset every connection there is, both sides, all at once."""
        await cut(self.links)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            broker = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            shrink(broker)
            broker.setblocking(False)
            try:
                await loop.sock_connect(broker, ("127.0.0.1", self._target))
            except OSError:
                broker.close()
                reset(client)
                continue
            except asyncio.CancelledError:
                broker.close()
                client.close()
                raise
            link = Link(client, broker)
            if self._greet is not None:
                self._greet(link)
            link.start()
            self.links.append(link)
            self._accepted.set()
