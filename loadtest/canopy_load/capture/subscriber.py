"""`canopy load capture`: a subscriber of a broker writes the messages that it gets to a file.

Owns: one client that subscribes and acknowledges, and the batches that become the file (``capture_file``).

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
from typing import Any, Final, Literal

from canopy_load.capture.capture_file import CaptureError, Writer
from canopy_load.checks.broker_statistics import Listener
from canopy_load.engine.clients.connection import told
from canopy_load.engine.job import Target
from canopy_load.engine.transports import TargetError, address
from canopy_load.errors import Misuse
from canopy_mqtt.client.aio import AsyncClient
from canopy_mqtt.client.failures import FAILURE, ClientError, RefusedError
from canopy_mqtt.client.machine import ClientMachine, connect_packet
from canopy_mqtt.core.codec import packets, properties
from canopy_mqtt.core.codec.packets import Publish, SubscriptionRequest
from canopy_mqtt.core.codec.properties import decode_forward
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.reason_codes import name as reason_name
from canopy_mqtt.core.codec.topic_names import parse_shared, validate_filter
from canopy_mqtt.words import counted

ROWS: Final = 65_536
"""Messages of one row group at the most."""
BYTES: Final = 16_777_216
"""Bytes of payload above which a row group is written earlier."""
MAX_TOPICS: Final = 1_000_000
"""Topics that are counted."""
PATIENCE: Final = 10.0
"""Seconds to connect, and to subscribe."""
KEEP_ALIVE: Final = 60
"""Seconds."""


@dataclass(frozen=True)
class CaptureOptions:
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
    """A finished capture."""

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


async def capture(
    wanted: CaptureOptions, stop: asyncio.Event, progress: Callable[[int], None] = lambda _: None
) -> Captured:
    """Capture until `stop` is set, the time is over, the messages have come, or the broker goes away. `progress` hears
    how many there are, first when the broker has subscribed us and then each second.

    Raises:
        Misuse: a topic filter is none.
        CaptureError: the broker cannot be subscribed to, or the file cannot be written; no file is left.
    """
    for topic_filter in wanted.filters:
        try:
            validate_filter(parse_shared(topic_filter)[1])
        except ProtocolError as error:
            raise Misuse(f"--filter {topic_filter}: {error}") from error
    with Writer(wanted.out, wanted.sizes_only) as writer:
        run = _Capture(wanted, writer, stop)
        try:
            await run.open()
            progress(0)
            listener = Listener(f"canopy-capture-{secrets.token_hex(4)}")
            await listener.open(wanted.target)
            version = listener.values.get("version", "")
            await listener.close()
            await run.until_the_end(progress)
        finally:
            await run.close()
        await asyncio.to_thread(writer.finish, run.metadata(version))
        return run.captured()


class _Capture:
    def __init__(self, wanted: CaptureOptions, writer: Writer, stop: asyncio.Event) -> None:
        self._wanted = wanted
        self._writer = writer
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._version = packets.V5 if wanted.version == "5.0" else packets.V311
        self._client: AsyncClient | None = None
        self._over = asyncio.Event()
        self._trouble = ""
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
        wanted = self._wanted
        connect = connect_packet(
            f"canopy-capture-{secrets.token_hex(4)}",
            version=self._version,
            keep_alive=KEEP_ALIVE,
            user_name=wanted.user_name,
            password=wanted.password,
        )
        # Captured as it was published; without this, a broker takes RETAIN off what it forwards at once.
        requests = [
            SubscriptionRequest(each, wanted.qos, False, self._version == packets.V5) for each in wanted.filters
        ]
        try:
            where = address(wanted.target)
            client = AsyncClient(where, ClientMachine(connect), timeout=PATIENCE, on_message=self._arrived)
            self._client = client
            await client.connect()
            self._begun, self._begun_ns = datetime.now(UTC), time.monotonic_ns()
            answer = await client.subscribe(*requests)
        except RefusedError as error:
            raise CaptureError(f"{wanted.target}: refused: {reason_name(error.reason_code)}") from None
        except (ClientError, TargetError) as error:
            raise CaptureError(f"{wanted.target}: {getattr(error, 'why', error)}") from error
        for topic_filter, code in zip(wanted.filters, answer.reason_codes, strict=True):
            if code >= FAILURE:
                raise CaptureError(f"{wanted.target}: refused {topic_filter}: {reason_name(code)}")

    async def until_the_end(self, progress: Callable[[int], None]) -> None:
        assert self._client is not None
        wanted = self._wanted
        end = None if wanted.seconds is None else self._begun_ns / 1e9 + wanted.seconds
        stopping = self._loop.create_task(self._stop.wait())
        ending = self._loop.create_task(self._over.wait())
        losing = self._loop.create_task(self._client.lost())
        waiting: list[asyncio.Task[Any]] = [stopping, ending, losing]
        try:
            while not any(each.done() for each in waiting):
                now = time.monotonic()
                if end is not None and now >= end:
                    return
                left = 1.0 if end is None else min(1.0, end - now)
                await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                progress(self._count)
                if self._writing is not None and self._writing.done():
                    self._writing.result()
            failure = losing.result() if losing.done() else None
            if failure is not None and not self._over.is_set():
                self._trouble = failure.why
        finally:
            self._over.set()
            self._ended_ns = time.monotonic_ns()
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def close(self) -> None:
        """Leave, and write the rest."""
        self._over.set()
        if self._client is not None:
            await self._client.disconnect()
        if self._writing is not None:
            await self._writing
        if self._rows["topic"]:
            await asyncio.to_thread(self._writer.write, self._rows)

    def captured(self) -> Captured:
        seconds = (self._ended_ns - self._begun_ns) / 1e9
        return Captured(
            self._count, len(self._topics), self._retained, self._told_lost, seconds, self._trouble
        )  # fmt: skip

    def metadata(self, broker: str) -> dict[str, str]:
        return {
            "broker": broker,
            "target": str(self._wanted.target),
            "mqtt": self._wanted.version,
            "filters": json.dumps(list(self._wanted.filters), ensure_ascii=False),
            "begun": self._begun.isoformat(),
        }

    # -- messages ------------------------------------------------------------------------------------------------------

    def _arrived(self, packet: Publish) -> None:
        if self._over.is_set():
            return
        self._row(packet, time.monotonic_ns())
        if self._count == self._wanted.messages:
            self._over.set()
        if len(self._rows["topic"]) >= ROWS or self._bytes >= BYTES:
            self._write()

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
        if len(self._topics) < MAX_TOPICS:
            self._topics.add(packet.topic)
        if packet.properties:
            self._told_lost += told(packet.properties)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Write the collected messages in a thread; stop reading while it still writes the batch before."""
        if self._writing is not None and not self._writing.done():
            self._read_on(False)
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
        self._read_on(True)

    def _read_on(self, on: bool) -> None:
        if self._client is not None:
            self._client.read_on(on)
