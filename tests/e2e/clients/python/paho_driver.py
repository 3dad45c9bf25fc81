"""paho-mqtt, in a thread of its own as its `loop_start` has it; callbacks are handed over to the test's event loop."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.e2e.clients.python.drivers import PATIENCE, Driver, Received, within
from tests.support.paho_client import close_wakeup_sockets

KEPT = 3600
"""Seconds of session expiry where a 5.0 session is to be kept."""


def properties(packet: int, **values: Any) -> Properties:
    """A paho property list: names as in the specification, without blanks."""
    made = Properties(packet)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(made, name, value)
    return made


def user_properties(found: Properties | None) -> tuple[tuple[str, str], ...]:
    """The user properties of a packet, in order."""
    return tuple(getattr(found, "UserProperty", ()))


class Paho(Driver):
    """MQTT 3.1.1."""

    protocol = MQTTProtocolVersion.MQTTv311

    def __init__(self, port: int, client_id: str, **options: Any) -> None:
        super().__init__(port, client_id, **options)
        self.loop = asyncio.get_running_loop()
        # What 5.0 tests look at: the properties of CONNACK and of messages, the code of the end.
        self.connack: Properties | None = None
        self.messages: deque[mqtt.MQTTMessage] = deque()
        self.end_code: ReasonCode | None = None
        self._connected: asyncio.Future[ReasonCode] = self.loop.create_future()
        self._answers: dict[int, asyncio.Future[list[ReasonCode]]] = {}
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if self.v5 else not self.resume and not self.keep,
            protocol=self.protocol,
            transport="websockets" if self.web else "tcp",
            reconnect_on_failure=False,
        )
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_message = self._on_message
        self.client.on_subscribe = self._on_answer
        self.client.on_unsubscribe = self._on_answer
        if self.will is not None:
            self.client.will_set(self.will.topic, self.will.payload, self.will.qos, self.will.retain)

    # -- callbacks, in paho's thread -----------------------------------------------------------------------------------

    def _tell(self, call: Callable[..., object], *values: Any) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(call, *values)

    def _on_connect(
        self, client: mqtt.Client, _: Any, flags: mqtt.ConnectFlags, code: ReasonCode, found: Properties | None
    ) -> None:
        del client
        self.session_present = flags.session_present
        self.connack = found
        self._tell(self._connected.set_result, code)

    def _on_disconnect(
        self, client: mqtt.Client, _: Any, flags: mqtt.DisconnectFlags, code: ReasonCode, found: Properties | None
    ) -> None:
        del client, flags, found
        self.end_code = code
        self._tell(self.ended.set)

    def _on_message(self, client: mqtt.Client, _: Any, message: mqtt.MQTTMessage) -> None:
        del client
        told = user_properties(message.properties) if self.v5 else ()
        received = Received(message.topic, bytes(message.payload), message.qos, message.retain, told)
        self.messages.append(message)
        self._tell(self.inbox.put_nowait, received)

    def _on_answer(
        self, client: mqtt.Client, _: Any, packet_id: int, codes: list[ReasonCode], found: Properties | None
    ) -> None:
        del client, found
        self._tell(self._answered, packet_id, codes)

    def _answered(self, packet_id: int, codes: list[ReasonCode]) -> None:
        self._answers.setdefault(packet_id, self.loop.create_future()).set_result(codes)

    # -- Driver --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Send CONNECT; how it is done differs between the versions."""
        self.client.connect("127.0.0.1", self.port, self.keep_alive)

    async def connect(self) -> None:
        await asyncio.to_thread(self.open)
        self.client.loop_start()
        code = await within(f"CONNACK for {self.client_id}", self._connected)
        assert not code.is_failure, code

    async def answer(self, called: tuple[MQTTErrorCode, int | None]) -> list[ReasonCode]:
        """The codes of a SUBACK or UNSUBACK; it may have come before we ask."""
        error, packet_id = called
        assert error == mqtt.MQTT_ERR_SUCCESS
        assert packet_id is not None
        waiting = self._answers.setdefault(packet_id, self.loop.create_future())
        codes = await within(f"SUBACK or UNSUBACK for {self.client_id}", waiting)
        del self._answers[packet_id]
        return codes

    async def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        return (await self.answer(self.client.subscribe(topic_filter, qos)))[0].value

    async def unsubscribe(self, topic_filter: str) -> None:
        await self.answer(self.client.unsubscribe(topic_filter))

    async def publish(self, topic: str, payload: bytes, qos: int = 0, *, retain: bool = False) -> None:
        await self.published(self.client.publish(topic, payload, qos, retain))

    async def published(self, info: mqtt.MQTTMessageInfo) -> None:
        """Wait until a publish is complete."""
        await asyncio.to_thread(info.wait_for_publish, PATIENCE)
        assert info.is_published(), f"a publish of {self.client_id} is not complete after {PATIENCE:g} s"

    async def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        infos = [self.client.publish(topic, payload, qos) for payload in payloads]
        for info in infos:
            if not info.is_published():
                await self.published(info)

    async def disconnect(self) -> None:
        self.client.disconnect()
        await self.gone()
        await self._stop()

    async def cut(self) -> None:
        found = self.client.socket()
        found = getattr(found, "_socket", found)  # below WebSocket
        assert isinstance(found, socket.socket)
        found.shutdown(socket.SHUT_RDWR)
        await self.gone()
        await self._stop()

    async def _stop(self) -> None:
        await asyncio.to_thread(self.client.loop_stop)
        close_wakeup_sockets(self.client)

    async def dispose(self) -> None:
        if not self.ended.is_set():
            self.client.disconnect()
        await self._stop()


class Paho5(Paho):
    """MQTT 5.0."""

    v5 = True
    protocol = MQTTProtocolVersion.MQTTv5

    def __init__(
        self, port: int, client_id: str, *, connect_properties: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """`connect_properties`: what CONNECT carries beside the session's expiry."""
        super().__init__(port, client_id, **options)
        self.connect_properties = connect_properties or {}

    def open(self) -> None:
        values = dict(self.connect_properties)
        if self.keep:
            values.setdefault("SessionExpiryInterval", KEPT)
        found = properties(PacketTypes.CONNECT, **values) if values else None
        self.client.connect("127.0.0.1", self.port, self.keep_alive, clean_start=not self.resume, properties=found)

    async def subscribe(self, topic_filter: str, qos: int = 0) -> int:
        return await self.subscribe_with(topic_filter, SubscribeOptions(qos))

    async def subscribe_with(self, topic_filter: str, options: SubscribeOptions, **values: Any) -> int:
        """Subscribe with options and properties."""
        found = properties(PacketTypes.SUBSCRIBE, **values) if values else None
        return (await self.answer(self.client.subscribe(topic_filter, options=options, properties=found)))[0].value

    async def publish_with(self, topic: str, payload: bytes, qos: int, retain: bool = False, **values: Any) -> None:
        """Publish with properties."""
        found = properties(PacketTypes.PUBLISH, **values)
        await self.published(self.client.publish(topic, payload, qos, retain, found))
