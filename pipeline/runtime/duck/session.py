"""A connection to DuckDB that stands where a job takes a Spark session.

Promises: it reads and writes this machine's folders alone, loads no extension, and leaves no file behind. A file that
it cannot read becomes one line with its name.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import duckdb

from pipeline.errors import DamagedError, GoneError, MisuseError, PipelineError
from pipeline.runtime.duck.columns import columns_of, literal, quoted_whole
from pipeline.runtime.duck.frames import Frame
from pipeline.runtime.storage import Local, local_path

_FILE: Final = re.compile(r"['\"]([^'\"]*\.parquet)['\"]")
_ESCAPED: Final = re.compile(r"\\(.)")
_PATTERN: Final = re.compile(r"([*?\[])")
_MEMORY: Final = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)


class Session:
    """One connection, and the temporary tables of one job."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._tables = count(1)

    @property
    def read(self) -> Reader:
        return Reader(self)

    def run(self, text: str) -> Any:
        """Have DuckDB do something.

        Raises:
            PipelineError: a file could not be read, or there is too little memory.
        """
        try:
            return self._connection.execute(text)
        except duckdb.Error as error:
            raise _told(error) from error

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        try:
            found: list[tuple[Any, ...]] = self.run(text).fetchall()
        except duckdb.Error as error:
            raise _told(error) from error
        return found

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
    """How files are read: `schema` says which columns, and as what."""

    def __init__(self, session: Session, schema: str | None = None, lenient: bool = False) -> None:
        self._session = session
        self._schema = schema
        self._lenient = lenient

    def schema(self, wanted: str) -> Reader:
        return Reader(self._session, wanted, self._lenient)

    def option(self, name: str, value: str) -> Reader:
        return self.options(**{name: value})

    def options(self, **given: str) -> Reader:
        """Of Spark's options the one by which files without a readable footer are left out; no other has a meaning."""
        lenient = given.get("ignoreCorruptFiles", str(self._lenient).lower()) == "true"
        return Reader(self._session, self._schema, lenient)

    def parquet(self, *paths: str) -> Frame:
        """The rows of files, and of all files below folders, whose names are given as Spark takes them.

        Raises:
            MisuseError: one of them is not of this machine.
            PipelineError: one cannot be read.
        """
        files = [file for path in paths for file in _files(_ESCAPED.sub(r"\1", path))]
        try:
            return self._rows(files) if files else self._none(paths)
        except PipelineError:
            # DuckDB does not always say which file it is.
            files = [file for file in files if self._is_readable(file)]
        return self._rows(files) if files else self._none(paths)

    def _none(self, paths: Sequence[str]) -> Frame:
        if self._schema is None:
            raise PipelineError(f"{' '.join(paths)}: no Parquet file")
        return self._session.createDataFrame([], self._schema)

    def _is_readable(self, file: str) -> bool:
        try:
            _ = self._whole([file]).columns
        except PipelineError as error:
            if self._lenient:
                return False
            if isinstance(error, DamagedError | GoneError):
                raise
            raise DamagedError(f"{file}: is damaged ({error}); --skip-corrupt leaves it out") from error
        return True

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


def _files(path: str) -> list[str]:
    place = local_path(path)
    if place is None:
        raise MisuseError(f"{path}: --engine duckdb reads folders of this machine; --engine spark reads this")
    return [file.path.removeprefix("file:") for file in Local(place).files(".parquet")]


def _told(error: duckdb.Error) -> PipelineError:
    """What DuckDB says, in a line."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    found = _FILE.search(str(error))
    if isinstance(error, duckdb.OutOfMemoryException):
        return PipelineError(f"DuckDB has too little memory: {text}; --driver-memory gives it more")
    if found is None:
        return PipelineError(f"DuckDB: {text}")
    if not Path(found[1]).exists():
        return GoneError(f"{found[1]}: was removed while it was to be read; --skip-corrupt leaves it out")
    return DamagedError(f"{found[1]}: is damaged ({text}); --skip-corrupt leaves it out")


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
        connection = duckdb.connect(
            config={
                "memory_limit": f"{size[1]}{size[2].upper()}iB",
                "temp_directory": spill,
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            }
        )
        try:
            connection.execute("SET TimeZone = 'UTC'")
            # As Spark's SQL calls them.
            connection.execute("CREATE TEMP MACRO shiftleft(number, bits) AS number << bits")
            connection.execute("CREATE TEMP MACRO shiftright(number, bits) AS number >> bits")
            yield Session(connection)
        finally:
            connection.close()
