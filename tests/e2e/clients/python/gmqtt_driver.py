"""gmqtt: asyncio, MQTT 5.0 by default and 3.1.1 on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import gmqtt
from gmqtt.mqtt.constants import MQTTv50, MQTTv311

from tests.e2e.clients.python.drivers import IN_FLIGHT, Driver, Received, within

KEPT = 3600
"""Seconds of session expiry where a 5.0 session is to be kept."""

NEVER_AGAIN = -2
"""Reconnection attempts: below the -1 that means "for ever" and the 0 after which gmqtt still tries once."""


class Gmqtt(Driver):
    """MQTT 5.0."""

    v5 = True
    version: int = MQTTv50

    def __init__(self, port: int, client_id: str, **options: Any) -> None:
        super().__init__(port, client_id, **options)
        will = None
        if self.will is not None:
            will = gmqtt.Message(self.will.topic, self.will.payload, self.will.qos, self.will.retain)
        self.client = gmqtt.Client(
            client_id,
            clean_session=not self.resume and (self.v5 or not self.keep),
            will_message=will,
            **self.connect_properties(),
        )
        self.client.set_config({"reconnect_retries": NEVER_AGAIN})
        self.connack: dict[str, Any] = {}
        self.properties: list[dict[str, Any]] = []
        self._answers: dict[int, asyncio.Future[tuple[int, ...]]] = {}
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_subscribe
        self.client.on_unsubscribe = self._on_unsubscribe

    def connect_properties(self) -> dict[str, Any]:
        """The properties of CONNECT."""
        return {"session_expiry_interval": KEPT} if self.keep else {}

    # -- callbacks -----------------------------------------------------------------------------------------------------

    def _on_connect(self, client: Any, flags: int, code: int, found: dict[str, Any]) -> None:
        del client, code
        self.session_present = bool(flags & 1)
        self.connack = found

    def _on_disconnect(self, client: Any, packet: Any, exc: Any = None) -> None:
        del client, packet, exc
        self.ended.set()

    def _on_message(self, client: Any, topic: str, payload: bytes, qos: int, found: dict[str, Any]) -> int:
        del client
        self.properties.append(found)
        told = tuple(found.get("user_property", ()))
        self.inbox.put_nowait(Received(topic, payload, qos, bool(found["retain"]), told))
        return 0

    def _on_subscribe(self, client: Any, packet_id: int, codes: tuple[int, ...], found: Any) -> None:
        del client, found
        self._answers[packet_id].set_result(codes)

    def _on_unsubscribe(self, client: Any, packet_id: int, codes: tuple[int, ...]) -> None:
        del client
        self._answers[packet_id].set_result(codes)

    # -- Driver --------------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        await within(
            f"CONNACK for {self.client_id}",
            self.client.connect("127.0.0.1", self.port, keepalive=self.keep_alive, version=self.version),
        )

    async def answer(self, packet_id: int) -> tuple[int, ...]:
        """The codes of a SUBACK or UNSUBACK."""
        waiting = asyncio.get_running_loop().create_future()
        self._answers[packet_id] = waiting
        codes: tuple[int, ...] = await within(f"SUBACK or UNSUBACK for {self.client_id}", waiting)
        return codes

    async def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        return (await self.answer(self.client.subscribe(topic_filter, qos)))[0]

    async def subscribe_with(self, topic_filter: str, qos: int, **options: Any) -> int:
        """Subscribe with options and properties."""
        return (await self.answer(self.client.subscribe(topic_filter, qos, **options)))[0]

    async def unsubscribe(self, topic_filter: str) -> None:
        await self.answer(self.client.unsubscribe(topic_filter))

    async def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        await self.publish_with(topic, payload, qos, retain)

    async def publish_with(self, topic: str, payload: bytes, qos: int, retain: bool = False, **values: Any) -> None:
        """Publish with properties."""
        self.client.publish(topic, payload, qos, retain, **values)
        await self.acknowledged()

    async def acknowledged(self) -> None:
        """Wait until every publish is complete."""
        await within(f"acknowledgements for {self.client_id}", self.client._persistent_storage.wait_empty())

    async def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        for start in range(0, len(payloads), IN_FLIGHT):
            for payload in payloads[start : start + IN_FLIGHT]:
                self.client.publish(topic, payload, qos)
            await self.acknowledged()

    async def disconnect(self) -> None:
        await within(f"the end of {self.client_id}", self.client.disconnect())
        self.ended.set()

    async def cut(self) -> None:
        self.client._connection._transport.abort()
        await self.gone()

    async def dispose(self) -> None:
        if self.client._connection is not None:
            await within(f"the end of {self.client_id}", self.client.disconnect())


class Gmqtt311(Gmqtt):
    """MQTT 3.1.1."""

    v5 = False
    version = MQTTv311

    def connect_properties(self) -> dict[str, Any]:
        return {}
