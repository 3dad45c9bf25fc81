"""A standalone cluster of Spark: a master and two workers in processes of their own, with Canopy installed."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from loadtest.brokers.process import free_port
from pipeline.runtime.session import java
from tests.pipeline.mqtt.conftest import canopy, listens, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

BIN = Path(pyspark.__file__).parent / "bin"
ROWS = 200
JOB = f"""
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
import canopy_spark

canopy_spark.register(spark)
url = sys.argv[1]
rows = spark.range(0, {ROWS}, numPartitions=4).selectExpr(
    "concat('plant/', id) AS topic", "cast(id AS string) AS payload", "true AS retain"
)
rows.write.format("mqtt").option("url", url).mode("append").save()
read = spark.read.format("mqtt").option("url", url).option("filters", "plant/#").option("idle", "2").load()
print("sum", read.selectExpr("sum(cast(cast(payload AS string) AS long))").first()[0])
spark.stop()
"""


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of a master with two workers of one core each; their folders are `folder`/worker-<number>."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for number in range(2):
        own = ["--host", "127.0.0.1", "--cores", "1", "--memory", "700m", "--webui-port", "0"]
        own += ["--work-dir", str(folder / f"worker-{number}")]
        commands.append([f"{deploy}.worker.Worker", *own, master])
    with ExitStack() as stack, (folder / "said").open("wb") as said:
        for number, command in enumerate(commands):
            process = stack.enter_context(
                subprocess.Popen([BIN / "spark-class", *command], env=installed(), stdout=said, stderr=said)
            )
            stack.callback(process.terminate)
            if number == 0:
                until("the master listens", functools.partial(listens, port))
        yield master


def installed() -> dict[str, str]:
    """An environment in which Canopy is installed, as on each node of the cluster."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        # Six Java machines that do little, and start often.
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }


def test_two_workers_write_and_read_mqtt(tmp_path: Path) -> None:
    why = java()
    if why is not None:
        pytest.skip(why)
    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    with canopy() as port, cluster(tmp_path) as master:
        told = subprocess.run(
            [
                *(BIN / "spark-submit", "--master", master),
                *("--executor-memory", "600m", "--executor-cores", "1", "--conf", "spark.ui.enabled=false"),
                *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1.0"),
                *("--conf", "spark.scheduler.maxRegisteredResourcesWaitingTime=120s", "--conf", "spark.cores.max=2"),
                *(job, f"mqtt://127.0.0.1:{port}"),
            ],
            env=installed(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert told.returncode == 0, told.stderr[-3000:]
    assert f"sum {sum(range(ROWS))}" in told.stdout
    for number in range(2):
        # Each worker had an executor.
        assert list((tmp_path / f"worker-{number}").glob("app-*/*/stderr")), number
