"""A clock for turns that moves with the work that was counted, and not by itself."""

from __future__ import annotations

from canopy_mqtt.core.jobs import Budget


class StepClock:
    """Seconds: each unit of a budget takes `seconds`, and so a turn does the same on every machine."""

    def __init__(self, budget: Budget, seconds: float = 1e-6) -> None:
        self.seconds = seconds
        self.readings = 0
        self._budget = budget

    def __call__(self) -> float:
        self.readings += 1
        return 1.0 + float(self._budget.used) * self.seconds
