"""Jobs at a Spark Connect server in a process of its own: they count what DuckDB counts, and refuse in a line."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyspark
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from loadtest.brokers.process import free_port
from pipeline.cli import app
from pipeline.runtime.session import java
from pipeline.runtime.storage import storage
from tests.pipeline.mqtt.conftest import listens, until
from tests.pipeline.tables.fleet import mapping, story

SPARK = Path(pyspark.__file__).parent


@contextmanager
def connect(folder: Path) -> Iterator[str]:
    """The address of a server; its executors import what is imported here."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command: list[Any] = [SPARK / "bin/spark-submit", "--master", "local[2]", "--driver-memory", "1g"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    own = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK)}
    path = os.pathsep.join(filter(None, sys.path))
    with (
        (folder / "server").open("wb") as said,
        subprocess.Popen(command, env=os.environ | own | {"PYTHONPATH": path}, stdout=said, stderr=said) as server,
    ):
        try:
            until("the server listens", functools.partial(listens, port))
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.terminate()


def command(*arguments: str) -> None:
    """In a process of its own: a session of Spark Connect changes what `pyspark.sql.functions` does in all of it."""
    own = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    line = [sys.executable, "-P", "-m", "broker", "pipeline", *arguments]
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=200, env=own)
    assert done.returncode == 0, done.stderr


def summary(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_jobs_count_what_they_count_elsewhere(tmp_path: Path) -> None:
    why = java()
    if why is not None:
        pytest.skip(why)
    if importlib.util.find_spec("grpc") is None:
        pytest.skip("no grpcio: pip install 'pyspark[connect]'")
    told = story()
    told.subscribe("s", "elsewhere")
    told.deliver("s", told.publish("p", "elsewhere"))
    told.write(tmp_path / "record", segments=2)
    tables = ["tables", "--input", str(tmp_path / "record"), "--mapping", str(mapping(tmp_path / "maps"))]
    report = ["report", "--input", str(tmp_path / "record")]
    command(*report, "--output", str(tmp_path / "here"), "--engine", "duckdb")
    command(*tables, "--output", str(tmp_path / "tables"))
    with connect(tmp_path) as url:
        command(*report, "--output", str(tmp_path / "there"), "--remote", url)
        command(*tables, "--output", str(tmp_path / "tables-there"), "--engine", "spark", "--remote", url)
        jobs = sorted(each.parent.name for each in (tmp_path / "there").glob("*/summary.json"))
        assert jobs == ["oracle", "plan", "rollup", "tree"]
        for job in jobs:
            assert summary(tmp_path / "there" / job) == summary(tmp_path / "here" / job)
        assert summary(tmp_path / "tables-there") == summary(tmp_path / "tables")


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["report", "--remote", "http://hunter2@host"], 2, "sc://host:15002"),
        (["report", "--remote", "sc://127.0.0.1:x/;token=hunter2"], 2, "sc://host:15002"),
        (["report", "--remote", "sc://127.0.0.1:CLOSED/;token=hunter2"], 1, "is not reached"),
        (["report", "--remote", "sc://h", "--master", "local"], 2, "--master and --packages are the server's"),
        (["report", "--remote", "sc://h", "--packages", "a:b:1"], 2, "--master and --packages are the server's"),
        (["report", "--remote", "sc://h", "--engine", "duckdb"], 2, "--remote, --conf, --packages are for Spark"),
        (["tables", "--remote", "sc://h", "--mapping", __file__], 2, "need --engine spark"),
    ],
)
def test_what_does_not_work_is_a_line(tmp_path: Path, arguments: list[str], code: int, why: str) -> None:
    story().write(tmp_path / "record")
    said = [each.replace("CLOSED", str(free_port())) for each in arguments]
    said += ["--input", str(tmp_path / "record"), "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, said)
    assert done.exit_code == code, done.output
    assert why in done.output
    assert "hunter2" not in done.output


def test_a_storage_that_hadoop_alone_reaches_is_not_in_reach() -> None:
    made = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(OSError, match="its Hadoop clients are not in reach of Spark Connect"):
        storage(cast("SparkSession", made), "oss://bucket/record")
