"""The sink of an output folder, by the format of its tables."""

from __future__ import annotations

from typing import Any, Final

from canopy_pipeline.tables.output import Output, Sink
from canopy_pipeline.tables.sinks.delta import DeltaSink
from canopy_pipeline.tables.sinks.iceberg import IcebergSink
from canopy_pipeline.tables.sinks.parquet import ParquetSink
from canopy_pipeline.tables.sinks.postgresql import PostgresSink

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
POSTGRESQL: Final = "postgresql"


def sink_of(out: Output, about: dict[str, Any], stream: str) -> Sink:
    """Return the sink of tables that have the identity `about`.

    Raises:
        MisuseError: the format needs what is not there.
    """
    if about["table_format"] == PARQUET:
        return ParquetSink(out)
    if about["table_format"] == ICEBERG:
        return IcebergSink(out, stream, about["catalog"], about["namespace"])
    if about["table_format"] == POSTGRESQL:
        return PostgresSink(out, stream, about["database"], about["namespace"])
    return DeltaSink(out, stream)
