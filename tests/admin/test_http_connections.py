"""Connections of HTTP that send much are read from in turns, and answered in turns."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import pytest
from aiohttp import web

from canopy_mqtt.admin.http_connections import IN_A_TURN, READ, HttpConnection, HttpConnections
from canopy_mqtt.admin.routing import Call, Route
from tests.admin.conftest import Serve


class Inner(asyncio.Protocol):
    """Stands for aiohttp's protocol. `_reading_paused`: as that has it."""

    def __init__(self) -> None:
        self._reading_paused = False
        self.got = 0

    def data_received(self, data: bytes) -> None:
        self.got += len(data)


class Pipe(asyncio.Transport):
    """A transport that writes down whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        """It ends."""


def gates(count: int) -> list[tuple[HttpConnection, Inner, Pipe]]:
    connections = HttpConnections(count, 10.0)
    made = []
    for _ in range(count):
        inner, pipe = Inner(), Pipe()
        connection = connections.protocol(lambda inner=inner: inner)  # type: ignore[misc]
        connection.connection_made(pipe)
        made.append((connection, inner, pipe))
    return made


async def test_so_many_are_read_on_in_one_turn() -> None:
    made = gates(IN_A_TURN + 2)
    for connection, _, pipe in made:
        connection.data_received(bytes(READ))
        assert pipe.reads
        connection.data_received(bytes(READ))
        assert not pipe.reads
    await asyncio.sleep(0)
    assert [pipe.reads for _, _, pipe in made] == IN_A_TURN * [True] + 2 * [False]
    await asyncio.sleep(0)
    assert all(pipe.reads for _, _, pipe in made)
    assert {inner.got for _, inner, _ in made} == {2 * READ}
    for connection, _, _ in made:
        connection.connection_lost(None)


async def test_one_that_has_gone_or_that_aiohttp_has_paused_is_not_read_on() -> None:
    [(gone, _, pipe), (paused, inner, other)] = gates(2)
    gone.data_received(bytes(READ + 1))
    gone.connection_lost(None)
    paused.data_received(bytes(READ + 1))
    inner._reading_paused = True
    await asyncio.sleep(0)
    assert (pipe.reads, other.reads) == (False, False)
    paused.connection_lost(None)


async def test_of_a_body_that_nobody_reads_little_is_taken(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it says of itself that it is paused: by names of its own, which this holds it to."""
    entered, release = asyncio.Event(), asyncio.Event()

    async def hold(_: Call) -> web.StreamResponse:
        entered.set()
        await release.wait()
        return web.Response(text="held")

    monkeypatch.setattr(
        "canopy_mqtt.admin.server.all_routes", lambda: [Route("POST", "/hold", hold, "", role="anyone")]
    )
    broker = await serve()
    assert broker.admin is not None
    taken = 0
    received = HttpConnection.data_received

    def count(connection: HttpConnection, data: bytes) -> None:
        nonlocal taken
        taken += len(data)
        received(connection, data)

    monkeypatch.setattr(HttpConnection, "data_received", count)
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", broker.admin.open[0].port)) as sock:
        sock.setblocking(False)
        await loop.sock_sendall(sock, b"POST /hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 67108864\r\n\r\n")
        await entered.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.sock_sendall(sock, bytes(67_108_864)), 0.5)
        assert READ < taken < 2_097_152
        release.set()


async def test_connections_that_pipeline_requests_are_answered_in_turns(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few requests in a turn of the event loop, and as many of each connection."""
    begun: list[tuple[int, str]] = []
    turn = 0

    async def look(call: Call) -> web.StreamResponse:
        begun.append((turn, call.request.query_string))
        return web.Response()

    monkeypatch.setattr("canopy_mqtt.admin.server.all_routes", lambda: [Route("GET", "/", look, "", role="anyone")])
    broker = await serve()
    assert broker.admin is not None

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def pipeline(name: int) -> None:
        assert broker.admin is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.admin.open[0].port)
        writer.write(f"GET /?{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 10)
        for _ in range(10):
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    counting = asyncio.create_task(count())
    await asyncio.gather(*(pipeline(name) for name in range(12)))
    counting.cancel()
    assert len(begun) == 120
    assert max(Counter(at for at, _ in begun).values()) == IN_A_TURN
    # None gets far ahead of another, from when the last one has come until the first one has no more requests.
    answered = dict.fromkeys({name for _, name in begun}, 0)
    for _, name in begun:
        answered[name] += 1
        if min(answered.values()) and max(answered.values()) < 10:
            assert max(answered.values()) - min(answered.values()) <= 2
