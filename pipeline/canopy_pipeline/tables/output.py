"""The output folder: its published files, the commit of a batch, and the progress through the record.

Promises: tables are those of one stream and keep what stands in them, whatever mapping comes (`evolution`). A batch is
in force exactly once, from its commit on, also after a crash; so are the columns of a table, from the first commit that
has rows of them on. What was written for a batch and not committed is removed by the next start; what was committed and
not moved is moved by it. One process at a time writes to a folder of this machine.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.outputs import SUMMARY
from canopy_pipeline.record.coverage import Coverage, Finding
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.runtime.locks import alone_with
from canopy_pipeline.runtime.storage import Storage
from canopy_pipeline.tables.births import Birth
from canopy_pipeline.tables.evolution import Kept, evolved, newest, schema
from canopy_pipeline.tables.plans import DATE, Plan
from canopy_pipeline.tables.staged import Batch, Remade, Staged
from canopy_pipeline.tables.views import RECORD, Versions, views

IDENTITY: Final = "_tables.json"
COMMITS: Final = "_commits"
STAGING: Final = "_staging-"
LOCK: Final = "_lock"
FORMAT: Final = 3
"""Of the identity and the commits."""


@dataclass
class Progress:
    version: int = 0
    """Batches that are done."""
    through: int = 0
    """The sequence number up to which everything was read, or is in `lost`."""
    read: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Dead letters by table and reason."""
    births: list[Birth] = field(default_factory=list)
    lost: Coverage = field(default_factory=Coverage)
    """The events that were missing when the stream came to them."""
    unread: list[tuple[int, int]] = field(default_factory=list)
    """Numbers up to `through` that no segment held then: read if they come back. At most `LISTED` stretches."""


class _Lost(BaseModel):
    events: int
    findings: list[Finding]
    kinds: Counter[str]


class _Commit(BaseModel):
    """What a commit says: the progress, and the batch that it puts in force."""

    version: int
    first: int = Field(alias="from")
    last: int = Field(alias="to")
    through: int
    read: int
    rows: Counter[str]
    dead: list[tuple[str, str, int]]
    births: list[Birth]
    unread: list[tuple[int, int]]
    lost: _Lost
    files: list[tuple[str, str, str]]
    folders: dict[str, str]
    tables: dict[str, Kept]
    remade: Remade | None

    @property
    def progress(self) -> Progress:
        lost = Coverage(missing=self.lost.events, findings=self.lost.findings, kinds=self.lost.kinds)
        dead = Counter({(table, reason): n for table, reason, n in self.dead})
        return Progress(self.version, self.through, self.read, self.rows, dead, self.births, lost, self.unread)


class Sink(ABC):
    """The tables of an output folder in one format. A sink makes the files of a committed batch part of its tables; a
    second call changes nothing."""

    delta = False
    """True if the folders are tables of Delta Lake."""
    kinds: Mapping[str, str] = MappingProxyType({})
    """Arrow's types in the words of the format, by which `check` and `lacking` compare columns."""
    date = "string"
    """The type of the column that tables are partitioned by, in the words of the format."""
    remedy = "change it back, or give another --output"

    def __init__(self, out: Output) -> None:
        self.out = out
        self.place = out.place
        self.schemas = out.schemas()
        """The columns of each table."""

    def begin(self) -> None:  # noqa: B027  # most have nothing to do
        """Prepare the place of the tables, where that may be away. Raises AwayError, PipelineError."""

    @abstractmethod
    def publish(self, batch: Batch) -> None:
        """The tables get the columns that they lack first."""

    @abstractmethod
    def rows(self, table: str, numbers: Numbers) -> Iterator[Any]:
        """Yield the rows that a commit which makes these numbers again replaces, as record batches: they may be more
        than those."""

    def gone(self) -> list[str]:
        """Return the tables that have rows by the last commit, and are not there. Raises AwayError, PipelineError."""
        return []

    def versions(self) -> Versions:
        """Return the folders of each table, with their columns, for views; empty where a catalog names the tables."""
        return {}

    def views(self) -> dict[str, str]:
        """Return SQL for the readers of the tables, by the names of the files."""
        versions = self.versions()
        return views(self.schemas, self.out.where(), self.delta, self.out.written(), versions) if versions else {}

    def stale(self) -> list[str]:
        """Return the folders that no view names any more; none where a table has one for good."""
        return []

    def forget(self, table: str) -> list[str]:
        """Remove what a table no longer has from its history, if it keeps one. Return lines for what is not reached."""
        del table
        return []

    def kind(self, column: Any) -> str:
        """Return the type of a column in the words of the format."""
        return self.date if column.name == DATE else self.kinds[str(column.type)]

    def named(self, table: str, column: str) -> str:
        """Return the words for a column of a table."""
        return f"{self.out.where()}/{table}: its column {column}"

    def staged(self, places: Iterable[str]) -> set[str]:
        """Return the files that are in the folders of these staged ones: a call for each folder."""
        folders = {place.rpartition("/")[0] for place in places}
        return {f"{folder}/{name}" for folder in folders for name in self.place.names(folder)}

    def check_staged(self, table: str, files: Sequence[tuple[str, str]]) -> None:
        """Raise PipelineError if a table lacks a batch whose files (day and place) are no longer staged: it had it."""
        if {place for _, place in files} - self.staged(place for _, place in files):
            raise PipelineError(
                f"{table}: lacks rows that were written to it: somebody removed the table, or put another in its "
                "place; put it back, or give another --output"
            )

    def check(self, table: str, there: Mapping[str, str]) -> None:
        """Refuse a table that somebody gave another layout; `there`: the types of its columns.

        Raises:
            MisuseError: a column is of another type than in the mapping, or lacks and may not be null.
        """
        for each in self.schemas[table]:
            kind = self.kind(each)
            found = there.get(each.name, kind if each.nullable else "not there")
            if found != kind and {found, kind} != {self.kinds["int32"], self.kinds["int64"]}:
                raise MisuseError(
                    f"{self.named(table, each.name)} is {found}, and {kind} by the mapping; {self.remedy}"
                )

    def lacking(self, table: str, there: Mapping[str, str]) -> tuple[list[Any], list[Any]]:
        """Return the columns that a table lacks, and those that have to become wider. One that is wider already stays
        so."""
        wanted = self.schemas[table]
        narrow = {name for name, kind in there.items() if kind == self.kinds["int32"]}
        wider = [each for each in wanted if each.name in narrow and self.kind(each) == self.kinds["int64"]]
        return [each for each in wanted if each.name not in there], wider


class Output:
    def __init__(self, output: str, place: Storage) -> None:
        self.output = output
        self.place = place
        self.done = Progress()
        self.kept: dict[str, Kept] = {}
        """The tables that have rows, and their versions: those of the last commit."""
        self.tables: dict[str, Kept] = {}
        """The same with what the mapping makes of them, which counts from the first rows on."""

    def identity(self) -> dict[str, Any]:
        """Return what the folder says of its tables, which are `tables` from then on.

        Raises:
            FileNotFoundError: it has no tables.
            PipelineError: they cannot be read.
        """
        text = self.place.text(IDENTITY)
        try:
            found = dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise PipelineError(f"{self.output}/{IDENTITY}: no JSON object; give another --output") from error
        if found.get("format") != FORMAT:
            raise PipelineError(f"{self.output}: these tables were made by an earlier Canopy; give another --output")
        if not all(isinstance(found.get(name), str) for name in ("stream", "table_format")):
            raise PipelineError(f"{self.output}/{IDENTITY}: does not say what these tables are; give another --output")
        last = self._last()
        self.kept = self.tables = last.tables if last else {}
        return found

    def belongs(self, about: dict[str, Any], plans: Sequence[Plan]) -> str:
        """Check that the folder has these tables, or may have them from now on; return their identity.

        Raises:
            MisuseError: they are in another format, or `plans` do not keep what stands in them.
        """
        try:
            found = self.identity()
        except FileNotFoundError:
            # A hidden file may be what a killed run left of this one.
            if [name for name in self.place.names("") if not name.startswith((STAGING, LOCK, RECORD, "."))]:
                raise MisuseError(
                    f"--output {self.output}: something else is there; give a folder of its own"
                ) from None
            self.tables = evolved({}, plans)
            return self._keep({"format": FORMAT, "stream": uuid.uuid4().hex, **about})
        self.tables = evolved(self.kept, plans)
        other = [name for name, value in about.items() if found.get(name) != value]
        if not other:
            return str(found["stream"])
        # A database may move; its sink finds out whether it is the same.
        if other != ["database"] and self.place.names(COMMITS):
            raise MisuseError(
                f"--output {self.output}: these tables were begun with another {other[0]}; give another folder"
            )
        # Nothing is in them yet: what a run was given that failed does not bind the next one.
        return self._keep({"format": FORMAT, "stream": found["stream"], **about})

    def _keep(self, identity: dict[str, Any]) -> str:
        self.place.write(IDENTITY, f"{json.dumps(identity)}\n".encode())
        return str(identity["stream"])

    def folders(self) -> dict[str, str]:
        """Return the folder of each table that new rows go to, as Parquet has them."""
        return {name: newest(said)[0] for name, said in self.tables.items()}

    def schemas(self) -> dict[str, Any]:
        """Return the columns of each table."""
        return {name: schema(newest(said)[1]) for name, said in self.tables.items()}

    def load(self, sink: Sink) -> None:
        """Load the progress of the tables; publish a batch that was committed and not published.

        Raises:
            PipelineError: no commit can be read, and rows are in the tables.
        """
        said = self._last()
        if said is not None:
            self.done, self.kept = said.progress, said.tables
            self._publish(sink, said)
        # The first may be half written: nothing is in the tables then.
        elif any(name.endswith(".json") and name != f"{1:012d}.json" for name in self.place.names(COMMITS)):
            raise PipelineError(f"{self.output}/{COMMITS}: no commit can be read; give another --output")
        self.tidy()

    def _last(self) -> _Commit | None:
        """Return the newest commit; None if there is none, or none can be read.

        Raises:
            PipelineError: it is whole, and no commit of these tables.
        """
        for name in sorted(self.place.names(COMMITS), reverse=True):
            try:
                return _Commit.model_validate_json(self.place.read(f"{COMMITS}/{name}"))
            except ValidationError as error:
                [first, *_] = error.errors()
            # On some storages the last may be half written.
            if first["type"] != "json_invalid":
                where = ".".join(map(str, first["loc"]))
                raise PipelineError(
                    f"{self.output}/{COMMITS}/{name}: no commit of these tables ({where}: {first['msg'].lower()}); put "
                    "back what was there, or give another --output"
                )
        return None

    def staging(self) -> str:
        """Return a folder for a new batch, under the output."""
        return f"{STAGING}{uuid.uuid4().hex[:8]}"

    def commit(
        self, sink: Sink, staged: Staged, done: Progress, first: int, last: int, remade: Remade | None = None
    ) -> list[str]:
        """Put a batch in force; it is of the numbers `first` to `last`. Return the tables that are in other folders
        since then."""
        # A table without rows in this batch may still be given other columns.
        after = {name: said for name, said in self.tables.items() if staged.rows[name]}
        kept = {**self.kept, **(after if remade is None else remade.tables)}
        changed = [name for name, said in self.kept.items() if said != kept[name]]
        said = _Commit.model_validate(
            {
                **vars(done),
                "from": first,
                "to": last,
                "dead": [(*key, count) for key, count in done.dead.items()],
                "lost": {"events": done.lost.missing, "findings": done.lost.findings, "kinds": done.lost.kinds},
                "files": staged.files,
                "folders": self.folders(),
                "tables": kept,
                "remade": remade,
            }
        )
        self.place.write(f"{COMMITS}/{done.version:012d}.json", f"{said.model_dump_json(by_alias=True)}\n".encode())
        self.done, self.kept = done, kept
        self._publish(sink, said)
        # The one before stays, where this one should not be whole.
        self.place.remove(f"{COMMITS}/{done.version - 2:012d}.json")
        self.tidy()
        return changed

    def forget(self) -> None:
        """Remove all commits but the last one."""
        for name in self.place.names(COMMITS)[:-1]:
            self.place.remove(f"{COMMITS}/{name}")

    def finish(self, sink: Sink, summary: dict[str, Any]) -> None:
        """Write the views, which name what is in their place then, and the summary; remove folders that no view names
        any more."""
        for name, text in sink.views().items():
            self.place.write(name, text.encode())
        self.place.write(SUMMARY, f"{json.dumps(summary, indent=2)}\n".encode())
        for name in sink.stale():
            self.place.remove(name)

    def written(self) -> list[str]:
        """Return the tables that have rows."""
        return [name for name, rows in self.done.rows.items() if rows]

    def where(self) -> str:
        """Return the address of the folder."""
        return self.output.rstrip("/") if self.place.local is None else str(self.place.local)

    @staticmethod
    def _publish(sink: Sink, said: _Commit) -> None:
        about = {"canopy.from_seq": str(said.first), "canopy.to_seq": str(said.last)}
        sink.publish(Batch(said.version, said.files, said.folders, about, said.remade))

    def tidy(self) -> None:
        """Remove staged files: of an earlier run, or of a batch that is published."""
        for name in self.place.names(""):
            if name.startswith(STAGING):
                self.place.remove(name)


@contextmanager
def alone(output: str, local: Path | None) -> Iterator[None]:
    """Keep other processes of this machine from writing to the folder within the block.

    Raises:
        PipelineError: another one does.
    """
    if local is None:
        yield
        return
    local.mkdir(parents=True, exist_ok=True)
    with alone_with(local / LOCK, f"--output {output}: another process writes these tables"):
        yield
