"""One Spark for all tests of the pipeline, tuned to start quickly; without Java they are skipped, with the reason.
DuckDB for those that any engine does for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import cast

import pyspark
import pytest
from pyspark.sql import SparkSession

from canopy_pipeline.runtime.duck.duckdb_session import connected
from canopy_pipeline.runtime.engine import DUCKDB, at_work
from canopy_pipeline.runtime.spark_session import LOCAL, MEANING, java

if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
    # `make test-spark` runs the jobs on the oldest Spark, which has no Data Source API.
    collect_ignore = ["mqtt", "runtime/test_cluster.py"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` starts no Spark: DuckDB answers there, and tests/pipeline/runtime/test_engines.py compares them."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the tests. Its settings are those of a job that is started here."""
    why = java()
    if why is not None:
        pytest.skip(why)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Without `python/lib`: Spark's Python workers would import PySpark from the zip file in it, which takes three times
    # as long as from site-packages, and Spark waits ten seconds for a worker, also on a busy machine.
    home = tmp_path_factory.mktemp("spark")
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    os.environ["SPARK_HOME"] = str(home)
    with as_file(files("canopy_pipeline") / "runtime" / "log4j2.properties") as quiet:
        builder = SparkSession.builder.appName("canopy-tests").master("local[2]")
        for key, value in (dict(MEANING) | dict(LOCAL)).items():
            builder = builder.config(key, value)
        session = (
            builder.config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config(
                "spark.driver.extraJavaOptions",
                # The first compiler alone has 48 MB for its code by itself: some hundred queries fill that.
                "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC "
                f"-Dlog4j2.configurationFile={quiet.as_uri()}",
            )
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.fixture
def duck() -> Iterator[SparkSession]:
    """DuckDB in Spark's place, for what does not depend on the engine: tests/pipeline/runtime/test_engines.py holds the
    two against each other."""
    with connected("1g") as session, at_work(DUCKDB):
        yield cast("SparkSession", session)


@pytest.fixture(params=["duck", pytest.param("spark", marks=pytest.mark.long)])
def either(request: pytest.FixtureRequest) -> SparkSession:
    """DuckDB, and where there is time Spark."""
    return cast("SparkSession", request.getfixturevalue(request.param))
