"""What came of one size: its phases in order, each a sample.

Owns: ``Phase`` and ``Outcome``, and their form in JSON.

Promises: an outcome that failed keeps the phases that were measured before.

A size is measured once; there are no medians.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from benchmarks.network.measure import Sample
from loadtest.brokers.process import BrokerProcess

Start = Callable[[], AbstractContextManager[BrokerProcess]]
"""Starts a fresh broker, which is ended when the block is left."""


@dataclass(frozen=True)
class Phase:
    """One step: ``name`` for programs, ``title`` for people; ``unit`` is what the sample counts.

    ``deaf_us`` is the longest that another client waited for its PINGRESP meanwhile, in microseconds.
    """

    name: str
    title: str
    unit: str
    sample: Sample
    deaf_us: float | None = None

    def as_dict(self) -> dict[str, object]:
        """The phase for JSON."""
        head = {"name": self.name, "title": self.title, "unit": self.unit, "deaf_us": self.deaf_us}
        return {**head, "sample": self.sample.as_dict()}


@dataclass
class Outcome:
    """One size on one broker; ``failure`` says why there are no phases, or why there are no more."""

    broker: str
    size: int
    phases: list[Phase] = field(default_factory=list)
    failure: str | None = None

    def sample(self, name: str) -> Sample:
        """The sample of a phase that was measured; KeyError if it was not."""
        for phase in self.phases:
            if phase.name == name:
                return phase.sample
        raise KeyError(name)

    def as_dict(self) -> dict[str, object]:
        """The size for JSON."""
        phases = [phase.as_dict() for phase in self.phases]
        return {"broker": self.broker, "size": self.size, "failure": self.failure, "phases": phases}
