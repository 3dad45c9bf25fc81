"""Sparks in processes of their own, to be killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def environment(temporary: Path) -> dict[str, str]:
    """For a process with a Spark: it imports what is imported here, and leaves its temporary files in that folder.

    Its JVM is one that does little and starts often.
    """
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={temporary}",
    }
