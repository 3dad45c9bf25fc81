"""A streaming query in a process of its own, to be killed: `python -m tests.pipeline.mqtt.killed FOLDER URL`.

MQTT to Parquet, in FOLDER/{spool,checkpoint,out}.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from canopy_pipeline import mqtt
from canopy_pipeline.runtime.spark_session import SparkOptions, spark_session

MAX_ROWS = 1000
FILTER = "killed/#"


def query(spark: SparkSession, url: str, folder: Path) -> DataStreamWriter:
    """The query, ready to start; its messages are published with QoS 1 below `killed/`."""
    return (
        spark.readStream.format("mqtt")
        .options(url=url, filters=FILTER, client_id="killed", spool=str(folder / "spool"), max_rows=MAX_ROWS)
        .option("available_now_wait", 1)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "out"))
    )


def main() -> None:
    """Run until somebody kills it."""
    with spark_session("killed", SparkOptions("local[2]", "1g")) as spark:
        spark.sparkContext.pythonExec = sys.executable
        mqtt.register(spark)
        query(spark, sys.argv[2], Path(sys.argv[1])).start().awaitTermination()


if __name__ == "__main__":
    main()
