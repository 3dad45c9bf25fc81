"""What Spark calls to read: the data source "mqtt", its stream reader, and its reader of one bounded batch.

Owns: the translation between Spark's offsets and partitions and the spool's. Spark makes these objects in several
processes: ``MqttDataSource`` in two, ``read`` runs in a third. Nothing connects before a stream's offsets are asked
for, which happens in one long-lived process of the driver; there the ``Receiver`` lives.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from broker.client.failures import ClientError
from broker.core.codec.packets import Publish
from pipeline.errors import MisuseError, PipelineError
from pipeline.mqtt import spool
from pipeline.mqtt.link import broker_client, failed, subscribe
from pipeline.mqtt.options import BatchOptions, StreamOptions, batch_options, check_options, stream_options
from pipeline.mqtt.parts import Part, State, begun
from pipeline.mqtt.rows import Read, batch, placed, spark_schema
from pipeline.mqtt.sink import MqttBatchWriter, MqttStreamWriter
from pipeline.mqtt.spool import Slice

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FEW_ROWS: Final = 10_000
"""A partition has at least so many rows, unless there are no more: a task costs more than they do."""
FULL_SPOOLS: Final = 10
"""With ``Trigger.AvailableNow`` the target moves on at most so many times because the spool was full."""
TICK: Final = 0.05
"""Seconds between two looks at the limits of a batch read."""


class MqttDataSource(DataSource):
    """MQTT messages as rows, and rows as MQTT messages.

    **Streaming read, at least once.** MQTT has no offsets, so a receiver on the driver's machine writes messages to a
    spool folder, and acknowledges them (PUBACK, PUBREC) only when they are on disk; Spark's offsets are their numbers
    in that spool. A query that was killed, and is started again with the same checkpoint, client id and spool, loses
    nothing: what it had spooled and not committed is read again under the same offsets, and the broker sends again
    what was not acknowledged. A message whose acknowledgement was lost is received twice, and is two rows; `dup` is
    true on the second. The broker must keep the session: an expired session (`session_expiry`), or a broker that
    forgets sessions when it is restarted, loses what came meanwhile, as do messages of QoS 0. On a cluster executors
    read the spool themselves: it must be a folder that all of them and the driver reach under the same path.

    **One bounded read** subscribes with a session of its own, and ends after `idle` seconds without a message, after
    `duration` seconds, or with `max_rows` rows: retained messages, and a sample of the traffic. Each action on the
    DataFrame reads anew: cache it to look twice.

    **Sink, at least once** (``pipeline.mqtt.sink`` lists all columns): columns `topic` and `payload`, and optionally
    others.

    Options for all:

    - `url`: mqtt://HOST:PORT or mqtts://HOST:PORT (TLS); the port is 1883 or 8883 where it is not said.
    - `user_name`, and `password` or `password_file`.
    - `version`: 5 (default) or 3.1.1.
    - `tls_ca`, `tls_cert`, `tls_key`: files in PEM; the system's authorities without `tls_ca`. `tls_insecure` (false):
      believe any certificate.
    - `connect_timeout` (30 s): the first connection must come within this time; later ones are tried for ever.
    - `keep_alive` (60 s).

    Of the reads:

    - `filters`: topic filters with commas between them, or a JSON list where a filter has a comma itself.
    - `qos` (1): 0, 1 or 2. `receive_maximum` (10000): messages that the broker may send before an acknowledgement.

    Of the streaming read:

    - `client_id`, `spool`: both must stay the same over restarts, and belong to one query. The spool is a local folder.
    - `session_expiry` (86400 s): how long the broker keeps the session while the query is down (MQTT 5.0).
    - `max_rows` (1000000): of one micro-batch.
    - `spool_bytes` (1 GiB): when the spool has so much, nothing is acknowledged until the query has caught up, so
      that the broker's queue fills; its limits decide what happens then.
    - `segment_rows` (50000), `segment_ms` (200), `segment_idle_ms` (10): a segment of the spool is closed with so many
      rows, after so long, or when nothing has come for so long.
    - `receivers` (1): several are processes, each with a session of its own, over a shared subscription.
    - `partitions` (8): tasks that a micro-batch is divided into, at most.
    - `available_now_wait` (2 s): with `Trigger.AvailableNow` the query takes what is in the spool, and what arrives
      until nothing has for so long (retained messages, what the session has kept), but at most 10 times as long. If
      that fills the spool, it takes what is there, makes room and waits again; after 10 more spools it ends.

    Of the batch read: `client_id` (a random one), `max_rows` (100000), `duration` (10 s), `idle` (1 s).

    Of the sink: `topic` (for all rows, instead of a column), `qos` (1), `retain` (false), `payload_json` (false),
    `window` (1000 messages without an acknowledgement), `client_id` (spark-sink: the beginning of the tasks'
    identifiers).
    """

    @classmethod
    def name(cls) -> str:
        """`mqtt`."""
        return "mqtt"

    def schema(self) -> StructType:
        """The columns (``pipeline.mqtt.rows``). Wrong options are refused here, when `load` is called, where they tell
        what they are for."""
        check_options(self.options)
        return spark_schema()

    def streamReader(self, schema: StructType) -> MqttStreamReader:  # noqa: N802 - Spark's name
        """For `readStream`."""
        # Its options are read later: an error here is drowned by one of Spark's own.
        return MqttStreamReader(self.options, schema)

    def reader(self, schema: StructType) -> MqttReader:
        """For `read`."""
        _own(schema)
        return MqttReader(batch_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> MqttStreamWriter:  # noqa: N802 - Spark's name
        """For `writeStream`."""
        return MqttStreamWriter(self.options, schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> MqttBatchWriter:
        """For `write`."""
        return MqttBatchWriter(self.options, schema, overwrite)


def _own(schema: StructType) -> None:
    """Refuse a schema that is not the source's own, but for what may be null."""
    wanted, own = ([(each.name, each.dataType.simpleString()) for each in some] for some in (schema, spark_schema()))
    if wanted != own:
        raise MisuseError("the source mqtt has its own columns: leave out schema(), and select from them")


@dataclass
class SpoolPartition(InputPartition):
    """Slices of the spool for one task."""

    slices: Sequence[Slice]


class MqttStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over the spool; see ``MqttDataSource``."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._said = dict(options)
        self._schema = schema
        self._chosen: StreamOptions | None = None
        self._parts: list[Part] = []
        self._target: list[int] | None = None
        self._more = 0
        """How many times the target may still be set anew."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where a new query begins: with what the spool still has."""
        return _offset([each.state().committed for each in self._open()])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The option `max_rows`."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The offset behind the last row of the next micro-batch.

        Raises:
            PipelineError: the receiver has given up, or the spool is not that of the checkpoint.
        """
        parts = self._open()
        states = self._states()
        begins = self._begins(start)
        for part, begin, state in zip(parts, begins, states, strict=True):
            # Refuses a start that the spool does not know, before anything is unlinked for it.
            part.slices(begin, begin)
            self._make_room(part, begin, state)
        if self._target is not None and self._more and all(b >= t for b, t in zip(begins, self._target, strict=True)):
            # All that a full spool held is done with; now what it kept out.
            self._set_target()
        ends = [each.next for each in states] if self._target is None else self._target
        if isinstance(limit, ReadMaxRows):
            ends = _within(begins, ends, limit.max_rows)
        return _offset([max(begin, end) for begin, end in zip(begins, ends, strict=True)])

    def _make_room(self, part: Part, start: int, state: State) -> None:
        # Spark calls ``commit`` for a batch only once it has planned the next one, and plans none without new rows:
        # when the rows of the last batch fill the spool, nothing is appended, and it would stay full for ever.
        #
        # `start` may be committed here. Spark asks for the latest offset only to plan a new batch, and then `start` is
        # the end of the batch before, which stands in the commit log: within a run ``runBatch`` has written it there,
        # or failed and ended the query; after a restart ``populateStartOffsets`` found the last batch of the offset
        # log in the commit log too. A batch that is in the offset log only is run again without this call, from the
        # offsets in the log, and all its rows are behind what was committed before. Of a first batch, `start` is
        # ``initialOffset``, which changes nothing, and is the same when that batch is run again.
        #
        # Only when it must: with Spark's `asyncProgressTrackingEnabled` the logs lag behind `start`.
        if state.full:
            part.commit(start)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """What is received, what the broker said it lost, and how many sessions it had, for the query's progress."""
        if not self._parts:
            return None
        states = [each.state() for each in self._parts]
        counted = {"lost": sum(each.lost for each in states), "session": max(each.session for each in states)}
        return _offset([each.next for each in states]) | counted

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Wait as `available_now_wait` says; what is on disk then is what is there now.

        A full spool ends the waiting, and may hold nothing but rows that are done with, which only the start of the
        next batch tells: ``latestOffset`` makes room, and waits again.
        """
        self._more = FULL_SPOOLS + 1
        self._open()
        self._set_target()

    def _set_target(self) -> None:
        # One after the other: while one is waited for, the others receive.
        settled = [each.settle(self._options.available_now_wait) for each in self._parts]
        self._target = [each.next for each in self._states()]
        self._more = 0 if all(settled) else self._more - 1

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """The rows from `start` to `end`, by segments, in about `partitions` parts."""
        parts = self._open()
        most = max(self._options.partitions // len(parts), 1)
        found: list[InputPartition] = []
        bounds = zip(parts, self._begins(start), self._begins(end), strict=True)
        for number, (part, first, last) in enumerate(bounds):
            slices = [replace(each, receiver=number) for each in part.slices(first, last)]
            found += divided(slices, most)
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition as Arrow RecordBatches, in a task."""
        assert isinstance(partition, SpoolPartition)
        for piece in partition.slices:
            yield from spool.read(piece)

    def commit(self, end: Mapping[str, int]) -> None:
        """Unlink the segments that Spark is done with."""
        for part, done in zip(self._open(), self._begins(end), strict=True):
            part.commit(done)

    def stop(self) -> None:
        """Stop receiving. Not every ended query calls this."""
        parts, self._parts = self._parts, []
        for each in parts:
            each.stop()

    @property
    def _options(self) -> StreamOptions:
        if self._chosen is None:
            _own(self._schema)
            self._chosen = stream_options(self._said)
        return self._chosen

    def _open(self) -> list[Part]:
        if not self._parts:
            self._parts = begun(self._said, self._options)
        return self._parts

    def _states(self) -> list[State]:
        states = [each.state() for each in self._parts]
        for each in states:
            if each.error:
                # Anew: that thread's way to it says nothing to a reader.
                raise PipelineError(each.error)
        return states

    def _begins(self, offset: Mapping[str, int]) -> list[int]:
        count = self._options.receivers
        if set(offset) != set(_offset([0] * count)):
            raise MisuseError(
                f"option 'receivers' is {count}, and the checkpoint is of {len(offset)}: leave it as it was, or begin "
                "with a new checkpoint, client_id and spool"
            )
        return list(_ordered(offset))


def _offset(numbers: Sequence[int]) -> dict[str, int]:
    """Spark's offset: `seq` of a single receiver, by its number of several."""
    return {"seq": numbers[0]} if len(numbers) == 1 else {str(n): each for n, each in enumerate(numbers)}


def _ordered(offset: Mapping[str, int]) -> list[int]:
    return [offset["seq"]] if "seq" in offset else [offset[str(number)] for number in range(len(offset))]


def _within(begins: Sequence[int], ends: Sequence[int], most: int) -> list[int]:
    """The ends of a batch of at most so many rows: each receiver's share, and what the others leave of theirs."""
    left, found = most, []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        share = max(left // (len(begins) - number), 0)
        found.append(min(end, begin + share))
        left -= max(found[-1] - begin, 0)
    return found


def divided(slices: Sequence[Slice], most: int) -> list[SpoolPartition]:
    """Slices in their order, as at most `most` partitions of about the same number of rows."""
    rows = sum(each.rows for each in slices)
    size = max(FEW_ROWS, math.ceil(rows / most))
    parts: list[SpoolPartition] = []
    before = 0
    for each in slices:
        if not parts or before // size >= len(parts):
            parts.append(SpoolPartition([]))
        parts[-1].slices = [*parts[-1].slices, each]
        before += each.rows
    return parts


class MqttReader(DataSourceReader):
    """One bounded read, in one task; see ``MqttDataSource``."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 - Spark's signature
        """Subscribe and gather, in a task.

        Raises:
            PipelineError: there is no connection, it is lost, or the broker refuses a filter.
        """
        options = self._options
        link = broker_client(
            options.broker,
            options.client_id or f"spark-read-{uuid.uuid4().hex[:12]}",
            receive_maximum=options.receive_maximum,
        )
        packets: list[Publish] = []
        reads: list[Read] = []
        link.on_message = packets.append
        try:
            link.connect()
            subscribe(link, options.filters, options.qos)
            begun = last = time.monotonic()
            while len(packets) < options.max_rows:
                self._stamp(packets, reads)
                end = min(begun + options.duration, last + options.idle)
                left = end - time.monotonic()
                if left <= 0:
                    break
                before = len(packets)
                link.step(min(left, TICK))
                if len(packets) > before:
                    last = time.monotonic()
            self._stamp(packets, reads)
        except ClientError as error:
            raise failed(error) from error
        finally:
            link.disconnect()
        if packets:
            yield placed(batch(packets, reads).slice(0, options.max_rows), None, None)

    def _stamp(self, packets: Sequence[Publish], reads: list[Read]) -> None:
        new = len(packets) - sum(each.messages for each in reads)
        if new:
            reads.append(Read(new, time.time_ns() // 1000, time.monotonic_ns(), None))
