"""Summarizes a record in numbers, without an engine: `canopy record stats`.

Promises: a batch of rows and `COUNTED` names of topics and of clients each bound the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from canopy_mqtt.core.routing.nodes import NODE_LINKS, NODES
from canopy_mqtt.record.files.current_files import current_files, missing
from canopy_mqtt.record.files.folder import RecorderError, check_columns, reason
from canopy_mqtt.record.files.parts import parts
from canopy_mqtt.record.reader import BATCH, check_folder

COUNTED: Final = 1_000_000
"""Topics, and clients, that are told apart, some 100 MB each; further ones are not counted."""

_COLUMNS: Final = ("kind", "ts", "client_id", "topic", "size", "reason", "n")


@dataclass
class Statistics:
    """The summary of the current segments."""

    segments: int = 0
    file_bytes: int = 0
    events: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """Events of each kind."""
    first: datetime | None = None
    last: datetime | None = None
    """The times of the first and the last event."""
    first_message: datetime | None = None
    last_message: datetime | None = None
    messages: int = 0
    """Incoming PUBLISH packets, and the broker's own messages."""
    payload_bytes: int = 0
    topics: int = 0
    """Different topics of messages; at most `COUNTED`."""
    clients: int = 0
    """Different client identifiers; at most `COUNTED`."""
    drops: Counter[str] = field(default_factory=Counter)
    """Messages that the broker dropped, by cause."""
    gaps: int = 0
    lost_events: int = 0
    """An upper bound of the events in gaps."""
    missing: list[str] = field(default_factory=list)
    """Missing segments that have manifests."""

    @property
    def seconds(self) -> float:
        return (self.last - self.first).total_seconds() if self.first and self.last else 0.0

    @property
    def rate(self) -> float:
        """Messages a second, from the first to the last one; of those within a second, their number."""
        begin, end = self.first_message, self.last_message
        return self.messages / max((end - begin).total_seconds() if begin and end else 0.0, 1.0)

    def summary(self) -> dict[str, Any]:
        names = ("first", "last", "first_message", "last_message")
        times = {name: each.isoformat() if (each := getattr(self, name)) else None for name in names}
        return {**vars(self), **times, "seconds": self.seconds}


def statistics(root: Path) -> Statistics:
    """Summarize a record.

    Raises:
        RecorderError: it is no record, or a segment cannot be read.
    """
    check_folder(root)
    found = Statistics()
    topics: set[str] = set()
    clients: set[str] = set()
    folders = parts(root)
    for folder in folders:
        for place in current_files(folder):
            found.segments += 1
            for batch in _batches(folder, place, found):
                _count(batch, found)
                _distinct(topics, batch.column("topic").filter(pc.equal(batch.column("kind"), "publish")))
                _distinct(clients, batch.column("client_id"))
    # Other nodes, and workers, are no clients.
    clients = {each for each in clients if not each.startswith((NODES, NODE_LINKS))}
    found.topics, found.clients = len(topics), len(clients)
    found.missing = [str(folder / place) for folder in folders for place in missing(folder)]
    return found


def _batches(root: Path, place: str, found: Statistics) -> Iterator[pa.RecordBatch]:
    try:
        found.file_bytes += (root / place).stat().st_size
        with pq.ParquetFile(root / place, page_checksum_verification=True) as file:
            check_columns(file)
            # Older segments lack columns that came later.
            there = [name for name in _COLUMNS if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH, columns=there):
                lacking = {name: pa.nulls(batch.num_rows) for name in _COLUMNS if name not in there}
                yield pa.RecordBatch.from_pydict({**{name: batch.column(name) for name in there}, **lacking})
    except (OSError, ValueError, pa.ArrowException) as error:
        raise RecorderError(f"{root / place}: cannot be read ({reason(error)})") from error


def _count(batch: pa.RecordBatch, found: Statistics) -> None:
    found.events += batch.num_rows
    kind = batch.column("kind")
    for each in pc.value_counts(kind).to_pylist():
        found.kinds[each["values"]] += each["counts"]
    times = pc.min_max(batch.column("ts")).as_py()
    if times["min"] is not None:
        found.first = min(found.first or times["min"], times["min"])
        found.last = max(found.last or times["max"], times["max"])
    found.messages = found.kinds["publish"]
    published = batch.filter(pc.equal(kind, "publish"))
    times = pc.min_max(published.column("ts")).as_py()
    if times["min"] is not None:
        found.first_message = min(found.first_message or times["min"], times["min"])
        found.last_message = max(found.last_message or times["max"], times["max"])
    found.payload_bytes += pc.sum(published.column("size")).as_py() or 0
    # A record may be of little else than drops: they are added up in columns.
    causes = pa.table(
        {
            "kind": kind,
            "cause": pc.fill_null(batch.column("reason").cast(pa.string()), "unknown"),
            "n": pc.fill_null(batch.column("n").cast(pa.int64()), 1),
        }
    )
    lost = causes.filter(pc.is_in(kind, pa.array(["drop", "gap"])))
    for row in lost.group_by(["kind", "cause"]).aggregate([("n", "sum"), ("n", "count")]).to_pylist():
        if row["kind"] == "drop":
            found.drops[row["cause"]] += row["n_sum"]
        else:
            found.gaps += row["n_count"]
            found.lost_events += row["n_sum"]


def _distinct(names: set[str], column: Any) -> None:
    if len(names) < COUNTED:
        names.update(each for each in pc.unique(column).to_pylist()[: COUNTED - len(names)] if each is not None)
