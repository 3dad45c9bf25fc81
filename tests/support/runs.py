"""How much of a test runs: `make test` takes part of the examples of a property, `make test-long` all of them.

`CANOPY_LONG=1` asks for all. A test that is too long for `make test` altogether bears the marker `long`. Of kills and
power cuts `make test-long` tries one seed, and `make crash` (`CANOPY_CRASH=1`) all of them.
"""

from __future__ import annotations

import os
from typing import Final

LONG: Final = os.environ.get("CANOPY_LONG", "") not in ("", "0")
CRASH: Final = os.environ.get("CANOPY_CRASH", "") not in ("", "0")
MEASURED: Final = "COVERAGE_PROCESS_START" in os.environ
"""Whether this run measures which lines are run: few examples run the same ones as many, and each costs three times as
much."""
SHARE: Final = 20 if MEASURED else 10
"""`make test` tries one in so many of the examples."""
FEWEST: Final = 5 if MEASURED else 15
"""Examples that a property is tried with at least; one that asks for fewer gets what it asks for."""


def examples(thorough: int) -> int:
    """How many examples of a property to try in this run; `thorough`: how many `make test-long` tries."""
    return thorough if LONG else min(thorough, max(FEWEST, thorough // SHARE))


def times(thorough: int) -> int:
    """How often a test kills what it tests; `thorough`: how often in `make crash`."""
    return thorough if CRASH else thorough // 2


def seeds(thorough: int) -> range:
    """The seeds of a test that kills what it tests, again and again; `thorough`: how many `make crash` tries."""
    return range(thorough if CRASH else 1)
