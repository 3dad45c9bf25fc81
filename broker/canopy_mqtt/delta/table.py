"""The commits of a table over a recorder's folder.

Owns the content of a commit: the files that come and go in one step, and in its metadata, under `canopy`, their
manifests: numbers, gaps, checksums. The manifests decide which files are current; `settle` brings the table in line
with them, wherever a process was killed, and does nothing if it is. It refuses a table with files that no manifest can
describe: another program has written to it. Blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from time import time_ns
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

LOG: Final = "_delta_log"
PARTITIONS: Final = ("date", "hour")
TOGETHER: Final = 1_000
"""Files of one commit: a table over an old record does not begin with one huge commit."""
TOLD: Final = ("segment", "run_id", "rows", "from_seq", "to_seq", "sha256", "gaps")
"""The keys of a manifest that a commit's metadata repeats."""

_OURS: Final = re.compile(r"date=\d{4}-\d\d-\d\d/hour=\d\d/(?:seg|merged)-[^/]+\.parquet")

About = Mapping[str, Any]
"""A manifest."""


class TableError(Exception):
    """The reason in one line why the table could not be committed to."""


def is_table(root: Path) -> bool:
    """Return True if a record has a table."""
    return (root / LOG).is_dir()


class Table:
    """The table over one record's folder."""

    def __init__(self, root: Path, columns: Any = None) -> None:
        """`columns`: those of the record, in pyarrow's form, if a missing table is to be made."""
        self._root = root
        self._columns = columns
        self._table: DeltaTable | None = None

    def files(self) -> list[str]:
        """Return the paths of the files in the table. Raises TableError."""
        with self._foreseen():
            return self._files()

    def add(self, about: About) -> None:
        """Commit one new segment. Raises TableError."""
        with self._foreseen():
            self._commit([about], [], frozenset(), "record")

    def settle(self, in_force: Iterable[str], gone: Collection[str], manifest: Callable[[str], About], why: str) -> int:
        """Commit all differences between the current files and the table. Returns the number of commits.

        `gone`: segments that were merged or removed. Other unknown files stay.

        Raises:
            TableError: it could not be committed, or another program has written to the table.
        """
        with self._foreseen():
            held = frozenset(self._files())
            for place in held:
                if not _OURS.fullmatch(place):
                    raise TableError(f"{self._root}: the Delta table has a file that Canopy did not write: {place}")
            new = [place for place in in_force if place not in held and place not in gone]
            old = held.intersection(gone)
            commits = 0
            while new or old:
                part, new = new[:TOGETHER], new[TOGETHER:]
                abouts = [manifest(place) for place in part]
                # What is merged goes in the very commit with which the merged segment comes.
                going = old & {place for each in abouts for place in each.get("replaces") or ()} if new else old
                self._commit(abouts, sorted(going), held, why)
                commits, old = commits + 1, old - going
            return commits

    def _files(self) -> list[str]:
        return [str(place) for place in pa.table(self._opened().get_add_actions())["path"].to_pylist()]

    def _opened(self) -> DeltaTable:
        if self._table is not None:
            self._table.update_incremental()
        elif self._columns is None:
            self._table = DeltaTable(self._root)
        else:
            fields = [pa.field(each.name, each.type) for each in self._columns]
            whole = pa.schema([*fields, pa.field("date", pa.date32()), pa.field("hour", pa.int32())])
            made = Schema.from_arrow(whole)
            self._table = DeltaTable.create(self._root, made, mode="ignore", partition_by=list(PARTITIONS))
        return self._table

    def _commit(self, new: list[About], old: list[str], held: Collection[str], why: str) -> None:
        table = self._opened()
        now = time_ns() // 1_000_000
        moved = {place for about in new for place in about.get("replaces") or () if place in held}
        actions: list[AddAction | RemoveAction] = [
            # Rows of files that the table had: who follows its changes has seen them.
            added(about, now, change=not moved.intersection(about.get("replaces") or ()))
            for about in new
        ]
        actions += [RemoveAction(place, place not in moved, now, None, _partition(place)) for place in old]
        told = {
            "why": why,
            "added": [{name: about[name] for name in TOLD if name in about} for about in new],
            "removed": old,
        }
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            list(PARTITIONS),
            commit_properties=CommitProperties(custom_metadata={"canopy": told}),
        )

    @contextmanager
    def _foreseen(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError, ValueError, KeyError, TypeError) as error:
            # Whatever it was, it is read anew.
            self._table = None
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise TableError(f"{self._root}: the Delta table cannot be committed to ({said})") from error


def added(about: About, now: int, change: bool = True) -> AddAction:
    """Make the action that adds a file, from its manifest; `now` in ms since 1970, `change`: its rows are new to the
    table.
    """
    first, last = (datetime.fromisoformat(about[name]) for name in ("first_ts", "last_ts"))
    stats = {
        "numRecords": about["rows"],
        "minValues": {"seq": about["from_seq"], "ts": _stamp(first)},
        # They are in milliseconds: cut off, the last would be too early.
        "maxValues": {"seq": about["to_seq"], "ts": _stamp(last + timedelta(microseconds=999))},
        "nullCount": {"seq": 0, "ts": 0},
    }
    place = str(about["segment"])
    return AddAction(place, int(about["bytes"]), _partition(place), now, change, json.dumps(stats))


def _partition(place: str) -> dict[str, str | None]:
    """Return the partition values in a segment's path."""
    date, hour, _ = place.split("/")
    return {"date": date.removeprefix("date="), "hour": str(int(hour.removeprefix("hour=")))}


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
