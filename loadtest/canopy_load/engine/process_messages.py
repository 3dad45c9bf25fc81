"""The messages between the conductor and its processes, pickled, over a pair of sockets.

Owns: the vocabulary. Times are microseconds of the monotonic clock, which all processes of a system share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from canopy_load.checks.expected import Account, Sent
from canopy_load.engine.job import Job

# -- to a process ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assignment:
    """The first message: the number and the job of a process."""

    job: Job
    run: str
    index: int
    core: int | None
    wall: int
    """Microseconds since 1970 at 0 of the monotonic clock."""


@dataclass(frozen=True)
class Connect:
    """Connect all clients that do not join later; seconds count from `at`."""

    at: int


@dataclass(frozen=True)
class Start:
    """The stages begin at `at`."""

    at: int


@dataclass(frozen=True)
class Stop:
    """The stages are over at `at`: the same moment for all processes, or their seconds would not fit together."""

    at: int


@dataclass(frozen=True)
class Finish:
    """All clients leave; the process sends its outcome."""


# -- from a process ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failed:
    """The process cannot go on."""

    why: str


@dataclass(frozen=True)
class Up:
    """The number of clients that are connected and subscribed, and of those that have neither come up nor failed yet.
    The first one says that the clients are made."""

    up: int
    unsettled: int
    trouble: str
    """The most frequent error; empty if there was none."""


@dataclass(frozen=True)
class Interval:
    """The counts between two times that are the same in all processes. `groups`: `Tally.take` of each."""

    stage: str
    begin: int
    end: int
    up: int
    overdue: int
    cpu: float
    waited: float
    groups: list[dict[str, Any]]
    given_up: int = 0
    """Messages that were due and will not be sent, because their publishers have no part in the next stage."""


@dataclass(frozen=True)
class Over:
    """The stages are over: the messages sent, and by group the unsent ones."""

    sent: Sent
    unsent: list[int]


@dataclass(frozen=True)
class Exhausted:
    """A replay as fast as it goes: everything is sent."""


@dataclass(frozen=True)
class Draining:
    """The state of the drain: messages received since the run began, unacknowledged ones, seconds since the last
    delivery."""

    received: int
    under_way: int
    idle: float


@dataclass(frozen=True)
class ProcessOutcome:
    """A process's counts at its end."""

    sent: Sent
    accounts: list[Account]
    group_sent: list[tuple[int, int]]
    failed_connects: list[int]
    lost_connections: list[int]
    refused_subscribes: list[int]
    foreign: int
    errors: dict[str, int]
