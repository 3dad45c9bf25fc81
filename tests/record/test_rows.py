"""From a tap's entries to the table: every event a row with its number, and every column what was published."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec import properties as pr
from canopy_mqtt.core.codec.packets import V5, V311, Publish
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.node_messages import GroupMessage
from canopy_mqtt.record.schema import SCHEMA
from canopy_mqtt.record.unpack import FILL_BYTES, KINDS
from tests.conftest import ROOT
from tests.core import strategies
from tests.record.scenes import HOUR, RUN_ID, Tape, messages
from tests.support.runs import examples, for_each
from tests.support.sessions import any_subscription

BEGIN = datetime.fromtimestamp(HOUR / 1e6, UTC)


def test_the_guide_names_every_column() -> None:
    """In their order, each with the type that it has."""
    lines = (ROOT / "docs" / "recorder.md").read_text(encoding="utf-8").partition("## Columns")[2].splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| `")]
    names = {"timestamp[us, tz=UTC]": "timestamp (µs, UTC)"}
    assert [(row[1], row[2]) for row in cells] == [
        (
            f"`{field.name}`",
            "list of (key, value)" if pa.types.is_list(field.type) else names.get(str(field.type), str(field.type)),
        )
        for field in SCHEMA
    ]


@st.composite
def topics(draw: st.DrawFn) -> str:
    return draw(strategies.topic_names.filter(lambda name: not name.startswith("$")))


sent = st.lists(
    st.tuples(topics(), st.sampled_from([0, 1, 100, 122, 125, 130, 200, 16_370, 16_384]), st.binary(max_size=3)),
    min_size=1,
    max_size=70,
)


@settings(deadline=None, max_examples=examples(40))
@given(runs=st.lists(st.tuples(st.sampled_from([V311, V5]), sent), max_size=4), most=st.sampled_from([1, 7, 2_048]))
def test_bursts(runs: list[tuple[int, list[tuple[str, int, bytes]]]], most: int) -> None:
    """Taken apart into what was published, also where frames grow a byte in front of them."""
    tape = Tape()
    expected: list[dict[str, Any]] = []
    for at, (version, burst) in enumerate(runs):
        data = b""
        tape.time = at * 1_000
        for topic, length, end in burst:
            payload = b"x" * length + end
            packet = Publish(topic.encode(), payload, 0, False, False, 0, b"", 0, -1)
            data += encoder.encode(packet, version)
            expected.append(
                {
                    "seq": len(expected) + 1, "kind": "publish", "ts": BEGIN + timedelta(microseconds=at),
                    "recv_ns": at * 1_000, "run_id": RUN_ID, "client_id": "p", "topic": topic, "payload": payload,
                    "size": len(payload), "qos": 0, "retain": False,
                }
            )  # fmt: skip
        tape.tap.frames(data, len(burst), version == V5, "p")
    assert tape.table(most) == expected


@settings(deadline=None, max_examples=examples(40))
@given(
    properties=strategies.forwarded(), payload=strategies.binary, topic=topics(), qos=st.integers(0, 2),
    retain=st.booleans(), expiry=st.sampled_from([-1, 0, 1, 4_294_967_295]),
)  # fmt: skip
def test_messages(properties: bytes, payload: bytes, topic: str, qos: int, retain: bool, expiry: int) -> None:
    """Each property in its column, user properties in their order."""
    tape = Tape()
    until = 0.0 if expiry < 0 else 1_000.0 + expiry
    tape.tap.message(Message(topic.encode(), payload, qos, retain, properties, until, ""), 1_000.0)
    [row] = tape.table()
    found = pr.decode_forward(properties)
    expected = {
        "seq": 1, "kind": "publish", "ts": BEGIN, "recv_ns": 0, "run_id": RUN_ID, "topic": topic, "payload": payload,
        "size": len(payload), "qos": qos, "retain": retain,
    }  # fmt: skip
    for column, values, number in (
        ("payload_format", found.integers, pr.PAYLOAD_FORMAT_INDICATOR),
        ("content_type", found.strings, pr.CONTENT_TYPE),
        ("response_topic", found.strings, pr.RESPONSE_TOPIC),
        ("correlation_data", found.binaries, pr.CORRELATION_DATA),
    ):
        assert isinstance(values, dict)
        if number in values:
            expected[column] = values[number]
    if expiry >= 0:
        expected["message_expiry"] = expiry
    if found.user:
        expected["properties"] = [{"key": key, "value": value} for key, value in found.user]
    assert row == expected


def test_every_kind() -> None:
    """Each with its columns and no others, in the order of the numbers, however small the batches."""
    for most in (1, 3, 2_048):
        tape = Tape()
        tap = tape.tap
        tap.connected("c", "127.0.0.1:1", "u", 5, True, False)
        tap.connected("d", "127.0.0.1:2", None, 4, False, True)
        tap.subscribed(any_subscription("c", "$share/g/a/#", 2, False, True, 268_435_455), False)
        tap.subscribed(any_subscription("d", "a", 0, True), True)
        messages(tape, 2)
        tap.delivered("c", 1, False, "$share/g/a/#")
        tap.delivered("d", 0, True, None)
        tap.lost_messages("d", 0, 1)
        tap.refused("d", 0, None)
        tap.unsubscribed("c", "$share/g/a/#", False)
        tap.unsubscribed("d", "a", True)
        tap.disconnected("c", "127.0.0.1:1", "client-disconnect")
        tap.disconnected("d", "127.0.0.1:2", "stalled")
        tap.gap(3, 5, "crash")
        tap.snapshot(4, 2)
        tap.lost_messages("d", 4, 1_000)
        rows = tape.table(most)
        for seq, row in enumerate(rows, 1):
            assert (row.pop("seq"), row.pop("run_id"), row.pop("recv_ns"), row.pop("ts")) == (seq, RUN_ID, 0, BEGIN)
        publish = {"kind": "publish", "client_id": "p", "topic": "t", "size": 1, "qos": 0, "retain": False}
        deliver = {"kind": "deliver", "ref_seq": 6}
        assert rows == [
            {
                "kind": "connect", "client_id": "c", "address": "127.0.0.1:1", "user_name": "u", "protocol": 5,
                "clean_start": True, "session_present": False,
            },
            {
                "kind": "connect", "client_id": "d", "address": "127.0.0.1:2", "protocol": 4, "clean_start": False,
                "session_present": True,
            },
            {
                "kind": "subscribe", "client_id": "c", "topic_filter": "$share/g/a/#", "qos": 2, "no_local": False,
                "retain_as_published": True, "subscription_id": 268_435_455,
            },
            {
                "kind": "subscribe", "client_id": "d", "topic_filter": "a", "qos": 0, "no_local": True,
                "retain_as_published": False, "reason": "snapshot",
            },
            {**publish, "payload": b"0"},
            {**publish, "payload": b"1"},
            {**deliver, "client_id": "c", "qos": 1, "retain": False, "topic_filter": "$share/g/a/#"},
            {**deliver, "client_id": "d", "qos": 0, "retain": True},
            {"kind": "drop", "client_id": "d", "reason": "full-messages", "n": 1, "ref_seq": 6},
            {"kind": "unsubscribe", "client_id": "c", "topic_filter": "$share/g/a/#"},
            {"kind": "unsubscribe", "client_id": "d", "topic_filter": "a", "reason": "session-ended"},
            {"kind": "disconnect", "client_id": "c", "address": "127.0.0.1:1", "reason": "client-disconnect"},
            {"kind": "evict", "client_id": "d", "address": "127.0.0.1:2", "reason": "stalled"},
            {"kind": "gap", "from_seq": 3, "to_seq": 5, "n": 3, "reason": "crash"},
            {"kind": "snapshot", "ref_seq": 4, "n": 2},
            {"kind": "drop", "client_id": "d", "reason": "disconnected", "n": 1_000},
        ]  # fmt: skip
        assert {row["kind"] for row in rows} == set(KINDS) - {"arrive", "forward"}


def test_what_another_node_brings_is_no_publish_and_what_goes_there_is_no_delivery() -> None:
    tape = Tape()
    tap = tape.tap
    tap.frames(b"\x30\x04\0\1tx\x30\x04\0\1ty", 2, False, "$upstream/$node/b")
    tap.message(Message(b"t", b"12", 1, False, b"", 0.0, "$upstream/$node/b"), 0.0)
    tap.message(GroupMessage(Message(b"t", b"123", 0, False, b"", 0.0, "$upstream/$node/b"), "$share/g/t"), 0.0)
    tap.delivered("$node/c", 2, False, None)
    tap.message(Message(b"t", b"1", 1, False, b"", 0.0, "$upstream/cloud"), 0.0)
    rows = [
        {name: row.get(name) for name in ("kind", "client_id", "size", "qos", "topic_filter")} for row in tape.table()
    ]
    arrive = {"kind": "arrive", "client_id": "$node/b", "size": 1, "qos": 0, "topic_filter": None}
    assert rows == [
        arrive,
        arrive,
        {**arrive, "size": 2, "qos": 1},
        {**arrive, "size": 3, "topic_filter": "$share/g/t"},
        {"kind": "forward", "client_id": "$node/c", "size": None, "qos": 2, "topic_filter": None},
        # Of an upstream broker it comes here for the first time.
        {"kind": "publish", "client_id": "$upstream/cloud", "size": 1, "qos": 1, "topic_filter": None},
    ]


def test_without_payloads() -> None:
    """Their sizes stay."""
    tape = Tape(payloads=False)
    messages(tape, 3)
    tape.tap.message(Message(b"t", b"12345", 1, False, b"", 0.0, "p"), 0.0)
    assert [(row["size"], row.get("payload")) for row in tape.table()] == [(1, None)] * 3 + [(5, None)]


@for_each("topic", ["x" * 65_535, "\N{PARTY POPPER}/\U0010ffff/\ufffe", "\ufeff", "a'b\"c\\d\n\t\x01", "/"])
def test_texts_that_are_unusual(topic: str) -> None:
    """Everything that MQTT allows comes out as it came in."""
    tape = Tape()
    wild = topic[:20_000]
    forward = pr.encode_forward(
        content_type=wild, response_topic="r", correlation_data=b"\xff\xfe\0\xed\xa0\x80", user=[(wild, ""), ("", wild)]
    )
    tape.tap.connected(wild, "[::1]:1", wild, 5, True, False)
    tape.tap.subscribed(any_subscription(wild, topic), False)
    tape.tap.message(Message(topic.encode(), b"\xff\0", 0, False, forward, 0.0, wild), 0.0)
    connect, subscribe, publish = tape.table()
    assert (connect["client_id"], connect["user_name"]) == (wild, wild)
    assert subscribe["topic_filter"] == topic
    assert (publish["topic"], publish["payload"], publish["client_id"]) == (topic, b"\xff\0", wild)
    assert publish["properties"] == [{"key": wild, "value": ""}, {"key": "", "value": wild}]
    assert (publish["content_type"], publish["correlation_data"]) == (wild, b"\xff\xfe\0\xed\xa0\x80")


def test_a_filling_ends_by_bytes_too() -> None:
    """However few rows there are: what is taken apart at once is bounded."""
    tape = Tape()
    for _ in range(5):
        tape.tap.message(Message(b"t", bytes(FILL_BYTES // 2), 1, False, b"", 0.0, "p"), 0.0)
    assert [each.num_rows for each in tape.record_batch(2_048)] == [2, 2, 1]
