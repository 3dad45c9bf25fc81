"""The job `loadtest`: it finds in the rows what the load tester said, what a scripted server did, and what differs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from loadtest.brokers.process import BrokerProcess, free_port
from loadtest.brokers.registry import PEERS
from loadtest.load.checks import broker_statistics
from loadtest.load.checks.histogram import latency as distribution
from loadtest.load.cli.app import app as load
from loadtest.load.engine import conductor
from loadtest.load.engine.job import Nobody
from loadtest.load.ledger.counters import add
from loadtest.load.report import files
from loadtest.load.report.result import Deliveries, Result
from pipeline.cli import app
from pipeline.errors import MisuseError, PipelineError
from pipeline.loadtest import agreement, job, tables, transforms
from pipeline.loadtest import latency as latencies
from pipeline.loadtest.outcome import Outcome
from pipeline.loadtest.page import _course
from tests.loadtest.load import playing
from tests.loadtest.load.playing import reader, sender
from tests.loadtest.load.script import DROP, Fate, Script
from tests.loadtest.load.scripted import ScriptedServer
from tests.pipeline.loadtest.history import Histories

COUNTS = [each.name for each in fields(Deliveries) if each.name != "told_lost"]


def by_pair(rows: list[Any]) -> dict[tuple[str, str], dict[str, int]]:
    return {(row["publisher"], row["subscriber"]): {name: row[name] for name in COUNTS} for row in rows}


def told_by(result: Any) -> dict[tuple[str, str], dict[str, int]]:
    return {
        (pair.publisher, pair.subscriber): {name: asdict(pair.deliveries)[name] for name in COUNTS}
        for pair in result.pairs
    }


@pytest.mark.long
def test_whatever_happened_is_found_in_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    truth = Histories(tmp_path / "records", seed=6)
    found = tables.records(spark, str(tmp_path))
    rows = transforms.judged(found.received).persist()
    try:
        said = told_by(truth.settled)
        total = {name: sum(each[name] for each in said.values()) for name in COUNTS}
        assert all(total.values()), f"something never happened: {total}"
        assert by_pair(transforms.pairs(transforms.accounts(rows, found)).collect()) == said
        assert transforms.strays(rows, found).collect()[0]["strays"] == truth.settled.strays
        assert rows.where("arrived").count() == truth.received
    finally:
        rows.unpersist()


def test_percentiles_are_those_of_the_histogram(spark: SparkSession) -> None:
    samples = {
        "small": [0, 1, 2, 3, 2047, 2048, 2049],
        "powers": [2**power + offset for power in range(1, 33) for offset in (-1, 0, 1)],
        "long": [3_599_999_999, 3_600_000_001, 5_000_000_000, -7, 10],
        "many": [(number * 7919) % 1_000_003 for number in range(3000)],
        "one": [123_457],
    }
    frame = spark.createDataFrame(
        [(name, us) for name, each in samples.items() for us in each], "name string, raw long"
    )
    counted = latencies.buckets(frame.withColumn("us", latencies.bucket("raw")), "name")
    rows = {row["name"]: row.asDict() for row in latencies.distributions(counted, "name").collect()}
    for name, each in samples.items():
        counts: dict[int, int] = {}
        for us in each:
            add(counts, us, 1)
        said = asdict(distribution(counts))
        assert {key: rows[name][key] for key in said if key != "histogram"} == {
            key: pytest.approx(value, rel=1e-12) for key, value in said.items() if key != "histogram"
        }, name


FAULTS = {
    3: DROP, 4: DROP, 7: Fate(copies=2), 10: Fate(hold=8), 13: Fate(payload=lambda payload: payload[:-1] + b"?"),
    16: Fate(topic="elsewhere"), 21: Fate(copies=3), 29: DROP,
}  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[ScriptedServer, Result, Path]:
    """A run against a server that drops, doubles, reorders and alters, by two processes."""
    out = tmp_path_factory.mktemp("scripted")
    groups = [
        *(
            each
            for qos in (0, 1, 2)
            for each in (
                sender(f"p{qos}", f"q{qos}/%c/%n", 2, topics=2, qos=qos),
                reader(f"s{qos}", f"q{qos}/#", 2, qos=qos),
            )
        ),
        reader("shared", "$share/all/q1/#", 2, qos=1),
        reader("overlap", "q0/# q0/+/0", 1),
        playing.group("nobody"),
    ]

    async def run() -> tuple[ScriptedServer, Result]:
        script = Script()
        script.fate = lambda delivery: FAULTS.get(delivery.message.number, Fate())
        script.copies_by_filter = True
        async with ScriptedServer(script) as server:
            what = playing.job(server, playing.scenario(*groups), processes=2, records=str(out / "records"))
            with mock.patch.object(broker_statistics, "FIRST", 0.05):
                return server, await conductor.play(what, Nobody())

    server, result = asyncio.run(run())
    files.write(result, out)
    return server, result, out


@pytest.mark.long
def test_a_misbehaving_server(played: tuple[ScriptedServer, Result, Path], spark: SparkSession, tmp_path: Path) -> None:
    server, result, out = played
    assert min(getattr(result.deliveries, name) for name in ("lost", "duplicates", "reordered", "altered")) > 0
    outcome = job.run(spark, str(out), str(tmp_path / "job"))
    assert outcome.differing == []
    assert (outcome.agrees, outcome.pairs_differing, outcome.unsent) == (True, 0, 0)
    for group in outcome.groups:
        if group["name"][0] == "s" and group["name"] != "shared":
            done = server.books.account(None, playing.clients_of(result, group["name"]))
            assert {name: group["deliveries"][name] for name in asdict(done)} == asdict(done)
    assert outcome.deliveries == asdict(result.deliveries)
    summary = json.loads((tmp_path / "job" / "summary.json").read_text())
    assert (summary["agrees"], summary["runs"]) == (True, [result.run])
    page = (tmp_path / "job" / "index.html").read_text()
    assert "report says the same" in page
    assert "Worst pairs" in page
    # Another reader of the same rows: no window, no bucket.
    with duckdb.connect() as session:
        [counted] = session.execute(
            f"""
        WITH received AS (SELECT * FROM '{out}/records/received-*.parquet' WHERE NOT retain),
             due AS (SELECT e.stream, e.subscriber, s.sequence FROM '{out}/records/expected.parquet' e
                     JOIN '{out}/records/sent-*.parquet' s USING (stream)),
             came AS (SELECT DISTINCT stream, subscriber, sequence FROM received)
        SELECT (SELECT count(*) FROM due),
               (SELECT count(*) FROM due SEMI JOIN came USING (stream, subscriber, sequence)),
               (SELECT count(*) FROM due ANTI JOIN came USING (stream, subscriber, sequence)),
               (SELECT count(*) FROM received) - (SELECT count(*) FROM came)
        """
        ).fetchall()
        [(sent, came)] = session.execute(
            f"SELECT sum(sent), sum(received) FROM '{tmp_path}/job/seconds/*.parquet'"
        ).fetchall()
    total = outcome.deliveries
    copies = total["duplicates"] + total["redelivered"] + total["overlapping"]
    assert counted == (total["expected"], total["received"], total["lost"], copies)
    assert (sent, came) == (outcome.rows_sent, total["received"])


@pytest.fixture
def canopy() -> Iterator[BrokerProcess]:
    """A broker of our own, in a process of its own."""
    port = free_port()
    with TemporaryDirectory() as folder:
        command = PEERS["canopy"].command(port, Path(folder), settings=["sys.interval=0.1"])
        with BrokerProcess(command, port, None) as process:
            yield process


@pytest.fixture
def ours(spark: SparkSession) -> Iterator[None]:
    """The command takes the session that is there."""
    with mock.patch.object(SparkSession, "getActiveSession", return_value=spark):
        yield


@pytest.mark.long
@pytest.mark.usefixtures("ours")
def test_from_the_command_line_against_canopy(tmp_path: Path, canopy: BrokerProcess) -> None:
    out = tmp_path / "run"
    target = f"mqtt://127.0.0.1:{canopy.port}"
    scenario = tmp_path / "small.toml"
    scenario.write_text(
        """
        name = "small"
        quiet = 0.3
        stages = [{ name = "warm", seconds = 0.3, measured = false }, { name = "go", seconds = 0.7 }]
        [[groups]]
        name = "pubs"
        clients = 3
        publish = [{ topic = "%r/%c/%n", topics = 2, rate = 60, qos = 1 }]
        will = { topic = "%r/will/%c" }
        [[groups]]
        name = "subs"
        clients = 2
        subscribe = [{ filter = "%r/#", qos = 1 }]
        [[groups]]
        name = "loop"
        clients = 1
        publish = [{ topic = "%r-loop/%c", in_flight = 4, messages = 500 }]
        subscribe = [{ filter = "%r-loop/%c" }]
        """
    )
    ran = CliRunner().invoke(
        load, ["run", str(scenario), "--target", target, "--out", str(out), "--records", "--no-limit", "--strict"]
    )
    assert ran.exit_code == 0, ran.output
    again = CliRunner().invoke(load, ["run", str(scenario), "--out", str(out), "--records", "--no-limit"])
    assert again.exit_code == 1
    assert "holds the report of an earlier run" in again.output

    # Its own report would be written over.
    for place in (out, out / "records"):
        found = CliRunner().invoke(app, ["loadtest", "--input", str(out), "--output", str(place)])
        assert found.exit_code == 2, found.output
        assert "the load tester's own report lies there" in found.output

    command = ["loadtest", "--input", str(out), "--output", str(tmp_path / "job")]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert ", 0 lost, 0 duplicates, 0 reordered, 0 altered;" in found.output
    assert "the load tester's report says the same" in found.output


def test_a_report_that_says_something_else(
    played: tuple[ScriptedServer, Result, Path], spark: SparkSession, tmp_path: Path
) -> None:
    summary = json.loads((played[2] / "summary.json").read_text())
    here = {**summary, "strays": 0}
    assert [each for each in agreement.figures(here, summary) if not each.agrees] == []
    other = json.loads(json.dumps(summary))
    other["deliveries"]["lost"] += 1
    other["latency"]["p99"] += 1
    other["groups"] = [group for group in other["groups"] if group["name"] != "s0"]
    names = [each.name for each in agreement.figures(here, other) if not each.agrees]
    assert names[:2] == ["deliveries.lost", "latency.p99"]
    assert all(name.startswith("groups.s0.") for name in names[2:])

    rows = pq.read_table(played[2] / "pairs.parquet").to_pylist()
    changed = [{**rows[0], "reordered": rows[0]["reordered"] + 1}, *rows[2:]]
    for name, each in (("here", rows), ("there", changed)):
        pq.write_table(pa.Table.from_pylist(each, pq.read_schema(played[2] / "pairs.parquet")), tmp_path / name)
    ours, theirs = (spark.read.parquet(str(tmp_path / name)) for name in ("here", "there"))
    odd = {(row["publisher"], row["subscriber"]) for row in agreement.differing(ours, theirs).collect()}
    assert odd == {(row["publisher"], row["subscriber"]) for row in rows[:2]}


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(
    ("more", "code", "line"),
    [
        ({}, 0, "no report of the load tester beside the records"),
        ({"compared": 9}, 0, "says the same (9 figures"),
        ({"compared": 9, "differing": [{"name": "sent", "here": 1, "there": None}]}, 1, "sent 1 here, none there"),
        ({"compared": 9, "pairs_differing": 2}, 1, "DISAGREES: 2 pairs differ"),
        ({"unsent": 1}, 1, "1 deliveries of messages that nobody sent"),
    ],
)
def test_exit_codes(more: dict[str, Any], code: int, line: str) -> None:
    outcome = Outcome(["0badcafe"], deliveries=dict.fromkeys(tables.COUNTS, 0), **more)
    with mock.patch.object(job, "run", return_value=outcome):
        found = CliRunner().invoke(app, ["loadtest", "--input", ".", "--output", "out"])
    assert found.exit_code == code
    assert line in found.output


def test_what_is_wrong_is_one_line(
    spark: SparkSession, played: tuple[ScriptedServer, Result, Path], tmp_path: Path
) -> None:
    with pytest.raises(MisuseError, match=r"no such folder"):
        tables.records(spark, str(tmp_path / "none"))
    with pytest.raises(PipelineError, match=r"no records in it: .*--records"):
        tables.records(spark, str(tmp_path))
    out = tmp_path / "records"
    out.mkdir()
    for file in (played[2] / "records").iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    cut = out / "received-000-0000.parquet"
    cut.write_bytes(cut.read_bytes()[:-9])
    with pytest.raises(PipelineError, match=r"received-000-0000\.parquet: not a whole Parquet file"):
        tables.records(spark, str(out))
    said: list[str] = []
    tables.records(spark, str(out), skip_corrupt=True, say=said.append)
    [line] = said
    assert "received-000-0000" in line
    (out / "streams.parquet").unlink()
    with pytest.raises(PipelineError, match=r"streams\.parquet is missing"):
        tables.records(spark, str(out), skip_corrupt=True)
    pq.write_table(pq.read_table(out / "stages.parquet").drop(["measured"]), out / "stages.parquet")
    with pytest.raises(PipelineError, match=r"stages\.parquet: .*no column measured"):
        tables.records(spark, str(out), skip_corrupt=True)


def test_nothing_is_drawn_of_missing_deliveries_where_there_are_none() -> None:
    seconds = [{"second": at, "missing": 0, "p50": 1, "p99": 2, "max": 3} for at in range(3)]
    assert [plot.key for plot in _course(seconds)] == ["course"]
    assert [plot.key for plot in _course([*seconds, seconds[0] | {"missing": 1}])] == ["missing", "course"]
