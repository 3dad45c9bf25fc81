"""The rollup of a record that grows: in batches, with a checkpoint that says how far it has read.

Owns the checkpoint: which stream it is, up to which sequence number the record is in the tables, and what was missing
on the way. Each batch reads what lies above that number, whichever segments hold it by then.

Promises: no event is counted twice, and none is passed over silently. Where numbers are missing the stream stops before
them, and names the command that goes on. A batch that was killed anywhere is done again, for the same numbers.
"""

from __future__ import annotations

import json
import shlex
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from broker.words import counted
from pipeline.errors import GoneError, MisuseError, PipelineError, UnreadError
from pipeline.outputs import Folder, begin, check, folder
from pipeline.record.coverage import Coverage, Finding
from pipeline.record.schema import EVENTS, PUBLISH
from pipeline.record.segments import Say, reading, unsaid
from pipeline.record.unread import Look, Unread, named
from pipeline.rollup.job import Outcome, explain, finish
from pipeline.rollup.latency import AUTO, columns
from pipeline.rollup.memory import Memory, earlier
from pipeline.rollup.tables import FORMAT, MINUTES, Tables
from pipeline.rollup.transforms import PUBLISHES, cells
from pipeline.runtime.progress import progress
from pipeline.runtime.storage import Storage, parquet, storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IDENTITY: Final = "canopy-rollup.json"
"""In the checkpoint: which stream it is."""
PLAN: Final = "plan-"
DONE: Final = "done-"
"""In the checkpoint: what a batch is to read, and what is in the tables since it ended; their numbers follow."""
PAGE_EVERY: Final = 60.0
"""Seconds between two pages of a stream."""
LATE: Final = 172_800.0
"""Seconds for which an hour is kept open for late events, behind the newest one."""


@dataclass
class Progress:
    """What is in the tables."""

    version: int = 0
    """Batches that are done."""
    through: int = 0
    """The sequence number up to which everything was read, or is in `lost`."""
    since: str = ""
    """The first hour (date=…/hour=…) that takes more events."""
    late: int = 0
    """Messages that came for an hour before that, and were not counted."""
    stale: frozenset[str] = frozenset()
    """Hours of which the tables of hours and publishers lack something."""
    lost: Coverage = field(default_factory=Coverage)
    """What was not there when it was to be read."""


def stream(
    spark: SparkSession,
    source: str,
    output: str,
    checkpoint: str,
    every: float | None,
    latency: str = AUTO,
    skip_corrupt: bool = False,
    say: Say = unsaid,
    allow_gaps: bool = False,
    late: float = LATE,
) -> Outcome:
    """The tables of `job.run`, kept up as segments appear: `every` so many seconds, or, with None, of what is there.

    Raises:
        MisuseError: an option is wrong, or checkpoint and output do not belong together.
        UnreadError: numbers are missing that were not read yet, and not `allow_gaps`.
        PipelineError: a segment cannot be read.
    """
    columns(latency)
    recorded = storage(spark, source)
    if not recorded.exists():
        raise MisuseError(f"--input {source}: no such folder")
    check([source], output)
    check([], checkpoint, "--checkpoint")
    tables = Tables(spark, output)
    reader = _Reader(spark, source, recorded, tables, checkpoint, latency, skip_corrupt, allow_gaps, late)
    reader.belongs()
    reader.load()
    tables.tidy()
    begin(tables.folder)
    # What a batch left that was not done must not count.
    reader.memory.settle(reader.done.version, reader.memory.open())
    reader.close()
    drawn, shown = time.monotonic(), 0
    try:
        while True:
            begun = time.monotonic()
            repeated = reader.batch(say)
            # A batch alone publishes minutes: hours as a whole, and the page, only now and then.
            if every is not None and time.monotonic() - drawn > PAGE_EVERY and shown != reader.done.version:
                reader.publish()
                finish(tables, reader.memory.shown(), reader.coverage())
                drawn, shown = time.monotonic(), reader.done.version
            if repeated:
                continue
            if every is None:
                break
            time.sleep(max(0.0, begun + every - time.monotonic()))
    except KeyboardInterrupt:
        say("stopped")
    finally:
        tables.tidy()
    with progress(spark, "rollup"), reading():
        reader.publish()
        outcome = finish(tables, reader.memory.shown(), reader.coverage())
    if reader.done.late:
        say(
            f"{counted(reader.done.late, 'message')} came later than {late / 3600:g} h behind the newest: in no table "
            "(--late keeps hours open for longer)"
        )
    explain(outcome, latency, say)
    return outcome


class _Reader:
    """One stream, from its checkpoint to its tables."""

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        recorded: Storage,
        tables: Tables,
        checkpoint: str,
        latency: str,
        skip_corrupt: bool,
        allow_gaps: bool,
        late: float,
    ) -> None:
        self.spark = spark
        self.source = source
        self.unread = Unread(source, recorded, skip_corrupt)
        self.tables = tables
        self.memory = Memory(tables)
        self.checkpoint = checkpoint
        self.place: Folder = folder(spark, checkpoint)
        self.latency = latency
        self.skip_corrupt = skip_corrupt
        self.allow_gaps = allow_gaps
        self.late = timedelta(seconds=late)
        self.done = Progress()
        # What a batch that broke off was to read.
        self.planned: int | None = None

    # -- the checkpoint ------------------------------------------------------------------------------------------------

    def belongs(self) -> None:
        """Hold checkpoint and output against each other; name both, where both are new."""
        text = self.place.text(IDENTITY)
        note = self.tables.note()
        output = self.tables.output
        if self.place.names("offsets"):
            whose = "another query's" if text is None else "an older version's"
            raise MisuseError(f"--checkpoint {self.checkpoint}: {whose}; give a folder of its own, and a new --output")
        if text is None:
            if note is not None or self.tables.folder.names(MINUTES):
                raise MisuseError(f"--output {output}: there are tables already, of another run; give another")
            identity: dict[str, Any] = {"stream": uuid.uuid4().hex, "latency": self.latency}
            self.place.write(IDENTITY, json.dumps(identity) + "\n")
        else:
            try:
                identity = dict(json.loads(text))
            except ValueError as error:
                raise PipelineError(
                    f"{self.checkpoint}/{IDENTITY}: no JSON; begin again with another --checkpoint"
                ) from error
        if identity.get("latency") != self.latency:
            raise MisuseError(f"--latency {self.latency}: this checkpoint was begun with {identity.get('latency')}")
        if note is None:
            if self._newest(DONE):
                raise MisuseError(
                    f"--output {output}: the tables that belong to --checkpoint {self.checkpoint} are not there; "
                    "remove the checkpoint to begin again"
                )
            self.tables.describe({"stream": identity["stream"], "latency": self.latency})
        elif note.get("format") != FORMAT:
            raise MisuseError(
                f"--output {output}: an older version's tables; begin again with a new --checkpoint and --output"
            )
        elif note.get("stream") != identity.get("stream"):
            raise MisuseError(f"--output {output}: these tables do not belong to --checkpoint {self.checkpoint}")

    def load(self) -> None:
        """How far the tables are, and what a batch was to read that broke off."""
        for version, said in self._newest(DONE):
            lost = said["lost"]
            self.done = Progress(
                version,
                int(said["through"]),
                str(said["since"]),
                int(said["late"]),
                frozenset(said["stale"]),
                Coverage(
                    missing=int(lost["events"]),
                    findings=[Finding(**each) for each in lost["findings"]],
                    kinds=Counter(lost["kinds"]),
                ),
            )
            break
        for version, said in self._newest(PLAN):
            if version == self.done.version + 1:
                self.planned = int(said["to"])
            break

    def _newest(self, what: str) -> list[tuple[int, dict[str, Any]]]:
        """The files of a kind that are whole, the newest first: on some storages the last may be half written."""
        found = []
        for name in sorted(self.place.names(""), reverse=True):
            number = name.removeprefix(what).removesuffix(".json")
            if name == f"{what}{number}.json" and number.isdigit():
                try:
                    found.append((int(number), dict(json.loads(self.place.text(name) or ""))))
                except ValueError:
                    continue
        return found

    def _write(self, what: str, version: int, said: dict[str, Any]) -> None:
        self.place.write(f"{what}{version:012d}.json", json.dumps(said) + "\n")
        # The one before stays, where this one should not be whole.
        self.place.remove(f"{what}{version - 2:012d}.json")

    def _note(self) -> None:
        """Write down what is done."""
        done, lost = self.done, self.done.lost.summary()
        self._write(
            DONE,
            done.version,
            {
                "through": done.through,
                "since": done.since,
                "late": done.late,
                "stale": sorted(done.stale),
                "lost": {"events": done.lost.missing, "findings": lost["findings"], "kinds": lost["kinds"]},
            },
        )

    # -- batches -------------------------------------------------------------------------------------------------------

    def batch(self, say: Say) -> bool:
        """Read what is new; whether that was a batch which had broken off, and there may be more.

        Raises:
            UnreadError: numbers are missing.
        """
        repeated = self.planned is not None
        try:
            self._batch(say)
        except (GoneError, UnreadError):
            # Something may have been merged between two looks: what is gone is in another file then.
            self.memory.settle(self.done.version, self.memory.open())
            self._batch(say)
        return repeated

    def _batch(self, say: Say) -> None:
        done = self.done
        found = self.unread.look(done.through, self.planned, begun=done.version > 0)
        if found is None:
            return
        # What was missing before the stream began is named at its end, as by a job that is no stream.
        if found.surely and done.version and not self.allow_gaps:
            raise UnreadError(self._stopped(found.surely))
        version = done.version + 1
        if self.planned is None:
            self._write(PLAN, version, {"from": done.through + 1, "to": found.to})
            self.planned = found.to
        late, hours = 0, list[str]()
        if found.files:
            with reading():
                folded = self.memory.fold(cells(self._rows(found), self.latency), version, done.since)
            late, hours = folded.late, folded.hours
        lost = replace(done.lost, findings=[*done.lost.findings], kinds=Counter(done.lost.kinds))
        for each in found.findings:
            lost.add(each)
        since = max(done.since, earlier(max(hours), self.late) if hours else "")
        self.done = Progress(version, found.to, since, done.late + late, done.stale | set(hours), lost)
        self._note()
        self.planned = None
        self.memory.settle(version, hours)
        if since > done.since:
            self.close()
        say(f"batch {version}: done, up to number {found.to:,}")

    def publish(self) -> None:
        """Bring the tables of hours and publishers up to the last batch. Done twice, it comes to the same."""
        if self.done.stale:
            self.memory.publish(sorted(self.done.stale))
            self.done = replace(self.done, stale=frozenset())
            self._note()

    def close(self) -> None:
        """Hours that take no more are over: published, added up, and forgotten. Done twice, it comes to the same."""
        since = self.done.since
        if not since:
            return
        over = {hour for hour in self.done.stale if hour < since}
        self.memory.publish(sorted(over))
        self.done = replace(self.done, stale=self.done.stale - over)
        self.memory.close(since)

    def _rows(self, found: Look) -> DataFrame:
        schema = type(EVENTS)([EVENTS[name] for name in dict.fromkeys(("seq", *PUBLISHES, *columns(self.latency)))])
        reader = self.spark.read.schema(schema).option("ignoreCorruptFiles", str(self.skip_corrupt).lower())
        seq = f.col("seq")
        return parquet(reader, *(file.path for file in found.files)).where(
            (f.col("kind") == PUBLISH) & (seq > self.done.through) & (seq <= found.to)
        )

    def _stopped(self, findings: list[Finding]) -> str:
        shown = named(findings)
        places = {"--input": self.source, "--output": self.tables.output, "--checkpoint": self.checkpoint}
        options = " ".join(f"{name} {shlex.quote(value)}" for name, value in places.items())
        at = f"the stream stops before these events, at number {self.done.through:,}"
        shown += [
            f"{at}. Put the segments back and start it again, or go on without them (its end names them then):",
            f"canopy pipeline rollup {options} --latency {shlex.quote(self.latency)} --once --allow-gaps",
        ]
        return "\n".join(shown)

    def coverage(self) -> Coverage:
        """What the record lacks by now, and what was missing when it was to be read."""
        return self.unread.coverage(self.done.lost, self.done.through)
