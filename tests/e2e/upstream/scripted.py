"""An upstream broker that is played by the test: it answers a link as it is told to, and writes down what that says.

Owns: `Scripted`, the listener; `Caller`, one connection of a link to it; `Heard`, one packet of the link's, taken
apart. It is built on the parser of `wire` and shares nothing with the broker.

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

from tests.e2e import wire
from tests.e2e.wire import NAMES, Properties

BRIDGE: Final = 0x80
"""The bit of the protocol level by which mosquitto's bridges of 3.1.1 say what they are."""

# Which properties a client may put on which packet (section 2.2.2.2).
_OF_CLIENTS: Final[dict[int, set[int]]] = {
    wire.CONNECT: {0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27},
    wire.PUBLISH: {0x01, 0x02, 0x03, 0x08, 0x09, 0x23, 0x26},
    wire.SUBSCRIBE: {0x0B, 0x26},
    wire.UNSUBSCRIBE: {0x26},
    wire.DISCONNECT: {0x11, 0x1F, 0x26},
}
_WILL: Final = {0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26}


class Cursor(wire._Cursor):
    """Reads the fields of a client's packet."""

    def of_client(self, allowed: set[int]) -> list[wire.Property]:
        """A property list, in which only these may stand."""
        inner = Cursor(self.take(self.varint()))
        found: list[wire.Property] = []
        while inner.at < len(inner.data):
            ident = inner.varint()
            if ident not in allowed:
                raise wire.WireError(f"property 0x{ident:02x} of a client where it does not belong")
            value: wire.Value
            if ident in wire._BYTE:
                value = inner.byte()
            elif ident in wire._SHORT:
                value = inner.short()
            elif ident in wire._LONG:
                value = int.from_bytes(inner.take(4), "big")
            elif ident in wire._VARINT:
                value = inner.varint()
            elif ident in wire._BINARY:
                value = inner.take(inner.short())
            elif ident in wire._STRING:
                value = inner.string()
            else:
                value = (inner.string(), inner.string())
            found.append((ident, value))
        return found


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


def take_apart(kind: int, flags: int, body: bytes, version: int) -> Heard:
    """Read one packet that a client may send. Raises WireError on anything out of place."""
    heard = Heard(kind, flags)
    at = Cursor(body)
    if kind == wire.CONNECT:
        _connect(heard, at)
    elif kind == wire.PUBLISH:
        heard.topic = at.string()
        heard.packet_id = at.short() if heard.qos else 0
        heard.properties = at.of_client(_OF_CLIENTS[kind]) if version == 5 else []
        heard.payload = at.rest()
    elif kind in (wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP):
        heard.packet_id = at.short()
        if at.at < len(body):
            heard.code = at.byte()
        if at.at < len(body):
            heard.properties = at.of_client({wire.REASON_STRING, wire.USER_PROPERTY})
    elif kind in (wire.SUBSCRIBE, wire.UNSUBSCRIBE):
        if flags != 2:
            raise wire.WireError(f"flags {flags:04b} on {NAMES[kind]}")
        heard.packet_id = at.short()
        heard.properties = at.of_client(_OF_CLIENTS[kind]) if version == 5 else []
        while at.at < len(body):
            heard.filters.append((at.string(), at.byte() if kind == wire.SUBSCRIBE else 0))
        if not heard.filters:
            raise wire.WireError(f"{NAMES[kind]} without a filter")
    elif kind == wire.DISCONNECT:
        if at.at < len(body):
            heard.code = at.byte()
        if at.at < len(body):
            heard.properties = at.of_client(_OF_CLIENTS[kind])
    elif kind != wire.PINGREQ:
        raise wire.WireError(f"{NAMES[kind]} from a client")
    if at.at != len(body):
        raise wire.WireError(f"{len(body) - at.at} bytes too many on {NAMES[kind]}: {body.hex()}")
    return heard


def _connect(heard: Heard, at: Cursor) -> None:
    if at.string() != "MQTT":
        raise wire.WireError("another protocol name")
    heard.level = at.byte()
    bits = at.byte()
    heard.clean = bool(bits & 2)
    heard.keep_alive = at.short()
    five = heard.level == 5
    heard.properties = at.of_client(_OF_CLIENTS[wire.CONNECT]) if five else []
    heard.client_id = at.string()
    if bits & 4:
        if five:
            at.of_client(_WILL)
        topic = at.string()
        heard.will = (topic, at.take(at.short()), bits >> 3 & 3, bool(bits & 0x20))
    heard.user = at.string() if bits & 0x80 else None
    heard.password = at.take(at.short()) if bits & 0x40 else None


class Caller:
    """One connection of a link, with what it said."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.version = 5
        self.heard: list[Heard] = []
        self.filters: dict[str, int] = {}
        """What it subscribes to at present, with the options of each."""
        self.ended = False
        self.well = True
        """Whether it is treated as a broker should."""
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


class Scripted:
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
        """Listen no more, and cut whoever is there."""
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
        """What was heard so far, for messages of failed tests."""
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
        """What is said to a packet after CONNECT."""
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
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:  # a test looks at what is wrong with what the link said
            self.errors.append(error)
        finally:
            caller.ended = True
            writer.transport.abort()
            self._tasks.discard(task)
            self._news.set()

    async def _serve(self, caller: Caller) -> None:
        while True:
            first = (await caller.reader.readexactly(1))[0]
            length = shift = 0
            while True:
                digit = (await caller.reader.readexactly(1))[0]
                length |= (digit & 0x7F) << shift
                shift += 7
                if not digit & 0x80:
                    break
            body = await caller.reader.readexactly(length)
            heard = take_apart(first >> 4, first & 15, body, caller.version)
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
