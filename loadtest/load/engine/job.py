"""What a run is asked for, and who wants to hear how it goes.

Owns: ``Target``, ``Job`` and the ``Audience`` protocol, over which the command line, the live view, ``compare`` and the
tests meet the conductor (``conductor.play(job, audience) -> Result``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from loadtest.load.report.result import Result, Second
from loadtest.load.scenario.schema import Scenario

DEFAULT_PORT: Final = 1883


@dataclass(frozen=True)
class Target:
    """A broker's address."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Target:
        """From `mqtt://HOST:PORT`; without the port, 1883.

        Raises:
            ValueError: it is something else; the message says what would do.
        """
        parts = urlsplit(text)
        if parts.scheme in ("mqtts", "ws", "wss"):
            raise ValueError(f"{parts.scheme}:// is not supported yet, only mqtt://HOST:PORT")
        if parts.scheme != "mqtt" or not parts.hostname or parts.path not in ("", "/") or parts.username:
            raise ValueError("not of the form mqtt://HOST:PORT")
        if parts.port == 0:
            raise ValueError("port 0 is none to connect to")
        return cls(parts.hostname, parts.port or DEFAULT_PORT)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mqtt://{host}:{self.port}"


@dataclass(frozen=True)
class Place:
    """Where a run's records go, and what its clocks say."""

    folder: str
    wall: int
    """Microseconds since 1970 at 0 of the monotonic clock: one figure for all processes."""


@dataclass(frozen=True)
class Job:
    """One run to be played. Clients go to the targets in turn."""

    scenario: Scenario
    scenario_text: str
    targets: list[Target]
    processes: int = 1
    driver: str = "canopy"
    """Whose client speaks: our own, or `amqtt`."""
    broker_pid: int | None = None
    """The broker's process where it is known; else it is looked for behind a local target."""
    cores: tuple[int, ...] = ()
    """Processor cores for the generator's processes, in turn; empty: the system's choice."""
    own_limit: float | None = None
    """What `limit.measure` found on this machine, when it was asked."""
    samples: int = 1000
    """Deliveries a second of which each process keeps a sample."""
    replay: str | None = None
    """A capture whose messages are sent as well (see ``replay``)."""
    speed: float = 1.0
    """Of the replay; infinite: as fast as sockets take it."""
    prefix: str = ""
    """What the replay puts before each topic."""
    records: str | None = None
    """A folder for a row of each message (see ``records``); None: none are kept."""
    notes: dict[str, str] = field(default_factory=dict)
    """More for the result's environment."""


class Audience(Protocol):
    """Who hears how a run goes. Called in the conductor's event loop: nothing here may take long."""

    def phase(self, text: str) -> None:
        """Something begins: connecting, a stage, the drain, the end."""

    def clients(self, up: int, wanted: int) -> None:
        """How many clients are connected and subscribed, of how many."""

    def second(self, second: Second) -> None:
        """Another second is over, in all processes."""

    def finished(self, result: Result) -> None:
        """The run is over."""


class Nobody:
    """An audience that does not listen."""

    def phase(self, text: str) -> None: ...

    def clients(self, up: int, wanted: int) -> None: ...

    def second(self, second: Second) -> None: ...

    def finished(self, result: Result) -> None: ...
