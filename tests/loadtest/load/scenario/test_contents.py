"""Payloads from files: where the mark stands, what is filled in, what is refused, and that a run accounts for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from loadtest.load.engine import conductor
from loadtest.load.engine.clients import client_pool
from loadtest.load.engine.clients.client_pool import ClientPool
from loadtest.load.engine.job import Job, Target
from loadtest.load.report.result import Result
from loadtest.load.scenario import contents as room
from loadtest.load.scenario import library
from loadtest.load.scenario.contents import Contents, contents
from loadtest.load.scenario.library import ScenarioError
from loadtest.load.scenario.schema import Payload, Publish
from tests.loadtest.load.playing import agrees, balanced, reader, scenario, sender
from tests.loadtest.load.script import DELIVER, DROP, Delivery, Fate, Script
from tests.loadtest.load.scripted import ScriptedServer


def of(tmp_path: Path, data: bytes, **keys: Any) -> Contents:
    """The contents of a file; `lines` and `fill` as in a scenario."""
    file = tmp_path / "payload"
    file.write_bytes(data)
    by_line = keys.pop("lines", False)
    room._read.cache_clear()
    found = contents(Payload.model_validate({"lines" if by_line else "file": str(file), **keys}))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (b"plain", b"plain MARK"),
        (b"a {mark} b", b"a MARK b"),
        (b'{"t": 21}', b'{"t": 21, "mark": "MARK"}'),
        (b" {} \n", b' {"mark": "MARK"} \n'),
        (b'{"mark": "{mark}"}', b'{"mark": "MARK"}'),
        (b"\xff\x00\n", b"\xff\x00\n MARK"),
    ],
)
def test_where_the_mark_stands_in_a_file(text: bytes, whole: bytes, tmp_path: Path) -> None:
    found = of(tmp_path, text)
    before, after = found.around(5, 7)
    assert before + b"MARK" + after == whole
    assert found.fixed == (before, after)


def test_lines_come_in_turn_and_stay_json(tmp_path: Path) -> None:
    found = of(tmp_path, b'{"t": 1}\n\n{"t": 2}\r\n{"t": 3}', lines=True)
    read = [json.loads(b"MARK".join(found.around(sequence, 0))) for sequence in range(4)]
    assert [each["t"] for each in read] == [1, 2, 3, 1]
    assert found.fixed is None


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    """But a payload that is a file is as it is."""
    data = b"\xef\xbb\xbfone\r\ntwo\r\n"
    assert of(tmp_path, data, lines=True).around(0, 0)[0].startswith(b"one")
    assert of(tmp_path, data).around(0, 0)[0].startswith(data)


def test_number_and_time_are_filled_in_where_that_is_asked_for(tmp_path: Path) -> None:
    text = b'{"n": {n}, "at": {time}, "again": "{n}"}'
    assert json.loads(b"m".join(of(tmp_path, text, fill=True).around(3, 1_700_000))) == {
        "n": 3, "at": 1_700_000, "again": "3", "mark": "m",
    }  # fmt: skip
    assert b"{n}" in of(tmp_path, text).around(3, 0)[0]


@pytest.mark.parametrize(
    ("data", "why"), [(b"", "0 lines"), (b"\n\n", "0 lines"), (b"{mark}{mark}", "stands twice in text 1")]
)
def test_what_a_file_of_payloads_may_not_be(data: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        of(tmp_path, data, lines=True)


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_LINES", 2)
    with pytest.raises(ValueError, match="3 lines, from 1 to 2 are taken"):
        of(tmp_path, b"a\nb\nc", lines=True)
    monkeypatch.setattr(room, "MAX_BYTES", 4)
    with pytest.raises(ValueError, match="5 bytes, at most 4"):
        of(tmp_path, b"a\nb\nc")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"payload": {"file": "a", "size": 16}}, "size and file exclude each other"),
        ({"payload": {"size": 16, "fill": True}}, "fill: is for file and lines"),
        ({"payload": {"lines": "a"}, "properties": {"topic_alias": True}}, "not together with payloads from a file"),
    ],
)
def test_what_excludes_files(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Publish.model_validate({"topic": "t", "rate": 1, **keys})


def test_a_file_stands_beside_its_scenario_and_a_missing_one_is_named_with_its_key(tmp_path: Path) -> None:
    text = """name = "a"
stages = [{ name = "go", seconds = 1 }]
groups = [{ name = "g", clients = 1, publish = [{ topic = "t", rate = 1, payload = { lines = "a.jsonl" } }] }]
"""
    (tmp_path / "one.toml").write_text(text)
    with pytest.raises(ScenarioError, match=r"groups.g.publish.0.payload: .*a.jsonl: cannot be read"):
        library.load(str(tmp_path / "one.toml"))
    (tmp_path / "a.jsonl").write_text("{}\n")
    found, played = library.load(str(tmp_path / "one.toml"))
    assert found.groups[0].publish[0].payload.lines == str(tmp_path / "a.jsonl")
    assert str(tmp_path / "a.jsonl") in played


async def run(script: Script, qos: int = 1, **payload: Any) -> tuple[ScriptedServer, Result]:
    """Two publishers with two topics each on two processes, so that senders are not who checks."""
    publish: dict[str, Any] = {"topic": "t/%c/%n", "topics": 2, "qos": qos, "payload": payload}
    async with ScriptedServer(script) as server:
        what = scenario(sender(clients=2, **publish), reader(clients=2, qos=qos))
        job = Job(what, "", [Target("127.0.0.1", server.port)], processes=2)
        result = await conductor.play(job)
    balanced(result)
    return server, result


@pytest.mark.parametrize(("qos", "fill"), [(0, True), (1, False)])
async def test_every_line_is_sent_in_turn_and_comes_unaltered(qos: int, fill: bool, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"line": 0, "n": "{n}", "at": "{time}"}\n' + '{"line": 1, "n": "{n}"}\n')
    server, result = await run(Script(), qos=qos, lines=str(file), fill=fill)

    assert (result.deliveries.received, result.deliveries.altered, result.deliveries.lost) == (2 * 60, 0, 0)
    payloads = [json.loads(message.payload) for message in server.messages if message.topic == "t/0/1"]
    assert [each["line"] for each in payloads] == [0, 1] * 7 + [0]
    assert [each["n"] for each in payloads] == ([str(n) for n in range(15)] if fill else ["{n}"] * 15)
    assert result.errors == {}


async def test_another_line_than_the_messages_own_is_altered_and_a_lost_one_lost(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("line one\nline two\n")
    swapped = Fate(payload=lambda payload: payload.replace(b"one", b"two"))

    def fate(delivery: Delivery) -> Fate:
        if delivery.message.topic != "t/0/0" or delivery.subscriber != "sub-0":
            return DELIVER
        return {4: DROP, 8: swapped}.get(delivery.message.number, DELIVER)

    server, result = await run(Script(fate), lines=str(file))
    agrees(server, result)
    assert (result.deliveries.lost, result.deliveries.altered) == (1, 1)


@pytest.mark.long
async def test_a_whole_file_is_every_payload(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{\n "deep": {"t": [1, 2]}\n}\n')
    server, result = await run(Script(), qos=0, file=str(file))
    agrees(server, result)
    assert result.deliveries.altered == 0
    assert all(json.loads(message.payload)["deep"] == {"t": [1, 2]} for message in server.messages)


def test_laid_out_frames_of_large_files_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds what it is laid out from."""
    file = tmp_path / "large"
    file.write_bytes(b"x" * 10_000)
    monkeypatch.setattr(client_pool, "MAX_CONTENTS", 1_000_000)
    groups = sender("file", "a/%c/%n", 4, topics=50, payload={"file": str(file)}), sender("plain", "b", 1)
    job = Job(scenario(*groups), "", [Target("127.0.0.1", 1)])
    pool = ClientPool(job.plan("00000001"), job, 0)
    assert [int(each.most_layouts) for each, _, _, _ in pool.senders] == [19] * 4 + [40_000]
