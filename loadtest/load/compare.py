"""`canopy load compare`: the same scenario on several brokers that take turns.

Owns: who may take part, which version of MQTT all of them speak, and the order of runs.

Promises: brokers take turns (A B A B), so that a noisy machine is noisy for all of them. Each run has a fresh broker
process, pinned to one core while the generator keeps to the others, where there are several. All brokers play the same
scenario in the same version of MQTT. A broker that is not installed, cannot play the scenario or fails is told in a
line, and the others go on. Whatever interrupts, every process that was started is ended, and what was measured until
then stays in the ``Comparison``.

Refuses: to tune a scenario for a broker, and to touch one that runs already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol, TypeAlias

from loadtest.bench.peers import V5, Peer
from loadtest.bench.process import BrokerFailed, raise_file_limit
from loadtest.load import limit, watch
from loadtest.load.brokers import (
    Cores,
    Running,
    Version,
    VersionConflict,
    choose,
    clients,
    needs,
    started,
    with_version,
)
from loadtest.load.comparison import Comparison, Entrant
from loadtest.load.job import Audience, Job, Nobody
from loadtest.load.limit import LimitError, Play
from loadtest.load.scenario import Scenario

ROUNDS: Final = 3
SPARE_FILES: Final = 200  # descriptors that are no client's connection

Start: TypeAlias = Callable[[Peer, int | None], AbstractContextManager[Running]]


class Listener(Protocol):
    """Who hears how a comparison goes. Called in the event loop: nothing here may take long."""

    def run(self, label: str, number: int, rounds: int) -> Audience:
        """A run begins: of this broker, in this round. Who hears how it goes."""

    def note(self, text: str) -> None:
        """Something is to be told: a broker is missing, or failed."""


class Silent:
    """A listener that does not listen."""

    def run(self, label: str, number: int, rounds: int) -> Audience:
        del label, number, rounds
        return Nobody()

    def note(self, text: str) -> None: ...


class Contest:
    """A comparison that is to be run: what stands in it, and what it is run with."""

    def __init__(
        self, scenario: Scenario, text: str, brokers: Sequence[str], rounds: int = ROUNDS, mqtt: Version | None = None
    ) -> None:
        """Nothing is started yet. `mqtt`: the version that all clients are to speak; None: as the scenario says, but
        3.1.1 for everybody where a broker speaks no other and the scenario allows it.

        Raises:
            UnknownBroker: of a name there is no broker.
            VersionConflict: the scenario uses what this version does not have.
        """
        entrants = _entrants(choose(brokers))
        remarks: list[str] = []
        if mqtt is not None:
            scenario, text = with_version(scenario, mqtt), _headed(text, mqtt)
            remarks.append(f"every client speaks MQTT {mqtt}, as asked")
        for entrant in entrants:
            entrant.failure = entrant.peer.missing()
        if mqtt is None:
            rewritten = _for_all(scenario, [each for each in entrants if not each.failure], remarks)
            if rewritten is not None:
                scenario, text = rewritten, _headed(text, "3.1.1")
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
            environment=watch.environment(),
            remarks=remarks,
        )
        files = clients(scenario) + SPARE_FILES
        if not raise_file_limit(files):
            remarks.append(f"{files:,} open files are more than this system allows: raise the limit (ulimit -n)")

    async def run(
        self,
        play: Play,
        listener: Listener | None = None,
        *,
        processes: int | None = None,
        own_limit: bool = True,
        start: Start = started,
    ) -> Comparison:
        """Play all rounds. `play` is `conductor.play`; `processes` is how many the generator has (one for each of its
        cores); `own_limit` says whether the generator's own limit is measured first. To start and to end a broker
        blocks the event loop.

        Raises:
            CancelledError: it was interrupted; `comparison` holds what there is.
        """
        listener = listener or Silent()
        comparison = self.comparison
        for text in comparison.remarks:
            listener.note(text)
        for entrant in comparison.entrants:
            if entrant.failure is not None:
                listener.note(f"{entrant.label}: {entrant.failure}")
            else:
                entrant.version = entrant.peer.version()
        try:
            if own_limit and any(entrant.failure is None for entrant in comparison.entrants):
                await self._measure_limit(play, listener)
            job = Job(
                self.scenario,
                comparison.scenario_text,
                targets=[],
                processes=processes or max(1, len(self.cores.generator)),
                cores=self.cores.generator,
                own_limit=None if comparison.own_limit is None else comparison.own_limit.rate,
            )
            with self.cores.kept():
                for number in range(1, comparison.rounds + 1):
                    for entrant in comparison.entrants:
                        if entrant.failure is None and not comparison.interrupted:
                            await self._turn(entrant, number, job, play, listener, start)
        except (asyncio.CancelledError, KeyboardInterrupt):
            comparison.interrupted = True
            raise
        return comparison

    async def _measure_limit(self, play: Play, listener: Listener) -> None:
        try:
            self.comparison.own_limit = await limit.measure(play)
        except (LimitError, BrokerFailed) as error:
            self.comparison.remarks.append(f"the generator's own limit is not known: {error}")
            listener.note(self.comparison.remarks[-1])

    async def _turn(
        self, entrant: Entrant, number: int, job: Job, play: Play, listener: Listener, start: Start
    ) -> None:
        """One run on a fresh broker. What goes wrong becomes the entrant's failure, and it is not asked again."""
        audience = listener.run(entrant.label, number, self.comparison.rounds)
        try:
            with start(entrant.peer, self.cores.broker) as running:
                notes = {"round": f"{number} of {self.comparison.rounds}", "cores used": str(self.cores)}
                result = await play(
                    replace(job, targets=[running.target], broker_pid=running.pid, notes=notes), audience
                )
                self.comparison.interrupted |= result.interrupted
                running.process.check()  # a run in which the broker died is no run
                entrant.results.append(result)
        except BrokerFailed as error:
            entrant.failure = f"failed in round {number}: {error}"
            listener.note(f"{entrant.label}: {entrant.failure}")


def _entrants(peers: Sequence[Peer]) -> list[Entrant]:
    """One for each name; a broker that is asked for twice is compared with itself, which shows the machine's noise."""
    entrants: list[Entrant] = []
    for at, peer in enumerate(peers):
        before = sum(other.name == peer.name for other in peers[:at])
        entrants.append(Entrant(f"{peer.name} ({before + 1})" if before else peer.name, peer))
    return entrants


def _for_all(scenario: Scenario, there: Sequence[Entrant], remarks: list[str]) -> Scenario | None:
    """The scenario in MQTT 3.1.1 where a broker needs that and the scenario bears it; None: it stays as it is."""
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


def _headed(text: str, version: Version) -> str:
    """The scenario's text, with a word on what was changed in it."""
    return f'# Played with version = "{version}" in every group.\n{text}'
