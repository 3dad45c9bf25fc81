"""What a Spark program imports of Canopy: the names of `canopy_spark`, which executors import without a broker."""

from __future__ import annotations

from canopy_spark import IncompleteError, MisuseError, PipelineError, read_record, register

__all__ = ["IncompleteError", "MisuseError", "PipelineError", "read_record", "register"]
