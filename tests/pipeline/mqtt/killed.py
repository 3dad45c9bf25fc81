"""Streaming queries in a process of their own, to be killed: `python -m tests.pipeline.mqtt.killed FOLDER URL…`.

One query for each url: MQTT to Parquet, in FOLDER/<number>/{spool,checkpoint,out}.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pipeline import mqtt
from pipeline.runtime.session import SparkOptions, spark_session

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
    folder, urls = Path(sys.argv[1]), sys.argv[2:]
    with spark_session("killed", SparkOptions("local[2]", "1g")) as spark:
        spark.sparkContext.pythonExec = sys.executable
        mqtt.register(spark)
        for number, url in enumerate(urls):
            query(spark, url, folder / str(number)).start()
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
