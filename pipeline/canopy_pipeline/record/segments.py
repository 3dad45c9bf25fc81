"""The recorded events as one DataFrame: from a recorder's folder, or any folder of such segments.

Owns: which files belong to the table (segments that a merged one replaces do not, nor does a merged one that is not in
force yet), what is wrong with them, and how the rows are cut down to a time, a run or some kinds.

Promises: a hidden, unfinished segment is never read. What cannot be read is named, file by file. Columns
that older segments lack are null.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from canopy_mqtt.record.files.current_files import is_merged
from canopy_mqtt.record.files.folder import NAME
from canopy_mqtt.record.files.segment import read_moment
from canopy_pipeline.errors import AWAY, DamagedError, GoneError, MisuseError, PipelineError
from canopy_pipeline.record.account import account
from canopy_pipeline.record.chosen_files import choose
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.events_schema import ALWAYS, EVENTS, SNAPSHOT
from canopy_pipeline.record.manifests import manifests, numbers
from canopy_pipeline.record.parts import own, parts
from canopy_pipeline.runtime.engine import f, is_duckdb
from canopy_pipeline.runtime.storage import MANIFESTS, File, Storage, local_path, parquet, storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

PARQUET: Final = b"PAR1"
MIN_BYTES: Final = 12
"""Bytes of a file that could be Parquet: the magic number twice, and a length."""
MANY_FILES: Final = 256
"""Files from which on they are read by their folders."""
NO_RUN: Final = "no event of such a run"
ALTERED: Final = "not what its manifest's checksum says"
SHOWN: Final = 5
"""Corrupt segments that an error names; there may be more."""

_PART: Final = re.compile(r"(?:.*/)?date=[^/]+(?:/hour=[^/]+)?/*")
_READING: Final = re.compile(
    # Spark 4's words, and then Spark 3.5's for a file that is gone.
    r"(?:reading file|Could not read footer for file:?|read file|FileNotFoundException: File)"
    r"\s+['\"]?([^\s'\",]+?)['\"]?[.,;]?(?:\s|$)"
)

Say = Callable[[str], None]
"""Takes lines for people."""


def unsaid(line: str) -> None:
    del line


@dataclass(frozen=True)
class Choice:
    kinds: tuple[str, ...] = ()
    """Empty: all."""
    since: str | None = None
    """ISO 8601, included; UTC if it names no zone."""
    until: str | None = None
    """Not included."""
    run: str | None = None


def find(
    spark: SparkSession | None,
    inputs: Sequence[str],
    coverage: Coverage | None = None,
    choice: Choice = Choice(),
) -> list[File]:
    """Return the whole segments under some folders, merged ones in place of those they replace; with a time in
    `choice`, those that hold events of it, as far as their manifests say.

    `coverage` takes note of what the manifests say of them, and of what is missing.

    Raises:
        MisuseError: there is no such folder.
        PipelineError: there is no segment in them, or one is corrupt.
    """
    found: dict[str, File] = {}
    corrupt: list[str] = []
    whole = 0
    wanted = covering(choice)
    held = InputCheck()
    for path in folders(spark, inputs):
        place = storage(spark, path)
        said = manifests(place)
        there = own({file.place: file for file in place.files(".parquet")})
        merged = [file for file in there.values() if is_merged(file.place)]
        if said.vouched is None and merged and len(merged) < len(there):
            raise PipelineError(
                f"{merged[0].path}: a merged segment beside others, and no manifest says what it replaces; "
                f"copy {MANIFESTS} too"
            )
        chosen = choose(said, {file.place: file.size for file in there.values()}, place)
        for each in chosen.read:
            file, about = there[each], chosen.about(each)
            held.take(path, file, about)
            if about is not None and not wanted.asks(about):
                whole += 1
                continue
            why = fault(place, file, about)
            if why:
                corrupt.append(f"{file.path}: {why}")
            else:
                found[file.path] = file
        if coverage is not None:
            account(coverage, path, chosen, local_path(path))
    if corrupt:
        more = f"; and {len(corrupt) - SHOWN} more" if len(corrupt) > SHOWN else ""
        raise DamagedError("\n".join(corrupt[:SHOWN]) + f"{more}; {AWAY}")
    if not found and not whole:
        raise PipelineError(
            f"--input {' '.join(inputs)}: no segment in it (the recorder finishes one every minute, or when it stops)"
        )
    return [*found.values()]


def folders(spark: SparkSession | None, inputs: Sequence[str]) -> list[str]:
    """Return the folders of all inputs: see `parts`. Raises MisuseError: there is none, or an hour's."""
    for path in inputs:
        if not storage(spark, path).exists():
            raise MisuseError(f"--input {path}: no such file or folder")
        if _PART.fullmatch(path):
            raise MisuseError(f"--input {path}: is a part of a record; give its folder, and --since and --until")
    return list(dict.fromkeys(folder for path in inputs for folder in parts(spark, path)))


class InputCheck:
    """Checks that the inputs of a job hold no event twice, by links, copies, or copies that were merged."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, str]] = {}
        self._runs: dict[str, list[tuple[int, int, str, str]]] = {}

    def take(self, path: str, file: File, about: Mapping[str, Any] | None) -> None:
        """Take note of a file of an input.

        Raises:
            MisuseError: another input holds the same.
        """
        name, local = file.place.rpartition("/")[2], local_path(file.path)
        # A recorder's names are of one segment only; of others the file itself tells.
        mark = name if NAME.match(name) else file.path if local is None else os.path.realpath(local)
        whose, where = self._names.setdefault(mark, (path, file.path))
        if whose != path:
            self._refuse(path, file.path, where)
        span = numbers(about) if about is not None else None
        if about is None or span is None:
            return
        for run in about.get("runs") or [about.get("run_id")]:
            others = self._runs.setdefault(str(run), [])
            at = bisect_left(others, (*span, "", ""))
            for begin, end, whose, where in others[max(at - 1, 0) : at + 1]:
                if whose != path and begin <= span[1] and end >= span[0]:
                    self._refuse(path, file.path, where)
            others.insert(at, (*span, path, file.path))

    @staticmethod
    def _refuse(path: str, file: str, other: str) -> None:
        if other == file:
            raise MisuseError(f"--input {path}: {file} is in another input already")
        raise MisuseError(f"--input {path}: {file} holds the same events as {other}: the same record under two inputs")


def told_before(spark: SparkSession | None, inputs: Sequence[str], since: str) -> str | None:
    """Return the time from which on to read events so that all subscriptions are known at a given time: that of the
    last snapshot that ended before it. None: from the beginning."""
    limit = moment(since, "--since")
    begins: list[str] = []
    for path in folders(spark, inputs):
        said = manifests(storage(spark, path))
        told = [
            (str(about.get("first_ts")), int(kinds.get(SNAPSHOT) or 0))
            for place, about in said.said.items()
            if place not in said.gone
            and isinstance(kinds := about.get("kinds"), dict)
            # Over by then.
            and Coverage(until=limit).asks({**about, "first_ts": about.get("last_ts")})
        ]
        # The last one began after the one before had ended.
        count, begin = 0, None
        for at, number in sorted(told, reverse=True):
            count += number
            if count >= 2:
                begin = at
                break
        if begin is None:
            return None
        begins.append(begin)
    return min(begins, default=None)


def fault(place: Storage, file: File, about: Mapping[str, Any] | None) -> str:
    """Return the fault of a segment, given its manifest; empty if it has none."""
    # One that is as long as its manifest says is whole: to ask for the ends of each costs a call for each.
    why = "" if about is not None and about.get("bytes") == file.size else broken(place, file)
    return why or altered(place, file, about)


def altered(place: Storage, file: File, said: Mapping[str, Any] | None) -> str:
    """Compare a file of this machine with its manifest's checksum; read all of it. Return the fault, or an empty text.

    Neither engine finds all changes: DuckDB does not look at the checksums of pages, and a file that was written anew
    has right ones.
    """
    digest = (said or {}).get("sha256")
    if not isinstance(digest, str) or place.local is None:
        return ""
    try:
        found = place.sha256(file.place)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "" if found == digest else ALTERED


def broken(place: Storage, file: File) -> str:
    """Return the fault of a file, as far as its ends show it; empty if it has none."""
    if file.size < MIN_BYTES:
        return f"not a whole Parquet file ({file.size} bytes)"
    try:
        ends = place.ends(file)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "" if ends == PARQUET * 2 else "not a whole Parquet file"


def events(
    spark: SparkSession,
    inputs: Sequence[str],
    choice: Choice = Choice(),
    columns: Sequence[str] = (),
    coverage: Coverage | None = None,
) -> DataFrame:
    """Return the recorded events under some folders, with the columns of `events_schema.EVENTS`, or some of them, in no
    order. `coverage` takes the findings.

    Raises:
        MisuseError: there is no such folder, or a time is none.
        PipelineError: there is no segment, one is corrupt, they hold no events, or none of the wanted run.
    """
    files = find(spark, inputs, coverage, choice)
    names = [file.path for file in files]
    if names:
        # Older ones may lack columns that came later.
        with reading():
            has = set(parquet(spark.read, names[-1]).columns)
        check_columns(names[-1], has, columns)
    wanted = EVENTS.only((*columns, *_chosen_by(choice))) if columns else EVENTS
    # None of them may hold an event of that time.
    rows = _read(spark.read.schema(wanted.ddl), names) if names else spark.createDataFrame([], wanted.ddl)
    if choice.run:
        with reading():
            there = narrowed(rows, replace(choice, kinds=())).limit(1).collect()
        if not there:
            raise PipelineError(f"--run {choice.run}: {NO_RUN}")
    return narrowed(rows, choice)


def _read(reader: DataFrameReader, names: list[str]) -> DataFrame:
    """The rows of these files: by their folders, where they are many and nothing else is in them.

    Spark asks for each file that it is given by name, and lists a folder in one call.
    """
    if len(names) >= MANY_FILES and not is_duckdb(reader):
        folders = list(dict.fromkeys(name.rpartition("/")[0] for name in names))
        rows = parquet(reader, *folders)
        if sorted(unquote(name).rpartition("/")[2] for name in rows.inputFiles()) == sorted(
            name.rpartition("/")[2] for name in names
        ):
            return rows
    return parquet(reader, *names)


def check_columns(path: str, has: set[str], columns: Sequence[str] = ()) -> None:
    """Refuse a table that holds no events.

    Raises:
        PipelineError: a column is missing without which a file holds no events.
    """
    missing = [name for name in ALWAYS if name not in has]
    missing += [name for name in columns if name not in has and name not in missing]
    if missing:
        raise PipelineError(f"{path}: no recorded events: it has no column {', '.join(missing)}")


def _chosen_by(choice: Choice) -> list[str]:
    named = {"kind": bool(choice.kinds), "ts": bool(choice.since or choice.until), "run_id": bool(choice.run)}
    return [name for name, needed in named.items() if needed]


def covering(choice: Choice) -> Coverage:
    """Return an empty ``Coverage`` of the wanted times.

    Raises:
        MisuseError: a time is none, or the end is not after the beginning.
    """
    since = moment(choice.since, "--since") if choice.since is not None else None
    until = moment(choice.until, "--until") if choice.until is not None else None
    if since is not None and until is not None and since >= until:
        raise MisuseError(f"--since {choice.since} --until {choice.until}: an empty time: --until is not included")
    return Coverage(since, until)


def narrowed(frame: DataFrame, choice: Choice) -> DataFrame:
    if choice.kinds:
        frame = frame.where(f.col("kind").isin(*choice.kinds))
    if choice.run:
        frame = frame.where(f.col("run_id") == choice.run)
    if choice.since:
        frame = frame.where(f.col("ts") >= f.lit(moment(choice.since, "--since")))
    if choice.until:
        frame = frame.where(f.col("ts") < f.lit(moment(choice.until, "--until")))
    return frame


def moment(text: str, option: str) -> datetime:
    """A point in time as people write it.

    Raises:
        MisuseError: it is none.
    """
    try:
        return read_moment(text)
    except ValueError as error:
        raise MisuseError(f"{option} {text}: must be a time, such as 2026-11-21T16:00 or 2026-11-21") from error


@contextmanager
def reading() -> Iterator[None]:
    """Turn an error of Spark within the block, such as a segment that breaks off, into one line with the segment's
    name.

    Raises:
        PipelineError: a file could not be read.
    """
    try:
        yield
    except Exception as error:
        # Of Spark's, without importing it.
        name = unreadable(error) if type(error).__module__.startswith(("pyspark.", "py4j.")) else None
        if name is None:
            raise
        raise _lost(name, error) from error


def _lost(name: str, error: Any) -> PipelineError:
    if "FILE_NOT_EXIST" in str(error) or "FileNotFoundException" in str(error):
        return GoneError(f"{name}: was removed while it was to be read")
    return DamagedError(f"{name}: is damaged: it breaks off, or a checksum in it is wrong; {AWAY}")


def unreadable(error: Any) -> str | None:
    """Return the file that an error of Spark names, if it names one."""
    found = _READING.search(str(error))
    return found[1] if found is not None and ".parquet" in found[1] else None
