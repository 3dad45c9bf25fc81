"""Whatever an operator brings in: a line or a file is refused by one kind of error, or a broker can serve it."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.group_commit.principals import Principals
from canopy_mqtt.store.sqlite import reading
from canopy_mqtt.store.sqlite.schema import SCHEMA, VERSION
from canopy_mqtt.store.tools import mosquitto_db
from canopy_mqtt.store.tools.exporting import lines
from canopy_mqtt.store.tools.importing import FaultyRow, Importer
from canopy_mqtt.store.tools.read_only import ReadOnlyStore
from tests.core.harness import Network
from tests.store.tools.test_commands import DELIVERY, MESSAGE, POINTER, RETAINED, SENT, SESSION, SUBSCRIPTION
from tests.store.tools.test_mosquitto_db import chunk, client, message, queued, subscription
from tests.support.restored import restore
from tests.support.runs import examples

GOOD = (
    SESSION,
    SESSION | {"client_id": "d", "will_topic": "w", "will_payload": "", "will_qos": 1, "will_retain": True}
    | {"will_delay": 5, "will_message_expiry": -1, "will_properties": "", "disconnected_at": 7.5, "will_due": 8.0},
    SUBSCRIPTION,
    SUBSCRIPTION | {"filter": "$share/g/a", "queue_policy": 3, "queue_max_age": 1.0, "queue_depth": 5},
    {"type": "received", "client_id": "c", "packet_id": 5},
    MESSAGE,
    POINTER,
    DELIVERY | {"identifiers": [1, 2], "share": "$share/g/a"},
    SENT,
    RETAINED,
    {"type": "broadcast", "id": 7, "topic": "a", "payload": "aGk=", "qos": 1, "retain": False},
    {"type": "passed", "client_id": "c", "broadcast": 7},
)  # fmt: skip

values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-2, 70_000), st.floats(), st.text(max_size=4),
    st.sampled_from(["", "#", "a/+", "$share/x", "sent", "released", "AQE=", "JgABYQABYg==", "$SYS/x", "\0", "c"]),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.just({"user_name": None}), st.just({"user_name": 7, "groups": "x", "attributes": 5}),
)  # fmt: skip


@st.composite
def files(draw: st.DrawFn) -> list[Any]:
    """Lines of which some have other values, stand elsewhere, or are missing."""
    found = [dict(line) for line in GOOD]
    for _ in range(draw(st.integers(0, 3))):
        line = draw(st.sampled_from(found))
        line[draw(st.sampled_from([*line, "message", "retain", "expires_at", "x"]))] = draw(values)
    if draw(st.booleans()):
        found.insert(draw(st.integers(0, len(found))), found.pop(draw(st.integers(0, len(found) - 1))))
    return found


def new() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(SCHEMA)
    return db


def serve(db: sqlite3.Connection) -> None:
    """Read the store as a broker and an export do."""
    look = ReadOnlyStore(db, Path("x"), VERSION, 0.0)
    written = list(lines(look))
    with closing(new()) as other:
        importer = Importer(other)
        for line in written[1:]:
            importer.line(json.loads(line))
        importer.finish()
        assert list(lines(ReadOnlyStore(other, Path("x"), VERSION, 0.0))) == written
    loaded = reading.read(db, 100.0, Principals())
    network = Network()
    restore(network.router, loaded.saved, network.now)
    network.advance(1.0)


@settings(max_examples=examples(100))
@given(files())
def test_lines(found: list[Any]) -> None:
    with closing(new()) as db:
        importer = Importer(db)
        for line in found:
            try:
                importer.line(line)
            except FaultyRow:
                continue
        try:
            importer.finish()
        except StoreError:
            return
        serve(db)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4), st.integers(0, 40))
def test_files_of_mosquitto(changes: list[tuple[int, int]], cut: int) -> None:
    parts: Iterator[bytes] = iter(
        (
            b"\x00\xb5\x00mosquitto db\0\0\0\0\0\0\0\x06",
            *(message(1, b"a/b", props=b"\x02\x01\x01"), message(2, b"q", expires=200), message(3, b"r")),
            *(client(b"c", 60, 150, user=b"u"), queued(1, b"c"), queued(2, b"c", state=5, packet_id=4)),
            *(queued(3, b"c", state=9, packet_id=5), client(b"d", 2**32 - 1, 0), queued(1, b"d", direction=0)),
            *(subscription(b"c", b"a/#"), subscription(b"d", b"+/b"), chunk(4, b"\x03" + bytes(7))),
        )
    )
    content = bytearray(b"".join(parts))
    for at, byte in changes:
        content[at % len(content)] = byte
    if cut < 10:
        del content[len(content) - cut :]
    try:
        saved = mosquitto_db.read(io.BytesIO(content), len(content), 100.0)
    except mosquitto_db.Damaged:
        return
    with closing(new()) as db:
        importer = Importer(db)
        mosquitto_db._fill(importer, saved)
        importer.finish()
        serve(db)
