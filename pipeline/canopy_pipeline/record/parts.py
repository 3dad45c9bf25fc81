"""The parts of a record for the jobs: the folders of a broker's workers below one directory, which is one record.

Owns what a path of a record stands for; the names are the recorder's (`canopy_mqtt.record.files.parts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from canopy_mqtt.record.files.parts import has_own, is_in_part, part_names
from canopy_pipeline.errors import MisuseError
from canopy_pipeline.runtime.storage import storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Found = TypeVar("Found")


def parts(spark: SparkSession | None, path: str) -> list[str]:
    """Return the folders of a record: the path itself if one process has recorded there, and those of workers.

    The path alone if it has no parts, whatever it is. Raises OSError.
    """
    place = storage(spark, path)
    names = place.names("") if place.is_folder() else []
    below = part_names(names)
    root = path.rstrip("/")
    return [*([path] if has_own(names) or not below else []), *(f"{root}/{name}" for name in below)]


def own(places: Mapping[str, Found]) -> dict[str, Found]:
    """Return what is in a record's folder itself, and in no part of it: by its place below that folder."""
    return {place: each for place, each in places.items() if not is_in_part(place)}


def the_only(spark: SparkSession | None, path: str, why: str) -> str:
    """Return the only folder of a record. Raises MisuseError: it has several, and the job reads one (`why`)."""
    found = parts(spark, path)
    if len(found) > 1:
        raise MisuseError(f"--input {path}: the record of several workers ({len(found)} folders): {why}")
    return found[0]
