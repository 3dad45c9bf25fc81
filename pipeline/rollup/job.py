"""One rollup: of what is there, or of what comes, with a checkpoint.

Promises: both ways come to the same tables. A stream that is killed anywhere counts nothing twice and nothing never
when it is started again. It reads the recorder's own segments (`seg-…`); of the merged ones only those that were there
when it began.

Refuses: to write into tables that a stream with another checkpoint keeps, and to go on with a checkpoint whose tables
are gone.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from pipeline.coverage import Coverage
from pipeline.errors import MisuseError, PipelineError
from pipeline.manifests import manifests
from pipeline.outputs import Folder, check, folder
from pipeline.progress import progress
from pipeline.rollup.latency import AUTO, NONE, columns
from pipeline.rollup.page import Totals, page
from pipeline.rollup.tables import HOURS, MINUTES, Tables
from pipeline.rollup.transforms import PUBLISHES, cells
from pipeline.schema import EVENTS, PUBLISH
from pipeline.segments import Choice, Say, covering, events, reading, unsaid
from pipeline.storage import Storage, local_path, parquet, storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE: Final = "index.html"
SUMMARY: Final = "summary.json"
IDENTITY: Final = "canopy-rollup.json"
"""In the checkpoint: which stream it is."""
FIRST: Final = 2
"""The version of a stream's tables after its first batch; 1 is what it began with."""
PAGE_EVERY: Final = 60.0
"""Seconds between two pages of a stream."""


@dataclass(frozen=True)
class Outcome:
    """What the tables of a rollup come to."""

    output: str
    messages: int
    bytes: int
    topics: int
    rows: int
    """Rows of the table of minutes."""
    latencies: int
    """Messages that carried a time of sending."""
    coverage: Coverage

    def summary(self) -> dict[str, Any]:
        """For `summary.json`."""
        about = {name: getattr(self, name) for name in ("messages", "bytes", "topics", "rows", "latencies")}
        return {**about, "coverage": self.coverage.summary()}

    def line(self) -> str:
        """For people."""
        return (
            f"{self.messages:,} messages ({self.bytes:,} bytes) in {self.topics:,} topics, {self.rows:,} rows of "
            f"topic and minute, {self.latencies:,} with a latency: {self.output}/{PAGE}"
        )


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    output: str,
    latency: str = AUTO,
    choice: Choice | None = None,
    skip_corrupt: bool = False,
    say: Say = unsaid,
) -> Outcome:
    """The tables and the page of all publishes that are there.

    Raises:
        MisuseError: an option is wrong, or a stream keeps these tables.
        PipelineError: there is nothing to read, or it cannot be read.
    """
    wanted = columns(latency)
    check(inputs, output)
    tables = Tables(spark, output)
    note = tables.note()
    if note is not None and note.get("stream"):
        raise MisuseError(f"--output {output}: a stream keeps these tables (--checkpoint); give another")
    only = replace(choice or Choice(), kinds=(PUBLISH,))
    coverage = covering(only)
    publishes = events(spark, inputs, only, (*PUBLISHES, *wanted), skip_corrupt, say, coverage)
    with progress(spark, "rollup"), reading():
        tables.tidy()
        try:
            tables.replace(cells(publishes, latency))
            tables.describe({"stream": None, "latency": latency})
        finally:
            tables.tidy()
        outcome = finish(tables, coverage)
    _explain(outcome, latency, say)
    return outcome


def finish(tables: Tables, coverage: Coverage) -> Outcome:
    """The page of the tables that are published, and what they come to; also as `summary.json`."""
    outcome = _finished(tables, coverage)
    tables.folder.write(SUMMARY, json.dumps(outcome.summary(), indent=2) + "\n")
    return outcome


def _finished(tables: Tables, coverage: Coverage) -> Outcome:
    if not tables.folder.names(HOURS):
        tables.folder.remove(PAGE)
        return Outcome(tables.output, 0, 0, 0, 0, 0, coverage)
    hours, minutes = tables.rows(HOURS), tables.rows(MINUTES)
    sums = hours.agg(
        f.sum("messages").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.count_distinct("topic").alias("topics"),
        f.sum("latency_count").alias("latencies"),
        f.min(f.unix_micros("first_ts")).alias("first_us"),
        f.max(f.unix_micros("last_ts")).alias("last_us"),
    ).collect()[0]
    if sums["messages"] is None:
        # Hours were there once, and are gone.
        tables.folder.remove(PAGE)
        return Outcome(tables.output, 0, 0, 0, 0, 0, coverage)
    totals = Totals(**sums.asDict())
    drawn = page(minutes, hours, totals, coverage)
    tables.folder.write(PAGE, drawn.html())
    return Outcome(
        tables.output, totals.messages, totals.bytes, totals.topics, minutes.count(), totals.latencies, coverage
    )


def _explain(outcome: Outcome, latency: str, say: Say) -> None:
    if outcome.messages == 0:
        say("no messages: the tables are empty")
    elif outcome.latencies == 0 and latency not in (AUTO, NONE):
        say(f"--latency {latency}: no message carries a time of sending there, or none that can be true")


def stream(
    spark: SparkSession,
    source: str,
    output: str,
    checkpoint: str,
    every: float | None,
    latency: str = AUTO,
    skip_corrupt: bool = False,
    say: Say = unsaid,
) -> Outcome:
    """The same tables, kept up as segments appear; `every` so many seconds, or, with None, of what is there now.

    Raises:
        MisuseError: an option is wrong, or checkpoint and output do not belong together.
        PipelineError: a segment cannot be read.
    """
    wanted = columns(latency)
    recorded = storage(spark, source)
    if not recorded.exists():
        raise MisuseError(f"--input {source}: no such folder")
    check([source], output)
    check([], checkpoint, "--checkpoint")
    tables = Tables(spark, output)
    identity = _belongs(spark, tables, checkpoint, latency, recorded)
    _unblock(folder(spark, checkpoint))
    tables.tidy()
    schema = type(EVENTS)([EVENTS[name] for name in (*PUBLISHES, *wanted)])
    growing = (
        spark.readStream.schema(schema)
        .option("recursiveFileLookup", "true")
        # Merged segments hold what was read already.
        .option("pathGlobFilter", "seg-*.parquet")
        # By default a file is forgotten, and one that comes late left out, seven days behind the newest.
        .option("maxFileAge", "3650d")
        .options(ignoreCorruptFiles=str(skip_corrupt).lower(), ignoreMissingFiles=str(skip_corrupt).lower())
    )
    segments = parquet(growing, folder(spark, source).path("")).where(
        (f.col("kind") == PUBLISH) & ~f.col("_metadata.file_name").isin(identity["replaced"])
    )
    _begin(tables, source, identity, latency)
    failed: list[PipelineError] = []
    drawn = time.monotonic()

    def fold(batch: DataFrame, number: int) -> None:
        nonlocal drawn
        try:
            with reading():
                if tables.fold(cells(batch, latency), number + FIRST):
                    say(f"batch {number}: done")
        except PipelineError as error:
            failed.append(error)
            raise
        if every is not None and time.monotonic() - drawn > PAGE_EVERY:
            finish(tables, _covered(recorded, source))
            drawn = time.monotonic()

    place = folder(spark, checkpoint).path("")
    writer = segments.writeStream.option("checkpointLocation", place).queryName("canopy-rollup")
    writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=_interval(every))
    query = writer.foreachBatch(fold).start()
    try:
        with reading():
            query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    except Exception:
        if failed:
            raise failed[0] from None
        raise
    finally:
        tables.tidy()
    with progress(spark, "rollup"), reading():
        outcome = finish(tables, _covered(recorded, source))
    _explain(outcome, latency, say)
    return outcome


def _covered(recorded: Storage, source: str) -> Coverage:
    """What the record that a stream reads lacks by now."""
    made, said = Coverage(), manifests(recorded)
    sizes = {file.place: file.size for file in recorded.files(".parquet")}
    if sizes or said.said:
        made.take(source, said, recorded, sizes, {}, local=local_path(source))
    return made


def _interval(every: float) -> str:
    return f"{max(1, round(every * 1000))} milliseconds"


def _unblock(checkpoint: Folder) -> None:
    """Clear what a kill leaves while Spark writes its very first plan: it would refuse the checkpoint for ever.

    Nothing is planned as long as there is no file `offsets/0`, so that nothing is lost.
    """
    for log in ("offsets", "commits"):
        names = checkpoint.names(log)
        if not any(name.isdigit() for name in names):
            for name in names:
                checkpoint.remove(f"{log}/{name}")


def _begin(tables: Tables, source: str, identity: dict[str, Any], latency: str) -> None:
    """What was merged before the stream began, which it does not see; once, before its first batch."""
    note = tables.note() or {}
    if note.get("begun"):
        return
    if identity["merged"]:
        schema = type(EVENTS)([EVENTS[name] for name in (*PUBLISHES, *columns(latency))])
        root = folder(tables.spark, source)
        merged = parquet(tables.spark.read.schema(schema), *map(root.path, identity["merged"]))
        with progress(tables.spark, "rollup"), reading():
            tables.fold(cells(merged.where(f.col("kind") == PUBLISH), latency), 1)
    tables.describe({**note, "begun": True})


def _belongs(spark: SparkSession, tables: Tables, checkpoint: str, latency: str, recorded: Storage) -> dict[str, Any]:
    """Hold checkpoint and output against each other; name both, where both are new. What the checkpoint says.

    A new stream begins with what is merged by then (`merged`), and leaves out the segments which that stands for
    (`replaced`). What is merged later it reads as segments.
    """
    place = folder(spark, checkpoint)
    said = place.text(IDENTITY)
    note = tables.note()
    if said is None:
        if place.names("offsets"):
            raise MisuseError(f"--checkpoint {checkpoint}: another query's; give a folder of its own")
        if note is not None or tables.folder.names(MINUTES):
            raise MisuseError(f"--output {tables.output}: there are tables already, of another run; give another")
        begun = manifests(recorded)
        identity: dict[str, Any] = {
            "stream": uuid.uuid4().hex,
            "latency": latency,
            "merged": sorted(begun.vouched or ()),
            "replaced": sorted(name.rpartition("/")[2] for name in begun.gone),
        }
        place.write(IDENTITY, json.dumps(identity) + "\n")
    else:
        try:
            identity = dict(json.loads(said))
        except ValueError as error:
            raise PipelineError(f"{checkpoint}/{IDENTITY}: no JSON; begin again with another --checkpoint") from error
    if identity.get("latency") != latency:
        raise MisuseError(f"--latency {latency}: this checkpoint was begun with {identity.get('latency')}")
    if note is None:
        if place.names("commits"):
            raise MisuseError(
                f"--output {tables.output}: the tables that belong to --checkpoint {checkpoint} are not there; "
                "remove the checkpoint to begin again"
            )
        tables.describe({"stream": identity["stream"], "latency": latency})
    elif note.get("stream") != identity.get("stream"):
        raise MisuseError(f"--output {tables.output}: these tables do not belong to --checkpoint {checkpoint}")
    return identity
