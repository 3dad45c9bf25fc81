"""What a Spark program imports, and the flags that every job has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from canopy_pipeline import spark as public
from canopy_pipeline.command_options import spark_options
from canopy_pipeline.errors import MisuseError
from tests.pipeline.folder import record


def test_the_public_names() -> None:
    assert public.__all__ == ["IncompleteError", "MisuseError", "PipelineError", "read_record", "register"]
    assert all(getattr(public, name).__doc__ for name in public.__all__)


def test_a_record_with_a_hole_is_refused_unless_gaps_are_allowed(spark: SparkSession, tmp_path: Path) -> None:
    record(tmp_path, hours=1, segments=2)
    assert public.read_record(spark, str(tmp_path), columns=["seq"]).count() == 10
    next(tmp_path.rglob("*.parquet")).unlink()
    with pytest.raises(public.IncompleteError, match="seg-"):
        public.read_record(spark, str(tmp_path))
    assert public.read_record(spark, [str(tmp_path)], columns=["seq"], allow_gaps=True).count() == 5


def test_a_spark_without_the_data_source_api_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delitem(sys.modules, "canopy_pipeline.mqtt.source", raising=False)
    with pytest.raises(public.PipelineError, match=r'the format "mqtt" needs Spark 4\.2 or newer; this is 3\.5\.0'):
        public.register(cast("SparkSession", SimpleNamespace(version="3.5.0")))


def test_settings_of_spark_on_the_command_line() -> None:
    options = spark_options(None, "2g", ["spark.a=b=c", "spark.d="], "g:a:1")
    assert options.settings == {"spark.a": "b=c", "spark.d": "", "spark.jars.packages": "g:a:1"}
    with pytest.raises(MisuseError, match="KEY=VALUE") as refused:
        spark_options(None, "2g", ["fs.s3a.secret.key:hunter2"], None)
    assert "hunter2" not in str(refused.value)


def test_the_commands_are_there_without_the_libraries() -> None:
    loaded = "import sys, canopy_pipeline.cli; print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    path = [each for each in sys.path if each]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path[:0] = {path!r}; {loaded}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == "[]"
