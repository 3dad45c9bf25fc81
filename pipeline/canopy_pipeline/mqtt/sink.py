"""The sink that Spark calls: it publishes each row, and a task succeeds only when every row is acknowledged.

Owns: the writers, and how a message is marked so that a repeated one is known. The columns are ``message``'s, the
connection of a task is ``publisher``'s; docs/pipeline-mqtt.md says what each column means.

Promises: at least once. Spark repeats a task that failed and a micro-batch that was not committed, and everything of it
is published again; the user properties `canopy-batch`, `canopy-partition` and `canopy-row` are the same then, as long
as the plan gives the same rows to the same task in the same order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from canopy_pipeline.errors import MisuseError
from canopy_pipeline.mqtt.message import columns, message
from canopy_pipeline.mqtt.mqtt_options import SinkOptions, chosen

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

QUERY_KEY: Final = "sql.streaming.queryId"
BATCH_KEY: Final = "streaming.sql.batchId"
"""The property by which Spark tells a task its streaming query; ``DataSourceStreamWriter.write`` does not."""


@dataclass
class Published(WriterCommitMessage):
    """The report of a task to the driver."""

    rows: int


class _Writer:
    """The common part of the writers of a stream and of a batch; pickled to each task."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise MisuseError('the sink mqtt only appends: use mode("append") or outputMode("append")')
        self._options = chosen(SinkOptions, options)
        self._columns = columns(schema)
        self._job = f"job-{uuid.uuid4().hex[:12]}"

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publish the rows of one task.

        Raises:
            PipelineError: a row cannot be published, the broker refuses one, or there is no connection.
        """
        from pyspark import TaskContext

        from canopy_pipeline.mqtt.publisher import Publisher

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        number = context.getLocalProperty(BATCH_KEY) if context is not None else None
        query = context.getLocalProperty(QUERY_KEY) if context is not None else None
        group = self._job if number is None else f"{query}/{number}"
        rows = 0
        publisher: Publisher | None = None
        try:
            for batch in iterator:
                for values in batch.to_pylist():
                    if publisher is None:
                        # A task without rows needs no connection.
                        publisher = Publisher(self._options, f"{self._options.client_id}-{uuid.uuid4().hex[:12]}")
                    tags = [("canopy-batch", group), ("canopy-partition", str(partition)), ("canopy-row", str(rows))]
                    publisher.publish(message(values, self._options.qos, self._columns, tags))
                    rows += 1
            if publisher is not None:
                publisher.finish()
        finally:
            if publisher is not None:
                publisher.close()
        return Published(rows)


class MqttBatchWriter(_Writer, DataSourceArrowWriter):
    """For `write`."""


class MqttStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """For `writeStream`."""
