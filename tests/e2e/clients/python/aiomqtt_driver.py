"""aiomqtt: paho's protocol engine, driven by asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any

import aiomqtt
from paho.mqtt.packettypes import PacketTypes

from tests.e2e.clients.python.drivers import IN_FLIGHT, Driver, Received, within
from tests.e2e.clients.python.paho_driver import KEPT, properties, user_properties


class Aio(Driver):
    """MQTT 3.1.1, which is the library's default."""

    def __init__(self, port: int, client_id: str, **options: Any) -> None:
        super().__init__(port, client_id, **options)
        will = None
        if self.will is not None:
            will = aiomqtt.Will(self.will.topic, self.will.payload, self.will.qos, self.will.retain)
        self.client = aiomqtt.Client(
            "127.0.0.1",
            port,
            identifier=client_id,
            will=will,
            keepalive=self.keep_alive,
            transport="websockets" if self.web else "tcp",
            **self.session_options(),
        )
        # The library tells whether a session was present to nobody.
        wrapped: Any = self.client._client.on_connect

        def on_connect(client: Any, userdata: Any, flags: Any, code: Any, found: Any) -> None:
            self.session_present = flags.session_present
            wrapped(client, userdata, flags, code, found)

        self.client._client.on_connect = on_connect
        self._collector: asyncio.Task[None] | None = None

    def session_options(self) -> dict[str, Any]:
        """How a session is kept differs between the versions."""
        return {"clean_session": not self.keep and not self.resume}

    async def connect(self) -> None:
        await within(f"CONNACK for {self.client_id}", self.client.__aenter__())
        self._collector = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        with contextlib.suppress(aiomqtt.MqttError):
            async for message in self.client.messages:
                assert isinstance(message.payload, bytes)
                told = user_properties(message.properties) if self.v5 else ()
                self.inbox.put_nowait(
                    Received(message.topic.value, message.payload, message.qos, bool(message.retain), told)
                )
        self.ended.set()

    async def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        code = (await self.client.subscribe(topic_filter, qos))[0]
        return code if isinstance(code, int) else code.value

    async def unsubscribe(self, topic_filter: str) -> None:
        await self.client.unsubscribe(topic_filter)

    async def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        await self.client.publish(topic, payload, qos, retain)

    async def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        self.client.pending_calls_threshold = IN_FLIGHT
        for start in range(0, len(payloads), IN_FLIGHT):
            part = payloads[start : start + IN_FLIGHT]
            await asyncio.gather(*(self.client.publish(topic, payload, qos) for payload in part))

    async def disconnect(self) -> None:
        await within(f"the end of {self.client_id}", self.client.__aexit__(None, None, None))
        await self.gone()

    async def cut(self) -> None:
        found = self.client._client.socket()
        found = getattr(found, "_socket", found)  # below WebSocket
        assert isinstance(found, socket.socket)
        found.shutdown(socket.SHUT_RDWR)
        await self.gone()
        await self.client.__aexit__(None, None, None)

    async def dispose(self) -> None:
        if self._collector is None:
            return
        await self.client.__aexit__(None, None, None)
        await self.gone()
        await self._collector


class Aio5(Aio):
    """MQTT 5.0."""

    v5 = True

    def session_options(self) -> dict[str, Any]:
        found = properties(PacketTypes.CONNECT, SessionExpiryInterval=KEPT) if self.keep else None
        return {"protocol": aiomqtt.ProtocolVersion.V5, "clean_start": not self.resume, "properties": found}
