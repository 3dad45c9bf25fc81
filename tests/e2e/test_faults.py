"""The fault proxy itself: what it promises, held against plain sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest

from tests.e2e.faults import CHUNK, PATIENCE, FaultProxy, Link, reset, shrink

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


async def test_a_stall_holds_back_ends_and_resets_too(stage: Stage) -> None:
    ends, resets = await stage.pair(), await stage.pair()
    for pair in (ends, resets):
        pair.link.up.stall()
        await pair.client.send(b"last")
    ends.client.socket.close()
    reset(resets.client.socket)
    for pair in (ends, resets):
        await settled()
        assert pair.server.nothing_to_read()
        pair.link.heal()
    assert await ends.server.read(10) == b"last"
    with pytest.raises(ConnectionResetError):
        await resets.server.read(10)


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


async def test_a_delay_is_a_long_line_and_not_a_narrow_one(stage: Stage) -> None:
    pair = await stage.pair()
    loop = asyncio.get_running_loop()
    pair.link.delay(0.2)
    started = loop.time()
    await pair.client.send(b"ping")
    assert await pair.server.read(4) == b"ping"
    await pair.server.send(b"pong")
    assert await pair.client.read(4) == b"pong"
    assert loop.time() - started >= 0.4
    # One chunk for each delay would take this many seconds.
    size = 100 * CHUNK
    started = loop.time()
    async with asyncio.TaskGroup() as group:
        group.create_task(pair.client.send(bytes(size)))
        group.create_task(pair.server.read(size))
    assert 0.2 <= loop.time() - started < 100 * 0.2 / 2
    pair.link.heal()
    # Twice the delay is what it took before.
    assert await _round_trip(pair) < 0.4


async def _round_trip(pair: Pair) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await pair.client.send(b"ping")
    await pair.server.read(4)
    return loop.time() - started


async def test_a_cut_is_a_reset_for_both(stage: Stage) -> None:
    pairs = [await stage.pair() for _ in range(3)]
    await pairs[0].link.cut()
    for end in (pairs[0].client, pairs[0].server):
        with pytest.raises(ConnectionResetError):
            await end.read(1)
    assert pairs[0].link.ended
    # The others go on, until all are cut, stalled or not.
    assert await _round_trip(pairs[1]) < PATIENCE
    pairs[1].link.stall()
    pairs[2].link.delay(60.0)
    await pairs[2].client.send(b"under way")
    await stage.proxy.cut()
    for pair in pairs[1:]:
        with pytest.raises(ConnectionResetError):
            await pair.client.read(1)


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


async def test_who_is_not_there_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with FaultProxy(taken.getsockname()[1]) as proxy:
            with socket.socket() as client:
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", proxy.port))
                with pytest.raises(ConnectionResetError):
                    await End(client).read(1)
            assert proxy.links == []


async def test_faults_from_the_first_byte() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    with listener, socket.socket() as client:
        client.setblocking(False)
        async with FaultProxy(listener.getsockname()[1], greet=lambda link: link.stall()) as proxy:
            await loop.sock_connect(client, ("127.0.0.1", proxy.port))
            await End(client).send(b"early")
            server, _ = await loop.sock_accept(listener)
            with server:
                link = await proxy.link(0)
                await settled()
                assert End(server).nothing_to_read()
                link.heal()
                assert await End(server).read(5) == b"early"


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
