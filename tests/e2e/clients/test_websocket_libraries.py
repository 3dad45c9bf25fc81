"""WebSocket as two libraries speak it, by what RFC 6455 has and MQTT does not: fragments, PINGs, close codes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import picows
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.typing import Subprotocol

from canopy_mqtt import Broker, Settings
from tests.e2e import wire
from tests.e2e.clients.python.drivers import within

MQTT = Subprotocol("mqtt")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    web = {"url": "ws://127.0.0.1:0", "path": "/mqtt"}
    settings = {"listener": [web], "shutdown": {"flush_timeout": 0.0}}
    async with Broker(Settings.model_validate(settings)) as running:
        yield running


class TestWebsockets:
    """The library `websockets`, which offers compression."""

    async def test_fragments_pings_and_the_end(self, broker: Broker) -> None:
        async with connect(f"{broker.listening[0]}/mqtt", subprotocols=[MQTT], max_size=None) as web:
            assert web.subprotocol == "mqtt"
            assert web.protocol.extensions == []
            packets = (
                wire.connect("c", keep_alive=0) + wire.subscribe(1, [("t", 0)]) + wire.publish("t", bytes(200_000))
            )
            # An iterable is sent as one message in fragments.
            await web.send([packets[at : at + 7_000] for at in range(0, len(packets), 7_000)])
            await within("a PONG", await web.ping(b"?"))
            found = b""
            while len(found) < 200_000:
                part = await within("a frame", web.recv())
                assert isinstance(part, bytes)
                found += part
            await web.send(wire.disconnect())
            with pytest.raises(ConnectionClosed):
                await within("the end", web.recv())
            assert (web.close_code, web.close_reason) == (1000, "")

    async def test_it_closes_first(self, broker: Broker) -> None:
        web = await connect(f"{broker.listening[0]}/mqtt", subprotocols=[MQTT])
        await web.send(wire.connect("c", keep_alive=0))
        await web.recv()
        await within("the broker's close frame", web.close(1001, "leaving"))
        assert web.close_code == 1001
        assert not broker.router.peers.send_buffers

    async def test_text(self, broker: Broker) -> None:
        """[MQTT-6.0.0-1]."""
        async with connect(f"{broker.listening[0]}/mqtt", subprotocols=[MQTT]) as web:
            await web.send("hello")
            with pytest.raises(ConnectionClosedError):
                await within("the end", web.recv())
            assert (web.close_code, web.close_reason) == (
                1003,
                "WebSocket: a text frame; MQTT travels in binary frames",
            )


class _Listener(picows.WSListener):
    def __init__(self) -> None:
        super().__init__()
        self.frames: asyncio.Queue[tuple[Any, bytes]] = asyncio.Queue()

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        del transport
        self.frames.put_nowait((frame.msg_type, frame.get_payload_as_bytes()))


class TestPicows:
    """The library `picows`, which masks and reads frames in C."""

    async def test_messages_pings_and_the_end(self, broker: Broker) -> None:
        transport, listener = await picows.ws_connect(
            _Listener, f"{broker.listening[0]}/mqtt", extra_headers={"Sec-WebSocket-Protocol": "mqtt"}
        )
        assert isinstance(listener, _Listener)
        assert transport.response.headers["Sec-WebSocket-Protocol"] == "mqtt"
        connected = wire.connect("c", keep_alive=0) + wire.subscribe(1, [("t", 0)])
        transport.send(picows.WSMsgType.BINARY, connected)
        sizes = (1, 117, 118, 600, 1_000, 65_500, 65_536, 900_000)
        for size in sizes:
            transport.send(picows.WSMsgType.BINARY, wire.publish("t", bytes(range(256)) * (size // 256 + 1)))
        wanted = b"".join(wire.publish("t", bytes(range(256)) * (size // 256 + 1)) for size in sizes)
        found = b""
        while not found.endswith(wanted):
            kind, payload = await within("a frame", listener.frames.get())
            assert kind == picows.WSMsgType.BINARY
            found += payload
        assert len(await within("a PONG", transport.measure_roundtrip_time(3))) == 3
        transport.send_close(picows.WSCloseCode.OK)
        kind, payload = await within("the broker's close frame", listener.frames.get())
        assert (kind, payload) == (picows.WSMsgType.CLOSE, b"\x03\xe8")
        await within("the end", transport.wait_disconnected())
