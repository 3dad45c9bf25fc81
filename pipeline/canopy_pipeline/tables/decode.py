"""A batch of recorded publishes as rows of tables and dead letters.

Promises: each payload that a table's filter matches is in its rows or in the dead letters, with its reason; never in
both. Sparkplug's STATE alone is in neither: it is no data. What comes out depends on the message and the births before
it alone, not on how the record was cut in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from canopy_pipeline.errors import PipelineError
from canopy_pipeline.tables.births import Births
from canopy_pipeline.tables.payloads import avro, json_text, plain, protobuf, sparkplug
from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.payloads.confluent import Decoder, FramedDecoder
from canopy_pipeline.tables.plans import DEAD, DEAD_LETTERS, SEQ, TS, Plan

TOPICS: Final = 100_000
"""Topics whose tables are remembered."""
TOPIC: Final = 256
"""Characters of a topic that is remembered: together they are some tens of megabytes."""
DAYS: Final = 4_096
"""Days whose names are remembered."""
PART_BYTES: Final = 2 << 20
"""Bytes of payloads that are rows at the same time: of Sparkplug's smallest metrics that is half a million rows."""
_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def decoder(plan: Plan, births: Births) -> Decoder:
    """Return the decoder of a table's payloads; import the libraries that it needs.

    Raises:
        ModuleNotFoundError: of a library that the extra `tables` brings.
    """
    if plan.format == "sparkplug":
        return sparkplug.SparkplugDecoder(plan, births)
    if plan.format == "text":
        return plain.TextDecoder()
    if plan.format == "number":
        return plain.NumberDecoder(plan)
    if plan.format == "avro":
        return avro.AvroDecoder(plan)
    if plan.format == "json":
        made: Decoder = json_text.JsonDecoder(plan)
        return made if plan.framing == "none" else FramedDecoder(made, "JSON", plan.registry)
    made = protobuf.ProtobufDecoder(plan)
    if plan.framing == "none":
        return made
    return FramedDecoder(made, "PROTOBUF", plan.registry, protobuf.place(plan.schema, plan.message))


class Batches:
    """The tables of some plans, batch by batch."""

    def __init__(self, plans: Sequence[Plan], births: Births) -> None:
        self.plans = plans
        self._tables = [_Table(plan, decoder(plan, births)) for plan in plans]
        self._matches: dict[str, list[tuple[str, ...] | None]] = {}

    def tables(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Yield tables and their rows, as `decode` returns them, a part of the batch at a time, so that the rows of a
        few large payloads are not all in memory."""
        for part in parts(batch):
            yield from self.decode(part).items()

    def decode(self, batch: Any) -> dict[str, Any]:
        """A record batch for each table that has rows of it, and for the dead letters: publishes, with the columns of
        `plans.NEEDED`."""
        encoded = batch.column("topic").dictionary_encode()
        topics, indices = encoded.dictionary.to_pylist(), encoded.indices
        found: dict[str, Any] = {}
        dead: list[tuple[Any, ...]] = []
        for number, table in enumerate(self._tables):
            levels = [self._levels(topic)[number] for topic in topics]
            mine = pa.array([each is not None for each in levels], pa.bool_()).take(indices)
            taken = batch.filter(mine)
            if taken.num_rows and (made := table.decode(taken, levels, indices.filter(mine), dead)) is not None:
                found[table.plan.name] = made
        if dead:
            columns = zip(*sorted(dead, key=lambda each: each[0]), strict=True)
            found[DEAD_LETTERS] = _batch([*columns], DEAD)
        return found

    def _levels(self, topic: str) -> list[tuple[str, ...] | None]:
        """Return the named levels of a topic in each table; None of a table that it is not in."""
        found = self._matches.get(topic)
        if found is None:
            found = [plan.pattern.values(topic) for plan in self.plans]
            if len(topic) <= TOPIC:
                if len(self._matches) >= TOPICS:
                    self._matches.clear()
                self._matches[topic] = found
        return found


class _Table:
    """The rows of one table, made column by column."""

    def __init__(self, plan: Plan, decoder: Decoder) -> None:
        self.plan = plan
        self._decoder = decoder
        names = [each.name for each in plan.columns]
        self._time = None if plan.event_time is None else names.index(plan.event_time)

    def decode(self, taken: Any, levels: list[tuple[str, ...] | None], topics: Any, dead: list[tuple[Any, ...]]) -> Any:
        """Return a record batch of the rows that are in publishes of this table; None if there are none.

        `topics`: the place in `levels` of each publish's named levels. `dead` takes the dead letters.
        """
        plan, rows_of, time, most = self.plan, self._decoder.rows, self._time, self.plan.limits.payload_bytes
        made: list[tuple[Any, ...]] = []
        sources: list[int] = []
        items: list[int] = []
        moments: list[int] = []
        columns = (taken.column("payload"), taken.column("topic"), taken.column(SEQ), taken.column(TS).cast(pa.int64()))
        for row, (payload, topic, seq, at) in enumerate(zip(*(each.to_pylist() for each in columns), strict=True)):
            try:
                if payload is None:
                    raise BadPayloadError("not-recorded", "the record has no payloads (recorder.payloads)")
                if len(payload) > most:
                    raise BadPayloadError("too-large", f"{len(payload):,} bytes, and {most:,} are read")
                rows = rows_of(payload, topic, seq)
                # All rows of a payload or none: each is checked before one is kept.
                times = [at if time is None else _moment(each[time], at, plan) for each in rows]
            except PipelineError:
                # Of the registry: no fault of this payload.
                raise
            # Whatever a decoder did not foresee: one payload stops no other.
            except Exception as error:
                bad = BadPayloadError("malformed", f"cannot be read: {error}")
                if isinstance(error, BadPayloadError):
                    bad = error
                about = (taken.column(name)[row].as_py() for name in ("run_id", "client_id"))
                dead.append((seq, at, *about, topic, plan.name, bad.reason, bad.detail, payload, _day(at // _DAY)))
                continue
            made += rows
            moments += times
            sources += [row] * len(rows)
            items += range(len(rows))
        if not made:
            return None
        head = taken
        if sources != [*range(taken.num_rows)]:
            kept = pa.array(sources, pa.int32())
            head, topics = taken.take(kept), topics.take(kept)
        named = (
            pa.array([None if each is None else each[at] for each in levels], pa.string()).take(topics)
            for at in range(len(plan.pattern.names))
        )
        return _batch(
            [
                head.column(SEQ), head.column(TS), *(head.column(name) for name in plan.keep), *named, moments,
                *([items] if plan.items else []), *zip(*made, strict=True), [_day(each // _DAY) for each in moments],
            ],
            plan.arrow,
        )  # fmt: skip


def _moment(moment: int | None, at: int, plan: Plan) -> int:
    """Return the time of an event, within the table's limits.

    The watermark goes by the record's clock: one message with a time in a far future would else make all others late.
    """
    if moment is None:
        return at
    if moment < at - plan.late:
        raise BadPayloadError("late", f"happened {_span(at - moment)} before it came")
    if moment > at + plan.ahead:
        raise BadPayloadError("ahead", f"is to happen {_span(moment - at)} after it came")
    # It must have a day.
    _day(moment // _DAY)
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


@lru_cache(maxsize=DAYS)
def _day(number: int) -> str:
    """The date of a day, by its number since 1970."""
    try:
        return f"{_EPOCH + timedelta(days=number):%Y-%m-%d}"
    except OverflowError as error:
        raise BadPayloadError("out-of-range", "a time that no calendar has") from error


def _batch(columns: Sequence[Any], schema: Any) -> Any:
    """Columns, of Arrow or of Python, as a record batch."""
    arrays = [
        values.cast(field.type) if isinstance(values, pa.Array) else pa.array(values, field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
