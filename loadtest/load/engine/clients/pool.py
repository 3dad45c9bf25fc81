"""What a simulated client has from the process that it lives in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from loadtest.load.engine.clients.connection import Wire
from loadtest.load.engine.clients.pacer import Pacer
from loadtest.load.engine.clients.sending import Outgoing
from loadtest.load.ledger.counters import Tally
from loadtest.load.ledger.deliveries import Judge, Streams
from loadtest.load.scenario.patterns import Pattern
from loadtest.load.scenario.plan import Plan
from loadtest.load.scenario.schema import Group


class Pool(Protocol):
    """As `ClientPool` has it. Lists are by group."""

    plan: Plan
    streams: Streams
    pacer: Pacer
    tallies: list[Tally]
    churns: list[Pattern]
    running: bool
    """Whether the stages run."""
    over: bool
    gate: asyncio.Semaphore
    """Connections that are being opened."""
    wake: Callable[[], None]
    failed_connects: list[int]
    lost_connections: list[int]
    refused_subscribes: list[int]
    uncertain: list[tuple[int, int, int]]

    def judge(self, group: int, number: int) -> Judge:
        """The judge of a client."""

    async def open(self, settings: Group, index: int, wire: Wire) -> None:
        """Open the connection of the client `index` of the plan, whose group has these settings."""

    def count_up(self, change: int) -> None:
        """A client came up, or is no longer."""

    def error(self, text: str) -> None:
        """Count something that went wrong."""

    def since_start(self) -> float:
        """Seconds since the stages began."""

    def give_up(self, group: int, count: int) -> None:
        """So many messages of a group were due and are not going to be sent."""

    def resent(self, outgoing: Outgoing) -> None:
        """A PUBLISH was sent once more."""

    def will_left(self, stream: int, sequence: int) -> None:
        """A client left its will."""
