"""What is said of wrong settings, without the lines of the file: those have tests of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable


def unplaced(problems: Iterable[str]) -> list[str]:
    """The problems, each without the line that it names."""
    return [re.sub(r"^(\S+): line \d+: (?!not )", r"\1: ", problem, count=1) for problem in problems]
