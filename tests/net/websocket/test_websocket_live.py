"""WebSockets over real sockets, plain and over TLS, on both event loops: messages, slow peers, the end, and attacks."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.net.connections.connection import Connection
from tests.e2e import wire
from tests.net.websocket.peer import WebPeer
from tests.support.certificates import Authority
from tests.support.waiting import until

HOST: Final = "127.0.0.1"

Start = Callable[..., Awaitable[Broker]]
Join = Callable[..., Awaitable[WebPeer]]
Lines = list[dict[str, Any]]

SECURE = pytest.mark.parametrize("scheme", ["ws", "wss"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def start(authority: Authority, lines: Lines) -> AsyncIterator[Start]:
    """Start a broker with a WebSocket listener; sections of settings as keywords."""
    del lines
    certificate, key = authority.issue("localhost")
    async with AsyncExitStack() as stack:

        async def begin(scheme: str = "ws", **sections: Any) -> Broker:
            web: dict[str, Any] = {"url": f"{scheme}://{HOST}:0", "name": "web"}
            if scheme == "wss":
                web["tls"] = {"certificate": certificate, "key": key}
            wanted = {"shutdown": {"flush_timeout": 0.0}, **sections, "listener": [web]}
            return await stack.enter_async_context(Broker(Settings.model_validate(wanted)))

        yield begin


@pytest.fixture
async def join(authority: Authority) -> AsyncIterator[Join]:
    """Connect clients; they are gone after the test."""
    peers: list[WebPeer] = []

    async def connect(broker: Broker, client_id: str, **options: Any) -> WebPeer:
        secure = broker.listening[0].startswith("wss:")
        context = authority.client() if secure else None
        peer = await WebPeer.over(HOST, broker.ports[0], options.get("version", 5), context=context)
        peers.append(peer)
        await peer.send(wire.connect(client_id, **{"keep_alive": 0, **options}))
        peer.connack = await peer.expect(wire.CONNACK)
        assert peer.connack.code == 0
        return peer

    yield connect
    for peer in peers:
        peer.abort()


async def test_the_short_form(join: Join, lines: Lines) -> None:
    """`listen` takes ws:// beside mqtt://: no table is needed for either."""
    del lines
    settings = Settings.model_validate(
        {"listen": [f"ws://{HOST}:0", f"mqtt://{HOST}:0"], "shutdown": {"flush_timeout": 0.0}}
    )
    async with Broker(settings) as broker:
        assert [url.split(":")[0] for url in broker.listening] == ["ws", "mqtt"]
        peer = await join(broker, "web")
        await peer.fence()
        peer.abort()


def connection_of(broker: Broker, client_id: str) -> Connection:
    (found,) = (each for each in broker.connections if each.protocol.client_id == client_id)
    assert isinstance(found, Connection)
    return found


@SECURE
async def test_a_peer_that_reads_nothing_is_evicted(start: Start, join: Join, lines: Lines, scheme: str) -> None:
    broker = await start(scheme, queue={"stall_timeout": 0.4, "live_bytes": 2_000_000})
    for sock in broker.listeners.open[0].sockets:
        with socket.socket(fileno=os.dup(sock.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    slow = await join(broker, "slow")
    await slow.subscribe("t")
    slow.frames.transport.pause_reading()  # type: ignore[attr-defined]
    publisher = await join(broker, "publisher")

    def causes() -> list[str]:
        return [line["cause"] for line in lines if line.get("client_id") == "slow" and "cause" in line]

    while not causes():
        await publisher.publish("t", bytes(100_000))
        await asyncio.sleep(0)
    assert causes() == ["stalled"]


@SECURE
async def test_a_peer_that_is_gone_is_found_out_while_it_is_not_read_from(
    start: Start, join: Join, scheme: str
) -> None:
    """A client that publishes too fast and leaves: nobody reads its end."""
    broker = await start(scheme, limits={"max_publish_rate": 1.0, "publish_patience": 0.0})
    fast = await join(broker, "fast", keep_alive=10)
    await fast.send(*[wire.publish("t", b"x") for _ in range(100)])
    connection = connection_of(broker, "fast")
    await until(lambda: connection.protocol.held_until > 0.0)
    assert not connection.stream.peer_is_gone
    fast.abort()
    await until(lambda: connection.stream.peer_is_gone)


@SECURE
async def test_a_broker_that_stops_says_so(start: Start, join: Join, scheme: str) -> None:
    broker = await start(scheme)
    peer = await join(broker, "c")
    stopping = asyncio.create_task(broker.stop())
    assert (await peer.expect(wire.DISCONNECT)).code == 0x8B
    assert await peer.closed() == []
    assert peer.close_code == 1001
    await stopping


@SECURE
async def test_the_last_packet_comes_before_the_end(start: Start, join: Join, scheme: str) -> None:
    """Data that the client has sent meanwhile does not make the system reset the connection."""
    broker = await start(scheme, limits={"max_packet_size": 1000})
    peer = await join(broker, "c")
    await peer.send(wire.publish("t", bytes(2000)), *[wire.publish("t", bytes(900)) for _ in range(100)])
    assert (await peer.expect(wire.DISCONNECT)).code == 0x95
    assert await peer.closed() == []
    assert peer.close_code == 1002
