"""The tables of a record: batch after batch, each exactly once, from wherever the one before ended.

Owns: the order of a batch: look, decode, commit; and what is said at the end. A run is one over what is there, or goes
on for ever; both are the same, and either goes on where the other stopped.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from canopy_mqtt.words import counted
from canopy_pipeline import job_metrics
from canopy_pipeline.errors import AwayError, GoneError, MisuseError, UnreadError
from canopy_pipeline.outputs import begin, check
from canopy_pipeline.record.coverage import LISTED, Coverage
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.record.parts import the_only
from canopy_pipeline.record.segments import Say, unsaid
from canopy_pipeline.record.unread import Unread, UnreadPart, named
from canopy_pipeline.runtime.storage import File, Storage, storage
from canopy_pipeline.tables.backfill import Range, births_before, replaced
from canopy_pipeline.tables.births import Births, newest
from canopy_pipeline.tables.lag import Lag, recorder_number
from canopy_pipeline.tables.local import stage
from canopy_pipeline.tables.mapping import Mapping, load
from canopy_pipeline.tables.output import Output, Progress, Sink, alone
from canopy_pipeline.tables.payloads.bad_payload import LATE
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
        return {table: count for (table, reason), count in self.done.dead.items() if reason == LATE}

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
    """Bring the tables up to the record.

    Raises:
        MisuseError: the mapping or an option is wrong.
        UnreadError: numbers are missing that were not read yet, and not `allow_gaps`.
        PipelineError: a segment cannot be read.
    """
    chosen = options or TablesOptions()
    recorded, place = storage(None, source), storage(None, output)
    if not recorded.exists():
        raise MisuseError(f"--input {source}: no such folder")
    why = f"give each a stream of its own: --input {source.rstrip('/')}/w0 --output {output.rstrip('/')}/w0, and so on"
    source = the_only(None, source, why)
    recorded = storage(None, source)
    check([source], output)
    with alone(output, place.local):
        found = load(mapping)
        out = Output(output, place)
        about = {"table_format": chosen.format}
        if chosen.format in (ICEBERG, POSTGRESQL):
            about["namespace"] = chosen.namespace
        if chosen.format == ICEBERG:
            about["catalog"] = chosen.catalog
        if chosen.format == POSTGRESQL:
            about["database"] = chosen.database
        try:
            identity = out.belongs(about, found.plans)
        except MisuseError as error:
            raise MisuseError(f"--mapping {mapping}: {error}" if str(error).startswith("tables.") else error) from error
        return _Job(found, out, recorded, source, sink_of(out, about, identity), chosen).go(say)


class _Job:
    def __init__(
        self,
        mapping: Mapping,
        out: Output,
        recorded: Storage,
        source: str,
        sink: Sink,
        options: TablesOptions,
    ) -> None:
        self.mapping = mapping
        self.plans = mapping.plans
        self.out = out
        self.source = source
        self.sink = sink
        self.options = options
        self.recorded = recorded
        self.unread = Unread(source, recorded)
        self.lag = Lag()

    def go(self, say: Say) -> TablesOutcome:
        """Batch after batch; until there is no more, or for ever. Or a part of the tables again."""
        if self.options.replace is not None:
            self._resume()
            self._twice(partial(self._replace, self.options.replace, say))
            return self._finish()
        try:
            if self.options.max_lag is None:
                self._resume()
                self._catch_up(say)
            else:
                self._follow(self.options.max_lag, say)
        except KeyboardInterrupt:
            say("stopped")
            # What was committed and not moved yet is moved now.
            self.out.load(self.sink)
        return self._finish()

    def _resume(self) -> None:
        """Complete what an earlier run, or an earlier attempt of this one, has begun."""
        self.sink.begin()
        self.out.load(self.sink)
        if self.sink.stale(self.out):
            # Killed in the midst of it.
            self._finish()
        if self.options.replace is None:
            begin(self.out.place)

    def _catch_up(self, say: Say) -> None:
        self._twice(partial(self._returned, say))
        while self._twice(partial(self._read, say)):
            pass

    def _follow(self, max_lag: float, say: Say) -> NoReturn:
        """Catch up with the record again and again. A database that is away is waited for, and then gets what was
        committed here and is not in it."""
        away, behind, resumed, finished, through = False, False, False, -1, 0
        while True:
            begun = time.monotonic()
            try:
                if not resumed:
                    self._resume()
                    resumed = True
                self._catch_up(say)
                if away:
                    say("the database answers again")
                away, through = False, self.out.done.through
                if finished != self.out.done.version:
                    self._finish()
                    finished = self.out.done.version
            except AwayError as error:
                if not away:
                    say(f"{error}; waiting for it")
                away, resumed = True, False
            lag = self.lag.look(recorder_number(self.recorded), through, time.monotonic())
            job_metrics.note("tables_lag_seconds", lag)
            if (lag > max_lag) is not behind:
                behind = not behind
                say(f"behind the recorder by {lag:.1f} s: {SLOW}" if behind else "no more behind than --max-lag")
            job_metrics.write()
            time.sleep(max(0.0, begun + max_lag / LOOKS - time.monotonic()))

    def _replace(self, wanted: Range, say: Say) -> None:
        """Make the rows of a range again, in place of those that the tables have."""
        done, limits = self.out.done, self.plans[0].limits
        first, last = wanted.numbers(done.through)
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
        now, remade, removed = replaced(self.out, self.sink, staged, known, now, staging)
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
            before = [entry for entry in done.births if int(entry[3]) < first]
            births = Births.of(before, self.plans[0].limits)
            staged = self._staged([file], first - 1, last, births)
            births.settle()
            now = self._added(staged)
            now.births = newest(done.births, births.state())
            now.lost = done.lost.without(first, last)
            now.unread = [
                part
                for begin, end in done.unread
                for part in ((begin, min(end, first - 1)), (max(begin, last + 1), end))
                if part[0] <= part[1]
            ]
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
            folders = [*self.out.kept[name]["versions"]]
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
        places = {"--input": self.source, "--output": self.out.output, "--mapping": str(self.mapping.path)}
        options = " ".join(f"{name} {shlex.quote(value)}" for name, value in places.items())
        at = f"the tables end before these events, at number {self.out.done.through:,}"
        return "\n".join(
            [
                *named(look.findings),
                f"{at}. Put the segments back and run it again, or continue without them (its last lines name them):",
                f"canopy pipeline tables {options} --allow-gaps",
            ]
        )

    def _finish(self) -> TablesOutcome:
        coverage = self.unread.coverage(self.out.done.lost, self.out.done.through)
        outcome = TablesOutcome(self.out.output, self.out.done, tuple(plan.name for plan in self.plans), coverage)
        self.out.finish(self.sink, {**outcome.summary(), "coverage": coverage.summary()})
        job_metrics.note("tables_through", outcome.done.through)
        for name, rows in outcome.rows.items():
            job_metrics.note("tables_rows", rows, table=name)
        for (name, reason), count in outcome.done.dead.items():
            job_metrics.note("tables_dead_letters", count, table=name, reason=reason)
        return outcome


def these(numbers: Numbers) -> str:
    """Return the words for the rows of some numbers."""
    stretches = [f"{first:,} to {last:,}" if first < last else f"{first:,}" for first, last in numbers]
    more = f" and {len(stretches) - 3:,} more stretches" if len(stretches) > 3 else ""
    return f"the rows of numbers {', '.join(stretches[:3])}{more}"
