"""What a Spark that is started here says, and leaves in its tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_ctrl_c_is_told_in_one_line(tmp_path: Path) -> None:
    """Whatever Spark is asked for just then."""
    script = """
import os, signal, threading
from canopy_pipeline.command_options import told
from canopy_pipeline.runtime.spark_session import SparkOptions, spark_session

@told
def job():
    with spark_session("interrupted", SparkOptions("local[1]")) as spark:
        # Sent while an answer of the Java machine is waited for.
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        spark.sparkContext._jvm.java.lang.Thread.sleep(60_000)

job()
"""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={tmp_path} -XX:TieredStopAtLevel=1",
        },
    )  # fmt: skip
    told = [line for line in ran.stderr.splitlines() if line.startswith("canopy: ")]
    assert told == ["canopy: interrupted"], ran.stderr
    assert "Traceback" not in ran.stderr.partition("canopy: interrupted")[0], ran.stderr
    # A normal end leaves nothing behind.
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("hsperf")] == []
