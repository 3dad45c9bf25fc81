"""`canopy load capture`: what subscribers of a broker get, written down as it comes.

Owns: one client that subscribes and acknowledges, and the batches that become the file (``file``).

Promises:
- Every PUBLISH that comes is a row, with the time at which it was read from the socket.
- Memory is bounded: `ROWS` messages or `BYTES` of payload are collected while as many are being written; if the disk is
  slower than that, the client stops to read.
- Whatever ends the capture, what came until then is in the file, and the file is whole.

A broker that goes away ends the capture. No file is overwritten.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

from broker.core.codec import encoder, packets, properties
from broker.core.codec.decoder import Decoder
from broker.core.codec.errors import ProtocolError
from broker.core.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from broker.core.codec.properties import decode_forward
from broker.core.codec.reasons import name as reason_name
from broker.core.codec.topic_names import parse_shared, validate_filter
from broker.words import counted
from loadtest.load.capture.file import CaptureError, Writer
from loadtest.load.checks.broker_statistics import Listener
from loadtest.load.engine.clients import connecting
from loadtest.load.engine.clients.connection import MAX_PACKET, told
from loadtest.load.engine.job import Target
from loadtest.load.engine.transports import open_stream, trouble

ROWS: Final = 65_536
"""Messages of one row group at the most."""
BYTES: Final = 16_777_216
"""Bytes of payload above which a row group is written earlier."""
MOST_TOPICS: Final = 1_000_000
"""Topics that are counted."""
PATIENCE: Final = 10.0
"""Seconds to connect, and to subscribe."""
KEEP_ALIVE: Final = 60
"""Seconds; a PINGREQ goes out in half of them."""
CLOSED: Final = "the broker closed the connection"


@dataclass(frozen=True)
class Wanted:
    """What is to be captured."""

    target: Target
    filters: Sequence[str]
    out: Path
    qos: int = 0
    version: Literal["3.1.1", "5.0"] = "5.0"
    seconds: float | None = None
    messages: int | None = None
    sizes_only: bool = False
    user_name: str | None = None
    password: str | None = None


@dataclass(frozen=True)
class Captured:
    """What there is now."""

    messages: int
    topics: int
    retained: int
    told_lost: int
    """Losses of which Canopy told this subscriber (`canopy-lost`)."""
    seconds: float
    trouble: str
    """Why the broker ended it; empty: it did not."""

    def __str__(self) -> str:
        more = f", {self.retained:,} of them retained" if self.retained else ""
        more += f"; the broker tells of {self.told_lost:,} lost ones" if self.told_lost else ""
        messages, topics = counted(self.messages, "message"), counted(self.topics, "topic")
        return f"{messages} on {topics} in {self.seconds:,.1f} s{more}"


async def capture(wanted: Wanted, stop: asyncio.Event, progress: Callable[[int], None] = lambda _: None) -> Captured:
    """Capture until `stop` is set, the time is over, the messages have come, or the broker goes away. `progress` hears
    how many there are, first when the broker has subscribed us and then each second.

    Raises:
        CaptureError: the broker cannot be subscribed to, or the file cannot be written; no file is left.
    """
    for topic_filter in wanted.filters:
        try:
            validate_filter(parse_shared(topic_filter)[1])
        except ProtocolError as error:
            raise CaptureError(f"--filter {topic_filter}: {error}") from error
    with Writer(wanted.out, wanted.sizes_only) as writer:
        run = _Capture(wanted, writer, stop)
        try:
            await run.open()
            progress(0)
            listener = Listener(f"canopy-capture-{secrets.token_hex(4)}")
            await listener.open(wanted.target)
            version = listener.values.get("version", "")
            listener.close()
            await run.until_the_end(progress)
        finally:
            await run.close()
        await asyncio.to_thread(writer.finish, run.metadata(version))
        return run.captured()


class _Capture:
    """One capture; an `asyncio.Protocol` by its methods."""

    def __init__(self, wanted: Wanted, writer: Writer, stop: asyncio.Event) -> None:
        self._wanted = wanted
        self._writer = writer
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._version = packets.V5 if wanted.version == "5.0" else packets.V311
        self._decoder = Decoder(MAX_PACKET, False, self._version)
        self._transport: asyncio.Transport | None = None
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()
        self._closed = self._loop.create_future()
        self._trouble = ""
        self._unanswered = False
        self._taken: set[int] = set()
        """Packet identifiers of QoS 2 messages that are not released yet."""
        self._begun = datetime.now(UTC)
        self._begun_ns = time.monotonic_ns()
        self._ended_ns = 0
        self._topics: set[bytes] = set()
        self._count = 0
        self._retained = 0
        self._told_lost = 0
        self._rows: dict[str, list[Any]] = {each.name: [] for each in writer.schema}
        self._bytes = 0
        self._writing: asyncio.Task[None] | None = None

    # -- the course of it ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and subscribe."""
        target = self._wanted.target
        try:
            async with asyncio.timeout(PATIENCE):
                await open_stream(target, self)
                await self._subscribed
        except TimeoutError:
            raise CaptureError(f"{target}: no answer in {PATIENCE:g} s") from None
        except OSError as error:
            raise CaptureError(f"{target}: {trouble(error)}") from error

    async def until_the_end(self, progress: Callable[[int], None]) -> None:
        """Wait until somebody or something ends it."""
        wanted = self._wanted
        end = None if wanted.seconds is None else self._begun_ns / 1e9 + wanted.seconds
        ping_at = time.monotonic() + KEEP_ALIVE / 2
        stopping = self._loop.create_task(self._stop.wait())
        ending = self._loop.create_task(self._over.wait())
        try:
            while not (stopping.done() or ending.done()):
                now = time.monotonic()
                if end is not None and now >= end:
                    return
                if now >= ping_at:
                    ping_at = now + KEEP_ALIVE / 2
                    self._ping()
                left = 1.0 if end is None else min(1.0, end - now)
                await asyncio.wait([stopping, ending], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                progress(self._count)
                if self._writing is not None and self._writing.done():
                    self._writing.result()
        finally:
            self._over.set()
            self._ended_ns = time.monotonic_ns()
            stopping.cancel()
            ending.cancel()
            await asyncio.gather(stopping, ending, return_exceptions=True)

    async def close(self) -> None:
        """Leave, and write the rest."""
        self._over.set()
        if self._transport is not None:
            if not self._transport.is_closing():
                self._send(Disconnect())
                self._transport.close()
            await self._closed
        if not self._subscribed.done():
            self._subscribed.cancel()
        elif not self._subscribed.cancelled():
            self._subscribed.exception()
        if self._writing is not None:
            await self._writing
        if self._rows["topic"]:
            await asyncio.to_thread(self._writer.write, self._rows)

    def captured(self) -> Captured:
        """What there is."""
        seconds = (self._ended_ns - self._begun_ns) / 1e9
        return Captured(
            self._count, len(self._topics), self._retained, self._told_lost, seconds, self._trouble
        )  # fmt: skip

    def metadata(self, broker: str) -> dict[str, str]:
        """What the file says of itself."""
        return {
            "broker": broker,
            "target": str(self._wanted.target),
            "mqtt": self._wanted.version,
            "filters": json.dumps(list(self._wanted.filters), ensure_ascii=False),
            "begun": self._begun.isoformat(),
        }

    def _ping(self) -> None:
        if self._unanswered:
            self._end("the broker does not answer PINGREQ")
        elif self._transport is not None:
            self._unanswered = True
            self._transport.write(encoder.PINGREQ)

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who is there."""
        self._transport = cast(asyncio.Transport, transport)
        name = f"canopy-capture-{secrets.token_hex(4)}"
        wanted = self._wanted
        secret = None if wanted.password is None else wanted.password.encode()
        self._send(Connect(name, self._version, True, KEEP_ALIVE, None, wanted.user_name, secret))

    def data_received(self, data: bytes) -> None:
        """Take the packets of one read."""
        now = time.monotonic_ns()
        acks: list[bytes] = []
        try:
            self._decoder.feed(data)
            while self._decoder.next_frame():
                packet = self._decoder.packet()
                if isinstance(packet, Publish):
                    self._publish(packet, now, acks)
                else:
                    self._other(packet, acks)
        except ProtocolError as error:
            self._end(f"the broker broke the protocol: {error}")
            return
        if acks and self._transport is not None:
            self._transport.write(b"".join(acks))
        if len(self._rows["topic"]) >= ROWS or self._bytes >= BYTES:
            self._write()

    def eof_received(self) -> bool:
        """The broker will send no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._transport = None
        if not self._over.is_set():
            self._end(f"connection lost: {exc}" if exc else CLOSED)
        self._closed.set_result(None)

    # -- packets -------------------------------------------------------------------------------------------------------

    def _send(self, packet: Packet) -> None:
        if self._transport is not None:
            self._transport.write(encoder.encode(packet, self._version))

    def _end(self, why: str) -> None:
        """The broker ends it."""
        if not self._subscribed.done():
            self._subscribed.set_exception(CaptureError(f"{self._wanted.target}: {why}"))
        if not self._over.is_set():
            self._trouble = why
            self._over.set()
        if self._transport is not None:
            self._transport.abort()

    def _other(self, packet: Packet, acks: list[bytes]) -> None:
        if isinstance(packet, Connack):
            if packet.reason_code:
                self._end(f"refused: {self._code(packet.reason_code)}")
                return
            # Captured as it was published; without this, a broker takes RETAIN off what it forwards at once.
            wanted = [
                SubscriptionRequest(each, self._wanted.qos, False, self._version == packets.V5)
                for each in self._wanted.filters
            ]
            self._begun, self._begun_ns = datetime.now(UTC), time.monotonic_ns()
            self._send(Subscribe(1, wanted))
        elif isinstance(packet, Suback):
            for topic_filter, code in zip(self._wanted.filters, packet.reason_codes, strict=False):
                if code >= 0x80:
                    self._end(f"refused {topic_filter}: {self._code(code, 'failure')}")
                    return
            if not self._subscribed.done():
                self._subscribed.set_result(None)
        elif isinstance(packet, Pingresp):
            self._unanswered = False
        elif isinstance(packet, Disconnect):
            self._end(f"the broker sent DISCONNECT: {reason_name(packet.reason_code)}")
        elif isinstance(packet, Ack) and packet.kind == packets.PUBREL:
            self._taken.discard(packet.packet_id)
            acks.append(encoder.ack(packets.PUBCOMP, packet.packet_id, 0, self._version))

    def _code(self, code: int, otherwise: str = "") -> str:
        return otherwise if otherwise and self._version < packets.V5 else connecting.refusal(code, self._version)

    def _publish(self, packet: Publish, now: int, acks: list[bytes]) -> None:
        if packet.qos == 1:
            acks.append(encoder.ack(packets.PUBACK, packet.packet_id, 0, self._version))
        elif packet.qos == 2:
            acks.append(encoder.ack(packets.PUBREC, packet.packet_id, 0, self._version))
            if packet.packet_id in self._taken:
                return
            self._taken.add(packet.packet_id)
        if self._over.is_set():
            return
        self._row(packet, now)
        if self._count == self._wanted.messages:
            self._over.set()

    def _row(self, packet: Publish, now: int) -> None:
        since = now - self._begun_ns
        held = decode_forward(packet.properties) if packet.properties else properties.Properties()
        rows = self._rows
        rows["ts"].append(int(self._begun.timestamp() * 1e6) + since // 1000)
        rows["recv_ns"].append(since)
        rows["topic"].append(packet.topic.decode())
        if "payload" in rows:
            rows["payload"].append(packet.payload)
        rows["size"].append(len(packet.payload))
        rows["qos"].append(packet.qos)
        rows["retain"].append(packet.retain)
        rows["dup"].append(packet.dup)
        rows["properties"].append([{"key": key, "value": value} for key, value in held.user])
        rows["payload_format"].append(held.integers.get(properties.PAYLOAD_FORMAT_INDICATOR))
        rows["content_type"].append(held.strings.get(properties.CONTENT_TYPE))
        rows["response_topic"].append(held.strings.get(properties.RESPONSE_TOPIC))
        rows["correlation_data"].append(held.binaries.get(properties.CORRELATION_DATA))
        rows["message_expiry"].append(packet.message_expiry if packet.message_expiry >= 0 else None)
        self._bytes += len(packet.payload) if "payload" in rows else 0
        self._count += 1
        self._retained += packet.retain
        if len(self._topics) < MOST_TOPICS:
            self._topics.add(packet.topic)
        if packet.properties:
            self._told_lost += told(packet.properties)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write what there is in a thread; while it still writes the last, read no more."""
        if self._writing is not None and not self._writing.done():
            if self._transport is not None:
                self._transport.pause_reading()
            return
        batch = self._rows
        self._rows = {name: [] for name in batch}
        self._bytes = 0
        self._writing = self._loop.create_task(self._written(batch))

    async def _written(self, batch: dict[str, list[Any]]) -> None:
        try:
            await asyncio.to_thread(self._writer.write, batch)
        except CaptureError:
            self._over.set()
            raise
        if self._transport is not None:
            self._transport.resume_reading()
