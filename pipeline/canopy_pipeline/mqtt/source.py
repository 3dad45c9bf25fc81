"""The source that Spark calls: the data source "mqtt", its stream reader, and its reader of one bounded batch.

Owns: the translation between Spark's offsets and partitions and the spool's. Spark makes these objects in several
processes: ``MqttDataSource`` in two, ``read`` runs in a third. Nothing connects before a stream's offsets are asked
for, which happens in one long-lived process of the driver; there the ``Receiver`` lives.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from canopy_mqtt.client.failures import ClientError
from canopy_mqtt.core.codec.packets import Publish
from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.mqtt import spool
from canopy_pipeline.mqtt.link import broker_client, failed, subscribe
from canopy_pipeline.mqtt.mqtt_options import BatchOptions, StreamOptions, check_options, chosen
from canopy_pipeline.mqtt.receiver import Receiver
from canopy_pipeline.mqtt.rows import Read, batch, placed, spark_schema
from canopy_pipeline.mqtt.sink import MqttBatchWriter, MqttStreamWriter
from canopy_pipeline.mqtt.spool import Slice, Spool

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LOCK_WAIT: Final = 10.0
"""Seconds that the process of an ended query has to leave the spool."""
FEW_ROWS: Final = 10_000
"""A partition has at least so many rows, unless there are no more: a task costs more than they do."""
FULL_SPOOLS: Final = 10
"""With ``Trigger.AvailableNow`` the target moves on at most so many times because the spool was full."""
TICK: Final = 0.05
"""Seconds between two looks at the limits of a batch read."""


class MqttDataSource(DataSource):
    """MQTT messages as rows, and rows as MQTT messages: docs/pipeline-mqtt.md says what is promised of each use."""

    @classmethod
    def name(cls) -> str:
        return "mqtt"

    def schema(self) -> StructType:
        """Return the columns (``canopy_pipeline.mqtt.rows``). This refuses wrong options when `load` is called, if they
        show their use."""
        check_options(self.options)
        return spark_schema()

    def streamReader(self, schema: StructType) -> MqttStreamReader:  # noqa: N802 - Spark's name
        # Its options are read later: an error here is drowned by one of Spark's own.
        return MqttStreamReader(self.options, schema)

    def reader(self, schema: StructType) -> MqttReader:
        _own(schema)
        return MqttReader(chosen(BatchOptions, self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> MqttStreamWriter:  # noqa: N802 - Spark's name
        return MqttStreamWriter(self.options, schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> MqttBatchWriter:
        return MqttBatchWriter(self.options, schema, overwrite)


def _own(schema: StructType) -> None:
    """Refuse a schema that differs from the source's own in more than nullability."""
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
        self._receiver: Receiver | None = None
        self._target: int | None = None
        self._more = 0
        """The number of times that the target may still be set anew."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the start of a new query: the first row that the spool still has."""
        return {"seq": self._open().spool.committed}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The offset behind the last row of the next micro-batch.

        Raises:
            PipelineError: the receiver has given up, or the spool is not that of the checkpoint.
        """
        receiver, begin = self._open(), start["seq"]
        end = self._next()
        # Refuses a start that the spool does not know, before anything is unlinked for it.
        receiver.spool.slices(begin, begin)
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
        if receiver.full:
            receiver.spool.commit(begin)
        if self._target is not None and self._more and begin >= self._target:
            # All that a full spool held is done with; now what it kept out.
            self._set_target()
        if self._target is not None:
            end = self._target
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        return {"seq": max(begin, end)}

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """Report rows received, messages that the broker said it lost, and sessions, for the query's progress."""
        if self._receiver is None:
            return None
        spool = self._receiver.spool
        return {"seq": spool.next, "lost": spool.lost, "session": spool.session}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Wait as `available_now_wait` says, and take the rows on disk then as the target.

        A full spool ends the waiting, and may hold nothing but rows that are done with, which only the start of the
        next batch tells: ``latestOffset`` makes room, and waits again.
        """
        self._more = FULL_SPOOLS + 1
        self._set_target()

    def _set_target(self) -> None:
        settled = self._open().settle(self._options.available_now_wait)
        self._target = self._next()
        self._more = 0 if settled else self._more - 1

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """Divide the rows from `start` to `end`, by segments, into about `partitions` parts."""
        return divided(self._open().spool.slices(start["seq"], end["seq"]), self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition as Arrow RecordBatches, in a task."""
        assert isinstance(partition, SpoolPartition)
        for piece in partition.slices:
            yield from spool.read(piece)

    def commit(self, end: Mapping[str, int]) -> None:
        self._open().spool.commit(end["seq"])

    def stop(self) -> None:
        """Stop receiving. Not every ended query calls this."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.stop()
            receiver.spool.close()

    @property
    def _options(self) -> StreamOptions:
        if self._chosen is None:
            _own(self._schema)
            self._chosen = chosen(StreamOptions, self._said)
        return self._chosen

    def _open(self) -> Receiver:
        if self._receiver is None:
            options = self._options
            receiver = Receiver(options, Spool(options.spool, options.client_id, LOCK_WAIT))
            receiver.start()
            self._receiver = receiver
        return self._receiver

    def _next(self) -> int:
        receiver = self._open()
        if receiver.error is not None:
            # Anew: that thread's way to it says nothing to a reader.
            raise PipelineError(str(receiver.error))
        return receiver.spool.next


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
            options,
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
            yield placed(batch(packets, reads).slice(0, options.max_rows), None)

    def _stamp(self, packets: Sequence[Publish], reads: list[Read]) -> None:
        new = len(packets) - sum(each.messages for each in reads)
        if new:
            reads.append(Read(new, time.time_ns() // 1000, time.monotonic_ns(), None))
