"""A batch of recorded publishes as rows of tables and dead letters.

Promises: each payload that a table's filter matches is in its rows or in the dead letters, with its reason; never in
both. Sparkplug's STATE alone is in neither: it is no data. What comes out depends on the message and the births before
it alone, not on how the record was cut in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from canopy_pipeline.tables.births import Births
from canopy_pipeline.tables.payloads.bad_payload import (
    AHEAD,
    LATE,
    MALFORMED,
    NOT_RECORDED,
    OUT_OF_RANGE,
    TOO_LARGE,
    BadPayloadError,
)
from canopy_pipeline.tables.plans import DEAD, DEAD_LETTERS, SEQ, TS, Plan

TOPICS: Final = 100_000
"""Topics whose tables are remembered."""
TOPIC: Final = 256
"""Characters of a topic that is remembered: together they are some tens of megabytes."""
PART_BYTES: Final = 2 << 20
"""Bytes of payloads that are rows at the same time: of Sparkplug's smallest metrics that is half a million rows."""
_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Decoder(Protocol):
    """Reads payloads of one format."""

    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        """The values of the columns, row by row.

        Raises:
            BadPayloadError: there is no row in it.
        """


def decoder(plan: Plan, births: Births) -> Decoder:
    """Return the decoder of a table's payloads; import the libraries that it needs.

    Raises:
        ModuleNotFoundError: of a library that the extra `tables` brings.
    """
    from canopy_pipeline.tables.payloads import avro, json_text, plain, protobuf, sparkplug

    if plan.format == "sparkplug":
        return sparkplug.SparkplugDecoder(plan, births)
    if plan.format == "text":
        return plain.TextDecoder()
    if plan.format == "number":
        return plain.NumberDecoder(plan)
    if plan.format == "json":
        return json_text.JsonDecoder(plan)
    return avro.AvroDecoder(plan) if plan.format == "avro" else protobuf.ProtobufDecoder(plan)


class Batches:
    """The tables of some plans, batch by batch."""

    def __init__(self, plans: Sequence[Plan], births: Births) -> None:
        self.plans = plans
        self._decoders = [decoder(plan, births) for plan in plans]
        self._times = [
            None if plan.event_time is None else [each.name for each in plan.columns].index(plan.event_time)
            for plan in plans
        ]
        self._matches: dict[str, list[tuple[int, tuple[str, ...]]]] = {}

    def tables(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Yield tables and their rows, as `decode` returns them, a part of the batch at a time, so that the rows of a
        few large payloads are not all in memory."""
        for part in parts(batch):
            yield from self.decode(part).items()

    def decode(self, batch: Any) -> dict[str, Any]:
        """A record batch for each table that has rows of it, and for the dead letters: publishes, with the columns of
        `plans.NEEDED`."""
        topics = batch.column("topic").to_pylist()
        wanted = [row for row, topic in enumerate(topics) if topic is not None and self._tables(topic)]
        if not wanted:
            return {}
        taken = batch.take(pa.array(wanted, pa.int32()))
        columns = {name: taken.column(name).to_pylist() for name in taken.schema.names if name != TS}
        columns[TS] = taken.column(TS).cast(pa.int64()).to_pylist()
        made: list[list[tuple[Any, ...]]] = [[] for _ in self.plans]
        dead: list[tuple[Any, ...]] = []
        for row, topic in enumerate(columns["topic"]):
            for table, levels in self._tables(topic):
                self._row(table, levels, columns, row, made[table], dead)
        found = {plan.name: _batch(rows, plan.arrow) for plan, rows in zip(self.plans, made, strict=True) if rows}
        if dead:
            found[DEAD_LETTERS] = _batch(dead, DEAD)
        return found

    def _tables(self, topic: str) -> list[tuple[int, tuple[str, ...]]]:
        """Return the tables of a topic, and its named levels in each."""
        found = self._matches.get(topic)
        if found is None:
            found = [
                (number, levels)
                for number, plan in enumerate(self.plans)
                if (levels := plan.pattern.values(topic)) is not None
            ]
            if len(topic) <= TOPIC:
                if len(self._matches) >= TOPICS:
                    self._matches.clear()
                self._matches[topic] = found
        return found

    def _row(
        self,
        table: int,
        levels: tuple[str, ...],
        columns: dict[str, list[Any]],
        row: int,
        made: list[tuple[Any, ...]],
        dead: list[tuple[Any, ...]],
    ) -> None:
        plan = self.plans[table]
        seq, at, payload = columns[SEQ][row], columns[TS][row], columns["payload"][row]
        head = (seq, at, *(columns[name][row] for name in plan.keep), *levels)
        try:
            if payload is None:
                raise BadPayloadError(NOT_RECORDED, "the record has no payloads (recorder.payloads)")
            if len(payload) > plan.limits.payload_bytes:
                raise BadPayloadError(TOO_LARGE, f"{len(payload):,} bytes, and {plan.limits.payload_bytes:,} are read")
            rows = self._decoders[table].rows(payload, columns["topic"][row], seq)
            time = self._times[table]
            # All rows of a payload or none: each is checked before one is kept.
            times = [self._moment(at if time is None else each[time], at, plan) for each in rows]
        # Whatever a decoder did not foresee: one payload stops no other.
        except Exception as error:
            bad = error if isinstance(error, BadPayloadError) else BadPayloadError(MALFORMED, repr(error))
            about = (columns["run_id"][row], columns["client_id"][row], columns["topic"][row], plan.name)
            dead.append((seq, at, *about, bad.reason, bad.detail, payload, _day(at)))
            return
        for number, (values, moment) in enumerate(zip(rows, times, strict=True)):
            item = (number,) if plan.items else ()
            made.append((*head, moment, *item, *values, _day(moment)))

    @staticmethod
    def _moment(moment: int | None, at: int, plan: Plan) -> int:
        """Return the time of an event, within the table's limits.

        The watermark goes by the record's clock: one message with a time in a far future would else make all others
        late.
        """
        if moment is None:
            return at
        if moment < at - plan.late:
            raise BadPayloadError(LATE, f"happened {_span(at - moment)} before it came")
        if moment > at + plan.ahead:
            raise BadPayloadError(AHEAD, f"is to happen {_span(moment - at)} after it came")
        return moment


def parts(batch: Any) -> Iterator[Any]:
    """A record batch in parts whose payloads have `PART_BYTES` bytes together, or are a single one."""
    begin = waiting = 0
    for row, size in enumerate(pc.binary_length(batch.column("payload")).to_pylist()):
        waiting += size or 0
        if waiting > PART_BYTES and row > begin:
            yield batch.slice(begin, row - begin)
            begin, waiting = row, size or 0
    yield batch.slice(begin)


def _span(micros: int) -> str:
    return f"{micros / 3_600_000_000:,.1f} h"


def _day(micros: int) -> str:
    try:
        return f"{_EPOCH + timedelta(days=micros // _DAY):%Y-%m-%d}"
    except OverflowError as error:
        raise BadPayloadError(OUT_OF_RANGE, "a time that no calendar has") from error


def _batch(rows: list[tuple[Any, ...]], schema: Any) -> Any:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
