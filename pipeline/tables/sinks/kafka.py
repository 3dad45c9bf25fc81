"""Rows as messages of Kafka, by Spark's connector where it is on the cluster: a topic for each table.

Promises: each batch is sent at least once. One that was sent and not written down as sent, since the machine stopped in
between, is sent again by the next start; the header `canopy.seq` has the sequence number by which its copies are
recognised. Rows of one MQTT topic have the same key, and so stand in one partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import functions as f

from pipeline.errors import MisuseError
from pipeline.runtime.storage import Storage, parquet
from pipeline.tables.plans import DATE, SEQ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SENT: Final = "_kafka-sent"
"""The file with the number of the last batch that was sent."""

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
FORMAT: Final = "kafka"
"""Of the connector, as Spark knows it."""
TOPIC: Final = "topic"


class KafkaSink:
    """Topics of one Kafka: the prefix and a table's name."""

    def __init__(self, spark: SparkSession, place: Storage, servers: str, prefix: str) -> None:
        """`servers`: host:port, with commas between several.

        Raises:
            MisuseError: the connector is not there.
        """
        self._spark = spark
        self._place = place
        self._servers = servers
        self._prefix = prefix
        try:
            # It is looked for, and nothing is connected to yet.
            spark.read.format(FORMAT).options(**{"kafka.bootstrap.servers": servers, "subscribe": prefix or "t"}).load()
        except AnalysisException as error:
            raise MisuseError(
                f"--format kafka needs Spark's connector: --packages {CONNECTOR}:{spark.version}, or its jars on the "
                "cluster"
            ) from error

    def publish(self, version: int, files: list[tuple[str, str, str]], about: dict[str, str]) -> None:
        """Send the rows of the batch, unless it is written down that they were."""
        del about
        if version <= self._sent():
            return
        for name in dict.fromkeys(table for table, _, _ in files):
            for day in dict.fromkeys(each for table, each, _ in files if table == name):
                mine = [self._place.at(where) for table, each, where in files if (table, each) == (name, day)]
                rows = parquet(self._spark.read, *mine).withColumn(DATE, f.lit(day.partition("=")[2]))
                self.send(messages(rows, f"{self._prefix}{name}"))
        self._place.write(SENT, str(version).encode())

    def send(self, rows: DataFrame) -> None:
        """Write messages, each once all replicas that are in step have it."""
        writer = rows.write.format(FORMAT).mode("append").option("kafka.bootstrap.servers", self._servers)
        writer.option("kafka.acks", "all").option("includeHeaders", "true").save()

    def _sent(self) -> int:
        text = self._place.read(SENT) if SENT in self._place.names("") else None
        return int(text) if text else 0


def messages(rows: DataFrame, topic: str) -> DataFrame:
    """Rows of a table as what Kafka's connector takes: topic, key, value (JSON), headers."""
    key: Any = f.col(TOPIC) if TOPIC in rows.columns else f.col(SEQ).cast("string")
    header = f.struct(f.lit("canopy.seq").alias("key"), f.col(SEQ).cast("string").cast("binary").alias("value"))
    return rows.select(
        f.lit(topic).alias("topic"),
        key.cast("string").alias("key"),
        f.to_json(f.struct(*rows.columns)).alias("value"),
        f.array(header).alias("headers"),
    )
