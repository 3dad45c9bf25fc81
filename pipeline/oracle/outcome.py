"""`Outcome`: what the oracle found, which is `summary.json`, and what is said of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

AGREES: Final = "agrees"
DISAGREES: Final = "disagrees"


@dataclass
class Outcome:
    """What the oracle found; `summary.json` has the same names.

    `expected` counts what judged publishes should have brought: a copy for each session, one for each share group.
    `dropped`: messages that the broker said it dropped, by cause. `unjudged`: deliveries, drops and expected ones of
    which nobody can tell whether they are right.
    """

    runs: int = 0
    publishes: int = 0
    judged: int = 0
    subscriptions: int = 0
    expected: int = 0
    delivered: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    unexpected: int = 0
    wrong: int = 0
    unjudged: int = 0
    gaps: int = 0
    lost_events: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Whether the broker did what the specification asks, as far as was recorded."""
        return DISAGREES if self.missing or self.unexpected or self.wrong else AGREES

    @property
    def fine(self) -> bool:
        """Whether the exit code is 0."""
        return self.verdict == AGREES

    def summary(self) -> dict[str, Any]:
        """For `summary.json`."""
        return {**asdict(self), "verdict": self.verdict}

    def line(self) -> str:
        """For the terminal."""
        return (
            f"{self.publishes:,} publishes, {self.expected:,} deliveries expected, {self.delivered:,} delivered, "
            f"{sum(self.dropped.values()):,} dropped; {self.missing:,} missing, {self.unexpected:,} unexpected, "
            f"{self.wrong:,} wrong, {self.unjudged:,} unjudged, {self.gaps:,} gaps: {self.verdict}"
        )
