"""Unpacks entries of a tap into columns: one value for each row, in the order of the events.

Owns `Rows`, which is filled from entries and emptied when a batch is made of it. Compiled: it runs for every recorded
message, in the recorder's thread and under the interpreter's lock, so that a fill is kept short.

Promises: every event of every entry becomes one row, with its own number; a burst becomes single events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.core.codec.framing import frame_body, frame_end, plain_payload, topic_end
from canopy_mqtt.core.codec.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    decode_forward,
)
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.routing.nodes import NODE_LINKS, NODES
from canopy_mqtt.record.tap import DELIVER, PUBLISH, RUN

if TYPE_CHECKING:
    from mypy_extensions import i64

NONE: Final = -1
"""Stands for null in a column of numbers."""

KINDS: Final[tuple[str, ...]] = (
    "publish",
    "deliver",
    "subscribe",
    "unsubscribe",
    "connect",
    "disconnect",
    "drop",
    "evict",
    "gap",
    "snapshot",
    "arrive",
    "forward",
)
FILL_BYTES: Final = 4_194_304
"""Bytes after which a fill ends, even with few rows."""

_CODES: Final[dict[str, int]] = {name: code for code, name in enumerate(KINDS)}

_PUBLISH: Final = 0
_DELIVER: Final = 1
_ARRIVE: Final = 10
_FORWARD: Final = 11
"""Indexes of `KINDS`. A message that another node of the cluster, or another worker, has brought is no publish again,
and one that goes to it is delivered there."""


class Rows:
    """The columns of all rows, and the values that only few rows have."""

    def __init__(self, payloads: bool) -> None:
        """`payloads`: True to keep payloads, False to keep only their sizes."""
        self._payloads = payloads
        self.count = 0
        self.bytes = 0
        self.seq: list[int] = []
        self.kind: list[int] = []
        self.recv_ns: list[int] = []
        self.client_id: list[str | None] = []
        self.topic: list[bytes | None] = []
        self.payload: list[bytes | None] = []
        # `NONE` where a row has none.
        self.size: list[int] = []
        self.qos: list[int] = []
        self.retain: list[int] = []
        self.ref_seq: list[int] = []
        # Column → row → value, of the columns that most rows do not have.
        self.rare: dict[str, dict[int, Any]] = {}
        # Whether any row refers to another, and whether any has no size, QoS or RETAIN flag.
        self.refers = False
        self.lacks = False

    def fill(self, entries: list[tuple[Any, ...]], at: int, most: int) -> int:
        """Take entries from index `at` on until there are at least `most` rows. Returns the next index."""
        count = len(entries)
        while at < count and self.count < most and self.bytes < FILL_BYTES:
            entry = entries[at]
            at += 1
            code = entry[0]
            if code == RUN:
                self._run(entry[1], entry[2], entry[3], entry[4], entry[5], entry[6])
            elif code == PUBLISH:
                self._publish(entry)
            elif code == DELIVER:
                client: str = entry[3]
                kind = _FORWARD if client.startswith(NODES) else _DELIVER
                row = self._row(entry[1], kind, entry[2], client, None, None, NONE, entry[5], int(entry[6]), entry[4])
                if entry[7] is not None:
                    self._also("topic_filter", row, entry[7])
            else:
                self._note(entry[1], _CODES[entry[3]], entry[2], entry[4])
        return at

    def _run(self, first: i64, recv_ns: int, data: bytes, count: i64, v5: bool, publisher: str) -> None:
        topics = self.topic
        payloads = self.payload
        sizes = self.size
        keep = self._payloads
        start: i64 = 0
        stop: i64 = len(data)
        for _ in range(count):
            end: i64 = frame_end(data, start, stop)
            body: i64 = frame_body(data, start)
            payload_at: i64 = plain_payload(data, body, end, 0, v5)
            topics.append(data[body + 2 : topic_end(data, body)])
            payloads.append(data[payload_at:end] if keep else None)
            sizes.append(end - payload_at)
            start = end
        client = publisher if publisher else None
        kind = _PUBLISH
        if publisher.startswith(NODE_LINKS):
            client, kind = publisher[len(UPLINKS) :], _ARRIVE
        if count == 1:
            # The commonest case where messages come one at a time.
            self.seq.append(first)
            self.kind.append(kind)
            self.recv_ns.append(recv_ns)
            self.client_id.append(client)
            self.qos.append(0)
            self.retain.append(0)
            self.ref_seq.append(NONE)
        else:
            many = int(count)
            zeros = [0] * many
            self.seq.extend(range(first, first + count))
            self.kind.extend([kind] * many)
            self.recv_ns.extend([recv_ns] * many)
            self.client_id.extend([client] * many)
            self.qos.extend(zeros)
            self.retain.extend(zeros)
            self.ref_seq.extend([NONE] * many)
        self.count += count
        self.bytes += len(data)

    def _publish(self, entry: tuple[Any, ...]) -> None:
        payload = entry[4]
        client: str | None = entry[9] or None
        kind = _PUBLISH
        if client is not None and client.startswith(NODE_LINKS):
            client, kind = client[len(UPLINKS) :], _ARRIVE
        row = self._row(
            entry[1], kind, entry[2], client, entry[3], payload, len(payload), entry[5], int(entry[6]), NONE
        )
        if entry[10]:
            self._also("topic_filter", row, entry[10])
        if entry[8] >= 0:
            self._also("message_expiry", row, entry[8])
        if entry[7]:
            self._properties(row, entry[7])

    def _properties(self, row: int, raw: bytes) -> None:
        found = decode_forward(raw)
        if PAYLOAD_FORMAT_INDICATOR in found.integers:
            self._also("payload_format", row, found.integers[PAYLOAD_FORMAT_INDICATOR])
        if CONTENT_TYPE in found.strings:
            self._also("content_type", row, found.strings[CONTENT_TYPE])
        if RESPONSE_TOPIC in found.strings:
            self._also("response_topic", row, found.strings[RESPONSE_TOPIC])
        if CORRELATION_DATA in found.binaries:
            self._also("correlation_data", row, found.binaries[CORRELATION_DATA])
        if found.user:
            self._also("properties", row, [{"key": key, "value": value} for key, value in found.user])

    def _note(self, seq: int, kind: int, recv_ns: int, columns: dict[str, Any]) -> None:
        row = self._row(
            seq,
            kind,
            recv_ns,
            columns.get("client_id"),
            None,
            None,
            NONE,
            columns.get("qos", NONE),
            NONE,
            columns.get("ref_seq", NONE),
        )
        for name, value in columns.items():
            if name != "client_id" and name != "qos" and name != "ref_seq" and value is not None:
                self._also(name, row, value)

    def _row(
        self,
        seq: int,
        kind: int,
        recv_ns: int,
        client_id: str | None,
        topic: bytes | None,
        payload: bytes | None,
        size: int,
        qos: int,
        retain: int,
        ref_seq: int,
    ) -> int:
        row = self.count
        self.seq.append(seq)
        self.kind.append(kind)
        self.recv_ns.append(recv_ns)
        self.client_id.append(client_id)
        self.topic.append(topic)
        self.payload.append(payload if self._payloads else None)
        self.size.append(size)
        self.qos.append(qos)
        self.retain.append(retain)
        self.ref_seq.append(ref_seq)
        if ref_seq >= 0:
            self.refers = True
        if size < 0 or qos < 0 or retain < 0:
            self.lacks = True
        if payload is not None:
            self.bytes += len(payload)
        self.bytes += 64
        self.count = row + 1
        return row

    def _also(self, name: str, row: int, value: Any) -> None:
        column = self.rare.get(name)
        if column is None:
            column = {}
            self.rare[name] = column
        column[row] = value
