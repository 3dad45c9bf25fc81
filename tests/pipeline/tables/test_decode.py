"""Payloads as rows: what the formats mean, and what hostile ones come to: a dead letter, in bounded memory."""

from __future__ import annotations

import io
import json
import re
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from canopy_pipeline.tables import decode as decoding
from canopy_pipeline.tables.births import Births
from canopy_pipeline.tables.decode import PART_BYTES, TOPIC, Batches, parts
from canopy_pipeline.tables.mapping import load
from canopy_pipeline.tables.patterns import pattern
from canopy_pipeline.tables.payloads import avro, json_text
from canopy_pipeline.tables.payloads.avro import AvroDecoder
from canopy_pipeline.tables.payloads.bad_payload import REASONS, BadPayloadError
from canopy_pipeline.tables.payloads.column_values import value
from canopy_pipeline.tables.payloads.plain import NumberDecoder
from canopy_pipeline.tables.payloads.protobuf import ProtobufDecoder
from canopy_pipeline.tables.plans import DEAD_LETTERS, Column, Limits, Plan
from tests.pipeline.recorded import Story
from tests.pipeline.tables.fleet import decoded, mapping, power, pump, sparkplug, valve
from tests.support.runs import examples, for_each

TOPICS = {
    "power": "site/a/device/b/power",
    "notes": "site/a/notes",
    "temperature": "site/a/temperature",
    "valves": "site/a/valve/v",
    "pumps": "site/a/pump",
    "metrics": "spBv1.0/g/NDATA/n",
}


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Batches:
    return Batches(load(str(mapping(tmp_path_factory.mktemp("maps")))).plans, Births(Limits()))


def decode(batches: Batches, table: str, *payloads: bytes | None) -> dict[str, list[dict[str, Any]]]:
    told = Story()
    for payload in payloads:
        told.publish("c", TOPICS[table], payload or b"")
        if payload is None:
            told.events[-1]["payload"] = None
    return decoded(batches, told)


def metric(**fields: Any) -> bytes:
    return sparkplug({"name": "m", **fields})


HOSTILE: dict[str, tuple[str, bytes | None, str]] = {
    "no payload in the record": ("power", None, "not-recorded"),
    "larger than is read": ("notes", b"x" * ((1 << 20) + 1), "too-large"),
    "no UTF-8": ("notes", b"\xff", "malformed"),
    "no JSON": ("power", b"{", "malformed"),
    "deep JSON": ("power", b"[" * 500_000, "too-deep"),
    "deep JSON behind texts": ("power", b'{"[":"\\"[",' + b'"a":{' * 40 + b"}" * 41, "too-deep"),
    "deep JSON in a text that does not end": ("power", b"[" * 40 + b'"' + b'\\"' * 500_000, "too-deep"),
    "no object": ("power", b"[1]", "wrong-type"),
    "a key twice": ("power", b'{"at": 1, "at": 2}', "duplicate-key"),
    "half of a surrogate pair twice": ("power", b'{"\\ud800": 1, "\\ud800": 2}', "duplicate-key"),
    "NaN": ("power", b'{"power": {"watts": NaN}}', "not-finite"),
    "-Infinity": ("power", b'{"power": {"watts": -Infinity}}', "not-finite"),
    "a number beyond float64": ("power", b'{"x": 1e999}', "out-of-range"),
    "a number of many digits": ("power", b'{"x": ' + b"9" * 100_000 + b"}", "out-of-range"),
    "a whole number beyond float64": ("power", power(int("9" * 400)), "out-of-range"),
    "many keys": ("power", json.dumps({str(n): n for n in range(1_001)}).encode(), "too-many-fields"),
    "nothing that is required": ("power", b"{}", "missing"),
    "null that is required": ("power", b'{"at": null}', "missing"),
    "text for a number": ("power", b'{"at": 0, "power": {"watts": "1"}}', "wrong-type"),
    "true for a number": ("power", b'{"at": 0, "power": {"watts": true}}', "wrong-type"),
    "beyond int32": ("power", power(1.0, phase=1 << 31), "out-of-range"),
    "no time": ("power", power(1.0, "yesterday"), "malformed"),
    "a time beyond the calendar": ("power", b'{"at": 1e300, "power": {"watts": 1}}', "out-of-range"),
    "an early time": ("power", power(1.0, "0001-01-01T00:00:00+14:00"), "out-of-range"),
    "no number": ("temperature", b"warm", "wrong-type"),
    "nan as a number": ("temperature", b"nan", "wrong-type"),
    "a number beyond": ("temperature", b"1e9999", "not-finite"),
    "an empty number": ("temperature", b"", "wrong-type"),
    "Avro that breaks off": ("valves", valve(open=True, cycles=1)[:-1], "malformed"),
    "Avro with bytes left over": ("valves", valve(open=True, cycles=1) + b"x", "malformed"),
    "Avro with a negative length": ("valves", b"\x01\x00\x02\x02\x01\x00", "malformed"),
    "Avro with a huge array": ("valves", b"\x01\x00\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "malformed"),
    "Avro with NaN": ("valves", b"\x01\x02" + struct.pack("<d", float("nan")) + b"\x02\x00", "not-finite"),
    "Protobuf that breaks off": ("pumps", b"\x0a\xff", "malformed"),
    "Protobuf with deep groups": ("pumps", b"\x7b" * 100_000, "malformed"),
    "Protobuf with a length beyond": ("pumps", b"\x0a\xff\xff\xff\xff\x07", "malformed"),
    "a uint64 beyond int64": ("pumps", pump(total=1 << 63), "out-of-range"),
    "an infinite float": ("pumps", pump(flow=float("inf")), "not-finite"),
    "no Sparkplug": ("metrics", b"\x0a", "malformed"),
    "an alias without birth": ("metrics", sparkplug({"alias": 9, "int_value": 1}), "no-birth"),
    "a metric without a name": ("metrics", sparkplug({"int_value": 1}), "malformed"),
    "an alias beyond int64": ("metrics", metric(alias=1 << 63), "out-of-range"),
    "a name that is no UTF-8": ("metrics", b"\x12\x03\x0a\x01\xff", "malformed"),
    "a value that is no UTF-8": ("metrics", b"\x12\x06\x0a\x01n\x7a\x01\xff", "malformed"),
    "a million metrics": ("metrics", b"\x12\x00" * 500_000, "too-many-fields"),
    "many metrics with long tags": ("metrics", b"\x92\x00\x02\x10\x00" * 10_001, "too-many-fields"),
    "NaN in Sparkplug": ("metrics", metric(double_value=float("nan")), "not-finite"),
}


@for_each("what", HOSTILE)
def test_a_hostile_payload_is_a_dead_letter_and_costs_little(batches: Batches, what: str) -> None:
    table, payload, reason = HOSTILE[what]
    good = {"power": power(1.0), "notes": b"n", "temperature": b"-1.5e3", "valves": valve(open=False, cycles=1),
            "pumps": pump(rpm=1), "metrics": metric(boolean_value=True)}[table]  # fmt: skip
    decode(batches, table, good)
    tracemalloc.start()
    try:
        found = decode(batches, table, payload, good)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    [dead] = found[DEAD_LETTERS]
    assert (dead["seq"], dead["table"], dead["reason"]) == (1, table, reason), dead["detail"]
    assert dead["payload"] == payload
    assert len(dead["detail"]) <= 200
    # In the words of payloads, and not of Python.
    assert not re.search(r"\wError|Exception|\b(str|int|float|dict|list|bool|NoneType)\b", dead["detail"])
    # The one behind it is not harmed.
    assert [row["seq"] for row in found[table]] == [2]
    assert peak < 8 * len(payload or b"") + (1 << 20)


def _read(payload: bytes) -> Any:
    try:
        return json_text.JsonReader(Limits()).read(payload)
    except BadPayloadError as error:
        return error.reason


@settings(max_examples=examples(200))
@example([[-(10**1000)]], (",", ":"), "[NaN]")
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
        | st.sampled_from([":", '":', " :x", "\ud800", 10**1000, "1e999"]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    ),
    st.sampled_from([(",", ":"), (", ", ": "), (",", " : "), (" ,", "\n:")]),
    st.sampled_from(["", '{"a":1,"a":2}', '[{"a":{"b":1,"b" :2}}]', "[1e999]", "[NaN]", "[1] x", " [1] ", "[" * 40]),
)  # fmt: skip
def test_usual_json_is_read_as_any_other(value_: Any, separators: tuple[str, str], beside: str) -> None:
    text = json.dumps(value_, separators=separators, ensure_ascii=len(beside) % 2 == 0)
    text = text.encode(errors="surrogatepass").decode(errors="replace")
    for payload in (text.encode(), beside.encode(), f"[{text},{beside}]".encode()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_text, "_is_usual", lambda _: False)
            strict = _read(payload)
        assert _read(payload) == strict


def test_a_number_of_seconds_beyond_float64_is_no_time() -> None:
    with pytest.raises(BadPayloadError) as told:
        value(1e305, Column("at", "timestamp", ("at",), unit="s"))
    assert told.value.reason == "not-finite"


@for_each(
    ("text", "micros"),
    [
        ("2026-11-21T16:00:00", 1_795_276_800_000_000),
        ("2026-11-21T16:00:00Z", 1_795_276_800_000_000),
        ("2026-11-21T18:00:00.5+02:00", 1_795_276_800_500_000),
        ("2026-11-21T10:30:00-05:30", 1_795_276_800_000_000),
        ("2026-11-21", 1_795_219_200_000_000),
    ],
)
def test_a_time_in_text_is_utc_unless_it_names_a_zone(text: str, micros: int) -> None:
    assert value(text, Column("at", "timestamp", ("at",))) == micros


def test_what_a_decoder_did_not_foresee_stops_no_other_payload(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NumberDecoder, "rows", lambda _self, _payload, _topic, seq: [(1 / (seq - 1),)])
    found = decode(batches, "temperature", b"1", b"2")
    assert [row["value"] for row in found["temperature"]] == [1.0]
    assert [(dead["reason"], dead["detail"]) for dead in found[DEAD_LETTERS]] == [
        ("malformed", "cannot be read: division by zero")
    ]


def test_of_large_payloads_a_part_is_rows_at_a_time() -> None:
    sizes = [PART_BYTES // 2, PART_BYTES // 2, 1, PART_BYTES * 3, None, PART_BYTES - 1, 1, 1]
    payloads = pa.array([None if size is None else b"x" * size for size in sizes], pa.binary())
    found = [part.column("payload").to_pylist() for part in parts(pa.record_batch({"payload": payloads}))]
    assert [[each and len(each) for each in part] for part in found] == [
        sizes[:2], sizes[2:3], sizes[3:4], sizes[4:7], sizes[7:],
    ]  # fmt: skip


@settings(max_examples=examples(500), deadline=None)
@given(st.sampled_from(sorted(TOPICS)), st.binary(max_size=200))
def test_any_bytes_are_a_row_or_a_dead_letter(batches: Batches, table: str, payload: bytes) -> None:
    found = decode(batches, table, payload)
    assert bool(found.get(table)) != bool(found.get(DEAD_LETTERS))
    assert all(each["reason"] in REASONS for each in found.get(DEAD_LETTERS, []))


GOOD = (
    power(1.0, phase=2),
    valve(open=True, cycles=3, tags=["a"]),
    pump(serial="p", alarms=["x"]),
    metric(int_value=4),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(GOOD), st.sampled_from(sorted(TOPICS)), st.data())
def test_so_are_payloads_with_bits_that_flipped(batches: Batches, good: bytes, table: str, data: st.DataObject) -> None:
    payload = bytearray(good)
    for at in data.draw(st.lists(st.integers(0, 8 * len(good) - 1), max_size=4)):
        payload[at // 8] ^= 1 << at % 8
    found = decode(batches, table, bytes(payload))
    assert bool(found.get(table)) != bool(found.get(DEAD_LETTERS))


KINDS = [(1, 2), (2, 0), (3, 0), (4, 0), (5, 0), (7, 0), (10, 0), (11, 0), (12, 5), (13, 1), (14, 0), (15, 2), (16, 2)]
FIELDS = st.tuples(st.sampled_from([*KINDS, (17, 2), (18, 2)]), st.binary(max_size=9))
"""Number and wire type of a metric's field, and what its value is made of."""


def field_of(number: int, wire: int, content: bytes) -> bytes:
    """A field as Protobuf has it, whatever its bytes mean."""
    tag = bytes([number << 3 | wire]) if number < 16 else bytes([(number << 3 | wire) & 0x7F | 0x80, number >> 4])
    if wire == 2:
        return tag + bytes([len(content)]) + content
    if wire == 0:
        return tag + bytes(byte | 0x80 for byte in content) + b"\x01"
    return tag + content.ljust(8, b"\xff")[: 8 if wire == 1 else 4]


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(st.lists(FIELDS, max_size=6), max_size=3))
def test_metrics_of_any_fields_are_rows_or_a_dead_letter(
    batches: Batches, metrics: list[list[tuple[tuple[int, int], bytes]]]
) -> None:
    whole = [b"".join(field_of(*kind, content) for kind, content in metric) for metric in metrics]
    payload = b"".join(b"\x12" + bytes([len(each)]) + each for each in whole)
    found = decode(batches, "metrics", payload)
    assert bool(found.get("metrics")) != bool(found.get(DEAD_LETTERS))


def test_the_named_levels_of_a_topic_are_those_that_the_filter_has() -> None:
    for text, found in (("{n}/+/{m}/#", ("a", "c")), ("+/{n}/c/d/#", ("b",)), ("a/b/{n}", None), ("#", ())):
        assert pattern(text).values("a/b/c/d") == found


def test_births_name_aliases_from_their_number_on_and_stay_within_their_bound() -> None:
    births = Births(Limits(births=6))
    birth = sparkplug({"name": "speed", "alias": 1, "datatype": 3}, {"name": "heat", "alias": 2})
    births.take("spBv1.0/g/NBIRTH/n", birth, 10)
    births.take("spBv1.0/g/DBIRTH/n/d", sparkplug({"name": "own", "alias": 1}), 11)
    assert births.name("g", "n", None, 1, 9) is None
    assert births.name("g", "n", None, 1, 10) == ("speed", 3)
    assert births.name("g", "n", "d", 1, 12) == ("own", None)
    assert births.name("g", "n", "d", 2, 12) == ("heat", None)
    # The node is born again: its devices are not yet.
    births.take("spBv1.0/g/NBIRTH/n", birth, 20)
    assert births.name("g", "n", "d", 1, 21) == ("speed", 3)
    assert births.name("g", "n", "d", 1, 19) == ("own", None)
    births.take("spBv1.0/g/NBIRTH/other", birth, 30)
    assert (births.names, births.refused) == (6, 1)
    assert births.name("g", "other", None, 1, 31) is None
    births.take("spBv1.0/g/NBIRTH/n", b"\x12\x05\x0a\x01\xff\x10\x01", 31)
    assert births.name("g", "n", None, 1, 32) == ("speed", 3)
    births.settle()
    assert births.names == 5
    assert Births.of(json.loads(json.dumps(births.state())), Limits()).name("g", "n", None, 1, 40) == ("speed", 3)


def test_a_birth_that_does_not_fit_ends_what_was_said_before() -> None:
    births = Births(Limits(births=3))
    births.take("spBv1.0/g/NBIRTH/n", sparkplug({"name": "speed", "alias": 1}), 10)
    for seq in (20, 21):
        births.take("spBv1.0/g/NBIRTH/n", sparkplug({"name": "heat", "alias": 1}, {"name": "x", "alias": 2}), seq)
    assert births.name("g", "n", None, 1, 19) == ("speed", None)
    assert births.name("g", "n", None, 1, 22) is None
    births.settle()
    kept = Births.of(json.loads(json.dumps(births.state())), Limits())
    assert kept.name("g", "n", None, 1, 30) is None


def test_long_names_count_as_several() -> None:
    births = Births(Limits(births=17))
    births.take("spBv1.0/g/NBIRTH/n", sparkplug({"name": "x" * 1_024, "alias": 1}), 1)
    assert (births.names, births.refused) == (0, 1)
    births.take("spBv1.0/g/NBIRTH/n", sparkplug({"name": "x" * 1_023, "alias": 1}), 2)
    assert (births.names, births.refused) == (17, 1)
    births.settle()
    assert births.names == 17


def test_a_message_of_protobuf_is_made_json_once(monkeypatch: pytest.MonkeyPatch, batches: Batches) -> None:
    from google.protobuf import json_format

    made: list[str] = []
    plain = json_format.MessageToDict

    def counted(message: Any, **flags: Any) -> Any:
        made.append(message.DESCRIPTOR.full_name)
        return plain(message, **flags)

    monkeypatch.setattr(json_format, "MessageToDict", counted)
    [plan] = [plan for plan in batches.plans if plan.name == "pumps"]
    twice = replace(plan, columns=tuple(Column(name, "json", ("alarms",)) for name in ("alarms", "again")))
    [row] = ProtobufDecoder(twice).rows(pump(serial="p", alarms=["x"]), "", 1)
    assert row == ('["x"]', '["x"]')
    assert made == ["plant.Pump"]


def test_topics_that_are_remembered_are_bounded(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "TOPICS", 3)
    made = Batches(batches.plans, Births(Limits()))
    long = f"site/{'s' * TOPIC}/notes"
    told = Story()
    for topic in (*(f"site/{number}/notes" for number in range(10)), long):
        told.publish("c", topic, b"x")
    assert len(decoded(made, told)["notes"]) == 11
    assert 0 < len(made._matches) <= 3
    assert long not in made._matches


DECIMAL: Any = {"type": "record", "name": "R", "fields": [
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}]}  # fmt: skip


def test_a_decimal_of_many_bytes_is_not_reckoned_with() -> None:
    schema = json.dumps(DECIMAL).encode()
    decoder = AvroDecoder(Plan("t", pattern("t"), "avro", avro.columns(schema), schema=schema))
    assert decoder.rows(b"\x04\x04\xd2", "t", 1) == [(12.34,)]
    with pytest.raises(BadPayloadError, match="a decimal of 1,001 bytes"):
        decoder.rows(b"\xd2\x0f" + b"\x7f" * 1_001, "t", 1)


def confluent(number: int, schema: dict[str, Any], **fields: Any) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, schema, fields)
    return b"\0" + number.to_bytes(4, "big") + made.getvalue()


@for_each("named", ['schema = "v1.avsc"\n', ""])
def test_a_payload_is_decoded_by_the_schema_that_it_names(tmp_path: Path, named: str) -> None:
    """Fields of one schema are never taken for those of another."""

    def record(*fields: Any) -> dict[str, Any]:
        return {"type": "record", "name": "Level", "fields": [*fields]}

    tank, pct = {"name": "tank", "type": "string"}, {"name": "pct", "type": "int"}
    first = record(tank, pct, {"name": "unit", "type": "string", "default": "%"})
    longer = record({"name": "added", "type": "long"}, tank, pct)
    other = record(tank, {"name": "pressure", "type": "int"})
    for name, schema in (("v1", first), ("v2", longer), ("v3", other)):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(schema))
    (tmp_path / "map.toml").write_text(
        f'[tables.valves]\nfilter = "site/a/valve/+"\nformat = "avro"\nframing = "confluent"\n{named}'
        'schemas = { 1 = "v1.avsc", 2 = "v2.avsc", 3 = "v3.avsc" }\n'
    )
    made = Batches(load(str(tmp_path / "map.toml")).plans, Births(Limits()))
    found = decode(
        made,
        "valves",
        confluent(1, first, tank="a", pct=40, unit="l"),
        confluent(2, longer, added=7, tank="b", pct=50),
        confluent(3, other, tank="c", pressure=99),
        confluent(4, first, tank="d", pct=60, unit="l"),
    )
    assert [(row["tank"], row["pct"], row["unit"]) for row in found["valves"]] == [("a", 40, "l"), ("b", 50, "%")]
    assert [(row["seq"], row["reason"]) for row in found[DEAD_LETTERS]] == [(3, "malformed"), (4, "no-schema")]
