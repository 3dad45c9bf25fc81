"""The mapping file: a mistake is a line with the file, the key and what to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from canopy_pipeline.errors import MisuseError
from canopy_pipeline.tables.mapping import SCHEMAS, load
from canopy_pipeline.tables.payloads.sparkplug_message import payload_class
from tests.pipeline.tables.fleet import MAPPING, mapping
from tests.support.runs import for_each

TABLE = '[tables.t]\nfilter = "a/{b}"\n'
JSON = TABLE + 'format = "json"\n'

CONFLUENT = TABLE + 'format = "avro"\nframing = "confluent"\n'
REGISTRY = '[registry]\nurl = "http://127.0.0.1:8081"\n'
MISTAKES = {
    "": "tables: is missing; give it",
    TABLE: "tables.t: lacks format; one of text, number, json, avro, protobuf, sparkplug",
    TABLE + 'format = "xml"': "tables.t: format 'xml' is not known; one of text,",
    '[tables.t]\nformat = "text"': "tables.t.filter: is missing; give it",
    TABLE + 'format = "text"\nfliter = "x"': "tables.t.fliter: is not known; did you mean filter?",
    '[tables.t]\nfilter = "a/#/b"\nformat = "text"': "tables.t.filter: topic filter holds # before its end",
    '[tables.t]\nfilter = "{a}/{a}"\nformat = "text"': "tables.t.filter: the level a has its name twice",
    '[tables.t]\nfilter = "{A b}"\nformat = "text"': "tables.t.filter: the level {A b}: use lower-case letters",
    JSON: "tables.t.columns: missing; set them",
    JSON + 'columns.x = "flot64"': "tables.t.columns.x.type: 'flot64' is not known; one of 'boolean', 'int32'",
    JSON + 'columns.x = { type = "int64", nul = 1 }': "tables.t.columns.x.nul: is not known; one of type, path",
    JSON + 'columns.seq = "int64"': "tables.t.columns.seq: every table has a column of this name",
    JSON + 'columns.b = "int64"': "tables.t.columns.b: a level or another column has this name",
    JSON + 'columns.Big = "int64"': "tables.t.columns.Big: use lower-case letters",
    JSON + 'columns."x\\"; drop" = "int64"': "use lower-case letters",
    JSON + 'event_time = "x"\ncolumns.x = "int64"': "tables.t.event_time: x is not a column of type timestamp",
    JSON + 'late = "soon"\ncolumns.x = "int64"': "tables.t.late: late soon: must be a number and a unit",
    '[tables.dead_letters]\nfilter = "a"\nformat = "text"': "tables.dead_letters: use lower-case letters",
    '[tables._commits]\nfilter = "a"\nformat = "text"': "tables._commits: use lower-case letters, digits and _ after a",
    "[limits]\ndepth = 0\n" + TABLE + 'format = "text"': "limits.depth: Input should be greater than or equal to 1",
    "[limits]\ncolumns = 1\n" + JSON + 'columns.x = "int64"\ncolumns.y = "int64"': "limits.columns is 1",
    TABLE + 'format = "avro"\nschema = "none.avsc"': "tables.t.schema: ",
    TABLE + 'format = "avro"': "tables.t.schema: is missing",
    CONFLUENT + 'schema = "valve.avsc"': "tables.t.schemas: is missing: payloads name the schema",
    CONFLUENT + 'schemas = { x = "valve.avsc" }': "tables.t.schemas.x: must be the number of a schema in the registry",
    CONFLUENT + 'schemas = { 1 = "none.avsc" }': "tables.t.schemas.1: ",
    REGISTRY + CONFLUENT: "tables.t.schema: is missing: the registry has those of payloads; give that of the table",
    REGISTRY + JSON + 'columns.x = "int64"': 'registry: has no effect: no table has framing = "confluent"',
    '[registry]\nurl = "registry:8081"\n' + CONFLUENT: "registry.url: must be http://HOST:PORT or https://",
    REGISTRY + 'pasword_file = "x"\n' + CONFLUENT: "registry.pasword_file: is not known; did you mean password_file?",
    REGISTRY + 'password_file = "none"\n' + CONFLUENT: "registry.password_file: ",
    REGISTRY + 'password_file = "pump.desc"\n' + CONFLUENT: "registry.password_file: pump.desc is no text in UTF-8",
    TABLE + 'format = "avro"\nschema = "a\\u0000"': "tables.t.schema: ",
    REGISTRY + 'timeout = "soon"\n' + CONFLUENT: "registry.timeout soon: must be a number and a unit",
    TABLE + 'format = "avro"\nschema = "valve.avsc"\nschemas = { 1 = "valve.avsc" }': "tables.t.schemas: only",
    TABLE + 'format = "protobuf"\ndescriptor = "pump.desc"\nmessage = "plant.Pumpe"': "no message plant.Pumpe in the",
    TABLE + 'format = "protobuf"\ndescriptor = "pump.desc"\nmessage = "plant.Pump"\ncolumns.x = "int64"': "no field x",
    "tables = [": "not valid TOML",
    f"tables = {'9' * 5000}": "not valid TOML",
    f"tables = {'[' * 5000}": "not ",
}


@for_each("text", MISTAKES)
def test_a_mistake_is_a_line_with_file_key_and_remedy(tmp_path: Path, text: str) -> None:
    file = mapping(tmp_path, text)
    with pytest.raises(MisuseError) as told:
        load(str(file))
    assert str(told.value).startswith(f"{file}: ")
    assert MISTAKES[text] in str(told.value)


def test_what_avro_cannot_bound_is_refused(tmp_path: Path) -> None:
    file = mapping(tmp_path, TABLE + 'format = "avro"\nschema = "valve.avsc"')
    nulls = {"type": "array", "items": "null"}
    empty = {"type": "array", "items": {"type": "record", "name": "F", "fields": []}}
    known = {"name": "e", "type": {"type": "record", "name": "E", "fields": []}}
    named = {"type": "array", "items": "ns.E"}
    for kind, why in (
        *((each, "take no bytes") for each in (nulls, empty, named)),
        *((["null", each], "is part of itself") for each in ("V", "ns.V")),
    ):
        fields = [known, {"name": "n", "type": kind}]
        schema = {"type": "record", "name": "V", "namespace": "ns", "fields": fields}
        (tmp_path / "valve.avsc").write_text(json.dumps(schema))
        with pytest.raises(MisuseError, match=why):
            load(str(file))


def test_a_mapping_has_so_many_schemas_and_no_more(tmp_path: Path) -> None:
    many = ", ".join(f'{number} = "valve.avsc"' for number in range(SCHEMAS + 1))
    file = mapping(tmp_path, f"{CONFLUENT}schemas = {{ {many} }}")
    with pytest.raises(MisuseError, match=r"tables\.t\.schemas: .*at most 1000"):
        load(str(file))


@for_each(("package", "format_"), [("fastavro", "avro"), ("google.protobuf", "protobuf")])
def test_a_library_that_is_not_there_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, format_: str
) -> None:
    file = mapping(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MisuseError, match=rf"{format_}|needs {package}") as told:
        load(str(file))
    assert "'.[tables]'" in str(told.value)


def test_so_is_that_of_sparkplug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = mapping(tmp_path, '[tables.m]\nfilter = "spBv1.0/#"\nformat = "sparkplug"')
    payload_class.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MisuseError, match=r"tables\.m\.format: needs google\.protobuf, .*'\.\[tables\]'"):
        load(str(file))


def test_a_mapping_without_avro_and_protobuf_needs_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = mapping(tmp_path, MAPPING.partition("[tables.valves]")[0])
    for package in ("fastavro", "google.protobuf"):
        monkeypatch.setitem(sys.modules, package, None)
    assert [plan.name for plan in load(str(file)).plans] == ["power", "notes", "temperature"]


def test_a_byte_order_mark_means_nothing(tmp_path: Path) -> None:
    """Editors of Windows write it in front of UTF-8."""
    file = mapping(tmp_path, JSON + 'columns.x = "int64"')
    plain = load(str(file)).plans
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert load(str(file)).plans == plain
