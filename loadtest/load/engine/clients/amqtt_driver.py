"""amqtt's client in place of our own connection, so that a program nobody here wrote confirms our figures.

Owns: ``Link``, which stands where a client's socket would: it takes apart what the client writes, lets amqtt do it, and
answers with what amqtt said. Every byte on the network is amqtt's, marks and judges are ours.

It has no MQTT 5.0 and no slow readers, as amqtt (``drivers.fitted`` says so before a run), and is not for high rates:
every message costs amqtt some tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from amqtt.client import MQTTClient
from amqtt.contexts import ClientConfig, WillConfig
from amqtt.errors import AMQTTError, ClientError, ConnectError, MQTTError
from amqtt.mqtt.connack import ConnackPacket

from broker.core.codec import encoder, packets
from broker.core.codec.decoder import Decoder
from broker.core.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from loadtest.load.engine.clients.connection import MAX_PACKET, Wire
from loadtest.load.engine.transports import trouble

if TYPE_CHECKING:
    from loadtest.load.engine.clients.client_pool import ClientPool
    from loadtest.load.scenario.schema import Group

# What amqtt has to say is counted here; without a handler, Python would print its warnings between the lines of ours.
logging.getLogger("amqtt").addHandler(logging.NullHandler())

P = TypeVar("P", bound=Packet)

HIGH: Final = 256
"""Packets that amqtt has not been given yet, above which the client is to wait."""
LOW: Final = 64
"""Packets at which it may go on."""
CONNECTING: Final = 20
"""Seconds for the socket."""
LEAVING: Final = 2.0
"""Seconds that amqtt has to close its socket."""

GONE: Final = "the broker closed the connection"
ERRORS: Final = (AMQTTError, ClientError, MQTTError, OSError, asyncio.TimeoutError)
"""What amqtt raises when something does not work (`ConnectError` is one of them)."""


async def open_amqtt(pool: ClientPool, _: Group, index: int, wire: Wire) -> None:
    """Put a link before the wire; amqtt opens the socket when the CONNECT is written."""
    wire.connection_made(Link(pool, index, wire))


class Link(asyncio.Transport):
    """A transport to the wire, an application to amqtt.

    Promises:
    - Packets leave in the order in which they were written. A PUBACK, PUBCOMP, SUBACK or PINGRESP is given to the
      client only when amqtt says that the broker's own has come; where amqtt gives up, the message stays
      unacknowledged.
    - amqtt never connects again by itself: reconnections are the scenario's.
    - A connection that is over leaves no task and no socket.
    """

    def __init__(self, pool: ClientPool, index: int, wire: Wire) -> None:
        super().__init__()
        self._pool = pool
        self._wire = wire
        self._addresses = [address for _, address in pool.addresses(index)]
        self._decoder = Decoder(MAX_PACKET)
        self._packets: asyncio.Queue[Packet | None] = asyncio.Queue()
        self._flights: set[asyncio.Task[None]] = set()
        self._readable = asyncio.Event()
        self._readable.set()
        self._paused = False
        self._closing = False
        self._session_present = False
        self._client: Any = None
        self._session: Any = None
        loop = asyncio.get_running_loop()
        self._work = loop.create_task(self._connect_and_serve())
        self._end = loop.create_task(self._see_to_the_end())

    # -- what the wire calls -------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Packets, for amqtt to send in this order."""
        if self._closing:
            return
        self._decoder.feed(bytes(data))
        while self._decoder.next_frame():
            self._packets.put_nowait(self._decoder.packet())
        if not self._paused and self._packets.qsize() > HIGH:
            self._paused = True
            self._wire.pause_writing()

    def close(self) -> None:
        """Over, when everything that was written is sent."""
        if not self._closing:
            self._closing = True
            self._packets.put_nowait(None)

    def abort(self) -> None:
        """Over, now."""
        self._closing = True
        self._work.cancel()

    def is_closing(self) -> bool:
        """Whether it is over, or about to be."""
        return self._closing

    def pause_reading(self) -> None:
        """Deliver no more; amqtt itself reads on."""
        self._readable.clear()

    def resume_reading(self) -> None:
        """Deliver again."""
        self._readable.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Counts packets, not bytes."""

    # -- the course of a connection ------------------------------------------------------------------------------------

    async def _see_to_the_end(self) -> None:
        """What nobody cancels: whatever becomes of the work, the wire hears that it is over."""
        await asyncio.wait([self._work])
        self._closing = True
        try:
            await asyncio.wait_for(self._leave(), LEAVING)
        except (TimeoutError, *ERRORS):
            pass
        if not self._work.cancelled() and not self._wire.fault:
            error = self._work.exception()
            self._wire.fault = f"amqtt: {_words(error)}" if error is not None else self._work.result()
        self._wire.connection_lost(None)

    async def _connect_and_serve(self) -> str:
        """Why it is over, where that was not our wish."""
        first = await self._packets.get()
        if not isinstance(first, Connect):
            return ""
        return await self._connect(first) or await self._serve()

    async def _connect(self, packet: Connect) -> str:
        """Let amqtt connect; why that did not work, in words."""
        config = ClientConfig(
            # It tells the broker a keep alive that is shorter by the delay.
            keep_alive=packet.keep_alive + 1,
            ping_delay=1,
            auto_reconnect=False,
            connection_timeout=CONNECTING,
            plugins={},
        )
        if packet.will is not None:
            will = packet.will
            config.will = WillConfig(will.topic, _Raw(will.payload), will.qos, will.retain)
        try:
            async with self._pool.gate:
                await self._reach(packet, config)
        except ConnectError as error:
            code = getattr(error, "return_code", None)
            if code:
                self._answer(Connack(False, code))
                return GONE
            return _words(error.__cause__ or error)
        except ERRORS as error:
            return _words(error)
        self._session = self._client.session
        self._answer(Connack(self._session_present))
        return ""

    async def _reach(self, packet: Connect, config: ClientConfig) -> None:
        """Try every address of the target: what a name stands for first need not be where the broker listens."""
        for number, address in enumerate(self._addresses, 1):
            self._client = MQTTClient(packet.client_id, config)
            self._overhear(self._client.plugins_manager)
            try:
                await self._client.connect(self._uri(packet, *address), cleansession=packet.clean_start)
            except ConnectError as error:
                refused = isinstance(error.__cause__, OSError) and bool(error.__cause__.errno)
                if not refused or number == len(self._addresses):
                    raise
            else:
                return

    @staticmethod
    def _uri(packet: Connect, host: str, port: int) -> str:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if packet.user_name is None:
            return f"mqtt://{place}"
        password = "" if packet.password is None else f":{quote(packet.password, safe='')}"
        return f"mqtt://{quote(packet.user_name, safe='')}{password}@{place}"

    def _overhear(self, manager: Any) -> None:
        """amqtt tells its plugins alone whether the broker had a session."""
        fire = manager.fire_event

        async def listen(event_name: Any, **values: Any) -> None:
            packet = values.get("packet")
            if isinstance(packet, ConnackPacket) and packet.variable_header is not None:
                self._session_present = bool(packet.variable_header.session_parent)
            await fire(event_name, **values)

        manager.fire_event = listen

    async def _serve(self) -> str:
        """Send and receive until one of the two is over; why, where it was not our wish."""
        loop = asyncio.get_running_loop()
        sending, receiving = loop.create_task(self._send()), loop.create_task(self._receive())
        try:
            await asyncio.wait([sending, receiving], return_when=asyncio.FIRST_COMPLETED)
            return "" if sending.done() and not sending.exception() else GONE
        finally:
            for task in (sending, receiving, *self._flights):
                task.cancel()
            await asyncio.gather(sending, receiving, *self._flights, return_exceptions=True)

    async def _leave(self) -> None:
        client = self._client
        if client is None:
            return
        await client.cancel_tasks()
        # Without a DISCONNECT, unless one was sent; there is no such thing in amqtt's public names.
        handler, watching = client._handler, client._disconnect_task
        if handler is not None:
            await handler.stop()
        if watching is not None:
            await asyncio.wait([watching])

    # -- from the wire to amqtt ----------------------------------------------------------------------------------------

    async def _send(self) -> None:
        while (packet := await self._packets.get()) is not None:
            await self._do(packet)
            if self._paused and self._packets.qsize() <= LOW:
                self._paused = False
                self._wire.resume_writing()

    async def _do(self, packet: Packet) -> None:
        client = self._client
        if isinstance(packet, Publish):
            if packet.qos == 0:
                await client.publish(packet.topic.decode(), packet.payload, 0, packet.retain)
            else:
                await self._begin(self._publish, packet)
        elif isinstance(packet, Ack):
            # amqtt has answered the broker long since; PUBREL is the one that wants an answer here.
            if packet.kind == packets.PUBREL:
                self._answer(Ack(packets.PUBCOMP, packet.packet_id))
        elif isinstance(packet, Subscribe):
            await self._begin(self._subscribe, packet)
        elif isinstance(packet, Unsubscribe):
            await self._begin(self._unsubscribe, packet)
        elif isinstance(packet, Pingreq):
            await self._begin(self._ping, packet)
        elif isinstance(packet, Disconnect):
            await client.disconnect()

    async def _begin(self, flight: Callable[[P], Coroutine[Any, Any, None]], packet: P) -> None:
        """Something that waits for the broker's answer: it runs until its packet is handed to amqtt's writer."""
        task = asyncio.get_running_loop().create_task(self._counted(flight, packet))
        self._flights.add(task)
        task.add_done_callback(self._flights.discard)
        await asyncio.sleep(0)

    async def _counted(self, flight: Callable[[P], Coroutine[Any, Any, None]], packet: P) -> None:
        try:
            await flight(packet)
        except ERRORS as error:
            if not self._closing:
                self._pool.error(f"amqtt: {_words(error)}")

    async def _publish(self, packet: Publish) -> None:
        await self._client.publish(packet.topic.decode(), packet.payload, packet.qos, packet.retain)
        self._answer(Ack(packets.PUBACK if packet.qos == 1 else packets.PUBREC, packet.packet_id))

    async def _subscribe(self, packet: Subscribe) -> None:
        codes = await self._client.subscribe([(each.topic_filter, each.qos) for each in packet.requests])
        self._answer(Suback(packet.packet_id, list(codes)))

    async def _unsubscribe(self, packet: Unsubscribe) -> None:
        await self._client.unsubscribe(packet.topic_filters)
        self._answer(Unsuback(packet.packet_id))

    async def _ping(self, _: Pingreq) -> None:
        await self._client.ping()
        self._give(encoder.PINGRESP)

    # -- from amqtt to the wire ----------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        """Hand on what comes until the connection is gone."""
        try:
            while (message := await self._client.deliver_message()) is not None:
                await self._readable.wait()
                self._deliver(message)
        except ERRORS:
            pass  # gone
        # What amqtt has taken and not delivered.
        while not self._closing and not self._session.delivered_message_queue.empty():
            self._deliver(self._session.delivered_message_queue.get_nowait())

    def _deliver(self, message: Any) -> None:
        packet = Publish(
            message.topic.encode(), bytes(message.data), message.qos, bool(message.retain),
            bool(message.qos and message.publish_packet.dup_flag), message.packet_id or 0,
        )  # fmt: skip
        data = encoder.publish(packet, packets.V311)
        if packet.qos == 2:
            # amqtt delivers when the broker has released it.
            data += encoder.ack(packets.PUBREL, packet.packet_id)
        self._give(data)

    def _answer(self, packet: Packet) -> None:
        self._give(encoder.encode(packet, packets.V311))

    def _give(self, data: bytes) -> None:
        if self._wire.transport is not None:
            self._wire.data_received(data)


class _Raw(str):
    """Bytes where amqtt wants a text: all that it asks of a will's message is to be encoded."""

    _data: bytes

    def __new__(cls, data: bytes) -> _Raw:
        made = super().__new__(cls, data.hex())
        made._data = data
        return made

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """The bytes themselves."""
        del encoding, errors
        return self._data


def _words(error: BaseException) -> str:
    """What went wrong, as our own client says it."""
    if isinstance(error, OSError) and error.errno:
        return trouble(error)
    if isinstance(error, ConnectionError):
        return GONE
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return str(error) or type(error).__name__
