"""`--records`: what the account of a run needs beside the rows of its messages.

Owns: the folder of a run's records, and the small tables that are written at its end: `stages.parquet`,
`streams.parquet`, `subscribers.parquet`, `expected.parquet` (which subscriber should have heard which stream) and
`uncertain.parquet` (messages of which nobody can say whether the broker took them).

Promises: with these and the rows, every count of ``expect.settle`` can be found again by somebody else. Each table is
whole where it stands.

Refuses: a folder in which there are records: those of two runs would be read as one.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from loadtest.load.checks.expected import Account, Sent, Subscriptions
from loadtest.load.checks.records import BATCH, RecordsError, failure, wall
from loadtest.load.engine.job import Place
from loadtest.load.scenario.plan import Plan

STAGES: Final = pa.schema(
    [("run", pa.string()), ("stage", pa.int16()), ("name", pa.string()), ("measured", pa.bool_())]
)
STREAMS: Final = pa.schema(
    [
        ("run", pa.string()),
        ("stream", pa.int64()),
        ("group", pa.string()),
        ("publisher", pa.string()),
        ("topic", pa.string()),
        ("qos", pa.int8()),
        ("sent", pa.int64()),
        ("resent", pa.int64()),
    ]
)
SUBSCRIBERS: Final = pa.schema(
    [
        ("run", pa.string()),
        ("subscriber", pa.string()),
        ("group", pa.string()),
        ("frozen", pa.bool_()),
        ("shared", pa.bool_()),
        ("churns", pa.bool_()),
        ("open", pa.bool_()),
        ("whole", pa.bool_()),
        ("epoch", pa.int64()),
        ("absence", pa.int64()),
        ("told_lost", pa.int64()),
    ]
)
EXPECTED: Final = pa.schema(
    [
        ("run", pa.string()),
        ("stream", pa.int64()),
        ("publisher", pa.string()),
        ("subscriber", pa.string()),
        ("qos", pa.int8()),
        ("filters", pa.int32()),
        ("churned", pa.bool_()),
    ]
)
UNCERTAIN: Final = pa.schema(
    [("run", pa.string()), ("stream", pa.int64()), ("first", pa.int64()), ("last", pa.int64())]
)

Row = tuple[object, ...]


def prepare(folder: Path) -> None:
    """Make the folder of a run's records.

    Raises:
        RecordsError: it cannot be made or written to, or there are records in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(each.suffix == ".parquet" for each in folder.iterdir()):
            raise RecordsError(f"{folder}: holds the records of an earlier run; give another --out")
        trial = folder / ".trial"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise RecordsError(failure(folder, error)) from error


def place(folder: str | None) -> Place | None:
    """Where a run that begins now keeps its records; None where it keeps none."""
    return None if folder is None else Place(str(Path(folder).absolute()), wall())


def clear(where: Place) -> None:
    """Remove what was left half written."""
    for each in Path(where.folder).glob(".*.inprogress"):
        with contextlib.suppress(OSError):
            each.unlink()


class Tables:
    """The tables of one run. `expected` is what ``expect.settle`` tells."""

    def __init__(self, where: Place, plan: Plan) -> None:
        self._folder = Path(where.folder)
        self._plan = plan
        self._expected = array("q")

    def expected(self, stream: int, subscriber: int, qos: int, filters: int) -> None:
        """A subscriber should have heard a stream."""
        self._expected.extend((stream, subscriber, qos, filters))

    def write(self, sent: Sent, accounts: Sequence[Account]) -> None:
        """Write them all. Blocks.

        Raises:
            RecordsError: one cannot be written.
        """
        run = self._plan.run
        stages = ((run, number, each.name, each.measured) for number, each in enumerate(self._plan.scenario.stages))
        doubts = (
            (run, stream, first, end - 1)
            for stream, intervals in sent.uncertain.items()
            for first, end in intervals
            if end > first
        )
        try:
            self._table("stages", STAGES, stages)
            self._table("streams", STREAMS, self._streams(sent.streams, sent.resent))
            self._table("subscribers", SUBSCRIBERS, (self._subscriber(each) for each in accounts))
            self._table("expected", EXPECTED, self._pairs())
            self._table("uncertain", UNCERTAIN, doubts)
        except (OSError, pa.ArrowException) as error:
            raise RecordsError(failure(self._folder, error)) from error

    def _streams(self, streams: Mapping[int, int], resent: Mapping[int, int]) -> Iterator[Row]:
        plan = self._plan
        for stream, count in streams.items():
            group, client = plan.who(plan.publisher(stream))
            name, publisher = plan.groups[group].name, plan.client_id(group, client)
            again = resent.get(stream, 0)
            yield plan.run, stream, name, publisher, plan.topic(stream), plan.quality(stream), count, again

    def _subscriber(self, each: Account) -> Row:
        plan = self._plan
        number = plan.who(each.subscriber)[0]
        group = plan.groups[number]
        return (
            plan.run, plan.subscriber_name(each.subscriber), group.name, group.reading is not None,
            plan.shared[number], group.churn is not None, each.open, each.whole, each.epoch, each.absence,
            each.told_lost,
        )  # fmt: skip

    def _pairs(self) -> Iterator[Row]:
        plan = self._plan
        comings = Subscriptions(plan, ())
        rows = self._expected
        for at in range(0, len(rows), 4):
            stream, subscriber, qos, filters = rows[at : at + 4]
            churns = plan.groups[plan.who(subscriber)[0]].churn is not None
            churned = churns and comings.churned(subscriber, plan.topic(stream))
            publisher = plan.client_id(*plan.who(plan.publisher(stream)))
            yield plan.run, stream, publisher, plan.subscriber_name(subscriber), qos, filters, churned

    def _table(self, name: str, schema: Any, rows: Iterable[Row]) -> None:
        hidden = self._folder / f".{name}.parquet.inprogress"
        with pq.ParquetWriter(hidden, schema, compression="zstd", version="2.6") as writer:
            batch: list[Row] = []
            for row in rows:
                batch.append(row)
                if len(batch) >= BATCH:
                    writer.write_batch(_batch(batch, schema))
                    batch = []
            if batch:
                writer.write_batch(_batch(batch, schema))
        os.replace(hidden, self._folder / f"{name}.parquet")


def _batch(rows: Sequence[Row], schema: Any) -> Any:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(column), each.type) for column, each in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)
