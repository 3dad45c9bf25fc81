"""A run of several pieces: one plan after the other, each judged when it is over.

Owns: ``play_pieces``. Promises: only the last piece is in memory as a whole; of the others, their summaries.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from canopy_load.checks import broker_usage
from canopy_load.engine.job import Target
from canopy_load.prove.brokers.driver import Driver
from canopy_load.prove.brokers.started import started
from canopy_load.prove.faults import Fault
from canopy_load.prove.judge import Judgement, judge
from canopy_load.prove.plan import Plan
from canopy_load.prove.play import Broker, Unproven, play
from canopy_load.prove.summary import Settings, Summary, summed


@dataclass
class Place:
    """Where plans are played. `processes` returns the identifiers of this process and, where they are here, of the
    broker's."""

    targets: Sequence[Target]
    broker: Broker | None = None
    processes: Callable[[], Iterable[int]] = lambda: ()


@dataclass
class Played:
    """What came of it. `last`: the judgement of the last piece."""

    summaries: list[Summary] = field(default_factory=list)
    histories: list[str] = field(default_factory=list)
    last: Judgement | None = None


@asynccontextmanager
async def place(
    targets: Sequence[Target], driver: Driver | None, nodes: int = 1, faults: Iterable[Fault] = ()
) -> AsyncIterator[Place]:
    """Find running brokers, or run one of so many nodes while the block lasts. Raises BrokerFailed."""
    if driver is None:
        here = [await asyncio.to_thread(broker_usage.find, each.host, each.port) for each in targets]
        found = [os.getpid(), *(each for each in here if each is not None)]
        yield Place(targets, None, lambda: found)
        return
    async with started(driver, nodes, faults) as own:
        yield Place(own.targets, own, lambda: [os.getpid(), *own.processes])


async def play_pieces(
    plans: Iterable[Plan],
    where: Place,
    settings: Settings,
    *,
    stop: asyncio.Event,
    histories: bool,
    **options: Any,
) -> Played:
    """Play plans until there are no more, `stop` is set, or the broker has failed. `options`: see ``play``;
    `histories`: keep the text of each history.

    Raises:
        Unproven: no client was accepted, from the beginning.
    """
    made = Played()
    for plan in plans:
        try:
            proof = await play(
                plan, where.targets, broker=where.broker, processes=where.processes, stop=stop, **options
            )
        except Unproven as error:
            if not made.summaries:
                raise
            made.summaries[-1].obstacles.append(str(error))
            break
        made.last = judge(proof, settings.promised)
        made.summaries.append(summed(made.last, settings))
        if histories:
            made.histories.append(proof.history.dumps())
        if proof.failure or stop.is_set():
            break
    return made
