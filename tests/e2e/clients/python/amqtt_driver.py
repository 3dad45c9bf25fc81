"""amqtt's client: asyncio, MQTT 3.1.1 only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from amqtt.client import MQTTClient
from amqtt.contexts import ClientConfig, WillConfig
from amqtt.errors import ClientError
from amqtt.mqtt.connack import ConnackPacket

from tests.e2e.clients.python.drivers import Driver, Received, within


class Amqtt(Driver):
    """MQTT 3.1.1. The library takes Wills as text only."""

    def __init__(self, port: int, client_id: str, **options: Any) -> None:
        super().__init__(port, client_id, **options)
        config = ClientConfig(auto_reconnect=False)
        if self.keep_alive != 60:
            # What goes into CONNECT is the keep alive less this delay; pings are sent at that time.
            config.keep_alive = self.keep_alive + 1
        if self.will is not None:
            will = self.will
            config.will = WillConfig(topic=will.topic, message=will.payload.decode(), qos=will.qos, retain=will.retain)
        self.client = MQTTClient(client_id, config)
        self._collector: asyncio.Task[None] | None = None
        # The library tells its plugins alone whether a session was present.
        manager = self.client.plugins_manager
        fire = manager.fire_event

        async def listen(event_name: Any, **values: Any) -> None:
            packet = values.get("packet")
            if isinstance(packet, ConnackPacket):
                self.session_present = bool(packet.session_parent)
            await fire(event_name, **values)

        manager.fire_event = listen

    async def connect(self) -> None:
        uri = f"mqtt://127.0.0.1:{self.port}"
        clean = not self.keep and not self.resume
        await within(f"CONNACK for {self.client_id}", self.client.connect(uri, cleansession=clean))
        self._collector = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        try:
            while True:
                message = await self.client.deliver_message()
                if message is None:
                    return
                assert message.qos is not None
                self.inbox.put_nowait(Received(message.topic, bytes(message.data), message.qos, bool(message.retain)))
        except (asyncio.CancelledError, ClientError):
            return
        finally:
            self.ended.set()

    async def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        codes: list[int] = await within(f"SUBACK for {self.client_id}", self.client.subscribe([(topic_filter, qos)]))
        return codes[0]

    async def unsubscribe(self, topic_filter: str) -> None:
        await within(f"UNSUBACK for {self.client_id}", self.client.unsubscribe([topic_filter]))

    async def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        await within(f"acknowledgement for {self.client_id}", self.client.publish(topic, payload, qos, retain))

    async def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        for payload in payloads:
            await self.publish(topic, payload, qos)

    async def disconnect(self) -> None:
        await within(f"the end of {self.client_id}", self.client.disconnect())
        await self._stop()

    async def cut(self) -> None:
        handler = self.client._handler
        assert handler is not None
        assert handler.writer is not None
        handler.writer._writer.transport.abort()
        await self.gone()
        await self._stop()

    async def _stop(self) -> None:
        if self._collector is not None:
            self._collector.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._collector
            self._collector = None
        closing = self.client._disconnect_task
        if closing is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await within("the library's own clean-up", closing)

    async def dispose(self) -> None:
        if self._collector is not None and not self.ended.is_set():
            await self.disconnect()
        await self._stop()
