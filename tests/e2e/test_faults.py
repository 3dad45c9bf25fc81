"""The fault proxy itself: what it promises, held against plain sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest

from tests.e2e.faults import PATIENCE, FaultProxy, Link, reset, shrink

FELT: Final = 200_000
"""Bytes that a stalled link takes at most before the sender feels it: buffers of four sockets, with the system's own
arithmetic. A link without small buffers takes some millions."""


class End:
    """One end of a connection, by hand."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def read(self, count: int) -> bytes:
        """So many bytes, or fewer when the stream ends before."""
        parts: list[bytes] = []
        async with asyncio.timeout(PATIENCE):
            while count and (part := await asyncio.get_running_loop().sock_recv(self.socket, min(count, 65_536))):
                parts.append(part)
                count -= len(part)
        return b"".join(parts)

    def push(self, data: bytes) -> int:
        """As much as goes now."""
        done = 0
        try:
            while done < len(data):
                done += self.socket.send(data[done:])
        except BlockingIOError:
            pass
        return done

    def nothing_to_read(self) -> bool:
        """Whether neither data nor an end is there."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False


class Pair:
    """Both ends of one connection through a proxy."""

    def __init__(self, client: End, server: End, link: Link) -> None:
        self.client = client
        self.server = server
        self.link = link


class Stage:
    """A proxy in front of a listener."""

    def __init__(self, proxy: FaultProxy, listener: socket.socket, stack: AsyncExitStack) -> None:
        self.proxy = proxy
        self._listener = listener
        self._stack = stack
        self._count = 0

    async def pair(self) -> Pair:
        loop = asyncio.get_running_loop()
        client = socket.socket()
        self._stack.callback(client.close)
        client.setblocking(False)
        shrink(client)
        async with asyncio.timeout(PATIENCE):
            await loop.sock_connect(client, ("127.0.0.1", self.proxy.port))
            server, _ = await loop.sock_accept(self._listener)
        self._stack.callback(server.close)
        self._count += 1
        return Pair(End(client), End(server), await self.proxy.link(self._count - 1))


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """A proxy, and afterwards neither a task nor a socket more than before."""
    tasks = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        shrink(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        async with FaultProxy(listener.getsockname()[1]) as proxy:
            yield Stage(proxy, listener, stack)
            links = list(proxy.links)
        assert all(link.ended for link in links)
        assert asyncio.all_tasks() - tasks - {asyncio.current_task()} == set()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as made:
        yield made


async def settled() -> None:
    """Turns of the loop in which a healthy link would have passed on all that it has."""
    for _ in range(20):
        await asyncio.sleep(0.002)


async def test_bytes_pass_unchanged_in_both_directions_at_once_and_an_end_as_an_end(stage: Stage) -> None:
    pair = await stage.pair()
    there, back = os.urandom(300_000), os.urandom(300_000)
    async with asyncio.TaskGroup() as group:
        group.create_task(pair.client.send(there))
        group.create_task(pair.server.send(back))
        got_there = group.create_task(pair.server.read(len(there)))
        got_back = group.create_task(pair.client.read(len(back)))
    assert (got_there.result(), got_back.result()) == (there, back)
    assert (pair.link.up.passed, pair.link.down.passed) == (len(there), len(back))
    pair.client.socket.shutdown(socket.SHUT_WR)
    assert await pair.server.read(1) == b""
    # Half of the connection goes on.
    await pair.server.send(b"still")
    assert await pair.client.read(5) == b"still"
    assert not pair.link.ended
    pair.server.socket.shutdown(socket.SHUT_WR)
    assert await pair.client.read(1) == b""
    await pair.link.wait_ended()


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_stall_is_felt_by_the_sender_and_only_in_its_direction(stage: Stage, direction: str) -> None:
    pair = await stage.pair()
    sender, receiver = (pair.client, pair.server) if direction == "up" else (pair.server, pair.client)
    flow = pair.link.up if direction == "up" else pair.link.down
    flow.stall()
    data = os.urandom(4 * FELT)
    done = 0
    while went := sender.push(data[done:]):
        done += went
        await settled()
    assert 0 < done < FELT
    assert flow.passed == 0
    assert receiver.nothing_to_read()
    await receiver.send(b"the other way")
    assert await sender.read(13) == b"the other way"

    flow.heal()
    async with asyncio.TaskGroup() as group:
        group.create_task(sender.send(data[done:]))
        got = group.create_task(receiver.read(len(data)))
    assert got.result() == data


async def test_a_trickle_is_no_faster_than_it_says(stage: Stage) -> None:
    pair = await stage.pair()
    loop = asyncio.get_running_loop()
    started = loop.time()
    pair.link.down.trickle(5_000)
    await pair.server.send(bytes(3_000))
    assert await pair.client.read(3_000) == bytes(3_000)
    # The first read is free.
    assert loop.time() - started >= (3_000 - 100) / 5_000
    # Healed, what waits comes at once; at this pace it would take minutes.
    pair.link.trickle(10)
    await pair.server.send(bytes(3_000))
    pair.link.heal()
    assert await pair.client.read(3_000) == bytes(3_000)


@pytest.mark.parametrize("side", ["client", "server"])
async def test_a_reset_is_passed_on_as_a_reset(stage: Stage, side: str) -> None:
    pair = await stage.pair()
    gone, other = (pair.client, pair.server) if side == "client" else (pair.server, pair.client)
    reset(gone.socket)
    with pytest.raises(ConnectionResetError):
        await other.read(1)
    await pair.link.wait_ended()


async def test_half_open_tells_nobody_anything(stage: Stage) -> None:
    pair = await stage.pair()
    pair.link.half_open()
    await pair.server.send(b"are you there?")
    reset(pair.client.socket)
    await settled()
    # The server's end stays open, takes what it is given, and hears nothing.
    assert pair.server.nothing_to_read()
    await pair.server.send(b"hello?")
    assert not pair.link.ended
    pair.link.heal()
    with pytest.raises(ConnectionResetError):
        await pair.server.read(1)
    await pair.link.wait_ended()


async def test_nothing_is_left_of_links_in_any_state() -> None:
    """The fixture's own assertion, with a stalled, a slow, a delayed, a half-open, a cut and a healthy link."""
    async with staged() as stage:
        pairs = [await stage.pair() for _ in range(6)]
        for pair in pairs:
            await pair.client.send(bytes(1_000))
        pairs[0].link.stall()
        pairs[1].link.trickle(1)
        pairs[2].link.delay(60.0)
        pairs[3].link.half_open()
        await pairs[4].link.cut()
        for pair in pairs:
            if pair is not pairs[4]:
                await pair.client.send(bytes(1_000))
