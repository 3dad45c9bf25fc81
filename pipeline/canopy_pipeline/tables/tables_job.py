"""The tables of a record: batch after batch, each exactly once, from wherever the one before ended.

Owns: the order of a batch: look, decode, commit; and what is said at the end. A run is one over what is there, or goes
on for ever; both are the same, and either goes on where the other stopped.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from canopy_mqtt.words import counted
from canopy_pipeline import job_metrics
from canopy_pipeline.errors import AwayError, GoneError, MisuseError, PipelineError, UnreadError
from canopy_pipeline.outputs import begin, check
from canopy_pipeline.record.coverage import LISTED, Coverage
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.record.segments import Say, unsaid
from canopy_pipeline.record.unread import Unread, UnreadPart, named
from canopy_pipeline.runtime.storage import File, storage
from canopy_pipeline.tables.backfill import Range, births_before, replaced
from canopy_pipeline.tables.births import Births, newest
from canopy_pipeline.tables.lag import Lag, recorder_number
from canopy_pipeline.tables.local import stage
from canopy_pipeline.tables.mapping import Mapping, load
from canopy_pipeline.tables.output import Output, Progress, Sink, alone
from canopy_pipeline.tables.several import check_apart, folders, namespace_of, place_of, unite
from canopy_pipeline.tables.sinks.sink_of import ICEBERG, PARQUET, POSTGRESQL, sink_of
from canopy_pipeline.tables.staged import Remade, Staged

T = TypeVar("T")

SLOW: Final = "more than --max-lag; recorder.segment_seconds may be too long, or this machine too slow"
LOOKS: Final = 10
"""Looks at the record in the time that the tables may be behind it."""
BATCH: Final = 1_000_000
"""Sequence numbers of a batch: what is done again after a kill, and how long a reader waits for the first rows."""


@dataclass(frozen=True)
class TablesOptions:
    format: str = PARQUET
    batch: int = BATCH
    max_lag: float | None = None
    """Seconds that the tables may be behind the recorder: follow it. None: read what is there, and end."""
    allow_gaps: bool = False
    catalog: str = "default"
    namespace: str = "canopy"
    """Of Iceberg's tables: a catalog by its name in pyiceberg's configuration. PostgreSQL: the schema."""
    database: str = ""
    """PostgreSQL: its URL, without a password."""
    replace: Range | None = None
    """The part of the tables that is made again; None: go on where the last run ended."""


@dataclass(frozen=True)
class TablesOutcome:
    """The counts of the tables, with all batches before."""

    output: str
    done: Progress
    tables: tuple[str, ...]
    coverage: Coverage

    @property
    def rows(self) -> dict[str, int]:
        return {name: self.done.rows[name] for name in self.tables}

    @property
    def late(self) -> dict[str, int]:
        """Dead letters that came too late, by table."""
        return {table: count for (table, reason), count in self.done.dead.items() if reason == "late"}

    def summary(self) -> dict[str, Any]:
        dead: dict[str, dict[str, int]] = {}
        for (table, reason), count in sorted(self.done.dead.items()):
            dead.setdefault(table, {})[reason] = count
        return {
            "publishes": self.done.read,
            "through": self.done.through,
            "rows": self.rows,
            "dead_letters": dead,
            "late": self.late,
        }

    def lines(self) -> list[str]:
        told = [f"{counted(self.done.read, 'publish', 'publishes')} up to number {self.done.through:,}: {self.output}"]
        if not self.done.version:
            told.append(
                "no finished segment in the record yet (the recorder finishes one every minute, and at its stop)"
            )
        for name, rows in self.rows.items():
            dead = {reason: n for (table, reason), n in sorted(self.done.dead.items()) if table == name}
            why = ", ".join(f"{n:,} {reason}" for reason, n in dead.items())
            told.append(
                f"{name}: {counted(rows, 'row')}"
                + (f"; {counted(sum(dead.values()), 'dead letter')} ({why})" if dead else "")
            )
        return told


def run(
    source: str,
    output: str,
    mapping: str,
    options: TablesOptions | None = None,
    say: Say = unsaid,
) -> TablesOutcome:
    """Bring the tables up to a record that has one folder. Raises: see `run_all`."""
    [outcome] = run_all([source], output, mapping, options, say).values()
    return outcome


def run_all(
    sources: Sequence[str],
    output: str,
    mapping: str,
    options: TablesOptions | None = None,
    say: Say = unsaid,
) -> dict[str, TablesOutcome]:
    """Bring the tables up to some records. Return the outcome of each folder of theirs, by its name; that of a single
    one is empty (`several.folders`).

    Raises:
        MisuseError: the mapping or an option is wrong, or one record holds events of another.
        UnreadError: numbers are missing that were not read yet, and not `allow_gaps`.
        PipelineError: a segment cannot be read.
    """
    chosen = options or TablesOptions()
    jobs: dict[str, _Job] = {}
    united: dict[str, int] = {}
    """The batches that the views over several folders are as of."""
    with ExitStack() as stack:

        def open_new() -> None:
            """Open the folders that are there and were not; a broker may be given more workers."""
            for name, source in folders(sources, output).items():
                if name not in jobs:
                    jobs[name] = stack.enter_context(_opened(source, place_of(output, name), mapping, chosen, name))

        if len(sources) > 1:
            check_apart(sources)
        open_new()
        if chosen.replace is not None:
            if len(jobs) > 1:
                raise MisuseError("--replace: numbers are those of one folder of a record: give that, and its --output")
            for job in jobs.values():
                job.replace(chosen.replace, say)
        else:
            try:
                while True:
                    begun = time.monotonic()
                    for job in jobs.values():
                        job.look(say)
                    if chosen.max_lag is None:
                        break
                    now = {name: job.out.done.version for name, job in jobs.items()}
                    if now != united:
                        unite(output, chosen.namespace, {name: job.sink for name, job in jobs.items()})
                    united = now
                    job_metrics.write(not any(job.away for job in jobs.values()))
                    time.sleep(max(0.0, begun + chosen.max_lag / LOOKS - time.monotonic()))
                    open_new()
            except KeyboardInterrupt:
                say("stopped")
                for job in jobs.values():
                    # What was committed and not moved yet is moved now.
                    job.out.load(job.sink)
        outcomes = {name: job.finish() for name, job in jobs.items()}
        unite(output, chosen.namespace, {name: job.sink for name, job in jobs.items()})
        return outcomes


@contextmanager
def _opened(source: str, output: str, mapping: str, options: TablesOptions, name: str) -> Iterator[_Job]:
    """Keep the tables of one folder for this process within the block."""
    place = storage(None, output)
    check([source], output)
    with alone(output, place.local):
        found = load(mapping)
        out = Output(output, place)
        about = {"table_format": options.format}
        if options.format in (ICEBERG, POSTGRESQL):
            about["namespace"] = namespace_of(options.namespace, name)
        if options.format == ICEBERG:
            about["catalog"] = options.catalog
        if options.format == POSTGRESQL:
            about["database"] = options.database
        try:
            identity = out.belongs(about, found.plans)
        except MisuseError as error:
            raise MisuseError(f"--mapping {mapping}: {error}" if str(error).startswith("tables.") else error) from error
        yield _Job(found, sink_of(out, about, identity), source, options, name)


class _Job:
    """The tables of one folder of a record."""

    def __init__(self, mapping: Mapping, sink: Sink, source: str, options: TablesOptions, name: str) -> None:
        """`name`: of the folder, if it is one of several."""
        self.mapping = mapping
        self.plans = mapping.plans
        self.sink = sink
        self.out = sink.out
        self.source = source
        self.options = options
        self.recorded = storage(None, source)
        self.unread = Unread(source, self.recorded)
        self._name = name
        self._labels = {"record": name} if name else {}
        self._lag = Lag()
        self.away = False
        """True while the database is away."""
        self._behind = self._resumed = False
        self._finished = -1
        """The batch as of the last `finish`."""
        self._through = 0
        """The number that has come to the tables."""

    def replace(self, wanted: Range, say: Say) -> None:
        """Make a part of the tables again."""
        self._resume()
        self._twice(partial(self._replace, wanted, say))

    def look(self, say: Say) -> None:
        """Read what is there, batch after batch. If the job follows the record, a database that is away gets it when
        it answers again, at a later look."""
        tell: Say = (lambda line: say(f"{self._name}: {line}")) if self._name else say
        max_lag = self.options.max_lag
        try:
            if not self._resumed:
                self._resume()
                begin(self.out.place)
                self._resumed = True
            self._twice(partial(self._returned, tell))
            while self._twice(partial(self._read, tell)):
                pass
            if self.away:
                tell("the database answers again")
            self.away, self._through = False, self.out.done.through
            if max_lag is not None and self._finished != self.out.done.version:
                self.finish()
        except AwayError as error:
            if max_lag is None:
                raise
            if not self.away:
                tell(f"{error}; waiting for it")
            self.away, self._resumed = True, False
        if max_lag is not None:
            self._measure(max_lag, tell)

    def _measure(self, max_lag: float, say: Say) -> None:
        lag = self._lag.look(recorder_number(self.recorded), self._through, time.monotonic())
        job_metrics.note("tables_lag_seconds", lag, **self._labels)
        if (lag > max_lag) is not self._behind:
            self._behind = not self._behind
            say(f"behind the recorder by {lag:.1f} s: {SLOW}" if self._behind else "no more behind than --max-lag")

    def _resume(self) -> None:
        """Complete what an earlier run, or an earlier attempt of this one, has begun. Raises PipelineError: somebody
        removed a table."""
        self.sink.begin()
        self.out.load(self.sink)
        for table in sorted(self.sink.gone()):
            had = counted(self.out.done.rows[table], "row")
            raise PipelineError(
                f"{self.out.output}: the table {table} is gone, which had {had}: put it back, or begin again "
                "with another --output"
            )
        if self.sink.stale():
            # Killed in the midst of it.
            self.finish()

    def _replace(self, wanted: Range, say: Say) -> None:
        """Make the rows of a range again, in place of those that the tables have."""
        done, limits = self.out.done, self.plans[0].limits
        first, last = wanted.numbers(self.recorded, done.through)
        look, known = self.unread.again(first, last)
        never = Numbers(done.unread)
        gone = Numbers([(first, last)]).without(known).without(never)
        if gone or not known:
            lines = named([each for each in look.findings if gone.overlaps(each.from_seq or 0, each.to_seq or last)])
            if not self.options.allow_gaps or not known:
                raise UnreadError(self._refused(lines, gone or never, bool(known)))
            for line in [*lines, f"{these(gone)} stay as they are: the record no longer has their events"]:
                say(line)
        begin(self.out.place)
        births = Births(limits)
        if any(plan.items for plan in self.plans):
            before, _ = self.unread.again(1, first - 1) if first > 1 else (look, known)
            births = births_before(self.recorded, before.files, first, done, limits)
        staging = self.out.staging()
        staged = stage(self.recorded, self.out.place, look.files, first - 1, last, self.plans, births, staging, never)
        births.settle()
        now = self._added(staged)
        now.births = newest(done.births, births.state())
        now.lost, now.unread = done.lost, Numbers(done.unread).without(known).stretches
        for stretch in known:
            now.lost = now.lost.without(*stretch)
        now, remade, removed = replaced(self.sink, staged, known, now, staging)
        self._commit(staged, now, first, last, say, remade)
        made = counted(staged.rows.total(), "row")
        say(f"batch {now.version}: numbers {first:,} to {last:,} again: {made} in place of {removed.total():,}")

    def _refused(self, lines: list[str], gone: Numbers, some: bool) -> str:
        why = f"{these(gone)} cannot be made again: the record does not have their events. Nothing was written"
        others = "; --allow-gaps makes the others again, and leaves these as they are"
        return "\n".join([*lines, f"{why}. Put the segments back{others if some else ''}"])

    def _returned(self, say: Say) -> None:
        """Read events that were missing when their numbers were read, and that are there now."""
        done = self.out.done
        if not done.unread:
            return
        for file, first, last in self.unread.returned(done.unread):
            done = self.out.done
            before = [entry for entry in done.births if entry[3] < first]
            births = Births.of(before, self.plans[0].limits)
            staged = self._staged([file], first - 1, last, births)
            births.settle()
            now = self._added(staged)
            now.births = newest(done.births, births.state())
            now.lost = done.lost.without(first, last)
            now.unread = Numbers(done.unread).without(Numbers([(first, last)])).stretches
            self._commit(staged, now, first, last, say)
            read = counted(staged.read, "publish", "publishes")
            say(f"batch {now.version}: {read}, numbers {first:,} to {last:,} that were missing")

    def _staged(self, files: list[File], after: int, to: int, births: Births) -> Staged:
        return stage(self.recorded, self.out.place, files, after, to, self.plans, births, self.out.staging())

    def _added(self, staged: Staged) -> Progress:
        """The progress with what a batch staged."""
        done = self.out.done
        rows, dead = Counter(done.rows), Counter(done.dead)
        rows.update(staged.rows)
        dead.update(staged.dead)
        return replace(done, version=done.version + 1, read=done.read + staged.read, rows=rows, dead=dead)

    def _commit(
        self, staged: Staged, now: Progress, first: int, last: int, say: Say, remade: Remade | None = None
    ) -> None:
        changed = self.out.commit(self.sink, staged, now, first, last, remade)
        if self.options.format != PARQUET:
            return
        for name in changed:
            folders = [*self.out.kept[name].versions]
            say(
                (
                    f"{name}: its columns have changed, and its rows from number {first:,} on are in {folders[-1]}"
                    if remade is None
                    else f"{name}: its rows are in {' and '.join(folders)} now"
                )
                + ": readers that keep a view of it (DuckDB's files) need the new one of views.*.sql"
            )

    @staticmethod
    def _twice(step: Callable[[], T]) -> T:
        """Take a step; once more if segments were merged between two looks: what is gone is in another file then."""
        try:
            return step()
        except (GoneError, UnreadError):
            return step()

    def _read(self, say: Say) -> bool:
        """Read new events, up to a batch; return True if there were any."""
        done = self.out.done
        look = self.unread.look(done.through, most=self.options.batch, begun=done.version > 0)
        if look is None:
            return False
        # What was missing before the first batch is named at the end, as by a job that is no stream.
        if look.findings and done.version and not self.options.allow_gaps:
            raise UnreadError(self._stopped(look))
        births = Births.of(done.births, self.plans[0].limits)
        staged = self._staged(look.files, done.through, look.to, births)
        births.settle()
        if births.refused:
            say(f"{births.refused:,} births exceed limits.births: messages that refer to them are dead letters")
        lost = replace(done.lost, findings=[*done.lost.findings], kinds=Counter(done.lost.kinds))
        for each in look.findings:
            lost.add(each)
        now = self._added(staged)
        now.through, now.births, now.lost = look.to, births.state(), lost
        now.unread = [*done.unread, *look.unread][-LISTED:]
        self._commit(staged, now, done.through + 1, look.to, say)
        say(f"batch {now.version}: {counted(staged.read, 'publish', 'publishes')}, up to number {look.to:,}")
        return True

    def _stopped(self, look: UnreadPart) -> str:
        at = f"the tables end before these events, at number {self.out.done.through:,}"
        if self._name:
            then = "Put the segments back and run it again, or with --allow-gaps (its last lines name them)"
            return "\n".join([*named(look.findings), f"{self._name}: {at}. {then}"])
        places = {"--input": self.source, "--output": self.out.output, "--mapping": str(self.mapping.path)}
        options = " ".join(f"{name} {shlex.quote(value)}" for name, value in places.items())
        return "\n".join(
            [
                *named(look.findings),
                f"{at}. Put the segments back and run it again, or continue without them (its last lines name them):",
                f"canopy pipeline tables {options} --allow-gaps",
            ]
        )

    def finish(self) -> TablesOutcome:
        """Write views, summary and metrics of what the tables have."""
        coverage = self.unread.coverage(self.out.done.lost, self.out.done.through)
        outcome = TablesOutcome(self.out.output, self.out.done, tuple(plan.name for plan in self.plans), coverage)
        self.out.finish(self.sink, {**outcome.summary(), "coverage": coverage.summary()})
        self._finished = self.out.done.version
        job_metrics.note("tables_through", outcome.done.through, **self._labels)
        for name, rows in outcome.rows.items():
            job_metrics.note("tables_rows", rows, table=name, **self._labels)
        for (name, reason), count in outcome.done.dead.items():
            job_metrics.note("tables_dead_letters", count, table=name, reason=reason, **self._labels)
        return outcome


def these(numbers: Numbers) -> str:
    """Return the words for the rows of some numbers."""
    stretches = [f"{first:,} to {last:,}" if first < last else f"{first:,}" for first, last in numbers]
    more = f" and {len(stretches) - 3:,} more stretches" if len(stretches) > 3 else ""
    return f"the rows of numbers {', '.join(stretches[:3])}{more}"
