"""Connections that a proxy passes on: whose header counts, what it changes, and what a stranger's costs."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.hooks import AccessControl
from tests.e2e import wire
from tests.support.gate import Gate
from tests.support.waiting import until

HOST: Final = "127.0.0.1"
CLIENT: Final = "192.0.2.1"

Start = Callable[..., Awaitable[Broker]]
Lines = list[dict[str, Any]]


def v1(source: str = CLIENT, port: int = 4711) -> bytes:
    return f"PROXY TCP4 {source} 198.51.100.7 {port} 1883\r\n".encode()


def v2(source: str = CLIENT, port: int = 4711, command: int = 0x21) -> bytes:
    addresses = ipaddress.IPv4Address(source).packed + ipaddress.IPv4Address("198.51.100.7").packed
    body = addresses + struct.pack("!HH", port, 1883) + b"\x20\x00\x05\x01\x00\x00\x00\x00"  # a TLV behind them
    return b"\r\n\r\n\x00\r\nQUIT\n" + struct.pack("!BBH", command, 0x11, len(body)) + body


HEADERS: Final = {"v1": v1, "v2": v2}


@pytest.fixture
async def start(lines: Lines) -> AsyncIterator[Start]:
    """Start a broker with one listener behind a proxy of this machine; keys of the listener as keywords."""
    del lines
    async with AsyncExitStack() as stack:

        async def begin(
            sections: dict[str, Any] | None = None, access_control: AccessControl | None = None, **listener: Any
        ) -> Broker:
            keys = {"url": f"mqtt://{HOST}:0", "name": "door", "proxy_protocol": "v2", "proxy_from": [f"{HOST}/32"]}
            wanted = {"shutdown": {"flush_timeout": 0.0}, **(sections or {}), "listener": [{**keys, **listener}]}
            broker = Broker(Settings.model_validate(wanted), access_control=access_control)
            return await stack.enter_async_context(broker)

        yield begin


async def open_stream(broker: Broker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(wire.TIMEOUT):
        return await asyncio.open_connection(HOST, broker.ports[0])


async def join(broker: Broker, header: bytes, client_id: str = "c") -> wire.Peer:
    """Connect behind a header; the CONNACK may be a refusal."""
    peer = wire.Peer(*await open_stream(broker), 5)
    await peer.send(header, wire.connect(client_id, keep_alive=0))
    peer.connack = await peer.expect(wire.CONNACK)
    return peer


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Read up to the end of a connection."""
    async with asyncio.timeout(wire.TIMEOUT):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_header_may_come_byte_by_byte(start: Start, version: str) -> None:
    broker = await start(proxy_protocol=version)
    reader, writer = await open_stream(broker)
    for byte in HEADERS[version]():
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    peer = wire.Peer(reader, writer, 5)
    await peer.send(wire.connect("c"))
    assert (await peer.expect(wire.CONNACK)).code == 0
    peer.abort()


async def test_limits_count_the_clients_address(start: Start) -> None:
    """Else one client, or a few, could use up what all behind the proxy may have."""
    broker = await start(max_connections_per_address=1)
    first, second = await join(broker, v2(), "a"), await join(broker, v2(), "b")
    other = await join(broker, v2("192.0.2.2"), "c")
    assert [peer.connack.code for peer in (first, second, other)] == [0, 0x97, 0]
    for peer in (first, second, other):
        peer.abort()


async def test_the_proxys_own_connections_come_from_itself(start: Start) -> None:
    """LOCAL: its health checks."""
    keeper = Gate()
    broker = await start(access_control=keeper)
    peer = await join(broker, v2(command=0x20))
    assert [origin.host for origin in keeper.origins] == [HOST]
    peer.abort()


async def test_a_header_from_elsewhere_is_not_read(start: Start, lines: Lines) -> None:
    """Anybody could say to be anybody."""
    broker = await start(proxy_from=["10.0.0.0/8"])
    reader, writer = await open_stream(broker)
    writer.write(v2() + wire.connect("forged"))
    assert await ended(reader) == b""
    writer.transport.abort()
    found = [line for line in lines if line["event"] == "PROXY header refused"]
    assert [(line["listener"], line["reason"]) for line in found] == [
        ("door", "not of the networks that may send a PROXY header (proxy_from)")
    ]
    assert found[0]["address"].startswith(f"{HOST}:")
    assert not broker.router.sessions


async def test_the_log_is_not_filled_by_forged_headers(start: Start, lines: Lines) -> None:
    broker = await start(sections={"log": {"client_warnings": 30}})
    for _ in range(10):
        reader, writer = await open_stream(broker)
        writer.write(wire.connect("c"))
        await ended(reader)
        writer.transport.abort()
    broker.connection_log.finish()
    assert len([line for line in lines if line["event"] == "PROXY header refused"]) == 3
    assert [line["proxy_headers"] for line in lines if line["event"] == "warnings about clients left out"] == [7]


async def test_a_header_that_does_not_come(start: Start, lines: Lines) -> None:
    broker = await start(sections={"limits": {"connect_timeout": 0.2}})
    reader, writer = await open_stream(broker)
    writer.write(v2()[:-1])
    assert await ended(reader) == b""
    writer.transport.abort()
    assert [line["reason"] for line in lines if line["event"] == "PROXY header refused"] == [
        "no whole PROXY header in time"
    ]
    assert len(broker.handshakes) == 0


async def test_headers_under_way_are_bounded_and_keep_nobody_out(start: Start) -> None:
    """The one that has been under way for longest makes room."""
    broker = await start(sections={"limits": {"max_handshakes": 5}})
    silent = [await open_stream(broker) for _ in range(20)]
    await until(lambda: broker.handshakes.evicted == 15, "15 of 20 are closed")
    assert len(broker.handshakes) == 5
    peer = await join(broker, v2())
    assert peer.connack.code == 0
    await until(lambda: broker.handshakes.evicted == 16)
    peer.abort()
    for _, writer in silent:
        writer.transport.abort()
    await until(lambda: len(broker.handshakes) == 0)


async def test_a_connection_without_a_header_does_not_hold_up_the_end(start: Start) -> None:
    broker = await start()
    reader, writer = await open_stream(broker)
    await until(lambda: len(broker.handshakes) == 1)
    await broker.stop()
    assert await ended(reader) == b""
    writer.transport.abort()


async def test_who_may_open_a_unix_socket_is_believed(start: Start, tmp_path: Path) -> None:
    keeper = Gate()
    broker = await start(access_control=keeper, url=f"mqtt+unix://{tmp_path}/s", proxy_from=[])
    del broker
    async with asyncio.timeout(wire.TIMEOUT):
        peer = wire.Peer(*await asyncio.open_unix_connection(f"{tmp_path}/s"), 5)
    await peer.send(v2(), wire.connect("c"))
    assert (await peer.expect(wire.CONNACK)).code == 0
    assert [origin.host for origin in keeper.origins] == [CLIENT]
    peer.abort()
