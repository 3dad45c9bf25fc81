"""MQTT as a source and a sink of Spark: ``spark.readStream.format("mqtt")``, and `read`, `write`, `writeStream`
likewise.

Owns: the registration of the data source. Its parts: `mqtt_options` · `link` (one connection) · `rows` (the columns) ·
`spool`, `receiver` (at least once) · `source`, `sink` (Spark calls these).

Promises: importing it registers "mqtt" on the active session, if there is one; ``register`` does it for any other. It
can be imported without pyspark.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from canopy_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format "mqtt" known to a session; doing it again changes nothing.

    Raises:
        PipelineError: this Spark is older than 4.2, whose Data Source API has what the source needs.
    """
    try:
        from canopy_pipeline.mqtt.source import MqttDataSource
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pyspark.sql."):
            raise
        raise PipelineError(f'the format "mqtt" needs Spark 4.2 or newer; this is {spark.version}') from error

    spark.dataSource.register(MqttDataSource)


def _register_active() -> None:
    # Without an import of it there is no session either. Workers import this module too, and have none.
    if "pyspark.sql" not in sys.modules:
        return
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        # An older Spark can read the record all the same.
        with suppress(PipelineError):
            register(active)


_register_active()
