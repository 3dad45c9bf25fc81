"""The interface of a broker for the routes (`canopy_mqtt.assembly.app.Broker` implements it)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.guards.log import Faults
from canopy_mqtt.links.manager import LinkManager
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.connection_log import ConnectionLog
from canopy_mqtt.net.lag import LagMonitor
from canopy_mqtt.observe.alarms.alarms import Alarms
from canopy_mqtt.observe.explain.explainer import Explainer
from canopy_mqtt.observe.figures.sources import Sources
from canopy_mqtt.observe.monitor import Monitor
from canopy_mqtt.observe.refusal_log import RefusalLog
from canopy_mqtt.observe.store_watch import StoreWatch
from canopy_mqtt.observe.top import Top
from canopy_mqtt.observe.trace.traces import Traces
from canopy_mqtt.security.access_control import SettingsAccessControl
from canopy_mqtt.security.bans import Bans
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.sections import LogLevel
from canopy_mqtt.store.base import SharedReports, Store
from canopy_mqtt.store.division import name_of


class Process(Protocol):
    """The process of a broker, as far as operators control it."""

    @property
    def read(self) -> Callable[[], Settings] | None:
        """Reads the settings, in a thread; None: there is nothing to read them from."""

    @property
    def logs(self) -> bool:
        """True if the process writes the broker's log."""

    def log_at(self, level: LogLevel, seconds: float, after: Callable[[], LogLevel]) -> None:
        """Log at this level for `seconds`, then at the level that `after` returns."""


class Draining(Protocol):
    """Moves clients to other brokers: docs/operations.md."""

    active: bool
    moved: int

    @property
    def left(self) -> int:
        """The number of clients' connections that are left."""

    def start(self, seconds: float, for_good: bool, reference: str, by: str) -> None:
        """Refuse new clients, and move the others within `seconds`."""

    def stop(self) -> None:
        """Accept new clients again."""


class Securing(Protocol):
    """Authentication and authorization of a broker."""

    @property
    def access(self) -> SettingsAccessControl:
        """The authenticators and rules in force."""


class Host(Protocol):
    """One running broker. Add a member here when a route needs it."""

    log: Any
    connection_log: ConnectionLog
    faults: Faults
    router: Router
    bans: Bans
    settings: Settings
    among: tuple[int, int]
    loop: asyncio.AbstractEventLoop
    connections: set[Connection]
    traces: Traces
    explainer: Explainer
    top: Top
    figures: Sources
    alarms: Alarms | None
    monitor: Monitor
    refusal_log: RefusalLog
    lag_monitor: LagMonitor
    store: Store | None
    store_watch: StoreWatch | None
    links: LinkManager | None

    @property
    def process(self) -> Process:
        """The process that the broker runs in."""

    @property
    def draining(self) -> Draining:
        """Moves the broker's clients to others."""

    @property
    def securing(self) -> Securing | None:
        """Authentication and authorization; None: the broker has neither."""

    @property
    def listening(self) -> list[str]:
        """The URLs of its listeners, with their real ports."""

    @property
    def stopping(self) -> bool:
        """True while the broker stops and begins nothing new."""

    @property
    def uptime(self) -> float:
        """The seconds since it began to serve."""

    def not_ready(self) -> list[str]:
        """Return the reasons why clients should go elsewhere, a line each."""

    def after_batch(self) -> None:
        """Wake the writers. Call it after publishing, or after a change of subscriptions."""

    async def reload(self, new: Settings) -> list[str]:
        """Apply other settings; returns a line for each that takes a restart."""


def shared_reports(broker: Host) -> SharedReports | None:
    """Return what a database tells that the nodes of a cluster share; None: the broker's sessions are its own."""
    return None if broker.store is None else broker.store.reports


def node_of(broker: Host) -> str | None:
    """Return which node of a cluster a broker is; None: of none. Workers are linked as nodes, and are one broker."""
    return (broker.settings.cluster.node or None) if broker.among[0] == 1 else None


def worker_of(broker: Host) -> str | None:
    """Return which of the workers of one broker it is; None: there is one process."""
    workers, index = broker.among
    return name_of(index) if workers > 1 else None
