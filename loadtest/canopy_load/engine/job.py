"""The order for a run, and those who hear how it goes: `conductor.play(job, *audience) -> Result`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from canopy_load.capture.recording import PUBLISHERS, Recording
from canopy_load.report.result import Second
from canopy_load.scenario.plan import Plan
from canopy_load.scenario.scenario_schema import Scenario

PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 8080, "wss": 8443}
"""The schemes of targets, each with its port where none is given."""

FORM: Final = "not of the form mqtt://HOST:PORT, mqtts://HOST:PORT, ws://HOST:PORT/PATH or wss://HOST:PORT/PATH"

PATH: Final = "/mqtt"


@dataclass(frozen=True)
class Tls:
    """Files, in PEM, for targets with TLS."""

    ca: str | None = None
    """The authorities trusted to sign the broker's certificate; None: those of the system."""
    certificate: str | None = None
    """The clients' own certificate with its chain."""
    key: str | None = None
    """The certificate's key; None: it is in the same file."""
    insecure: bool = False
    """True if the generator accepts any certificate."""


@dataclass(frozen=True)
class Target:
    """A broker's address, and its protocol."""

    host: str
    port: int
    scheme: str = "mqtt"
    path: str = ""
    """Of the WebSocket, with its query."""
    tls: Tls = Tls()

    @classmethod
    def parse(cls, text: str, tls: Tls | None = None) -> Target:
        """Parse `mqtt://HOST:PORT`, `mqtts://`, `ws://HOST:PORT/PATH` or `wss://`; ports and path may be absent.

        Raises:
            ValueError: it is something else; the message says what would do.
        """
        parts = urlsplit(text)
        framed = parts.scheme in ("ws", "wss")
        if parts.scheme not in PORTS or not parts.hostname or (not framed and parts.path not in ("", "/")):
            raise ValueError(FORM)
        if parts.username or parts.password:
            raise ValueError("no user name and password here, since reports name the target: use --user and --password")
        if parts.port == 0:
            raise ValueError("port 0 is none to connect to")
        query = f"?{parts.query}" if parts.query else ""
        path = (parts.path if parts.path not in ("", "/") else PATH) + query if framed else ""
        if not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError("the path holds what a URL cannot: write it with %20 and the like")
        encrypted = parts.scheme in ("mqtts", "wss")
        used = (tls or Tls()) if encrypted else Tls()
        return cls(parts.hostname, parts.port or PORTS[parts.scheme], parts.scheme, path, used)

    @property
    def encrypted(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def framed(self) -> bool:
        return self.scheme in ("ws", "wss")

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


@dataclass(frozen=True)
class Job:
    """One run to be played. Clients go to the targets in turn."""

    scenario: Scenario
    scenario_text: str
    targets: list[Target]
    processes: int = 1
    broker_pid: int | None = None
    """The process of a broker that was started for this run; else it is looked for behind a local target."""
    cores: tuple[int, ...] = ()
    """Processor cores for the generator's processes, in turn; empty: the system's choice."""
    replay: str | None = None
    """A capture whose messages are sent as well (see ``replay``)."""
    speed: float = 1.0
    """Of the replay; infinite: as fast as sockets take it."""
    prefix: str = ""
    """A prefix that the replay puts before each topic."""
    thresholds: tuple[str, ...] = ()
    """Thresholds beside those of the scenario."""
    strict: bool = False
    """True if the run waits for the broker's own count of drops even if nothing is missing: it may say otherwise."""
    notes: dict[str, str] = field(default_factory=dict)
    """More for the result's environment."""

    def recording(self) -> Recording | None:
        """Return the recording, dealt to the publishers; None if nothing is replayed. Blocks. Raises CaptureError."""
        if self.replay is None:
            return None
        # Only a replay needs Parquet.
        from canopy_load.capture.replay_spool import scan

        publishers = sum(group.clients for group in self.scenario.groups if group.name == PUBLISHERS)
        return scan(self.replay, self.prefix, publishers)

    def plan(self, run: str) -> Plan:
        """Return the clients, streams and subscriptions of a run of this job. Blocks. Raises PlanError,
        CaptureError."""
        return Plan(self.scenario, run, self.recording())


class Audience:
    """A listener to the course of a run. Called in the conductor's event loop: no method may take long."""

    def phase(self, text: str) -> None:
        """Called when a phase begins: connecting, a stage, the drain, the end."""

    def clients(self, up: int, wanted: int) -> None:
        """Called with the number of clients that are connected and subscribed, and of all."""

    def second(self, second: Second) -> None:
        """Called when another second is over in all processes."""
