"""Large messages arrive byte for byte: over every transport, over a link, retained, and from a store.

Bounds in bytes are for what waits beside a message: one message fits into every queue that is empty.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.settings import Sys
from canopy_mqtt.store.sqlite import SqliteStore
from tests.e2e import wire
from tests.e2e.links.network import link
from tests.e2e.wire import SESSION_EXPIRY, Peer
from tests.net.websocket.framing import request
from tests.support.certificates import Authority
from tests.support.tries import filters_of
from tests.support.waiting import until

MIB = 1 << 20

SMALL: dict[str, Any] = {
    "queue": {"live_bytes": 65_536, "session_bytes": 65_536},
    "mqtt": {"max_inflight_bytes": 65_536},
    "retained": {"max_bytes": 65_536},
    "limits": {"max_packet_size": 0, "max_client_bytes": 65_536},
    "store": {"commit_bytes": 65_536},
}
"""Every bound in bytes is below the message."""

LONG = (pytest.mark.long, pytest.mark.timeout(900))

SIZES = [
    pytest.param(1, SMALL, id="1-small-bounds"),
    pytest.param(9, {}, id="9-defaults"),
    # Above every bound of one client that the defaults set.
    pytest.param(40, {}, id="40-defaults", marks=LONG),
]


class Web:
    """The reader and the writer of a `Peer` over a WebSocket: large frames without a copy for each read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.transport = writer.transport
        self._left = 0

    async def readexactly(self, size: int) -> bytes:
        parts = []
        while size > 0:
            if self._left == 0:
                _, length = await self._reader.readexactly(2)
                if length >= 126:
                    length = int.from_bytes(await self._reader.readexactly(2 if length == 126 else 8), "big")
                self._left = length
            part = await self._reader.readexactly(min(size, self._left))
            self._left -= len(part)
            size -= len(part)
            parts.append(part)
        return b"".join(parts)

    def write(self, data: bytes) -> None:
        """One binary frame, whose mask changes nothing."""
        self._writer.write(struct.pack("!BBQ", 0x82, 0xFF, len(data)) if len(data) > 65_535 else b"")
        if len(data) <= 65_535:
            short = len(data) < 126
            self._writer.write(
                struct.pack("!BB", 0x82, 0x80 | len(data)) if short else struct.pack("!BBH", 0x82, 0xFE, len(data))
            )
        self._writer.write(bytes(4))
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()


async def connected(transport: str, port: int, context: ssl.SSLContext, client_id: str, **options: Any) -> Peer:
    """A client over tcp, tls or ws."""
    tls = context if transport == "tls" else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, limit=4 * MIB)
    if transport == "ws":
        writer.write(request())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        web = Web(reader, writer)
        peer = Peer(cast(asyncio.StreamReader, web), cast(asyncio.StreamWriter, web), 5)
    else:
        peer = Peer(reader, writer, 5)
    await peer.send(wire.connect(client_id, version=5, **options))
    assert (await peer.expect(wire.CONNACK)).code == 0
    return peer


class Place:
    """A broker with three listeners and a store, and another one that is linked to it."""

    def __init__(self, stack: AsyncExitStack, folder: Path, sections: dict[str, Any]) -> None:
        self._stack = stack
        self._folder = folder
        authority = Authority(folder)
        certificate, key = authority.issue("127.0.0.1")
        self._context = ssl.create_default_context(cafile=authority.file)
        self._settings = {
            "limits": {"max_packet_size": 0},
            "sys": {"interval": 0},
            "shutdown": {"flush_timeout": 0.0},
            "federation": {"link_client_ids": ["*"]},
            **sections,
        }
        self._listeners = (
            {"url": "mqtt://127.0.0.1:0"},
            {"url": "mqtts://127.0.0.1:0", "tls": {"certificate": certificate, "key": key}},
            {"url": "ws://127.0.0.1:0"},
        )
        self.peers: list[Peer] = []
        self.broker: Broker
        self.edge: Broker

    async def start(self) -> None:
        settings = Settings(**{"listener": self._listeners, **self._settings})
        self.broker = Broker(settings, store=SqliteStore(self._folder))
        await self.broker.start()

    async def start_edge(self) -> None:
        links = [link(self.broker, publish=["up/#"], subscribe=["down/#"])]
        settings = Settings(**{"listen": ("mqtt://127.0.0.1:0",), "upstream": links, **self._settings})
        self.edge = await self._stack.enter_async_context(Broker(settings))
        await until(lambda: "down/#" in filters_of(self.broker.router.trie))

    async def restart(self) -> None:
        self.cut()
        await self.broker.stop()
        await self.start()

    def cut(self) -> None:
        for peer in self.peers:
            peer.abort()
        self.peers.clear()

    async def peer(self, transport: str, client_id: str, **options: Any) -> Peer:
        port = self.broker.ports[("tcp", "tls", "ws").index(transport)]
        self.peers.append(await connected(transport, port, self._context, client_id, **options))
        return self.peers[-1]

    async def at_edge(self, client_id: str) -> Peer:
        self.peers.append(await connected("tcp", self.edge.ports[0], self._context, client_id))
        return self.peers[-1]


@pytest.fixture
async def place(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    monkeypatch.setattr(wire, "TIMEOUT", 120.0)
    async with AsyncExitStack() as stack:
        made = Place(stack, tmp_path, request.param)
        await made.start()
        yield made
        made.cut()
        await made.broker.stop()


@pytest.mark.parametrize(("size", "place"), SIZES, indirect=["place"])
async def test_a_large_message_arrives(size: int, place: Place) -> None:
    """[MQTT-3.1.2-24] [MQTT-4.3.1-1] [MQTT-4.3.2-1] [MQTT-4.3.3-1]"""
    payload = b"canopy\x00\xff" * (size * MIB // 8 - 1) + b"the end"
    publisher = await place.peer("tcp", "p")
    subscribers = []
    for transport in ("tcp", "tls", "ws"):
        subscribers.append(await place.peer(transport, transport))
        await subscribers[-1].subscribe(("t/#", 2))

    # From one client to three, over each transport.
    for number, transport in enumerate(("tcp", "tls", "ws")):
        source = await place.peer(transport, f"source {transport}")
        for qos in (0, 1, 2) if size == 1 else (number,):
            sent = asyncio.ensure_future(source.publish("t/x", payload, qos=qos))
            for subscriber in subscribers:
                message = await subscriber.message()
                assert message.qos == qos
                assert message.payload == payload, (transport, qos)
            assert await sent == 0

    # Retained: who comes later has it.
    assert await publisher.publish("kept", payload, qos=1, retain=True) in (0, 0x10)
    late = await place.peer("ws", "late")
    await late.subscribe(("kept", 2))
    assert (await late.message()).payload == payload

    # Sessions that are away, and what is retained, over a restart.
    for qos in (1, 2):
        away = await place.peer("tcp", f"away {qos}", clean=False, props=((SESSION_EXPIRY, 100),))
        await away.subscribe(("away", qos))
        await away.disconnect()
    assert await publisher.publish("away", payload, qos=2) == 0
    await place.restart()
    for qos, transport in ((1, "tls"), (2, "ws")):
        away = await place.peer(transport, f"away {qos}", clean=False, props=((SESSION_EXPIRY, 100),))
        message = await away.message()
        assert (message.qos, message.payload == payload) == (qos, True)
    late = await place.peer("tls", "later")
    await late.subscribe(("kept", 1))
    assert (await late.message()).payload == payload

    # Over a link, in both directions.
    await place.start_edge()
    up, down = await place.peer("tcp", "up"), await place.at_edge("down")
    await up.subscribe(("up/#", 2))
    await down.subscribe(("down/#", 2))
    assert await down.publish("up/x", payload, qos=1) == 0
    assert (await up.message()).payload == payload
    assert await up.publish("down/x", payload, qos=2) == 0
    assert (await down.message()).payload == payload


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_that_sends_too_much_can_read_what_came_before(
    version: int, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It sent all of it at once, without a wait for CONNACK: the socket is not reset while the client sends. 5.0 is
    told 0x95 [MQTT-3.2.2-15]; of 3.1.1 the log says what can be done."""
    settings = Settings(listen=("mqtt://127.0.0.1:0", "ws://127.0.0.1:0"), sys=Sys(interval=0.0))
    async with Broker(settings) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports[transport == "ws"])
        if transport == "ws":
            writer.write(request())
            await reader.readuntil(b"\r\n\r\n")
            web = Web(reader, writer)
            peer = Peer(cast(asyncio.StreamReader, web), cast(asyncio.StreamWriter, web), version)
        else:
            peer = Peer(reader, writer, version)
        large = wire.publish("t", bytes(12 * MIB), version=version, qos=1, packet_id=1)
        peer.writer.write(wire.connect("camera", version=version))
        for at in range(0, len(large), 4 * MIB):
            peer.writer.write(large[at : at + 4 * MIB])
        assert (await peer.expect(wire.CONNACK)).code == 0
        if version == 5:
            assert (await peer.expect(wire.DISCONNECT)).code == 0x95
        if transport == "tcp":
            assert await reader.read() == b""
        writer.transport.abort()
        await until(lambda: not broker.connections)
    [line] = [each for each in caplog.records if "camera" in each.getMessage() and each.levelname == "WARNING"]
    assert (
        f"PUBLISH of {len(large)} bytes, at most 8388608 are accepted: raise limits.max_packet_size"
        in line.getMessage()
    )
