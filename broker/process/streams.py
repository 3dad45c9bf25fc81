"""The standard streams of a process that was started without some of them (`canopy serve 2>&-`, some supervisors).

Promises: descriptors 0, 1 and 2 are open afterwards, so that no socket and no store's file gets one of these numbers,
where a library would write its complaints; and `sys.stdin`, `sys.stdout` and `sys.stderr` are there. What is written to
a stream that was closed goes nowhere.
"""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Put /dev/null in the place of each standard stream that is closed. Call it before anything else is opened."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one: those below are open by now.
            os.open(os.devnull, flags)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  for as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
