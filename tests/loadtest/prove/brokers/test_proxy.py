"""The proxy: what it passes, what it holds up, and what it cuts. The clock of these tests jumps when nothing is left to
do, so that a wait of seconds shows that nothing comes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest

from canopy_load.brokers.process import HOST
from canopy_load.prove.brokers.proxy import Proxy
from tests.loadtest.prove.proving import jumping

LONG = 5.0
"""Seconds, of the clock that jumps."""


class Far:
    """What is behind the proxy: it keeps what it reads, and answers with what it read, in capitals."""

    def __init__(self) -> None:
        self.read = b""
        self.over = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.read += data
                writer.write(data.upper())
        except ConnectionError:
            pass
        self.over.set()
        writer.close()


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Proxy, Far, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A proxy, what is behind it, and a connection through it."""
    far = Far()
    server = await asyncio.start_server(far.serve, HOST, 0)
    proxy = Proxy(lambda: socket.socket(), server.sockets[0].getsockname()[1])
    proxy.open()
    reader, writer = await asyncio.open_connection(HOST, proxy.port)
    try:
        yield proxy, far, reader, writer
    finally:
        writer.close()
        await proxy.close()
        server.close()
        await far.over.wait()


@jumping
async def test_all_bytes_pass_in_order() -> None:
    sent = b"".join(b"%08d" % number for number in range(100_000))
    async with proxied() as (_, far, reader, writer):
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        assert far.read == sent


@jumping
async def test_a_latency_makes_both_directions_later_and_keeps_the_order() -> None:
    async with proxied() as (proxy, _, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        proxy.delay = LONG
        writer.write(b"b")
        await asyncio.sleep(1.0)
        proxy.delay = 0.0
        writer.write(b"c")
        assert await reader.readexactly(2) == b"BC"
        assert loop.time() - began >= LONG


@jumping
async def test_what_was_late_comes_before_the_end() -> None:
    async with proxied() as (proxy, far, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.delay = LONG
        writer.write(b"b")
        writer.close()
        await far.over.wait()
        assert far.read == b"ab"


@pytest.mark.parametrize("up", [True, False])
@jumping
async def test_a_direction_that_is_held_up_goes_on_afterwards_with_nothing_lost(up: bool) -> None:
    async with proxied() as (proxy, far, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.hold(up, not up)
        writer.write(b"b")
        answer = asyncio.create_task(reader.readexactly(1))
        await asyncio.sleep(LONG)
        assert not answer.done()
        assert far.read == (b"a" if up else b"ab")
        proxy.hold(False, False)
        assert await answer == b"B"


@jumping
async def test_a_cut_ends_connections_and_a_refusal_new_ones() -> None:
    async with proxied() as (proxy, far, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.refuse()
        proxy.cut()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        await far.over.wait()
        with pytest.raises(OSError, match="Connect"):
            await asyncio.open_connection(HOST, proxy.port)
        proxy.open()
        _, again = await asyncio.open_connection(HOST, proxy.port)
        again.close()


@jumping
async def test_a_port_where_nobody_listens_ends_the_connection() -> None:
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        proxy = Proxy(lambda: socket.socket(), unused.getsockname()[1])
        proxy.open()
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        writer.close()
        await proxy.close()


@pytest.mark.parametrize("steps", range(6))
@jumping
async def test_connections_that_come_just_before_a_refusal_are_told_their_end(steps: int) -> None:
    async with proxied() as (proxy, _, _, _):
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            comers = [stack.enter_context(socket.create_connection((HOST, proxy.port))) for _ in range(8)]
            for each in comers:
                each.setblocking(False)
            for _ in range(steps):
                await asyncio.sleep(0)
            proxy.refuse()
            proxy.cut()
            await asyncio.sleep(0)
            await proxy.close()
            for each in comers:
                with suppress(ConnectionError):
                    assert await asyncio.wait_for(loop.sock_recv(each, 1), LONG) == b""
