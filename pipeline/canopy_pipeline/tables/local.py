"""A batch: segments read and tables written by pyarrow.

Promises: memory is bounded by what is buffered (`ROWS`, `BYTES`), however large the batch is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from canopy_mqtt.record.files.folder import first_seq
from canopy_pipeline.errors import AWAY, DamagedError, GoneError
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.record.segments import check_columns
from canopy_pipeline.runtime.storage import File, Storage
from canopy_pipeline.tables.births import Births
from canopy_pipeline.tables.decode import Batches
from canopy_pipeline.tables.plans import DATE, DEAD_LETTERS, NEEDED, SEQ, SIZE, Plan
from canopy_pipeline.tables.staged import Staged

READ: Final = 4_096
READ_BYTES: Final = 32 << 20
"""Events, and bytes of their payloads, that are read and decoded at a time; one event with more is read alone."""
ROWS: Final = 100_000
BYTES: Final = 64 << 20
"""Rows, and their bytes, that wait to be written; each day of each table gets a file of them."""


def stage(
    recorded: Storage,
    place: Storage,
    files: Sequence[File],
    after: int,
    to: int,
    plans: Sequence[Plan],
    births: Births,
    staging: str,
    fresh: Numbers | None = None,
) -> Staged:
    """Write the rows of the publishes with numbers above `after`, up to `to`, into the folder `staging` of `place`;
    count those that are `fresh`, or all of them, as read.

    Raises:
        DamagedError: a segment is not what was written.
    """
    buffer = Buffer(place, staging)
    batches = Batches(plans, births)
    sparkplug = any(plan.format == "sparkplug" for plan in plans)
    for batch in publishes(recorded, files, after, to):
        buffer.staged.read += batch.num_rows if fresh is None else fresh.mask(batch.column(SEQ)).true_count
        if sparkplug:
            born(batch, births)
        for table, rows in batches.tables(batch):
            buffer.take(table, rows)
    buffer.flush()
    return buffer.staged


def publishes(recorded: Storage, files: Sequence[File], after: int, to: int) -> Iterator[Any]:
    """Yield the publishes of some segments of a record as record batches, in the order of their numbers.

    Raises:
        DamagedError: a segment is not what was written.
        GoneError: one was removed meanwhile.
    """
    for file in sorted(files, key=lambda each: first_seq(each.place)):
        try:
            with (
                recorded.fs.open_input_file(file.place) as source,
                pq.ParquetFile(source, page_checksum_verification=True) as opened,
            ):
                check_columns(file.path, set(opened.schema_arrow.names), (*NEEDED, SIZE))
                for batch in _read(opened):
                    seq = batch.column(SEQ)
                    kind = pc.equal(batch.column("kind").cast(pa.string()), "publish")
                    wanted = batch.filter(pc.and_(kind, pc.and_(pc.greater(seq, after), pc.less_equal(seq, to))))
                    if wanted.num_rows:
                        yield wanted
        except FileNotFoundError as error:
            raise GoneError(f"{file.path}: was removed while it was to be read") from error
        except (OSError, pa.ArrowException) as error:
            raise DamagedError(
                f"{file.path}: is damaged: it breaks off, or a checksum in it is wrong; {AWAY}"
            ) from error


def _read(opened: pq.ParquetFile) -> Iterator[Any]:
    """A segment's columns that are needed, in batches within `READ` and `READ_BYTES`."""
    for group in range(opened.num_row_groups):
        sizes = opened.read_row_group(group, columns=[SIZE]).column(SIZE).fill_null(0).to_pylist()
        rows = READ
        # Exact, and not by the average: a few large payloads may stand side by side among many small ones.
        while (
            rows > 1 and max((sum(sizes[at : at + rows]) for at in range(0, len(sizes), rows)), default=0) > READ_BYTES
        ):
            rows //= 2
        yield from opened.iter_batches(rows, row_groups=[group], columns=[*NEEDED])


def born(batch: Any, births: Births) -> None:
    """Note the births of Sparkplug in a batch of publishes."""
    said = pc.match_like(batch.column("topic").cast(pa.string()), "spBv1.0/%BIRTH/%")
    found = batch.filter(said)
    columns = (found.column(name).to_pylist() for name in ("topic", "payload", SEQ))
    for topic, payload, seq in zip(*columns, strict=True):
        births.take(topic, payload, seq)


class Buffer:
    """Rows that wait to be written, by table and day."""

    def __init__(self, place: Storage, staging: str) -> None:
        self.staged = Staged()
        self._place = place
        self._staging = staging
        self._waiting: dict[tuple[str, str], list[Any]] = {}
        self._rows = self._bytes = self._parts = 0

    def take(self, table: str, rows: Any) -> None:
        """Rows of a table; they are written when there are many."""
        if table == DEAD_LETTERS:
            columns = (rows.column(name).to_pylist() for name in ("table", "reason"))
            self.staged.dead.update(zip(*columns, strict=True))
        self.staged.rows[table] += rows.num_rows
        for day in rows.column(DATE).unique().to_pylist():
            part = rows.filter(pc.equal(rows.column(DATE), day)).drop_columns([DATE])
            self._waiting.setdefault((table, day), []).append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes
        if self._rows >= ROWS or self._bytes >= BYTES:
            self.flush()

    def flush(self) -> None:
        for (table, day), parts in self._waiting.items():
            place = f"{self._staging}/{table}/{self._parts:06d}.parquet"
            self._parts += 1
            draft = self._place.draft(place, ".part")
            with self._place.open(draft) as stream:
                pq.write_table(pa.Table.from_batches(parts), stream, compression="zstd", write_page_checksum=True)
            # Durable before the commit that names it.
            self._place.publish(draft, place)
            self.staged.files.append((table, f"{DATE}={day}", place))
        self._waiting.clear()
        self._rows = self._bytes = 0
