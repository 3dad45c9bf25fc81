"""A cluster of Spark of two workers, whose executors are processes of their own, with Canopy installed.

Its master and workers are threads of the driver (`local-cluster`): six machines of Java instead of three took twice as
long, and showed nothing else of Canopy, which runs in the driver and the executors.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from canopy_pipeline.runtime.spark_session import java
from tests.pipeline.mqtt.conftest import canopy

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

BIN = Path(pyspark.__file__).parent / "bin"
ROWS = 200
JOB = f"""
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
import canopy_pipeline.spark

canopy_pipeline.spark.register(spark)
url = sys.argv[1]
rows = spark.range(0, {ROWS}, numPartitions=4).selectExpr(
    "concat('plant/', id) AS topic", "cast(id AS string) AS payload", "true AS retain"
)
rows.write.format("mqtt").option("url", url).mode("append").save()
read = spark.read.format("mqtt").option("url", url).option("filters", "plant/#").option("idle", "2").load()
print("sum", read.selectExpr("sum(cast(cast(payload AS string) AS long))").first()[0])
spark.stop()
"""


def home(folder: Path) -> Path:
    """Return a home of Spark whose workers keep their files in `folder`/work."""
    for part in ("bin", "jars"):
        (folder / part).symlink_to(Path(pyspark.__file__).parent / part)
    return folder


def installed(folder: Path) -> dict[str, str]:
    """An environment in which Canopy is installed, as on each node of the cluster."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home(folder)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Java machines that do little.
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def test_two_workers_write_and_read_mqtt(tmp_path: Path) -> None:
    why = java()
    if why is not None:
        pytest.skip(why)
    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    with canopy() as port:
        told = subprocess.run(
            [
                *(BIN / "spark-submit", "--master", "local-cluster[2,1,700]"),
                *("--conf", "spark.executor.memory=600m", "--conf", "spark.executor.cores=1"),
                *("--conf", "spark.ui.enabled=false"),
                *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
                *("--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=120s", "--conf", "spark.cores.max=2"),
                *(job, f"mqtt://127.0.0.1:{port}"),
            ],
            env=installed(tmp_path),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert told.returncode == 0, told.stderr[-3000:]
    assert f"sum {sum(range(ROWS))}" in told.stdout
    for number in range(2):
        # Each worker had one executor.
        assert list((tmp_path / "work").glob(f"app-*/{number}/stderr")), number
