"""The part of its process that a simulated client uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from canopy_load.engine.clients.connection import ClientConnection
from canopy_load.engine.clients.send_scheduler import SendScheduler
from canopy_load.engine.clients.sending import Outgoing
from canopy_load.ledger.counters import Tally
from canopy_load.ledger.deliveries import Judge, Streams
from canopy_load.scenario.patterns import Pattern
from canopy_load.scenario.plan import Plan
from canopy_load.scenario.scenario_schema import Group


class Pool(Protocol):
    """The part of `ClientPool` that a client uses. Lists are by group."""

    plan: Plan
    streams: Streams
    scheduler: SendScheduler
    tallies: list[Tally]
    churns: list[Pattern]
    running: bool
    """True while the stages run."""
    over: bool
    connect_slots: asyncio.Semaphore
    """Connections that are being opened."""
    wake: Callable[[], None]
    failed_connects: list[int]
    lost_connections: list[int]
    refused_subscribes: list[int]
    uncertain: list[tuple[int, int, int]]

    def judge(self, group: int, number: int) -> Judge: ...
    async def open(self, settings: Group, index: int, wire: ClientConnection) -> None: ...
    def count_up(self, change: int) -> None: ...
    def error(self, text: str) -> None: ...
    def since_start(self) -> float: ...
    def give_up(self, group: int, count: int) -> None: ...
    def resent(self, outgoing: Outgoing) -> None: ...
    def will_left(self, stream: int, sequence: int) -> None: ...
