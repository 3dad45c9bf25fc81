"""Plans of many small steps over few rows: to compile each step would cost more than it saves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def interpreted(request: pytest.FixtureRequest) -> Iterator[None]:
    """No generated code while a test of the oracle runs."""
    spark: SparkSession = request.getfixturevalue("spark")
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    yield
    spark.conf.unset("spark.sql.codegen.wholeStage")
