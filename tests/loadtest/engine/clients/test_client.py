"""How a client comes to its connection, in this process; what it does with it is in the scripted tests."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest

from canopy_load.engine.clients.client_pool import ClientPool
from canopy_load.engine.clients.connection import ClientConnection, clock
from canopy_load.engine.job import Job, Target
from canopy_load.scenario.scenario_schema import Group
from tests.loadtest.playing import group, scenario


class Transport(asyncio.Transport):
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: object) -> None: ...

    def close(self) -> None: ...


async def test_a_client_that_is_still_connecting_when_it_should_return_returns() -> None:
    job = Job(scenario(group("one", cycle={"up": 100, "down": 0, "spread": 0})), "", [Target("127.0.0.1", 1)])
    pool = ClientPool(job.plan("00000001"), job, 0)
    [client] = pool.clients
    opening = asyncio.Event()

    async def opened(_: Group, __: int, wire: ClientConnection) -> None:
        await opening.wait()
        wire.connection_made(Transport())

    pool.open = opened  # type: ignore[assignment,method-assign]
    client.connect(clock())
    task = cast("asyncio.Task[None]", client._task)
    client._leave()
    client._return()
    opening.set()
    await task
    assert client.wire is not None, "a connection that is not wanted would have been closed"
    client.end()


async def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    kind = (socket.SOCK_STREAM, 6, "")
    found = [(socket.AF_INET, *kind, ("127.0.0.9", port)), (socket.AF_INET, *kind, ("127.0.0.1", port))]
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        job = Job(scenario(group("one")), "", [Target("twice", port)])
        pool = ClientPool(job.plan("00000001"), job, 0)
    [client] = pool.clients
    async with server:
        client.connect(clock())
        assert client._task is not None
        await client._task
        assert pool.errors == {}
        wire = client.wire
        assert wire is not None
        assert wire.transport is not None
        assert pool.addresses(client.index)[0][1] == ("127.0.0.1", port), "it is the first to be tried from now on"
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        client.leave(cut=True)
        wire.on_closed = gone.set_result
        await gone
        client.end()
