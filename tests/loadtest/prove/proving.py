"""A proof in a test: against a broker in the same event loop, whose clock jumps to the next timer when nothing is left
to do. A proof of a minute takes as long as its messages take to process, and a busy machine changes nothing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from canopy_load.prove.faults import CLIENT_FAULTS, Fault
from canopy_load.prove.judge import Durability, Judgement, judge
from canopy_load.prove.plan import Plan, make
from canopy_load.prove.play import Proof, play
from canopy_load.prove.summary import SEED, UNTIL, Settings, Summary, summed
from tests.loadtest.prove.fake import FakeBroker, Planted

P = ParamSpec("P")
T = TypeVar("T")

EVERYTHING: Final = (*CLIENT_FAULTS, Fault.KILL, Fault.STOP, Fault.RESTART)
RATE: Final = 25.0
"""Messages a second."""


class _Jumping(selectors.DefaultSelector):
    """It waits for nothing but for what is there, and notes how long it was to wait."""

    ahead = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0 if timeout is None or timeout > 0 else timeout)
        if found or timeout == 0:
            return found
        if timeout is None:
            return super().select(None)
        self.ahead += timeout
        return found


class _JumpingLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop with a clock of its own, in seconds."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.ahead


def jump(main: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        return runner.run(main)


def jumping(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine, which runs in such a loop."""

    @wraps(test)
    def run(*parameters: P.args, **named: P.kwargs) -> None:
        jump(test(*parameters, **named))

    return run


def proof(
    *planted: Planted,
    seed: int = 1,
    rounds: int = 2,
    faults: Iterable[Fault] = EVERYTHING,
    broker: FakeBroker | None = None,
    nodes: int = 1,
    crowd: int = 0,
    sessions_stay: bool = False,
    plan: Plan | None = None,
    **options: Any,
) -> Proof:
    """Play `plan`, or the one of these options, against a fake broker with these faults, or against `broker`.
    `options`: see ``play``."""
    plan = plan or make(seed, rounds, faults, RATE, nodes, crowd=crowd, sessions_stay=sessions_stay)
    played = broker or FakeBroker(*planted)

    async def main() -> Proof:
        async with played.serving(nodes) as targets:
            return await play(plan, targets, broker=played, **options)

    return jump(main())


def now() -> asyncio.Event:
    """As if Ctrl-C came at once."""
    event = asyncio.Event()
    event.set()
    return event


def proven(*planted: Planted, recovery: float = 0.0, **options: Any) -> Judgement:
    """Play a plan against a fake broker with these faults, and judge it. `recovery`: see `Durability`."""
    return judge(proof(*planted, **options), Durability(recovery=recovery, share_queue=True))


def reported(judgement: Judgement, again: str = "canopy prove") -> Summary:
    """Return what is reported of a judgement."""
    return summed(judgement, Settings("fake", again, f"{again} --replay {SEED} --until {UNTIL}"))


def broken(judgement: Judgement) -> set[str]:
    """The names of the promises that were broken."""
    return {each.promise for each in judgement.broken}
