"""Frames: what Spark calls a DataFrame, as a query of DuckDB; nothing is computed before its rows are asked for.

Promises: what is kept (`persist`, `localCheckpoint`) is a temporary table. A table is written as one file, or as one
for each partition, in place of what was there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

from pipeline.runtime.duck.columns import Column, column, listed, literal, order, quoted_whole
from pipeline.runtime.storage import local_path

JOINS: Final = {
    "inner": "JOIN", "left": "LEFT JOIN", "full": "FULL JOIN", "left_semi": "SEMI JOIN", "left_anti": "ANTI JOIN",
}  # fmt: skip


class Connection(Protocol):
    """What computes a frame: `pipeline.runtime.duck.session`."""

    def run(self, text: str) -> Any:
        """Have DuckDB do something."""

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """All rows of a query."""

    def kept(self, frame: Frame) -> Frame:
        """A frame as a temporary table."""

    def let_go(self, frame: Frame) -> None:
        """Remove the temporary table that a frame is."""


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
        self, session: Connection, sql: str, columns: Sequence[str] | None, source: str = "", name: str = ""
    ) -> None:
        self.sparkSession: Final = session
        self.sql: Final = sql
        self._columns = None if columns is None else list(columns)
        self._source = source
        """What stands after FROM, where the columns of two frames are told apart by the frames' names."""
        self._name = name
        self._ordered = False
        self.table: str | None = None
        """The temporary table that it is, where it is one."""

    @property
    def columns(self) -> list[str]:
        if self._columns is None:
            self._columns = [row[0] for row in self.sparkSession.rows(f"DESCRIBE {self.sql}")]
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
        """The rows of both; what one of them lacks is null.

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
        return [Row(columns, map(_as_rows, row)) for row in self.sparkSession.rows(self.sql)]

    def count(self) -> int:
        return int(self.sparkSession.rows(f"SELECT count(*) FROM ({self.sql})")[0][0])

    @property
    def write(self) -> Writer:
        return Writer(self)


def _as_rows(value: Any) -> Any:
    """A value as Spark's rows have it: structs are rows too."""
    if isinstance(value, dict):
        return Row(list(value), map(_as_rows, value.values()))
    return [_as_rows(each) for each in value] if isinstance(value, list) else value


class Grouped:
    """Rows by what is the same in them."""

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
        """In place of what is there, always."""
        return self

    def option(self, _: str, __: str) -> Writer:
        """zstd, always."""
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
            for values in frame.sparkSession.rows(f"SELECT DISTINCT {', '.join(keys)} FROM ({frame.sql})"):
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
