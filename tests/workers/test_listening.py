"""The listening sockets of the workers: nobody else's port, a share for each, and no connection lost with a worker."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from broker.net.listening.listeners import StartupError
from broker.settings import Settings
from broker.workers.listening import SharedListeners

HOST = "127.0.0.1"

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere workers accept from one socket")


@asynccontextmanager
async def shared(*urls: str, workers: int = 3) -> AsyncIterator[SharedListeners]:
    listeners = SharedListeners(workers)
    settings = Settings.model_validate({"listener": [{"url": url} for url in urls]})
    listeners.adopt(await listeners.prepare(settings))
    try:
        yield listeners
    finally:
        await listeners.close()


def accepted(sock: socket.socket) -> int:
    """How many connections wait at a socket."""
    sock.setblocking(False)
    for number in range(10_000):
        try:
            sock.accept()[0].close()
        except BlockingIOError:
            return number
    raise AssertionError("without end")


def spread(listeners: SharedListeners, connections: int = 90) -> list[int]:
    """How many of some connections each of the workers gets."""
    (listener,) = listeners.open
    with ExitStack() as stack:
        for _ in range(connections):
            stack.enter_context(socket.create_connection((HOST, listener.endpoint.port), 10.0))
        return [accepted(sock) for worker in range(3) for sock in listener.of(worker)]


@on_linux
async def test_each_worker_gets_its_share() -> None:
    async with shared(f"mqtt://{HOST}:0") as listeners:
        found = spread(listeners)
        assert sum(found) == 90
        assert min(found) > 5


@on_linux
async def test_connections_go_to_those_alone_who_are_there() -> None:
    async with shared(f"mqtt://{HOST}:0") as listeners:
        listeners.steer([0, 2])
        first, second, third = spread(listeners)
        assert (second, first + third) == (0, 90)
        assert min(first, third) > 5
        listeners.steer([1])
        assert spread(listeners) == [0, 90, 0]
        listeners.steer([0, 1, 2])
        assert min(spread(listeners)) > 5


@on_linux
async def test_a_worker_that_ends_takes_no_waiting_connection_with_it() -> None:
    """What it has are duplicates: the next one accepts what came before it."""
    async with shared(f"mqtt://{HOST}:0") as listeners:
        (listener,) = listeners.open
        listeners.steer([1])
        (its,) = listener.of(1)
        its.dup().close()
        with socket.create_connection((HOST, listener.endpoint.port), 10.0) as client:
            with its.dup() as after:
                connection, _ = after.accept()
            with connection:
                connection.sendall(b"x")
                client.settimeout(10.0)
                assert client.recv(1) == b"x"


def plain() -> socket.socket:
    return socket.create_server((HOST, 0))


def sharing() -> socket.socket:
    """As another supervisor's would be."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((HOST, 0))
    sock.listen()
    return sock


@pytest.mark.parametrize("other", [plain, sharing])
async def test_a_port_that_somebody_else_listens_on(other: Callable[[], socket.socket]) -> None:
    with other() as theirs:
        url = f"mqtt://{HOST}:{theirs.getsockname()[1]}"
        with pytest.raises(StartupError, match=rf"^cannot listen on {url}: .*\bin use\b"):
            async with shared(url):
                pass


async def test_either_all_are_open_or_none() -> None:
    with plain() as theirs:
        free = socket.create_server((HOST, 0))
        port = free.getsockname()[1]
        free.close()
        with pytest.raises(StartupError):
            async with shared(f"mqtt://{HOST}:{port}", f"mqtt://{HOST}:{theirs.getsockname()[1]}"):
                pass
        socket.create_server((HOST, port)).close()


async def test_all_addresses_of_a_host_have_one_port() -> None:
    async with shared("mqtt://localhost:0") as listeners:
        (listener,) = listeners.open
        ports = {sock.getsockname()[1] for worker in range(3) for sock in listener.of(worker)}
        assert ports == {listener.endpoint.port}
        assert listeners.urls == [f"mqtt://localhost:{listener.endpoint.port}"]


async def test_a_unix_socket_is_shared_and_its_file_goes_with_the_supervisor(tmp_path: Path) -> None:
    path = tmp_path / "mqtt"
    async with shared(f"mqtt+unix://{path}") as listeners:
        (listener,) = listeners.open
        assert listener.of(0) == listener.of(2)
        assert await asyncio.to_thread(path.is_socket)
    assert not await asyncio.to_thread(path.exists)


async def test_of_other_settings_what_is_new_is_opened_and_what_is_gone_is_closed() -> None:
    async with shared(f"mqtt://{HOST}:0") as listeners:
        (first,) = listeners.open
        new = Settings.model_validate({"listener": [{"url": f"mqtt://{HOST}:0"}, {"url": f"ws://{HOST}:0"}]})
        added = await listeners.prepare(new)
        assert [each.name for each in added] == [f"ws://{HOST}:0"]
        listeners.adopt(added)
        await listeners.keep({added[0].name})
        assert listeners.open == added
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, first.endpoint.port), 10.0)
