"""A connection to DuckDB that stands where a job takes a Spark session, and its frames: queries that are computed when
their rows are asked for.

Promises: it writes this machine's folders alone, loads no extension, and leaves no file behind. Files of an object
store are fetched once, into a temporary folder. A file that it cannot read becomes one line with its name. What is kept
(`persist`, `localCheckpoint`) is a temporary table. A table is written as one file, or as one for each partition, in
place of what was there.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import duckdb

from canopy_pipeline.errors import AWAY, DamagedError, GoneError, MisuseError, PipelineError, with_remedy
from canopy_pipeline.runtime.duck.columns import Column, column, columns_of, listed, literal, order, quoted_whole
from canopy_pipeline.runtime.storage import CALLS, File, Storage, local_path, storage

JOINS: Final = {
    "inner": "JOIN", "left": "LEFT JOIN", "full": "FULL JOIN", "left_semi": "SEMI JOIN", "left_anti": "ANTI JOIN",
}  # fmt: skip

_FILE: Final = re.compile(r"['\"]([^'\"]*\.parquet)['\"]")
_ESCAPED: Final = re.compile(r"\\(.)")
_PATTERN: Final = re.compile(r"([*?\[])")
_MEMORY: Final = re.compile(r"([1-9]\d*)([kmgt])b?", re.IGNORECASE)


class Session:
    """One connection, and the temporary tables of one job."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        """`folder`: for files that are fetched; the caller removes it."""
        self._connection = connection
        self._folder = folder
        self._tables = count(1)
        self._fetched: dict[str, str] = {}
        """By the names of files elsewhere, those of their copies here."""

    @property
    def read(self) -> Reader:
        return Reader(self)

    def run(self, text: str) -> list[tuple[Any, ...]]:
        """Execute a statement of SQL, and return its rows.

        Raises:
            PipelineError: a file could not be read, or there is too little memory.
        """
        try:
            return self._connection.execute(text).fetchall()
        except duckdb.Error as error:
            raise _told(error, self.name_of) from error

    def files(self, paths: Sequence[str]) -> list[str]:
        """Return the files, and all Parquet files below the folders, that these paths name, by their names here.

        Raises:
            PipelineError: one of them has gone.
            OSError: a place cannot be reached.
        """
        with ThreadPoolExecutor(CALLS) as pool:
            return [file for found in pool.map(self._files, paths) for file in found]

    def _files(self, path: str) -> list[str]:
        place = storage(None, path)
        files = place.files(".parquet")
        if place.local is not None:
            return [file.path.removeprefix("file:") for file in files]
        return [self._fetch(place, file) for file in files]

    def _fetch(self, place: Storage, file: File) -> str:
        known = self._fetched.get(file.path)
        if known is None:
            known = str(self._folder / f"fetched-{next(self._tables)}.parquet")
            try:
                place.fetch(file, known)
            except FileNotFoundError as error:
                raise GoneError(f"{file.path}: was removed while it was to be read") from error
            self._fetched[file.path] = known
        return known

    def name_of(self, file: str) -> str:
        """Return the name of a file that may have been fetched, for people."""
        return next((name for name, copy in self._fetched.items() if copy == file), file)

    def kept(self, frame: Frame) -> Frame:
        name = f"kept_{next(self._tables)}"
        self.run(f"CREATE TEMP TABLE {name} AS {frame.sql}")
        made = Frame(self, f"SELECT * FROM {name}", frame.columns)
        made.table = name
        return made

    def let_go(self, frame: Frame) -> None:
        if frame.table is not None:
            self.run(f"DROP TABLE IF EXISTS {frame.table}")

    def createDataFrame(self, rows: Iterable[Sequence[Any]], schema: str) -> Frame:  # noqa: N802
        columns = columns_of(schema)
        table = f"kept_{next(self._tables)}"
        typed = ", ".join(f"{quoted_whole(name)} {kind}" for name, kind in columns.items())
        self.run(f"CREATE TEMP TABLE {table} ({typed})")
        made = [f"({', '.join(literal(each) for each in row)})" for row in rows]
        if made:
            self.run(f"INSERT INTO {table} VALUES {', '.join(made)}")
        return Frame(self, f"SELECT * FROM {table}", [*columns])


class Reader:
    """A reader of files: `schema` gives the columns and their types."""

    def __init__(self, session: Session, schema: str | None = None) -> None:
        self._session = session
        self._schema = schema

    def schema(self, wanted: str) -> Reader:
        return Reader(self._session, wanted)

    def option(self, _: str, __: str) -> Reader:
        """Accept an option of Spark's; none of those that the jobs set is for DuckDB."""
        return self

    def parquet(self, *paths: str) -> Frame:
        """The rows of files, and of all files below folders, whose names are given as Spark takes them.

        Raises:
            PipelineError: one cannot be read.
        """
        files = self._session.files([_ESCAPED.sub(r"\1", path) for path in paths])
        try:
            if files:
                return self._rows(files)
            if self._schema is None:
                raise PipelineError(f"{' '.join(paths)}: no Parquet file")
            return self._session.createDataFrame([], self._schema)
        except PipelineError:
            # DuckDB does not always say which file it is.
            for file in files:
                self._check(file)
            raise

    def _check(self, file: str) -> None:
        """Raises DamagedError or GoneError if a file cannot be read."""
        try:
            _ = self._whole([file]).columns
        except (DamagedError, GoneError):
            raise
        except PipelineError as error:
            if isinstance(error.__cause__, duckdb.OutOfMemoryException):
                raise
            raise DamagedError(f"{self._session.name_of(file)}: is damaged ({error}); {AWAY}") from error

    def _whole(self, files: Sequence[str]) -> Frame:
        names = ", ".join(literal(_PATTERN.sub(r"[\1]", file)) for file in files)
        return Frame(
            self._session,
            f"SELECT * FROM read_parquet([{names}], union_by_name = true, hive_partitioning = false)",
            None,
        )

    def _rows(self, files: Sequence[str]) -> Frame:
        whole = self._whole(files)
        there = set(whole.columns)
        if self._schema is None:
            return whole
        wanted = columns_of(self._schema)
        columns = [
            f"CAST({quoted_whole(name) if name in there else 'NULL'} AS {kind}) AS {quoted_whole(name)}"
            for name, kind in wanted.items()
        ]
        return Frame(self._session, f"SELECT {', '.join(columns)} FROM ({whole.sql})", [*wanted])


def _told(error: duckdb.Error, name_of: Callable[[str], str]) -> PipelineError:
    """Return an error of DuckDB as one line. `name_of`: see `Session`."""
    if known := with_remedy(str(error)):
        return PipelineError(known)
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    found = _FILE.search(str(error))
    if isinstance(error, duckdb.OutOfMemoryException):
        return PipelineError(f"DuckDB has too little memory: {text}; --driver-memory gives it more")
    if found is None:
        return PipelineError(f"DuckDB: {text}")
    name = name_of(found[1])
    if not Path(found[1]).exists():
        return GoneError(f"{name}: was removed while it was to be read")
    return DamagedError(f"{name}: is damaged ({text.replace(found[1], name)}); {AWAY}")


class Row(tuple[Any, ...]):
    """A row, whose values are asked for by the names of columns, or by their places."""

    columns: Sequence[str]

    def __new__(cls, columns: Sequence[str], values: Iterable[Any]) -> Self:
        made = super().__new__(cls, values)
        made.columns = columns
        return made

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(self.columns.index(at) if isinstance(at, str) else at)

    def __getattr__(self, name: str) -> Any:
        if name not in self.columns:
            raise AttributeError(name)
        return self[name]

    def asDict(self) -> dict[str, Any]:  # noqa: N802
        return dict(zip(self.columns, self, strict=True))


class Frame:
    """A query; its columns are known without asking DuckDB, but where all of a struct's are chosen."""

    def __init__(
        self, session: Session, sql: str, columns: Sequence[str] | None, source: str = "", name: str = ""
    ) -> None:
        self.sparkSession: Final = session
        self.sql: Final = sql
        self._columns = None if columns is None else list(columns)
        self._source = source
        """The text after FROM, if the frames' names tell the columns of two frames apart."""
        self._name = name
        self._ordered = False
        self.table: str | None = None
        """The name of the temporary table, if the frame is one."""

    @property
    def columns(self) -> list[str]:
        if self._columns is None:
            self._columns = [row[0] for row in self.sparkSession.run(f"DESCRIBE {self.sql}")]
        return self._columns

    def _from(self) -> str:
        return self._source or f"({self.sql}) AS {quoted_whole(self._name or '_')}"

    def _frame(self, sql: str, columns: Sequence[str] | None) -> Frame:
        return Frame(self.sparkSession, sql, columns)

    def alias(self, name: str) -> Frame:
        return Frame(self.sparkSession, self.sql, self._columns, name=name)

    def select(self, *wanted: Any) -> Frame:
        chosen = [column(each) for each in wanted]
        names = None if any(each.name == "*" for each in chosen) else [each.name for each in chosen]
        return self._frame(f"SELECT {listed(chosen)} FROM {self._from()}", names)

    def where(self, condition: Column | str) -> Frame:
        text = condition if isinstance(condition, str) else condition.sql
        return self._frame(f"SELECT * FROM {self._from()} WHERE {text}", self._columns)

    def withColumn(self, name: str, made: Column) -> Frame:  # noqa: N802
        return self.withColumns({name: made})

    def withColumns(self, made: Mapping[str, Column]) -> Frame:  # noqa: N802
        there = self.columns
        whole = [made[name].alias(name) if name in made else column(name) for name in there]
        return self.select(*whole, *(each.alias(name) for name, each in made.items() if name not in there))

    def drop(self, *names: str) -> Frame:
        return self.select(*(name for name in self.columns if name not in names))

    def distinct(self) -> Frame:
        return self._frame(f"SELECT DISTINCT * FROM {self._from()}", self._columns)

    def groupBy(self, *by: Any) -> Grouped:  # noqa: N802
        return Grouped(self, [column(each) for each in by])

    def agg(self, *wanted: Column) -> Frame:
        return Grouped(self, []).agg(*wanted)

    def orderBy(self, *by: Any) -> Frame:  # noqa: N802
        text = ", ".join(order(each).sql for each in by)
        made = self._frame(f"SELECT * FROM {self._from()} ORDER BY {text}", self._columns)
        made._ordered = True
        return made

    def sortWithinPartitions(self, *by: Any) -> Frame:  # noqa: N802
        return self.orderBy(*by)

    def limit(self, number: int) -> Frame:
        # An order counts only where it stands beside its limit.
        text = self.sql if self._ordered else f"SELECT * FROM {self._from()}"
        return self._frame(f"{text} LIMIT {number}", self._columns)

    def repartition(self, *_: Any) -> Frame:
        """The frame itself: there is one machine."""
        return self

    def coalesce(self, _: int) -> Frame:
        """The frame itself: it is written as one file."""
        return self

    def join(self, other: Frame, on: Any, how: str = "inner") -> Frame:
        kind = JOINS[how]
        if isinstance(on, Column):
            source = f"{self._from()} {kind} {other._from()} ON {on.sql}"
            return Frame(self.sparkSession, f"SELECT * FROM {source}", None, source=source)
        keys = [on] if isinstance(on, str) else list(on)
        mine = [name for name in self.columns if name not in keys]
        theirs = [] if how in ("left_semi", "left_anti") else [name for name in other.columns if name not in keys]
        using = ", ".join(quoted_whole(name) for name in keys)
        sides = [f"{side}.{quoted_whole(name)}" for side, names in (("l", mine), ("r", theirs)) for name in names]
        text = f"SELECT {', '.join([using, *sides])} FROM ({self.sql}) AS l {kind} ({other.sql}) AS r USING ({using})"
        return self._frame(text, [*keys, *mine, *theirs])

    def unionByName(self, other: Frame, allowMissingColumns: bool = False) -> Frame:  # noqa: N802, N803
        """Return the rows of both frames; columns that one of them lacks are null.

        Raises:
            ValueError: one lacks a column, and that was not allowed.
        """
        mine, theirs = self.columns, other.columns
        if not allowMissingColumns and set(mine) != set(theirs):
            raise ValueError(f"the columns differ: {mine} and {theirs}")
        text = f"SELECT * FROM ({self.sql}) UNION ALL BY NAME SELECT * FROM ({other.sql})"
        return self._frame(text, [*mine, *(name for name in theirs if name not in mine)])

    # What is computed.

    def persist(self, _: Any = None) -> Frame:
        return self.sparkSession.kept(self)

    def localCheckpoint(self) -> Frame:  # noqa: N802
        return self.sparkSession.kept(self)

    def unpersist(self) -> Frame:
        self.sparkSession.let_go(self)
        return self

    def collect(self) -> list[Row]:
        columns = self.columns
        return [Row(columns, map(_as_rows, row)) for row in self.sparkSession.run(self.sql)]

    def count(self) -> int:
        return int(self.sparkSession.run(f"SELECT count(*) FROM ({self.sql})")[0][0])

    @property
    def write(self) -> Writer:
        return Writer(self)


def _as_rows(value: Any) -> Any:
    """A value as Spark's rows have it: structs are rows too."""
    if isinstance(value, dict):
        return Row(list(value), map(_as_rows, value.values()))
    return [_as_rows(each) for each in value] if isinstance(value, list) else value


class Grouped:
    """Rows grouped by equal values."""

    def __init__(self, frame: Frame, by: list[Column]) -> None:
        self._frame = frame
        self._by = by

    def agg(self, *wanted: Column) -> Frame:
        columns = [*self._by, *wanted]
        keys = ", ".join(str(at + 1) for at in range(len(self._by)))
        grouped = f" GROUP BY {keys}" if keys else ""
        text = f"SELECT {listed(columns)} FROM {self._frame._from()}{grouped}"
        return Frame(self._frame.sparkSession, text, [each.name for each in columns])

    def count(self) -> Frame:
        return self.agg(Column("count(*)", "count"))


class Writer:
    """A frame on its way into a folder of this machine."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._by: tuple[str, ...] = ()

    def mode(self, _: str) -> Writer:
        """Accept a mode; the writer always replaces the files."""
        return self

    def option(self, _: str, __: str) -> Writer:
        """Accept an option; the writer always compresses with zstd."""
        return self

    def partitionBy(self, *by: str) -> Writer:  # noqa: N802
        self._by = by
        return self

    def parquet(self, path: str) -> None:
        """Write it.

        Raises:
            OSError: the folder cannot be written.
        """
        root = local_path(path)
        assert root is not None  # `outputs.folder` refused any other
        if root.exists():
            shutil.rmtree(root)
        root.mkdir(parents=True)
        if not self._by:
            self._copy(self._frame, root)
            return
        frame = self._frame.persist()
        try:
            keys = [quoted_whole(name) for name in self._by]
            for values in frame.sparkSession.run(f"SELECT DISTINCT {', '.join(keys)} FROM ({frame.sql})"):
                same = " AND ".join(f"{key} = {literal(each)}" for key, each in zip(keys, values, strict=True))
                place = root.joinpath(*(f"{name}={each}" for name, each in zip(self._by, values, strict=True)))
                place.mkdir(parents=True)
                self._copy(frame.where(same).drop(*self._by), place)
        finally:
            frame.unpersist()

    @staticmethod
    def _copy(frame: Frame, folder: Path) -> None:
        target = literal(str(folder / "part-0.parquet"))
        frame.sparkSession.run(f"COPY ({frame.sql}) TO {target} (FORMAT parquet, COMPRESSION zstd)")


@contextmanager
def connected(memory: str = "2g") -> Iterator[Session]:
    """A session for one job; `memory` as Spark takes it (4g). What does not fit goes to a folder that is removed.

    Raises:
        MisuseError: `memory` is no size.
    """
    size = _MEMORY.fullmatch(memory.strip())
    if size is None:
        raise MisuseError(f"--driver-memory {memory}: must be a size, such as 4g")
    with tempfile.TemporaryDirectory(prefix="canopy-duckdb-") as spill:
        try:
            connection = duckdb.connect(
                config={
                    "memory_limit": f"{size[1]}{size[2].upper()}iB",
                    "temp_directory": spill,
                    "autoinstall_known_extensions": "false",
                    "autoload_known_extensions": "false",
                }
            )
        except duckdb.ParserException as error:
            raise MisuseError(f"--driver-memory {memory}: is larger than any memory") from error
        try:
            connection.execute("SET TimeZone = 'UTC'")
            yield Session(connection, Path(spill))
        finally:
            connection.close()
