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


WAIT: Final = 0.05
"""Seconds of the broker's processor time that a PING may wait: one call takes at most 0.01, and there may be a few."""

CROWD_WAIT: Final = 0.3
"""The same beside some hundred hostile connections: each of them has its turn, and short ones, before a PING's."""


@dataclass(frozen=True)
class Attack:
    """One kind of hostile client. `growth`: bytes by which the broker may grow; `wait`: what a PING may wait for.

    `guarded`: the broker has authenticators; `stored`: it has a store on disk; `settings`: what is set besides.
    `steady`: no publisher is in full flight, so that the broker may hold none back (`queue.hold_publishers`).
    """

    name: str
    about: str
    run: Callable[[Field], None]
    growth: int = GROWTH
    wait: float = WAIT
    guarded: bool = False
    stored: bool = False
    settings: tuple[str, ...] = ()
    steady: bool = False


REGISTRY: Final[dict[str, Attack]] = {}


def attack(
    growth: int = GROWTH,
    *,
    guarded: bool = False,
    stored: bool = False,
    settings: tuple[str, ...] = (),
    steady: bool = False,
) -> Callable[[Callable[[Field], None]], Callable[[Field], None]]:
    """Enter a function into the list, under its name with spaces; its docstring says what it does.

    `growth` above `GROWTH` is for attacks of many clients: these may wait as a crowd makes one wait. `guarded` is for
    attacks on the authenticators, `stored` on what is kept on disk; `settings` give it bounds that it can reach;
    `steady` is for those whose publishers must not be delayed.
    """

    def enter(run: Callable[[Field], None]) -> Callable[[Field], None]:
        name = run.__name__.replace("_", " ")
        wait = CROWD_WAIT if growth > GROWTH else WAIT
        REGISTRY[name] = Attack(name, (run.__doc__ or "").strip(), run, growth, wait, guarded, stored, settings, steady)
        return run

    return enter
