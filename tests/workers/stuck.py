"""A move to one process whose thread does not end: it writes `begun`, and `stopping` when it is to end.

The argument is the folder of a store of two workers.
"""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from typing import Any, Final

import structlog

from canopy_mqtt.assembly.logwriter import BackgroundWriter
from canopy_mqtt.settings import Settings
from canopy_mqtt.workers import moving
from canopy_mqtt.workers.process import nursery

MODULE: Final = __name__
"""What `tests.support.forked` runs the `main` of."""


class NoCrew:
    """Workers that have nothing to pass on."""

    def __init__(self, *given: Any) -> None:
        """Take what `Crew` takes."""

    async def start(self, ports: list[int]) -> None:
        """Start none."""

    async def drain(self) -> None:
        """Wait for none."""

    async def stop(self) -> None:
        """End none."""


def rebuild(*given: Any) -> int:
    """Write for ever."""
    print("begun", flush=True)
    given[-1].wait()
    print("stopping", flush=True)
    threading.Event().wait()
    return 0


def main() -> None:
    """Move sessions until a signal ends it."""
    settings = Settings(store={"path": sys.argv[1]})
    nursery(settings)
    vars(moving).update(Crew=NoCrew, rebuild=rebuild)
    with closing(BackgroundWriter(sys.stderr)) as output:
        moving.join_stores(settings, structlog.get_logger(), False, output)
