"""`canopy load compare`: the same scenario on several brokers that take turns.

Owns: the choice of brokers, their common version of MQTT, and the order of runs.

Promises: brokers take turns (A B A B), so that a noisy machine is noisy for all of them. Each run has a fresh broker
process, pinned to one core while the generator keeps to the others, where there are several. All brokers play the same
scenario in the same version of MQTT. A line names a broker that is not installed, cannot play the scenario or fails,
and the others go on. After any interruption every process that was started is ended, and the results until then stay in
the ``Comparison``.

No scenario is tuned for a broker, and one that runs already is not touched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, TypeAlias

from canopy_load.brokers.process import HOST, BrokerFailed, BrokerProcess, Cores, raise_file_limit, waited
from canopy_load.brokers.registry import PEERS, V5, Peer
from canopy_load.checks import broker_usage
from canopy_load.compare.comparison import Comparison, Entrant
from canopy_load.compare.started_brokers import (
    Version,
    VersionConflict,
    most_processes,
    needs,
    started,
    with_version,
)
from canopy_load.engine import conductor
from canopy_load.engine.job import Job, Target
from canopy_load.errors import LoadError, Misuse
from canopy_load.report.result import Result
from canopy_load.scenario.plan import Plan
from canopy_load.scenario.scenario_schema import Scenario
from canopy_load.scenario.toml_text import dumps

SPARE_FILES: Final = 200  # descriptors that are no client's connection

Play: TypeAlias = Callable[..., Awaitable[Result]]
"""As `conductor.play`: a job, and `stop`."""
Start: TypeAlias = Callable[[Peer, int | None], AbstractContextManager[BrokerProcess]]


@dataclass(frozen=True)
class ContestHooks:
    """The functions that a comparison calls. `start` and `play` stand in for brokers and for the conductor in tests."""

    turn: Callable[[str], None] = lambda _: None
    """Called when a run begins. Like `note` it is called in the event loop: it may not take long."""
    note: Callable[[str], None] = lambda _: None
    """Called for a broker that is missing or failed."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to end the comparison."""
    start: Start = started
    play: Play = conductor.play


class Contest:
    """A comparison to be run: its scenario, its brokers and its order."""

    def __init__(
        self, scenario: Scenario, text: str, brokers: Sequence[str], rounds: int, mqtt: Version | None = None
    ) -> None:
        """Nothing is started yet. `mqtt`: the version that all clients are to speak; None: as the scenario says, but
        3.1.1 for all if a broker speaks no other and the scenario allows it.

        Raises:
            PlanError: the scenario cannot be played.
            Misuse: of a name there is no broker, or the scenario uses what this version does not have.
        """
        entrants = _entrants(brokers)
        remarks: list[str] = []
        if mqtt is not None:
            scenario = with_version(scenario, mqtt)
            text = _written(scenario, mqtt)
            remarks.append(f"every client speaks MQTT {mqtt}, as asked")
        for entrant in entrants:
            entrant.failure = entrant.peer.missing()
        if mqtt is None:
            rewritten = _for_all(scenario, [each for each in entrants if not each.failure], remarks)
            if rewritten is not None:
                scenario, text = rewritten, _written(rewritten, "3.1.1")
        for entrant in entrants:
            lacking = sorted(needs(scenario) & entrant.peer.lacks)
            if lacking and entrant.failure is None:
                entrant.failure = (
                    f"left out: {entrant.peer.name} has no {', no '.join(lacking)}, and the scenario needs it"
                )
        self.scenario = scenario
        self.cores = Cores.choose()
        self.comparison = Comparison(
            name=scenario.name,
            description=scenario.description,
            scenario_text=text,
            entrants=entrants,
            rounds=rounds,
            cores=str(self.cores),
            begun=datetime.now(UTC).isoformat(timespec="seconds"),
            environment=broker_usage.environment(),
            remarks=remarks,
        )
        files = Plan(scenario, "0" * 8).clients + SPARE_FILES
        if not raise_file_limit(files):
            remarks.append(f"{files:,} open files are more than this system allows: raise the limit (ulimit -n)")

    async def run(self, means: ContestHooks, processes: int | None = None) -> Comparison:
        """Play all rounds until it is stopped, which breaks off the present run. `processes` is how many the generator
        has (None: one for each of its cores, as far as the scenario bears it). To start and to end a broker blocks the
        event loop.

        Raises:
            CancelledError: it was cancelled; `comparison` holds what there is.
        """
        comparison = self.comparison
        for text in comparison.remarks:
            means.note(text)
        for entrant in comparison.entrants:
            if entrant.failure is not None:
                means.note(f"{entrant.label}: {entrant.failure}")
            else:
                entrant.version = entrant.peer.version()
        try:
            job = Job(
                self.scenario,
                comparison.scenario_text,
                targets=[],
                processes=processes or most_processes(self.scenario, len(self.cores.generator)),
                cores=self.cores.generator,
            )
            with self.cores.kept():
                for number in range(1, comparison.rounds + 1):
                    for entrant in comparison.entrants:
                        comparison.interrupted |= means.stop.is_set()
                        if entrant.failure is None and not comparison.interrupted:
                            await self._turn(entrant, number, job, means)
        except (asyncio.CancelledError, KeyboardInterrupt):
            comparison.interrupted = True
            raise
        return comparison

    async def _turn(self, entrant: Entrant, number: int, job: Job, means: ContestHooks) -> None:
        """Play one run on a fresh broker. A failure becomes the entrant's, which is then left out."""
        means.turn(f"round {number} of {self.comparison.rounds}: {entrant.label}")
        try:
            with means.start(entrant.peer, self.cores.broker) as running:
                notes = {"round": f"{number} of {self.comparison.rounds}", "cores used": str(self.cores)}
                job = replace(job, targets=[Target(HOST, running.port)], broker_pid=running.pid, notes=notes)
                begun, before = time.monotonic(), waited(running.pid)
                result = await means.play(job, stop=means.stop)
                share = (waited(running.pid) - before) / 1e9 / (time.monotonic() - begun)
                entrant.waited = max(entrant.waited, share)
                self.comparison.interrupted |= result.interrupted
                running.check()  # a run in which the broker died is no run
                entrant.results.append(result)
        except (BrokerFailed, LoadError) as error:
            entrant.failure = f"failed in round {number}: {error}"
            means.note(f"{entrant.label}: {entrant.failure}")


def _entrants(names: Sequence[str]) -> list[Entrant]:
    """Return an entrant for each name; a broker that is named twice is compared with itself, which shows the machine's
    noise."""
    entrants: list[Entrant] = []
    for at, name in enumerate(names):
        if name not in PEERS:
            raise Misuse(f"no broker {name!r}; there are: {', '.join(PEERS)}")
        before = names[:at].count(name)
        entrants.append(Entrant(f"{name} ({before + 1})" if before else name, PEERS[name]))
    return entrants


def _for_all(scenario: Scenario, there: Sequence[Entrant], remarks: list[str]) -> Scenario | None:
    """Return the scenario in MQTT 3.1.1 if a broker needs that and the scenario allows it; None: it stays as it is."""
    old = [entrant.label for entrant in there if V5 in entrant.peer.lacks]
    if V5 not in needs(scenario) or not old:
        return None
    speaks = "speak" if len(old) > 1 else "speaks"
    try:
        rewritten = with_version(scenario, "3.1.1")
    except VersionConflict as error:
        remarks.append(f"{', '.join(old)} {speaks} no MQTT 5.0, and the scenario cannot be played without it: {error}")
        return None
    remarks.append(
        f"every client speaks MQTT 3.1.1, for {', '.join(old)} {speaks} no other (--mqtt 5.0 leaves them out instead)"
    )
    return rewritten


def _written(scenario: Scenario, version: Version) -> str:
    data = scenario.model_dump(mode="json", exclude_defaults=True)
    return f"# {scenario.name}, in MQTT {version} for every client\n\n{dumps(data)}"
