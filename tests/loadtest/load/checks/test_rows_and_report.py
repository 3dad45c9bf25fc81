"""`--records` against the report: SQL over the rows, which shares no code with the load tester, counts the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import duckdb
import pytest

from loadtest.load.checks import broker_statistics
from loadtest.load.engine import conductor
from loadtest.load.engine.job import Nobody
from loadtest.load.report.result import Result
from tests.loadtest.load import playing
from tests.loadtest.load.playing import reader, sender
from tests.loadtest.load.script import DROP, Fate, Script
from tests.loadtest.load.scripted import ScriptedServer

FAULTS = {
    3: DROP, 4: DROP, 7: Fate(copies=2), 10: Fate(hold=8), 13: Fate(payload=lambda payload: payload[:-1] + b"?"),
    21: Fate(copies=3), 29: DROP,
}  # fmt: skip

COUNTS = """
WITH received AS (SELECT * FROM '{records}/received-*.parquet' WHERE NOT retain),
     due AS (SELECT e.stream, e.subscriber, s.sequence FROM '{records}/expected.parquet' e
             JOIN '{records}/sent-*.parquet' s USING (stream)),
     came AS (SELECT DISTINCT stream, subscriber, sequence FROM received)
SELECT (SELECT count(*) FROM due),
       (SELECT count(*) FROM due SEMI JOIN came USING (stream, subscriber, sequence)),
       (SELECT count(*) FROM due ANTI JOIN came USING (stream, subscriber, sequence)),
       (SELECT count(*) FROM received) - (SELECT count(*) FROM came)
"""


@pytest.mark.long
def test_what_a_misbehaving_server_did_is_in_the_rows_as_in_the_report(tmp_path: Path) -> None:
    groups = [
        each
        for qos in (0, 1, 2)
        for each in (
            sender(f"p{qos}", f"q{qos}/%c/%n", 2, topics=2, qos=qos),
            reader(f"s{qos}", f"q{qos}/#", 2, qos=qos),
        )
    ]

    async def run() -> Result:
        script = Script()
        script.fate = lambda delivery: FAULTS.get(delivery.message.number, Fate())
        async with ScriptedServer(script) as server:
            what = playing.job(server, playing.scenario(*groups), processes=2, records=str(tmp_path / "records"))
            with mock.patch.object(broker_statistics, "FIRST", 0.05):
                return await conductor.play(what, Nobody())

    total = asyncio.run(run()).deliveries
    assert min(total.lost, total.duplicates, total.reordered, total.altered) > 0
    with duckdb.connect() as session:
        [counted] = session.execute(COUNTS.format(records=tmp_path / "records")).fetchall()
    copies = total.duplicates + total.redelivered + total.overlapping
    assert counted == (total.expected, total.received, total.lost, copies)
