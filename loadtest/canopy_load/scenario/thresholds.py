"""Thresholds of a run: `p99 < 50ms`, `lost == 0`, `rate >= 10000`, `sensors.p99 < 1s`.

Owns: the grammar of a threshold and the names of the figures. ``checks.judged`` holds them against a result.

Promises: a name that is no figure, a unit that does not fit and a group that does not exist are refused, with what
there is.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from canopy_load.scenario import units

LATENCIES: Final = ("min", "mean", "p50", "p90", "p99", "p999", "max")
"""Of the deliveries; with `connect_` or `round_trip_` before them those of connecting, and of requests."""

TIMES: Final = tuple(f"{prefix}{name}" for prefix in ("", "connect_", "round_trip_") for name in LATENCIES)
SHARES: Final = ("lost_share", "unjudged_share")
COUNTS: Final = (
    "sent", "received", "lost", "duplicates", "reordered", "altered", "unconfirmed", "unjudged", "unsent", "refused",
    "connects", "connects_failed", "connections_lost", "subscribes_refused", "requests", "unanswered", "errors",
)  # fmt: skip
RATES: Final = ("rate", "sent_rate", "foreign_rate")
"""Messages a second that were received, sent, and received of others, in the measured stages."""
NAMES: Final = (*TIMES, *COUNTS, *RATES, *SHARES)

OF_A_GROUP: Final = (
    *LATENCIES, "sent", "received", "lost", "duplicates", "reordered", "altered", "unconfirmed", "unjudged", "unsent",
    "refused", "connects", "connects_failed", "connections_lost", "subscribes_refused",
)  # fmt: skip

COMPARED: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip

FORM: Final = 'a threshold is FIGURE COMPARISON VALUE, like "p99 < 50ms", "lost == 0", "rate >= 10000"'

_FORM: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*(<=|>=|==|!=|<|>)\s*(\S.*?)\s*")
_NUMBER: Final = re.compile(r"\d{1,15}(\.\d{1,9})?")


@dataclass(frozen=True)
class Threshold:
    """One condition. Times are microseconds, shares from 0 to 1."""

    text: str
    figure: str
    group: str | None
    """Of which group; None: of the whole run."""
    comparison: str
    value: float

    def holds(self, found: float) -> bool:
        return COMPARED[self.comparison](found, self.value)


def parse(text: str, groups: Collection[str]) -> Threshold:
    """Parse a condition. `groups`: the names of the scenario's groups.

    Raises:
        ValueError: it is none; the message says what would do.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(FORM)
    name, comparison, written = found.groups()
    group, dot, figure = name.rpartition(".")
    if dot and group not in groups:
        raise ValueError(f"there is no group {group!r}; {_suggest(group, list(groups))}")
    known = OF_A_GROUP if dot else NAMES
    figure = "p999" if figure == "p99_9" else figure
    if figure not in known:
        whose = f"of group {group} " if dot else ""
        raise ValueError(f"there is no figure {whose}called {figure!r}; {_suggest(figure, known)}")
    shown = f"{name} {comparison} {written}"
    return Threshold(shown, figure, group if dot else None, comparison, _value(figure, written))


def of(conditions: dict[str, str], more: Sequence[str], groups: Collection[str]) -> list[Threshold]:
    """The conditions of a scenario, and those of the command line behind them.

    Raises:
        ValueError: one is none.
    """
    return [parse(text, groups) for text in (*(f"{name} {rest}" for name, rest in conditions.items()), *more)]


def _value(figure: str, written: str) -> float:
    if figure in TIMES:
        try:
            return units.duration(written) * 1e6
        except ValueError:
            raise ValueError(f'{figure} is a time: write it with its unit, like "50ms" or "1.5s"') from None
    if figure in SHARES:
        if not written.endswith("%") or not _NUMBER.fullmatch(written[:-1].strip()):
            raise ValueError(f'{figure} is a share: write it in per cent, like "1%"')
        return float(written[:-1]) / 100
    number = written.removesuffix("/s").strip() if figure in RATES else written
    number = number.replace("_", "").replace(",", "")
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"{figure} is a {'rate' if figure in RATES else 'number'}: write a plain number, like 10000")
    return float(number)


def _suggest(wrong: str, known: Sequence[str]) -> str:
    near = get_close_matches(wrong, known, n=1, cutoff=0.6)
    return (f"did you mean {near[0]}? " if near else "") + f"There are {', '.join(known)}"
