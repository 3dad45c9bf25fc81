"""An upstream broker that is played by the test: it answers a link as it is told to, and writes down what that says.

Owns: `ScriptedUpstream`, the listener; `Caller`, one connection of a link to it; `Heard`, one packet of the link's, as
the tests look at it. Packets of the link are read by the core's decoder, which complains about any that is not right.

Promises: everything is written down before it is answered; what `until` waits for is looked at again after each packet
and each end of a connection; nothing is left after `async with`.

It routes nothing: what the link is to receive, the test sends with `Caller.send`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from canopy_mqtt.core.codec import packets
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.properties import Properties as Held
from canopy_mqtt.core.codec.properties import decode_forward
from tests.e2e import wire
from tests.e2e.wire import NAMES, Properties

BRIDGE: Final = 0x80
"""The bit of the protocol level by which mosquitto's bridges of 3.1.1 say what they are."""


@dataclass
class Heard:
    """One packet of a link. Fields that its kind does not have keep their defaults."""

    kind: int
    flags: int
    packet_id: int = 0
    code: int = 0
    topic: str = ""
    payload: bytes = b""
    properties: list[wire.Property] = field(default_factory=list)
    filters: list[tuple[str, int]] = field(default_factory=list)
    # of CONNECT
    level: int = 0
    clean: bool = False
    keep_alive: int = 0
    client_id: str = ""
    user: str | None = None
    password: bytes | None = None
    will: tuple[str, bytes, int, bool] | None = None

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    def get(self, ident: int) -> wire.Value | None:
        """The first value of a property, or None."""
        return next((value for found, value in self.properties if found == ident), None)

    def user_properties(self, name: str) -> list[str]:
        """The values of the user properties of this name, in order."""
        pairs = [value for ident, value in self.properties if ident == wire.USER_PROPERTY]
        return [pair[1] for pair in pairs if isinstance(pair, tuple) and pair[0] == name]


def heard_of(packet: packets.Packet, flags: int) -> Heard:
    """One packet of a client. `flags`: those of its fixed header."""
    heard = Heard(packet.kind, flags)
    held: Held | None = None
    if isinstance(packet, packets.Connect):
        heard.level = packet.version | (BRIDGE if packet.bridge else 0)
        heard.clean, heard.keep_alive, heard.client_id = packet.clean_start, packet.keep_alive, packet.client_id
        heard.user, heard.password = packet.user_name, packet.password
        if packet.will is not None:
            heard.will = (packet.will.topic, packet.will.payload, packet.will.qos, packet.will.retain)
        held = packet.properties
    elif isinstance(packet, packets.Publish):
        heard.topic, heard.payload, heard.packet_id = packet.topic.decode(), packet.payload, packet.packet_id
        held = decode_forward(packet.properties)
        if packet.message_expiry >= 0:
            held.integers[wire.MESSAGE_EXPIRY] = packet.message_expiry
        if packet.topic_alias:
            held.integers[wire.TOPIC_ALIAS] = packet.topic_alias
    elif isinstance(packet, packets.Ack):
        heard.packet_id, heard.code, held = packet.packet_id, packet.reason_code, packet.properties
    elif isinstance(packet, packets.Subscribe):
        heard.packet_id, held = packet.packet_id, packet.properties
        for each in packet.requests:
            options = each.qos | each.no_local << 2 | each.retain_as_published << 3 | each.retain_handling << 4
            heard.filters.append((each.topic_filter, options))
    elif isinstance(packet, packets.Unsubscribe):
        heard.packet_id, held = packet.packet_id, packet.properties
        heard.filters = [(each, 0) for each in packet.topic_filters]
    elif isinstance(packet, packets.Disconnect):
        heard.code, held = packet.reason_code, packet.properties
    if held is not None:
        heard.properties = [*held.integers.items(), *held.strings.items(), *held.binaries.items()]
        heard.properties += [(wire.USER_PROPERTY, pair) for pair in held.user]
    return heard


class Caller:
    """One connection of a link, with what it said."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.version = 5
        self.heard: list[Heard] = []
        self.filters: dict[str, int] = {}
        """Its present subscriptions, with the options of each."""
        self.ended = False
        self.well = True
        """True if it is treated as a broker should."""
        self._packet_id = 0

    @property
    def connect(self) -> Heard:
        """Its CONNECT."""
        return self.heard[0]

    def said(self, kind: int) -> list[Heard]:
        """Its packets of one kind, in order."""
        return [heard for heard in self.heard if heard.kind == kind]

    def asked(self) -> list[str]:
        """Every filter that it subscribed to, in order, and each as often as it did."""
        return [topic_filter for heard in self.said(wire.SUBSCRIBE) for topic_filter, _ in heard.filters]

    def took_back(self) -> list[str]:
        """Every filter that it unsubscribed from."""
        return [topic_filter for heard in self.said(wire.UNSUBSCRIBE) for topic_filter, _ in heard.filters]

    def published(self, topic: str = "") -> list[bytes]:
        """The payloads that it published, to one topic or to all."""
        return [heard.payload for heard in self.said(wire.PUBLISH) if topic in ("", heard.topic)]

    async def send(self, *packets: bytes) -> None:
        """Write packets, all in one."""
        self.writer.write(b"".join(packets))
        with suppress(ConnectionError):
            async with asyncio.timeout(wire.TIMEOUT):
                await self.writer.drain()

    async def publish(
        self, topic: str, payload: bytes = b"", *, qos: int = 0, retain: bool = False, props: Properties = ()
    ) -> int:
        """Send the link a message; its packet identifier (0 at QoS 0)."""
        packet_id = 0
        if qos:
            self._packet_id += 1
            packet_id = self._packet_id
        await self.send(
            wire.publish(
                topic,
                payload,
                version=self.version,
                qos=qos,
                packet_id=packet_id or None,
                retain=retain,
                props=props,
            )
        )
        return packet_id

    def abort(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()


class ScriptedUpstream:
    """A listener on a free port of 127.0.0.1 to which links come. Subclasses answer differently.

    `versions`: the protocol levels that it accepts, with the bridge bit where it knows that. Others get CONNACK 0x84
    (5.0) or 0x01.
    """

    def __init__(self, versions: tuple[int, ...] = (5, 4), *, port: int = 0) -> None:
        self.port = port
        self.versions = versions
        self.callers: list[Caller] = []
        self.errors: list[BaseException] = []
        self.session_present = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shut()
        if kind is None:
            assert self.errors == []

    async def listen(self) -> None:
        """Begin to listen; again on the same port after `shut`."""
        self._server = await asyncio.start_server(self._came, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Stop listening, and cut all connections."""
        assert self._server is not None
        self._server.close()
        for caller in self.callers:
            caller.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=wire.TIMEOUT)
        for _ in range(3):
            await asyncio.sleep(0)

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def until(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for something that a link does."""
        try:
            async with asyncio.timeout(wire.TIMEOUT):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not within {wire.TIMEOUT:g} s: {what}; {self.told()}") from None

    async def caller(self, number: int = 0) -> Caller:
        """The connection with this number whose CONNECT was accepted, in the order in which they came."""
        await self.until(f"connection {number}", lambda: len(self.accepted()) > number)
        return self.accepted()[number]

    def accepted(self) -> list[Caller]:
        """The connections that got a CONNACK of success."""
        return [caller for caller in self.callers if caller.heard and caller.connect.code == 0]

    def told(self) -> str:
        """Describe the packets so far, for messages of failed tests."""
        return "; ".join(
            f"[{number}] " + ", ".join(f"{NAMES[heard.kind]} {heard.topic}{heard.filters}" for heard in caller.heard)
            for number, caller in enumerate(self.callers)
        )

    # -- what a subclass may do otherwise ------------------------------------------------------------------------------

    async def greet(self, caller: Caller) -> bool:
        """A connection has been made, and nothing was read. Whether to go on."""
        del caller
        return True

    def connack(self, caller: Caller) -> bytes:
        """The answer to CONNECT; the reason code in `caller.connect.code` is 0 for those that are let in."""
        level = caller.connect.level
        if level not in self.versions:
            five = level == 5
            caller.connect.code = 0x84 if five else 1
            return wire.packet(wire.CONNACK, 0, bytes([0, 0x84, 0] if five else [0, 1]))
        present = self.session_present and not caller.connect.clean
        return wire.packet(wire.CONNACK, 0, bytes([present, 0, 0] if level == 5 else [present, 0]))

    def granted(self, topic_filter: str, options: int) -> int:
        """The reason code for a filter."""
        del topic_filter
        return options & 3

    async def answer(self, caller: Caller, heard: Heard) -> None:
        """Answer a packet after CONNECT."""
        five = caller.version == 5
        ack = heard.packet_id.to_bytes(2, "big")
        none = b"\0" if five else b""
        if heard.kind == wire.SUBSCRIBE:
            codes = bytes(self.granted(*pair) for pair in heard.filters)
            for (topic_filter, options), code in zip(heard.filters, codes, strict=True):
                if code < 0x80:
                    caller.filters[topic_filter] = options
            await caller.send(wire.packet(wire.SUBACK, 0, ack + none + codes))
        elif heard.kind == wire.UNSUBSCRIBE:
            for topic_filter, _ in heard.filters:
                caller.filters.pop(topic_filter, None)
            codes = bytes(len(heard.filters)) if five else b""
            await caller.send(wire.packet(wire.UNSUBACK, 0, ack + none + codes))
        elif heard.kind == wire.PUBLISH and heard.qos:
            await caller.send(wire.packet(wire.PUBACK if heard.qos == 1 else wire.PUBREC, 0, ack))
        elif heard.kind == wire.PUBREC:
            await caller.send(wire.packet(wire.PUBREL, 2, ack))
        elif heard.kind == wire.PUBREL:
            await caller.send(wire.packet(wire.PUBCOMP, 0, ack))
        elif heard.kind == wire.PINGREQ:
            await caller.send(wire.packet(wire.PINGRESP, 0))

    # -- the connections -----------------------------------------------------------------------------------------------

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        caller = Caller(reader, writer)
        self.callers.append(caller)
        self._news.set()
        try:
            if await self.greet(caller):
                await self._serve(caller)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:  # a test looks at what is wrong with what the link said
            self.errors.append(error)
        finally:
            caller.ended = True
            writer.transport.abort()
            self._tasks.discard(task)
            self._news.set()

    async def _serve(self, caller: Caller) -> None:
        decoder = Decoder(MAX_PACKET)
        while True:
            while not decoder.next_frame():
                data = await caller.reader.read(65_536)
                if not data:
                    return
                decoder.feed(data)
            heard = heard_of(decoder.packet(), decoder.header & 15)
            assert bool(caller.heard) == (heard.kind != wire.CONNECT), f"{NAMES[heard.kind]} out of place"
            caller.heard.append(heard)
            if heard.kind == wire.CONNECT:
                caller.version = heard.level & ~BRIDGE
                answer = self.connack(caller)
                await caller.send(answer)
                if heard.code:
                    self._news.set()
                    return
            else:
                await self.answer(caller, heard)
            self._news.set()
