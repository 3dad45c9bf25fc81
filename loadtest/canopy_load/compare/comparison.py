"""The results of the same scenario on several brokers: the data, and the figures that stand side by side.

Owns: ``Comparison`` with its ``Entrant``s, the list of compared ``FIGURES``, and their medians and ratios.

Promises: every run is kept, and every figure is the median of a broker's runs with the least and the greatest beside
it. A figure that says how fast something went is marked, and has no ratio, where the generator was the limit in any of
the runs: it is then not the broker's. Runs that were broken off count only for a broker that has no other.

It runs nothing (``contest`` does), and averages no runs: a median of few noisy runs is steadier than their mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from canopy_load.brokers.registry import Peer
from canopy_load.brokers.stats import median, ratio
from canopy_load.report.result import PARTLY, Result
from canopy_load.report.wording import DASH, micros, micros_exact, number, percent
from canopy_mqtt.pages import plain
from canopy_mqtt.words import counted

FORMAT: Final = 1
"""Version of `compare.json`; it grows when a key changes its meaning or goes away."""

MEGABYTE: Final = 1e6
DISTURBED: Final = 0.05  # share of a run waited for a core above which it is said


@dataclass(frozen=True)
class Figure:
    """One compared figure. `of` takes it from a run: None where the run has none."""

    key: str
    title: str
    unit: str
    """The unit of the value that `of` returns."""
    better: Literal["low", "high"]
    of: Callable[[Result], float | None]
    show: Callable[[float], str]
    speed: bool = False
    """True if it is the broker's only where the generator was not the limit."""
    compared: bool = True
    """True if it has a ratio: a figure of the generator has none."""


def _loss(result: Result) -> float | None:
    deliveries = result.deliveries
    return 100 * deliveries.lost / deliveries.expected if deliveries.expected else None


def _memory(result: Result) -> float | None:
    return None if result.broker_memory is None else result.broker_memory / MEGABYTE


FIGURES: Final = (
    Figure("cpu_us", "broker CPU a delivery", "µs", "low", lambda result: result.broker_us, micros_exact),
    Figure("rate", "deliveries a second", "/s", "high", lambda result: result.receive_rate or None, number, speed=True),
    Figure("p50_us", "latency p50", "µs", "low", lambda result: result.latency.p50, micros, speed=True),
    Figure("p99_us", "latency p99", "µs", "low", lambda result: result.latency.p99, micros, speed=True),
    Figure("loss_percent", "lost, of what was due", "%", "low", _loss, lambda share: percent(share, 100)),
    Figure("memory_mb", "broker memory", "MB", "low", _memory, lambda size: f"{number(round(size, 1))} MB"),
    Figure(
        "disturbed_percent", "generator disturbed", "%", "low", lambda result: 100 * result.disturbed,
        lambda share: percent(share, 100), compared=False,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """A figure over the runs of one broker."""

    median: float
    low: float
    high: float
    runs: int


@dataclass
class Entrant:
    """One broker of a comparison, with its runs in the order of rounds. `label` is its name, with a number from the
    second time on that the same broker is asked for."""

    label: str
    peer: Peer
    version: str = ""
    results: list[Result] = field(default_factory=list)
    failure: str | None = None
    """Why there are no runs of it, or no more."""
    waited: float = 0.0
    """Share of a run for which the broker's main thread was ready and something else had its core, at the most."""

    @property
    def counted(self) -> list[Result]:
        return [result for result in self.results if not result.interrupted] or self.results

    @property
    def limited(self) -> int:
        return sum(result.limit == "generator" for result in self.counted)

    def spread(self, figure: Figure) -> Spread | None:
        """Return the figure over the runs that have it; None if none does."""
        values = [value for value in map(figure.of, self.counted) if value is not None]
        middle = median(values)
        return None if middle is None else Spread(middle, min(values), max(values), len(values))

    def is_not_its(self, figure: Figure) -> bool:
        """Return True if the figure may be the generator's, and not this broker's."""
        return figure.speed and self.limited > 0

    def notes(self) -> list[str]:
        """Return the notes that a reader of these runs needs."""
        runs = self.counted
        found: list[str] = []
        if self.limited:
            found.append(
                f"the generator was the limit in {self.limited} of {len(runs)} runs: "
                "rate and latency are not the broker's"
            )
        disturbed = sum(result.disturbed >= PARTLY and result.limit != "generator" for result in runs)
        if disturbed:
            found.append(
                f"the generator was disturbed in {disturbed} of {len(runs)} runs: rate and latency are partly its own"
            )
        if any(result.interrupted for result in runs):
            found.append("broken off: the figures are of a part of the run")
        if self.waited > DISTURBED:
            found.append(f"others had its core for up to {100 * self.waited:.0f} % of a run: the machine was busy")
        for word in ("duplicates", "reordered", "altered", "unjudged", "unconfirmed"):
            count = sum(getattr(result.deliveries, word) for result in runs)
            if count:
                found.append(f"{count:,} {word}")
        errors: Counter[str] = Counter()
        for result in runs:
            errors.update(result.errors)
        found += [f"{plain(text)} ({count:,} times)" if count > 1 else plain(text) for text, count in errors.items()]
        if any(result.reconciled is not None and result.reconciled.agrees is False for result in runs):
            found.append("what it says it dropped is not what was seen missing")
        if self.failure:
            found.append(self.failure)
        return found


@dataclass
class Comparison:
    """One scenario on several brokers, as far as it has come."""

    name: str
    description: str
    scenario_text: str
    entrants: list[Entrant]
    rounds: int
    cores: str
    """The cores of broker and generator, in words."""
    begun: str
    """ISO 8601, UTC."""
    environment: dict[str, str]
    remarks: list[str] = field(default_factory=list)
    """Changes to the scenario, and figures or brokers that could not be had."""
    interrupted: bool = False

    @property
    def first(self) -> Entrant | None:
        """The broker that the others are compared with: the first one named that has any runs."""
        return next((entrant for entrant in self.entrants if entrant.results), None)

    @property
    def whole(self) -> bool:
        """True if every broker asked for played every round."""
        return not self.interrupted and all(
            entrant.failure is None and len(entrant.results) == self.rounds for entrant in self.entrants
        )

    def notes(self) -> list[str]:
        """Return the notes that change the reading of the figures."""
        found = ["Interrupted: not all rounds were played."] if self.interrupted else []
        found += self.remarks
        return found + [f"{entrant.label}: {note}" for entrant in self.entrants for note in entrant.notes()]

    def ratio(self, entrant: Entrant, figure: Figure) -> float | None:
        """Return a broker's figure relative to the first one's; None if either has none."""
        first = self.first
        if first is None or not figure.compared or first.is_not_its(figure) or entrant.is_not_its(figure):
            return None
        ours, theirs = entrant.spread(figure), first.spread(figure)
        return ratio(ours.median if ours else None, theirs.median if theirs else None)

    def cell(self, entrant: Entrant, figure: Figure) -> tuple[str, str, str, str]:
        """Return a broker's figure in words: the median (marked if it may be the generator's), the least, the greatest,
        and the ratio; a dash if there is none."""
        spread, relative = entrant.spread(figure), self.ratio(entrant, figure)
        if spread is None:
            return DASH, "", "", ""
        middle, low, high = map(figure.show, (spread.median, spread.low, spread.high))
        mark = "*" if entrant.is_not_its(figure) else ""
        return middle + mark, low, high, "" if relative is None else f"{relative:.2f}"

    @property
    def marked(self) -> bool:
        """True if there are marked figures."""
        return any(entrant.limited for entrant in self.entrants)

    @property
    def played(self) -> str:
        """How it was played, in words."""
        return f"{counted(self.rounds, 'round')}, brokers in turn"

    def as_json(self) -> dict[str, Any]:
        """Everything, each run with its own summary (see ``result``)."""
        return {
            "format": FORMAT,
            "scenario": self.name,
            "description": self.description,
            "scenario_text": self.scenario_text,
            "begun": self.begun,
            "rounds": self.rounds,
            "interrupted": self.interrupted,
            "remarks": self.remarks,
            "cores": self.cores,
            "environment": self.environment,
            "compared_with": self.first.label if self.first else None,
            "brokers": [self._entrant(entrant) for entrant in self.entrants],
        }

    def _entrant(self, entrant: Entrant) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for figure in FIGURES:
            spread = entrant.spread(figure)
            figures[figure.key] = spread and {
                "median": spread.median,
                "min": spread.low,
                "max": spread.high,
                "runs": spread.runs,
                "ratio": self.ratio(entrant, figure),
                "generator_was_the_limit": entrant.is_not_its(figure),
            }
        return {
            "broker": entrant.label,
            "version": entrant.version,
            "failure": entrant.failure,
            "notes": entrant.notes(),
            "waited_share": entrant.waited,
            "figures": figures,
            "runs": [result.as_json() for result in entrant.results],
        }
