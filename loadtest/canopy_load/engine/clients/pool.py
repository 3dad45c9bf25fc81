"""What the clients of one process share, and ask for.

Owns: their judges and counters, and the way to their targets. ``client_pool`` has the clients themselves.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from canopy_load.engine.clients.connecting import new_socket
from canopy_load.engine.clients.connection import ClientConnection, clock
from canopy_load.engine.clients.send_scheduler import SendScheduler
from canopy_load.engine.clients.sending import Outgoing
from canopy_load.engine.job import Job, Target
from canopy_load.engine.transports import TargetError, context, open_stream
from canopy_load.ledger.counters import Tally
from canopy_load.ledger.deliveries import Judge, Streams
from canopy_load.scenario.patterns import Pattern
from canopy_load.scenario.plan import Plan, PlanError
from canopy_load.scenario.scenario_schema import Group

ATTEMPTS: Final = 100
"""Connections being opened at the same time: less than the usual listen backlog of 128."""

PORTS: Final = 25_000
"""Connections from one address of this machine to one port."""

Address = tuple[int, tuple[str, int]]
"""Address family; host and port."""


class Pool:
    """The shared part of a pool of clients. Lists are by group."""

    def __init__(self, plan: Plan, job: Job) -> None:
        self.plan = plan
        self.tallies = [Tally() for _ in plan.groups]
        self.streams = Streams(plan.mark_run, lambda stream: plan.topic(stream).encode(), plan.around, plan.varied)
        self.scheduler = SendScheduler()
        self.wake: Callable[[], None] = lambda: None
        """Called when a sender may be due sooner than the scheduler has said."""
        self.connect_slots = asyncio.Semaphore(ATTEMPTS)
        self.churns = [Pattern(group.churn.filter if group.churn else "") for group in plan.groups]
        self.running = False
        """True while the stages run. A client that comes up before or after them stays and publishes nothing: another
        round of its cycle would end with the run, its will on the way."""
        self.over = False
        self.started_at = 0
        self.up = 0
        self.errors: Counter[str] = Counter()
        groups = len(plan.groups)
        self.failed_connects = [0] * groups
        self.lost_connections = [0] * groups
        self.refused_subscribes = [0] * groups
        self.unsent = [0] * groups
        self.given_up = 0
        """Messages that were due and are not going to be sent, since the last report."""
        self.uncertain: list[tuple[int, int, int]] = []
        self.will_sent: dict[int, int] = {}
        self._resent: Counter[int] = Counter()
        self._judges: dict[int, Judge] = {}
        self.targets = job.targets
        self._addresses: list[list[Address]] = [_resolve(target) for target in job.targets]

    def judge(self, group: int, number: int) -> Judge:
        """The judge of a client: the same one for all members of a shared subscription."""
        subscriber = self.plan.subscriber(group, number)
        judge = self._judges.get(subscriber)
        if judge is None:
            judge = self._judges[subscriber] = Judge(subscriber, self.streams, self.tallies[group])
            judge.shared = self.plan.shared[group]
        return judge

    async def open(self, settings: Group, index: int, wire: ClientConnection) -> None:
        """Open the connection of the client `index` of the plan, whose group has these settings. Raises OSError."""
        addresses = self.addresses(index)
        for number, (family, address) in enumerate(addresses):
            try:
                await self._connect(settings, index, wire, family, address)
            except OSError:
                if number + 1 == len(addresses):
                    raise
            else:
                if number:
                    # What a name stands for first need not be where the broker listens.
                    addresses.insert(0, addresses.pop(number))
                return

    async def _connect(
        self, settings: Group, index: int, wire: ClientConnection, family: int, address: tuple[str, int]
    ) -> None:
        sock = new_socket(settings, family)
        try:
            if index >= PORTS and address[0].startswith("127."):
                sock.bind((f"127.0.1.{index // PORTS}", 0))
            await asyncio.get_running_loop().sock_connect(sock, address)
            await open_stream(self.targets[index % len(self.targets)], wire, sock)
        except BaseException:
            sock.close()
            raise

    def addresses(self, index: int) -> list[Address]:
        """Return all addresses of a client's target, the targets in turn; the caller may put one that has answered
        first."""
        return self._addresses[index % len(self._addresses)]

    def error(self, text: str) -> None:
        """Count something that went wrong; texts beyond a thousand different ones together."""
        self.errors[text if text in self.errors or len(self.errors) < 1000 else "other errors"] += 1

    def trouble(self) -> str:
        return self.errors.most_common(1)[0][0] if self.errors else ""

    def since_start(self) -> float:
        """Seconds since the stages began."""
        return (clock() - self.started_at) / 1e6

    def give_up(self, group: int, count: int) -> None:
        """Count messages of a group that were due and are not going to be sent."""
        self.unsent[group] += count
        self.given_up += count

    def resent(self, outgoing: Outgoing) -> None:
        self._resent[int(outgoing.sender.base) + outgoing.number] += 1


def _resolve(target: Target) -> list[Address]:
    try:
        context(target)
    except TargetError as error:
        raise PlanError(str(error)) from error
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise PlanError(f"{target}: {getattr(error, 'strerror', None) or error}") from error
    return [(int(family), (str(address[0]), int(address[1]))) for family, _, _, _, address in found]
