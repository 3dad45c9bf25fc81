"""Payloads in Confluent's framing, and a registry: a small server that speaks its API, over HTTP."""

from __future__ import annotations

import io
import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest

from canopy_pipeline.errors import PipelineError
from canopy_pipeline.tables import registry
from canopy_pipeline.tables.births import Births
from canopy_pipeline.tables.decode import Batches
from canopy_pipeline.tables.mapping import load
from canopy_pipeline.tables.payloads.confluent import ASKED
from canopy_pipeline.tables.plans import DEAD_LETTERS, Limits
from canopy_pipeline.tables.tables_job import run
from tests.pipeline.recorded import Story
from tests.pipeline.tables.fleet import decoded, mapping, pump
from tests.support.runs import for_each

LEVEL = {"type": "record", "name": "Level", "fields": [{"name": "pct", "type": "int"}]}
WIDER = {"type": "record", "name": "Level", "fields": [{"name": "added", "type": "long"}, *LEVEL["fields"]]}
ENDLESS = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
SCHEMAS: dict[int, dict[str, Any]] = {
    1: {"schema": json.dumps(LEVEL)},
    2: {"schema": json.dumps(WIDER), "schemaType": "AVRO"},
    3: {"schema": "{}", "schemaType": "JSON"},
    4: {"schema": json.dumps(LEVEL), "references": [{"name": "x", "subject": "x", "version": 1}]},
    5: {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
    6: {"schema": json.dumps(ENDLESS)},
}
AVRO = '[tables.t]\nfilter = "a"\nformat = "avro"\nframing = "confluent"\nschema = "level.avsc"\n'
JSON = '[tables.t]\nfilter = "a"\nformat = "json"\nframing = "confluent"\ncolumns.pct = "int64"\n'
PROTOBUF = (
    '[tables.t]\nfilter = "a"\nformat = "protobuf"\nframing = "confluent"\ndescriptor = "pump.desc"\n'
    'message = "plant.Pump"\ncolumns.flow = "float64"\n'
)


class Server(ThreadingHTTPServer):
    """A registry of `SCHEMAS` below /ccompat; `status` is the answer in place of all others."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.authorization: str | None = None
        self.status = 200
        self.silent = threading.Event()
        self.silent.set()
        self.slow = False
        """Whether an answer goes on for ever, byte by byte."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/ccompat"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.authorization = self.headers.get("Authorization")
        self.server.silent.wait()
        number = int(self.path.removeprefix("/ccompat/schemas/ids/"))
        found = SCHEMAS.get(number)
        self.send_response(404 if found is None and self.server.status == 200 else self.server.status)
        self.end_headers()
        with suppress(OSError):
            while self.server.slow:
                self.wfile.write(b" ")
        if self.server.status == 200:
            self.wfile.write(json.dumps(found or {"error_code": 40403, "message": "Schema not found"}).encode())

    def log_message(self, *said: object) -> None:
        del said


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            made.silent.set()
            made.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PAUSES", (0.0, 0.0, None))


def file(folder: Path, url: str, table: str, more: str = "") -> Path:
    section = f'[registry]\nurl = "{url}"\n{more}\n' if url else ""
    made = mapping(folder, section + table)
    (folder / "level.avsc").write_text(json.dumps(LEVEL))
    return made


def framed(number: int, value: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + value


def avro(number: int, schema: dict[str, Any], **fields: Any) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, schema, fields)
    return framed(number, made.getvalue())


def decode(mapping: Path, *payloads: bytes) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """Return the rows, and the dead letters by sequence number and reason."""
    told = Story()
    for payload in payloads:
        told.publish("c", "a", payload)
    found = decoded(Batches(load(str(mapping)).plans, Births(Limits())), told)
    return found.get("t", []), [(each["seq"], each["reason"]) for each in found.get(DEAD_LETTERS, [])]


def test_avro_is_read_by_the_registrys_schemas_which_are_asked_for_once(tmp_path: Path, server: Server) -> None:
    rows, dead = decode(
        file(tmp_path, server.url, AVRO),
        avro(1, LEVEL, pct=40),
        avro(2, WIDER, added=7, pct=50),
        avro(2, WIDER, added=8, pct=60),
        avro(3, LEVEL, pct=1),
        avro(4, LEVEL, pct=2),
        avro(6, LEVEL, pct=3),
        avro(9, LEVEL, pct=4),
        avro(9, LEVEL, pct=5),
        b"\1",
    )
    assert [row["pct"] for row in rows] == [40, 50, 60]
    assert dead == [*((seq, "no-schema") for seq in range(4, 9)), (9, "malformed")]
    assert server.asked == [f"/ccompat/schemas/ids/{number}" for number in (1, 2, 3, 4, 6, 9)]


def test_a_schema_of_the_mapping_is_not_asked_for(tmp_path: Path, server: Server) -> None:
    given = AVRO + 'schemas = { 1 = "level.avsc" }\n'
    rows, dead = decode(file(tmp_path, server.url, given), avro(1, LEVEL, pct=40), avro(2, WIDER, added=7, pct=50))
    assert ([row["pct"] for row in rows], dead, len(server.asked)) == ([40, 50], [], 1)


def test_json_of_a_number_that_the_registry_does_not_have_is_a_dead_letter(tmp_path: Path, server: Server) -> None:
    payloads = [framed(number, b'{"pct": 5}') for number in (3, 7, 1)]
    rows, dead = decode(file(tmp_path, server.url, JSON), *payloads, b'{"pct": 5}')
    assert ([row["pct"] for row in rows], dead) == ([5], [(2, "no-schema"), (3, "no-schema"), (4, "malformed")])


def test_without_a_registry_json_of_any_number_is_read(tmp_path: Path) -> None:
    rows, dead = decode(file(tmp_path, "", JSON), framed(70_000, b'{"pct": 5}'))
    assert ([row["pct"] for row in rows], dead) == ([5], [])


def test_protobuf_names_the_place_of_its_message(tmp_path: Path, server: Server) -> None:
    first, second = b"\0", b"\2\2"
    values = (first + pump(flow=1.5), b"\2\0" + pump(flow=2.5), second + pump(flow=3.5), b"\4\0\0" + pump(), b"\xff")
    rows, dead = decode(file(tmp_path, server.url, PROTOBUF), *(framed(5, value) for value in values))
    assert [row["flow"] for row in rows] == [1.5, 2.5]
    assert dead == [(3, "malformed"), (4, "malformed"), (5, "malformed")]


def test_clients_that_make_numbers_up_do_not_flood_the_registry(tmp_path: Path, server: Server) -> None:
    made_up = [framed(number, b'{"pct": 5}') for number in range(1_000, 1_000 + 2 * ASKED)]
    _, dead = decode(file(tmp_path, server.url, JSON), *made_up)
    assert {reason for _, reason in dead} == {"no-schema"}
    assert (len(dead), len(server.asked)) == (2 * ASKED, ASKED)


def test_the_password_comes_from_its_file(tmp_path: Path, server: Server) -> None:
    (tmp_path / "secret").write_text("pass:word\n")
    made = file(tmp_path, server.url, JSON, 'user = "plant"\npassword_file = "secret"')
    assert decode(made, framed(3, b'{"pct": 5}'))[1] == []
    assert server.authorization == "Basic " + b64encode(b"plant:pass:word").decode()
    server.status = 401
    with pytest.raises(PipelineError, match=r"refuses to answer \(401\): see registry.user") as refused:
        decode(made, framed(3, b'{"pct": 5}'))
    assert "pass:word" not in str(refused.value)


@for_each("how", ["away", "silent", "slow", "broken", "another address", "no registry"])
def test_a_registry_that_does_not_answer_stops_the_job_in_a_line(tmp_path: Path, server: Server, how: str) -> None:
    """And nothing of the batch is written: the next run reads it."""
    url, said = server.url, "does not answer"
    if how == "away":
        url = "http://127.0.0.1:1"
    elif how == "silent":
        server.silent.clear()
    elif how == "slow":
        server.slow = True
    elif how == "broken":
        server.status = 503
    elif how == "another address":
        server.status = 404
    else:
        SCHEMAS[77] = {"error": "what?"}
        said = "is this a schema registry"
    told = Story()
    told.publish("c", "a", framed(77, b'{"pct": 5}'))
    told.write(tmp_path / "record", segments=1)
    made = str(file(tmp_path / "map", url, JSON, 'timeout = "200ms"'))
    where = str(tmp_path / "record"), str(tmp_path / "out"), made
    with pytest.raises(PipelineError, match=said) as refused:
        run(*where)
    assert "\n" not in str(refused.value)
    SCHEMAS[77] = {"schema": "{}", "schemaType": "JSON"}
    server.status = 200
    server.slow = False
    server.silent.set()
    file(tmp_path / "map", server.url, JSON)
    assert run(*where).rows == {"t": 1}
    del SCHEMAS[77]
