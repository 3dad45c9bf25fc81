"""A Spark with two executors and a query whose receivers run on them, to be killed: `FOLDER URL`."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import canopy_spark

MAX_ROWS = 2_000


def main(folder: Path, url: str) -> None:
    """Start receivers and query, until its input closes; then end both in good order."""
    spark = (
        SparkSession.builder.master("local-cluster[2,2,600]")
        .config("spark.executor.memory", "600m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.executorEnv.PYTHONPATH", ":".join(filter(None, sys.path)))
        .getOrCreate()
    )
    canopy_spark.register(spark)
    said = {
        "url": url,
        "filters": "killed/#",
        "client_id": "clustered",
        "spool": str(folder / "spool"),
        "receivers": "2",
        "receivers_on": "executors",
        "max_rows": str(MAX_ROWS),
    }
    receivers = canopy_spark.receive(spark, said)
    query = (
        spark.readStream.format("mqtt")
        .options(**said)
        .load()
        .select("topic", "payload", "receiver", "seq")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    sys.stdin.read()
    receivers.stop()
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
