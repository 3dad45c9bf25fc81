"""`--records`: rows of all messages, in files that are whole where they stand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest

from loadtest.load.checks import broker_statistics, records
from loadtest.load.checks.record_tables import prepare
from loadtest.load.checks.records import ALTERED, DUP, NO_STAGE, RECEIVED, RETAIN, SENT, WHOLE, Recorder, RecordsError
from loadtest.load.engine import conductor
from loadtest.load.engine.conductor import RunError
from loadtest.load.engine.job import Nobody, Place
from loadtest.load.report.result import Result
from tests.loadtest.load.playing import group, job, reader, scenario, sender, stage
from tests.loadtest.load.scripted import ScriptedServer

RUN = "0badcafe"


def recorder(folder: Path) -> Recorder:
    where = Place(str(folder), 1_000_000_000)
    return Recorder(where, RUN, 3, lambda number: ("g", f"p{number}", f"t/{number}"), lambda number: f"s{number}")


def test_rows_say_what_happened(tmp_path: Path) -> None:
    made = recorder(tmp_path)
    made.settled(made.noted(7, 0, 90, 95, 64, RETAIN), -1)
    made.enter(0, 100)
    waiting = made.noted(7, 1, 100, 101, 65, 1)
    made.received(7, 0, 2, 90, 110, 64, WHOLE, 0, 0)
    made.enter(1, 200)
    made.settled(waiting, 1)
    made.settled(made.noted(8, 0, 0, 201, 16, 2), 0)
    made.received(7, 1, 2, 150, 220, 65, 1 | DUP | ALTERED, 4, 5)
    made.received(7, 2, 2, 210, 221, 65, 2 | RETAIN, 4, 5)
    made.enter(NO_STAGE, 300)
    made.received(8, 0, 1, 0, 330, 16, 0, 0, 0)
    made.close()

    sent = pq.read_table(tmp_path / "sent-003-0000.parquet")
    assert sent.schema.equals(SENT)
    rows = sent.to_pylist()
    assert [(row["stream"], row["sequence"], row["publisher"], row["topic"], row["qos"]) for row in rows] == [
        (7, 0, "p7", "t/7", 0), (7, 1, "p7", "t/7", 1), (8, 0, "p8", "t/8", 2),
    ]  # fmt: skip
    assert [row["retain"] for row in rows] == [True, False, False]
    assert [row["stage"] for row in rows] == [NO_STAGE, 0, 1], "that in which it was sent"
    assert [row["intended_us"] for row in rows] == [90, 100, None]
    assert [row["acknowledged"] for row in rows] == [None, True, False]
    assert [row["acknowledged_us"] is None for row in rows] == [True, False, True]
    assert sent["ts"].cast("int64").to_pylist() == [1_000_000_095, 1_000_000_101, 1_000_000_201]

    received = pq.read_table(tmp_path / "received-003-0000.parquet")
    assert received.schema.equals(RECEIVED)
    rows = received.to_pylist()
    assert [row["number"] for row in rows] == [0, 1, 2, 3]
    assert [row["subscriber"] for row in rows] == ["s2", "s2", "s2", "s1"]
    assert [(row["stage"], row["during"]) for row in rows] == [(0, 0), (0, 1), (1, 1), (NO_STAGE, NO_STAGE)]
    flags = [(row["qos"], row["retain"], row["dup"], row["altered"], row["whole"]) for row in rows]
    assert flags == [
        (0, False, False, False, True), (1, False, True, True, False), (2, True, False, False, False),
        (0, False, False, False, False),
    ]  # fmt: skip
    assert [(row["epoch"], row["absence"], row["process"]) for row in rows[1:]] == [(4, 5, 3), (4, 5, 3), (0, 0, 3)]


def test_files_are_rotated_and_hidden_until_they_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BATCH", 100)
    monkeypatch.setattr(records, "FILE_ROWS", 300)
    made = recorder(tmp_path)
    for number in range(750):
        made.received(1, number, 1, 5, 6, 20, 0, 0, 0)
    made.close()
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == [f"received-003-000{number}.parquet" for number in range(3)]
    tables = [pq.read_table(each, columns=["number", "sequence"]).to_pylist() for each in files]
    assert [len(each) for each in tables] == [300, 300, 150]
    assert [row["number"] for each in tables for row in each] == list(range(750))


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BATCH", 10)
    monkeypatch.setattr(records, "WAITING", 1)
    made = recorder(tmp_path)
    failed = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(made._series["received"], "write", failed)
    for number in range(1000):
        made.received(1, number, 1, 5, 6, 20, 0, 0, 0)
        made.settled(made.noted(1, number, 5, 6, 20, 0), -1)
    with pytest.raises(RecordsError, match=r"the records cannot be written \(no space left on device\)"):
        made.close()
    assert list(tmp_path.glob("received-*")) == []
    assert list(tmp_path.glob(".*")) == []


def test_the_records_of_two_runs_are_not_mixed(tmp_path: Path) -> None:
    prepare(tmp_path / "new")
    (tmp_path / "new" / "sent-000-0000.parquet").touch()
    with pytest.raises(RecordsError, match=r"new: holds the records of an earlier run; give another --out"):
        prepare(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(RecordsError, match=r"file: the records cannot be written"):
        prepare(tmp_path / "file")


def played(out: Path | None) -> tuple[ScriptedServer, Result]:
    """Clients that come and go, wills, a closed loop."""
    cut = {"cycle": {"up": 0.1, "down": 0.05, "goodbye": "cut"}, "will": {"topic": "will/%c", "qos": 1}}
    groups = [
        sender("pub", "t/%c", 2, qos=1),
        sender("loop", "loop", in_flight=3, messages=5_000, payload={"template": "it is %m"}),
        sender("gone", "gone/%c", 2, keys=cut, rate=200),
        reader("sub", "t/# gone/# will/#", 2, qos=1),
        reader("echo", "loop"),
        group("idle"),
    ]

    async def run() -> tuple[ScriptedServer, Result]:
        async with ScriptedServer() as server:
            what = job(server, scenario(*groups, stages=[stage(0.4), stage(0.3, "quiet", load=0, measured=False)]))
            with mock.patch.object(broker_statistics, "FIRST", 0.05):
                what = replace(what, records=None if out is None else str(out))
                return server, await conductor.play(what, Nobody())

    return asyncio.run(run())


def test_every_message_of_a_run_is_a_row(tmp_path: Path) -> None:
    _, result = played(tmp_path / "records")
    sent = pq.read_table(tmp_path / "records" / "sent-000-0000.parquet").to_pylist()
    received = pq.read_table(tmp_path / "records" / "received-000-0000.parquet").to_pylist()
    for each in result.groups:
        assert sum(row["group"] == each.name for row in sent) == each.sent, each.name
    keys = [(row["stream"], row["sequence"]) for row in sent]
    assert len(set(keys)) == len(keys)
    assert {row["intended_us"] is None for row in sent if row["topic"].startswith("will/")} == {True}
    # The marks carry what was written down at the other end: time, stream, number; and so do the sizes.
    by_key = {(row["stream"], row["sequence"]): row for row in sent}
    assert received
    for row in received:
        other = by_key[row["stream"], row["sequence"]]
        for name in ("publisher", "topic", "intended_us", "size"):
            assert row[name] == other[name], name
        assert row["recv_us"] >= other["sent_us"]
    counted = sum(pair.deliveries.received for pair in result.pairs)
    assert len(received) == counted + sum(
        pair.deliveries.redelivered + pair.deliveries.duplicates + pair.deliveries.retained for pair in result.pairs
    )


def test_no_records_where_none_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, result = played(None)
    assert result.received
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_room_for_its_records(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file: the records cannot be written"):
        played(tmp_path / "file")
