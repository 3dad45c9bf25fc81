"""What an attack is, and the list that each one enters by its decorator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.attack.field import Field

GROWTH: Final = 64 << 20
"""Bytes by which one client may make the broker grow, whatever it sends."""

CROWD: Final = 256 << 20
"""The same for an attack of some hundred clients, each of which keeps to its own bounds."""


@dataclass(frozen=True)
class Attack:
    """One kind of hostile client. `growth`: bytes by which the broker may grow."""

    name: str
    about: str
    run: Callable[[Field], None]
    growth: int = GROWTH


REGISTRY: Final[dict[str, Attack]] = {}


def attack(growth: int = GROWTH) -> Callable[[Callable[[Field], None]], Callable[[Field], None]]:
    """Enter a function into the list, under its name with spaces; its docstring says what it does."""

    def enter(run: Callable[[Field], None]) -> Callable[[Field], None]:
        name = run.__name__.replace("_", " ")
        REGISTRY[name] = Attack(name, (run.__doc__ or "").strip(), run, growth)
        return run

    return enter
