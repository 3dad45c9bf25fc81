"""Payloads from files: where the mark stands, what is filled in, what is refused, and that a run accounts for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from canopy_load.engine.clients import client_pool
from canopy_load.engine.clients.client_pool import ClientPool
from canopy_load.engine.job import Job, Target
from canopy_load.report.result import Result
from canopy_load.scenario import contents as room
from canopy_load.scenario import library
from canopy_load.scenario.contents import Contents, contents
from canopy_load.scenario.library import ScenarioError
from canopy_load.scenario.scenario_schema import Payload, Publish
from tests.loadtest.playing import Cases, agrees, named, reader, scenario, sender
from tests.loadtest.script import DELIVER, DROP, Delivery, Fate
from tests.loadtest.scripted import ScriptedServer
from tests.support.runs import for_each


def of(tmp_path: Path, data: bytes, **keys: Any) -> Contents:
    """The contents of a file; `lines` and `fill` as in a scenario."""
    file = tmp_path / "payload"
    file.write_bytes(data)
    by_line = keys.pop("lines", False)
    room._read.cache_clear()
    found = contents(Payload.model_validate({"lines" if by_line else "file": str(file), **keys}))
    assert found is not None
    return found


@for_each(
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


@for_each(("data", "why"), [(b"", "0 lines"), (b"\n\n", "0 lines"), (b"{mark}{mark}", "stands twice in text 1")])
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


@for_each(
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


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[ScriptedServer, Result]:
    """All kinds in one run. There are two processes, so that senders are not who checks."""
    lines, text, whole = (tmp_path_factory.mktemp("payloads") / name for name in ("a.jsonl", "a.txt", "a.json"))
    lines.write_text('{"line": 0, "n": "{n}", "at": "{time}"}\n' + '{"line": 1, "n": "{n}"}\n')
    text.write_text("line one\nline two\n")
    whole.write_text('{\n "deep": {"t": [1, 2]}\n}\n')
    swapped = Fate(payload=lambda payload: payload.replace(b"one", b"two"))

    def fate(delivery: Delivery) -> Fate:
        if delivery.message.topic != "faults/0/0" or delivery.subscriber != "s-faults-0":
            return DELIVER
        return {4: DROP, 8: swapped}.get(delivery.message.number, DELIVER)

    cases = Cases()
    for name, qos, payload in (
        ("filled", 0, {"lines": str(lines), "fill": True}),
        ("plain", 1, {"lines": str(lines)}),
        ("faults", 1, {"lines": str(text)}),
        ("whole", 0, {"file": str(whole)}),
    ):
        sends = sender(f"p-{name}", f"{name}/%c/%n", 2, topics=2, qos=qos, payload=payload)
        fates = fate if name == "faults" else None
        cases.add(name, sends, reader(f"s-{name}", f"{name}/#", 2, qos=qos), fates=fates)
    return cases.play(processes=2)


@pytest.mark.parametrize("name", ["filled", "plain"])
def test_every_line_is_sent_in_turn_and_comes_unaltered(name: str, played: tuple[ScriptedServer, Result]) -> None:
    server, result = played
    found = named(result, f"s-{name}").deliveries
    assert (found.received, found.altered, found.lost) == (2 * 60, 0, 0)
    payloads = [json.loads(message.payload) for message in server.messages if message.topic == f"{name}/0/1"]
    assert [each["line"] for each in payloads] == [0, 1] * 7 + [0]
    assert [each["n"] for each in payloads] == ([str(n) for n in range(15)] if name == "filled" else ["{n}"] * 15)
    assert result.errors == {}


def test_another_line_than_the_messages_own_is_altered_and_a_lost_one_lost(
    played: tuple[ScriptedServer, Result],
) -> None:
    server, result = played
    agrees(server, result, ["p-faults", "s-faults"])
    found = named(result, "s-faults").deliveries
    assert (found.lost, found.altered) == (1, 1)


def test_a_whole_file_is_every_payload(played: tuple[ScriptedServer, Result]) -> None:
    server, result = played
    agrees(server, result, ["p-whole", "s-whole"])
    assert named(result, "s-whole").deliveries.altered == 0
    payloads = [json.loads(each.payload) for each in server.messages if each.topic.startswith("whole/")]
    assert len(payloads) == 60
    assert all(each["deep"] == {"t": [1, 2]} for each in payloads)


def test_laid_out_frames_of_large_files_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds what it is laid out from."""
    file = tmp_path / "large"
    file.write_bytes(b"x" * 10_000)
    monkeypatch.setattr(client_pool, "MAX_CONTENTS", 1_000_000)
    groups = sender("file", "a/%c/%n", 4, topics=50, payload={"file": str(file)}), sender("plain", "b", 1)
    job = Job(scenario(*groups), "", [Target("127.0.0.1", 1)])
    pool = ClientPool(job.plan("00000001"), job, 0)
    assert [int(each.most_layouts) for each, _, _, _ in pool.senders] == [19] * 4 + [40_000]
