"""The result of the plan: the recommended topic filters of each downstream broker, in words and as settings."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from canopy_pipeline.plan.filter_folding import Step
from canopy_pipeline.record.coverage import Coverage

MAX_NAME: Final = 64
"""Characters of a link's name in the broker's settings."""

SOMEWHERE: Final = "mqtt://upstream.example:1883"


@dataclass
class Plan:
    broker: str
    subscribed: int
    """Distinct topic filters of its clients."""
    filters: list[str]
    over_bytes: int
    over_messages: int
    wanted_bytes: int
    wanted_messages: int
    steps: list[Step] = field(default_factory=list, repr=False)
    chosen: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def over(self) -> float:
        """Over-forwarded bytes in per cent of the wanted ones."""
        return 100.0 * self.over_bytes / self.wanted_bytes if self.wanted_bytes else 0.0

    @property
    def replaced(self) -> str:
        """Say how many topic filters replace how many."""
        filters = "topic filter" if len(self.filters) == 1 else "topic filters"
        return f"{len(self.filters):,} {filters} in place of {self.subscribed:,}"

    @property
    def toml(self) -> str:
        """A link as the broker's settings take it, but for the address of the upstream."""
        about = f"# canopy pipeline plan: {self.replaced}, over-forwarding {self.over:.1f} %"
        name = re.sub("[^A-Za-z0-9_-]", "-", self.broker)[:MAX_NAME] or "upstream"
        listed = "".join(f"    {_quoted(each)},\n" for each in self.filters)
        where = f'name = "{name}"\nurl = "{SOMEWHERE}"  # the upstream broker\'s address'
        return f"{about}\n[[upstream]]\n{where}\naggregate = [\n{listed}]\n"

    def line(self) -> str:
        return (
            f"{self.broker}: {self.replaced}, "
            f"over-forwarding {self.over_bytes:,} bytes ({self.over:.1f} % of the wanted {self.wanted_bytes:,})"
        )

    def summary(self) -> dict[str, Any]:
        about = asdict(self)
        del about["steps"], about["chosen"]
        return about


@dataclass
class PlanOutcome:
    plans: list[Plan]
    coverage: Coverage

    def summary(self) -> dict[str, Any]:
        return {"plans": [plan.summary() for plan in self.plans], "coverage": self.coverage.summary()}

    def line(self) -> str:
        return "; ".join(plan.line() for plan in self.plans)


def _quoted(text: str) -> str:
    """A basic string of TOML: as JSON has it, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
