"""TLS on a listener: handshakes, client certificates, names, what is refused and what the log says of it.

Clients are Python's own TLS over real sockets, on asyncio's event loop and on uvloop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from broker import Broker, Settings
from broker.core.hooks import AccessControl
from broker.net import tls_transport
from broker.settings import Listener, Tls
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.certificates import Authority
from tests.support.waiting import until

HOST: Final = "127.0.0.1"

Start = Callable[..., Awaitable[Broker]]
Lines = list[dict[str, Any]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What the brokers of the test log."""
    with structlog.testing.capture_logs() as captured:
        yield captured  # type: ignore[misc]


_peers: Final[list[Peer]] = []


@pytest.fixture
async def start(authority: Authority, lines: Lines) -> AsyncIterator[Start]:
    """Start a broker with one TLS listener; keys of [listener.tls] as keywords, others under `listener`, `sections`."""
    del lines
    server = authority.issue("localhost", HOST)
    async with AsyncExitStack() as stack:

        async def begin(
            listener: dict[str, Any] | None = None,
            sections: dict[str, Any] | None = None,
            access_control: AccessControl | None = None,
            **keys: Any,
        ) -> Broker:
            settings = Tls(**{"certificate": server[0], "key": server[1], **keys})
            made = Listener(**{"url": f"mqtts://{HOST}:0", "name": "door", "tls": settings, **(listener or {})})
            wanted = {"shutdown": {"flush_timeout": 0.0}, **(sections or {})}
            broker = Broker(Settings(listener=[made], **wanted), access_control=access_control)
            return await stack.enter_async_context(broker)

        yield begin
        for peer in _peers:
            peer.abort()
        _peers.clear()


async def peer_of(broker: Broker, context: ssl.SSLContext, name: str = "localhost", version: int = 5) -> Peer:
    async with asyncio.timeout(wire.TIMEOUT):
        reader, writer = await asyncio.open_connection(HOST, broker.ports[0], ssl=context, server_hostname=name)
    peer = Peer(reader, writer, version)
    _peers.append(peer)
    return peer


async def join(broker: Broker, context: ssl.SSLContext, client_id: str = "c", name: str = "localhost") -> Peer:
    peer = await peer_of(broker, context, name)
    await peer.send(wire.connect(client_id, keep_alive=0))
    peer.connack = await peer.expect(wire.CONNACK)
    assert peer.connack.code == 0
    return peer


async def refused(broker: Broker, context: ssl.SSLContext, name: str = "localhost") -> str:
    """What TLS tells a client that is not let in, at the latest when it reads."""
    try:
        peer = await peer_of(broker, context, name)
        await peer.send(wire.connect("c"))
        read = await peer.reader.read(1)
    except ssl.SSLError as error:
        return error.reason or str(error)
    assert read == b""
    return "closed"


def reasons(lines: Lines) -> list[str]:
    return [line["reason"] for line in lines if line["event"] == "handshake failed"]


def shown(peer: Peer) -> ssl.SSLObject:
    found = peer.writer.get_extra_info("ssl_object")
    assert isinstance(found, ssl.SSLObject)
    return found


class TestServed:
    async def test_messages_of_every_size_go_through(self, start: Start, authority: Authority) -> None:
        broker = await start()
        peer = await join(broker, authority.client())
        assert shown(peer).version() == "TLSv1.3"
        assert shown(peer).selected_alpn_protocol() is None
        await peer.subscribe("t")
        for size in (0, 1, 16_384, 32_768, 1_000_000):
            await peer.publish("t", bytes(size))
            assert len((await peer.expect(wire.PUBLISH)).payload) == size
        # Many at once, in both directions.
        await peer.send(b"".join(wire.publish("t", b"%d" % number) for number in range(5_000)))
        for number in range(5_000):
            assert (await peer.expect(wire.PUBLISH)).payload == b"%d" % number
        assert broker.listening[0].startswith(f"mqtts://{HOST}:")
        assert broker.ports[0] > 0

    async def test_alpn(self, start: Start, authority: Authority) -> None:
        broker = await start()
        context = authority.client()
        context.set_alpn_protocols(["x-other", "mqtt"])
        assert shown(await join(broker, context)).selected_alpn_protocol() == "mqtt"
        other = await start(alpn=["x-other"])
        assert shown(await join(other, context)).selected_alpn_protocol() == "x-other"

    async def test_the_last_packet_comes_before_the_end(self, start: Start, authority: Authority) -> None:
        """What the client has sent meanwhile does not have the system reset the connection."""
        broker = await start(sections={"limits": {"max_packet_size": 1000}})
        peer = await join(broker, authority.client())
        await peer.send(wire.publish("t", bytes(2000)), *[wire.publish("t", bytes(900)) for _ in range(100)])
        assert (await peer.expect(wire.DISCONNECT)).code == 0x95
        assert await peer.reader.read() == b""

    async def test_a_stopping_broker_says_goodbye(self, start: Start, authority: Authority) -> None:
        broker = await start()
        peer = await join(broker, authority.client())
        await broker.stop()
        assert (await peer.expect(wire.DISCONNECT)).code == 0x8B

    async def test_nothing_is_left_of_a_connection(self, start: Start, authority: Authority) -> None:
        broker = await start()
        peer = await join(broker, authority.client())
        (connection,) = broker.connections
        transport = connection.stream.transport
        assert isinstance(transport, tls_transport.TlsTransport)
        peer.abort()
        await until(lambda: not broker.connections)
        assert transport.upper is None
        assert len(broker.handshakes) == 0
        assert len(broker.hub.wheel) == 0

    async def test_a_peer_that_reads_nothing_is_evicted(self, start: Start, authority: Authority, lines: Lines) -> None:
        broker = await start(sections={"queue": {"stall_timeout": 0.4, "live_bytes": 2_000_000}})
        (place,) = broker.listeners.open
        for sock in place.sockets:
            with socket.socket(fileno=sock.fileno()) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
                same.detach()
        slow = await join(broker, authority.client(), "slow")
        await slow.subscribe("t")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        publisher = await join(broker, authority.client(), "publisher")

        def evicted() -> bool:
            return any(line["event"] == "client evicted" and line["cause"] == "stalled" for line in lines)

        while not evicted():
            await publisher.publish("t", bytes(100_000))
            await asyncio.sleep(0)
        assert [line["client_id"] for line in lines if line["event"] == "client evicted"] == ["slow"]


class TestHandshakes:
    """What stands before the first packet: bounded in number, in time, and in what one turn does."""

    async def test_silent_connections_keep_nobody_out_and_are_bounded(
        self, start: Start, authority: Authority, lines: Lines
    ) -> None:
        broker = await start(sections={"limits": {"max_handshakes": 5}})
        silent = [await asyncio.open_connection(HOST, broker.ports[0]) for _ in range(12)]
        await until(lambda: broker.handshakes.evicted == 7)
        assert len(broker.handshakes) == 5
        await join(broker, authority.client())
        assert broker.handshakes.evicted == 8
        for reader, _ in silent[:8]:
            assert await reader.read() == b""
        for _, writer in silent:
            writer.close()
        await until(lambda: len(broker.handshakes) == 0)
        assert reasons(lines) == []
