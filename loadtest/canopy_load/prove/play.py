"""Play a plan against running brokers, and write everything down.

Owns: ``play``: all clients, the rounds with their faults and quiet phases, the wait at the end until nothing is on its
way any more, and what is removed from the broker afterwards.

Promises: at the end every client whose session lasts is connected, as far as the broker allows, and nothing has come
for a while. The tool measures its own lateness throughout. A stop ends the rounds, not the judgement.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Final, Protocol

from canopy_load.brokers.process import BrokerFailed
from canopy_load.engine.job import Target
from canopy_load.engine.transports import address
from canopy_load.errors import LoadError
from canopy_load.ledger.checker import check
from canopy_load.ledger.history import Delivery, History, Look, Publish, Rest, Stream
from canopy_load.ledger.packet_log import PacketLog
from canopy_load.prove.client import Client
from canopy_load.prove.faults import CLIENT_FAULTS, BrokerFault, Fault
from canopy_load.prove.ground import MAX_CONNECTING, NOBODY, PATIENCE, Ground, Login
from canopy_load.prove.lateness import Lateness
from canopy_load.prove.plan import Plan, Round
from canopy_load.prove.roles import KEEP_ALIVE, KEEP_ALIVE_MARGIN, ClientPlan
from canopy_load.prove.steps import Act, Step
from canopy_mqtt.client.aio import AsyncClient
from canopy_mqtt.client.failures import ClientError
from canopy_mqtt.client.machine import ClientMachine, connect_packet
from canopy_mqtt.core.codec.packets import V5

DRAINS: Final = 4
"""Times of patience for which missing messages may still come at the end."""
SILENCE: Final = 0.5
"""Seconds without an event after which a round is over."""
DOUBTFUL_SILENCE: Final = 0.7
"""The same, as a part of patience, where a message has come to no member of a share group: nodes may have to meet."""
LIVE: Final = 0.5
"""Seconds between two lines about what goes on."""
LOOK: Final = 0.01
"""Seconds between two looks at all clients, while things happen."""
HUSHED: Final = 1.5 * KEEP_ALIVE + KEEP_ALIVE_MARGIN + 0.5
"""Seconds for which a client that sends nothing more is waited for at the end."""
FAULTS: Final = {Act(each.value): each for each in CLIENT_FAULTS}
"""The faults of clients, by what a client does."""
Tell = Callable[[str], None]
ABSENT: Final = frozenset({"lost", "lost to a group", "will missing", "answered"})
"""The promises whose breach is that something does not come."""


class Unproven(LoadError):
    """Nothing could be judged: no client was accepted."""

    code = 2


class Broker(Protocol):
    """A broker that was started for the proof. Each of these raises BrokerFailed if it has ended by itself."""

    async def inflict(self, fault: BrokerFault) -> None: ...

    async def heal(self, fault: BrokerFault) -> None: ...

    def check(self) -> None: ...


@dataclass(kw_only=True)
class Facts:
    """What is reported as it was."""

    rounds: int = 0
    seconds: float = 0.0
    late: float = 0.0
    """The tool's greatest lateness, in seconds."""
    late_at_end: float = 0.0
    """The same while it waited for what had not come."""
    absent: dict[str, str] = field(default_factory=dict)
    """The clients that should be connected at the end and are not, with the reason."""
    notes: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    """What the broker refused, and how often."""
    foreign: int = 0
    interrupted: bool = False


@dataclass
class Proof(Facts):
    """What happened. Times are those of the history."""

    plan: Plan
    identifier: str
    targets: list[str]
    history: History
    outages: list[tuple[float, float, Fault]] = field(default_factory=list)
    """From when to when something was wrong with the broker."""
    inflicted: list[tuple[float, float, BrokerFault]] = field(default_factory=list)
    """The same, with the nodes."""
    of_clients: Counter[Fault] = field(default_factory=Counter)
    """How often each fault of clients happened to one."""
    rested: bool = True
    """False if what had been missing was still coming at the end."""
    lateness: Lateness = field(default_factory=Lateness)
    """It has the waits of tool and broker for a core."""
    starved_at_end: float = 0.0
    """Seconds for which tool or broker waited for a core in the last time of patience for what had not come."""
    began: float = 0.0
    ended: float = inf
    failure: str = ""
    """Why a broker that was started for the proof does not run any more; it ended the rounds."""
    logs: dict[str, PacketLog] = field(default_factory=dict)
    """The packets of each client."""

    @property
    def blind(self) -> list[tuple[float, float]]:
        """The times of `outages`."""
        return [(began, ended) for began, ended, _ in self.outages]


async def play(
    plan: Plan,
    targets: Sequence[Target],
    *,
    login: Login = NOBODY,
    broker: Broker | None = None,
    stop: asyncio.Event | None = None,
    tell: Tell = lambda _: None,
    patience: float = PATIENCE,
    processes: Callable[[], Iterable[int]] = lambda: (),
    live: bool = False,
) -> Proof:
    """Play a plan; `stop` ends the rounds early. `tell` gets a line whenever something begins, and twice a second with
    `live`. `processes` returns the identifiers of those, the broker's and this one, that must not wait for a core.

    Raises:
        Unproven: the broker accepts no client.
    """
    ground = Ground(secrets.token_hex(4), targets, login, patience)
    return await _Player(plan, ground, broker, stop or asyncio.Event(), tell, Lateness(processes)).play(live)


class _Player:
    def __init__(
        self, plan: Plan, ground: Ground, broker: Broker | None, stop: asyncio.Event, tell: Tell, lateness: Lateness
    ) -> None:
        self._plan = plan
        self._ground = ground
        self._broker = broker
        self._stop = stop
        self._tell = tell
        self._lateness = lateness
        self._phase = ""
        self._looks: set[asyncio.Task[None]] = set()
        self._step = 0
        self._looked = 0
        self._clients = {name: Client(each, ground) for name, each in plan.clients.items()}
        self._proof = Proof(plan, ground.identifier, [str(each) for each in ground.targets], ground.history)

    async def play(self, live: bool) -> Proof:
        proof, ground = self._proof, self._ground
        proof.began = begun = ground.now()
        async with self._running(live):
            await self._gather()
            for number, each in enumerate(self._plan.rounds):
                if self._stop.is_set():
                    break
                try:
                    await self._round(number, each)
                except BrokerFailed as error:
                    proof.failure = str(error)
                    break
                proof.rounds += 1
            self._say("waiting for what has not come yet")
            proof.rested = await self._drain()
            proof.late_at_end = self._lateness.lately
            proof.starved_at_end = self._lateness.waited(ground.now() - ground.patience, ground.now())
            proof.absent = self._absent()
            for _ in ground.targets:
                await self._look()
            proof.interrupted = self._stop.is_set()
            proof.ended = ground.now()
            proof.seconds = proof.ended - begun
            proof.late, proof.lateness = self._lateness.most, self._lateness
            proof.notes, proof.refused, proof.foreign = dict(ground.notes), dict(ground.refused), ground.foreign
            proof.logs = ground.logs
            # The history is what was seen until here: what the removal does is no part of it.
            proof.history = History()
            proof.history.events = list(ground.history.events)
        await self._remove()
        return proof

    @asynccontextmanager
    async def _running(self, live: bool) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each.run()) for each in self._clients.values()]
        tasks.append(asyncio.create_task(self._lateness.measure()))
        if live:
            tasks.append(asyncio.create_task(self._live()))
        try:
            yield
        finally:
            for task in (*tasks, *self._looks):
                task.cancel()
            await asyncio.gather(*tasks, *self._looks, return_exceptions=True)
            for client in self._clients.values():
                await client.closed()

    async def _gather(self) -> None:
        """Let the clients come that are there from the start."""
        there = [client for client in self._clients.values() if client.plan.from_start]
        for client in there:
            client.come()

        def known() -> bool:
            refused = all(each.failure is not None and not each.ever for each in there)
            return refused or all(each.ready for each in there)

        await self._until(known, self._ground.patience * (1 + len(there) / MAX_CONNECTING))
        if not any(each.ever for each in there):
            failures = {each.failure.why for each in there if each.failure is not None}
            raise Unproven(f"no client was accepted: {'; '.join(sorted(failures)) or 'no answer'}")
        for client in there:
            if not client.ever:
                version = "5.0" if client.plan.version == V5 else "3.1.1"
                self._ground.refused[f"a client of MQTT {version} was not accepted: {client.why}"] += 1
                client.wanted = client.plan.version in self._versions

    async def _round(self, number: int, plan: Round) -> None:
        named = ", ".join(map(str, plan.faults)) or "faults of clients alone"
        self._say(f"round {number + 1} of {len(self._plan.rounds)}: {named}")
        begun = self._ground.now()
        try:
            async with asyncio.TaskGroup() as group:
                if self._broker is not None:
                    for each in plan.faults:
                        group.create_task(self._inflict(self._broker, begun, each))
                for step in plan.steps:
                    if not await self._sleep_until(begun + step.at):
                        break
                    self._act(step)
                await self._sleep_until(begun + plan.seconds)
        except ExceptionGroup as group_of_errors:
            failed, others = group_of_errors.split(BrokerFailed)
            if failed is None or others is not None:
                raise
            raise failed.exceptions[0] from None
        await self._quiet()
        if self._broker is not None:
            self._broker.check()

    async def _inflict(self, broker: Broker, begun: float, fault: BrokerFault) -> None:
        """Let a fault begin and end, in its time; it ends early if the rounds are to end, or another one fails."""
        if not await self._sleep_until(begun + fault.at):
            return
        began = self._ground.now()
        self._say(str(fault))
        await broker.inflict(fault)
        try:
            await self._sleep_until(self._ground.now() + fault.seconds)
            await broker.heal(fault)
        finally:
            now = self._ground.now()
            self._proof.outages.append((began, now, fault.fault))
            self._proof.inflicted.append((began, now, fault))

    async def _quiet(self) -> None:
        """Let everybody come back, publish everything again, and wait until it has arrived."""
        patience = self._ground.patience
        there = [each for each in self._clients.values() if each.ever and each.plan.kind != "looker"]
        for client in there:
            if client.plan.kind == "mortal" and client.plan.will is not None and not client.plan.will.delay:
                # The faults are over: there is nothing that excuses a will that does not come.
                client.cut()
        for client in there:
            client.freeze(False)
            client.subscribe(True)
            client.come()
        patience *= 1 + len(there) / MAX_CONNECTING
        await self._until(lambda: all(each.ready for each in there), patience)
        before = len(self._ground.history.events)
        for client in there:
            for output in range(len(client.plan.outputs)):
                client.publish(output, client.plan.outputs[output].cleared)
        settled = await self._until(lambda: all(each.settled for each in there), patience)
        if self._looks:
            await asyncio.wait(self._looks)
        quiet = await self._silence(SILENCE)
        if quiet and not self._came_to_groups(before):
            quiet = await self._silence(DOUBTFUL_SILENCE * self._ground.patience)
        if settled and quiet:
            self._ground.note(Rest(at=self._ground.now()))
        for _ in self._ground.targets:
            await self._look()

    def _came_to_groups(self, since: int) -> bool:
        """Return True if what was published since an event came to all share groups that are there."""
        events = self._ground.history.events[since:]
        sent = {
            (each.stream, each.sequence)
            for each in events
            if isinstance(each, Publish) and each.topic.startswith("t/") and each.qos and each.outcome == "ok"
        }
        members = [
            each.plan for each in self._clients.values() if each.plan.kind in ("member", "pair") and each.connected
        ]
        came: dict[str, set[tuple[Stream, int]]] = {each.filters[0].topic_filter: set() for each in members}
        for delivery in (each for each in events if isinstance(each, Delivery)):
            for asked in self._plan.clients[delivery.client].filters:
                if asked.topic_filter in came:
                    came[asked.topic_filter].add((delivery.stream, delivery.sequence))
        return all(sent <= found for found in came.values())

    def _act(self, step: Step) -> None:
        client = self._clients[step.client]
        self._ground.step = self._step
        self._step += 1
        if fault := FAULTS.get(step.act):
            self._proof.of_clients[fault] += 1
        match step.act:
            case Act.CONNECT:
                if client.plan.version in self._versions:
                    client.come()
            case Act.LEAVE:
                client.leave()
            case Act.VANISH:
                client.cut(stay_away=True)
            case Act.CUT:
                client.cut()
            case Act.FREEZE:
                client.freeze(True)
            case Act.THAW:
                client.freeze(False)
            case Act.ROAM:
                client.roam()
            case Act.TAKEOVER:
                client.take_over()
            case Act.PUBLISH:
                client.publish(step.output)
            case Act.SUBSCRIBE:
                client.subscribe(True)
            case Act.UNSUBSCRIBE:
                client.subscribe(False)
            case Act.HUSH:
                client.hush()
            case Act.LOOK if not self._looks:
                task = asyncio.create_task(self._look())
                self._looks.add(task)
                task.add_done_callback(self._looks.discard)

    async def _look(self) -> None:
        """Look at the retained messages with a new client, each time at the next node, and after all nodes with the
        next looker of a version that the broker takes; a connection that is lost on the way shows nothing."""
        lookers = [each for each in self._clients.values() if each.plan.kind == "looker"]
        lookers = [each for each in lookers if each.plan.version in self._versions] or lookers
        looker = lookers[self._looked // len(self._ground.targets) % len(lookers)]
        looker.go(self._looked)
        self._looked += 1
        asked = self._ground.now()
        wanted = set(self._ground.retained)
        looker.come()
        if not await self._until(lambda: looker.ready, self._ground.patience):
            looker.cut(stay_away=True)
            return
        found = looker.retained

        def complete() -> bool:
            return not looker.connected or wanted & self._ground.retained <= found.keys()

        await self._until(complete, self._ground.patience)
        if looker.connected:
            self._ground.note(
                Look(
                    client=looker.plan.name,
                    at=asked,
                    until=self._ground.now(),
                    node=str(looker.node),
                    found=dict(found),
                )
            )
        looker.leave()

    async def _drain(self) -> bool:
        """Wait until everything has come that has to, or nothing of what is missing for a long time; return False if it
        was still coming when this had taken too long."""
        ground = self._ground
        self._lateness.lately = 0.0
        begun = since = ground.now()
        missing: set[tuple[int, ...]] = set()
        await self._until(lambda: not any(each.hushed for each in self._clients.values()), HUSHED)
        while True:
            await self._silence(SILENCE)
            self._lateness.excused = True
            found = {
                each.operations for each in check(ground.history, self._proof.blind).findings if each.promise in ABSENT
            }
            now = ground.now()
            if not found:
                return True
            if found != missing:
                missing, since = found, now
            if now - since >= ground.patience:
                return True
            if now - begun >= DRAINS * ground.patience:
                return False
            await self._until_news(since + ground.patience - now)

    def _absent(self) -> dict[str, str]:
        """Return the clients that should be connected and are not, but for those of a version that the broker has never
        accepted."""
        return {
            name: each.why
            for name, each in self._clients.items()
            if each.wanted and not each.connected and each.plan.version in self._versions
        }

    @property
    def _versions(self) -> set[int]:
        """The versions of MQTT of which the broker has accepted a client."""
        return {each.plan.version for each in self._clients.values() if each.ever}

    async def _remove(self) -> None:
        """Remove sessions and retained messages of this run from the broker, as far as it lets us."""
        self._say("removing what the broker still has of this run")
        there = [each.plan for each in self._clients.values() if each.ever]
        outcomes = await asyncio.gather(*(self._forget(each) for each in there), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, ClientError | TimeoutError):
                what = f"a session or retained message of {self._ground.prefix} was not removed"
                note = f"{what}: {str(outcome) or 'no answer'}"
                self._proof.notes[note] = self._proof.notes.get(note, 0) + 1
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _forget(self, plan: ClientPlan) -> None:
        """End the session of a client, and remove the retained messages that it published. Raises
        ClientError, TimeoutError."""
        ground = self._ground
        connect = connect_packet(
            f"{ground.prefix}-{plan.name}",
            version=plan.version,
            user_name=ground.login.user,
            password=ground.login.password if ground.login.user is not None else None,
        )
        node = ground.targets[plan.node if plan.stays else 0]
        client = AsyncClient(address(node), ClientMachine(connect), timeout=ground.patience)
        async with asyncio.timeout(2 * ground.patience), client:
            for output in plan.outputs:
                if output.retain:
                    await client.publish(ground.topic(output.topic), qos=1, retain=True)

    # -- time ----------------------------------------------------------------------------------------------------------

    async def _sleep_until(self, at: float) -> bool:
        """Sleep; return False if the rounds are to end instead."""
        delay = at - self._ground.now()
        if delay > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stop.wait()
        return not self._stop.is_set()

    async def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is true, looking whenever anything happens; return False after so many seconds."""
        deadline = self._ground.now() + seconds
        while not true():
            if not await self._until_news(deadline - self._ground.now()):
                return true()
            # There may be thousands of clients to look at.
            await asyncio.sleep(LOOK)
        return True

    async def _until_news(self, seconds: float) -> bool:
        """Wait until anything happens; return False after so many seconds."""
        news = self._ground.news
        news.clear()
        try:
            async with asyncio.timeout(seconds):
                await news.wait()
        except TimeoutError:
            return False
        return True

    async def _silence(self, seconds: float) -> bool:
        """Wait until nothing has happened for some seconds; return False if that took longer than patience lasts."""
        deadline = self._ground.now() + self._ground.patience
        while self._ground.now() < deadline:
            if not await self._until_news(seconds):
                return True
        return False

    # -- for people ----------------------------------------------------------------------------------------------------

    def _say(self, phase: str) -> None:
        self._phase = phase
        self._tell(phase)

    async def _live(self) -> None:
        """Tell what goes on until this is cancelled."""
        seen, came = 0, 0
        while True:
            await asyncio.sleep(LIVE)
            events = self._ground.history.events
            came += sum(isinstance(each, Delivery) for each in events[seen:])
            seen = len(events)
            there = sum(each.connected for each in self._clients.values())
            seconds = self._ground.now() - self._proof.began
            self._tell(
                f"{seconds:.0f} s · {self._phase} · {there} of {len(self._clients)} connected · {came:,} delivered"
            )
