"""How the conductor and its processes get at a capture that is to be replayed.

Only where there is one are Parquet and pyarrow imported: runs without a recording do not need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadtest.load.capture.recording import PUBLISHERS, Recording
from loadtest.load.scenario.plan import PlanError
from loadtest.load.scenario.schema import Scenario

if TYPE_CHECKING:
    from loadtest.load.capture.spool import Spool


def recorded(path: str | None, prefix: str, scenario: Scenario) -> Recording | None:
    """A capture, dealt to the scenario's publishers; None where there is none to be replayed. Blocks.

    Raises:
        PlanError: it cannot be replayed.
    """
    if path is None:
        return None
    from loadtest.load.capture.file import CaptureError
    from loadtest.load.capture.spool import scan

    try:
        return scan(path, prefix, sum(group.clients for group in scenario.groups if group.name == PUBLISHERS))
    except CaptureError as error:
        raise PlanError(str(error)) from error


def spooled(recording: Recording | None, publishers: list[int], speed: float) -> Spool | None:
    """The messages of some publishers, ready to be played; None where there is nothing recorded. Blocks.

    Raises:
        PlanError: the capture cannot be read, or there is no room for it.
    """
    if recording is None:
        return None
    from loadtest.load.capture.file import CaptureError
    from loadtest.load.capture.spool import Spool

    try:
        return Spool(recording, publishers, speed)
    except CaptureError as error:
        raise PlanError(str(error)) from error
