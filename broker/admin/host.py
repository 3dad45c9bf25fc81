"""What the routes need of the broker that they are about (`broker.app.Broker`)."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from broker.core.routing.router import Router
from broker.draining import Draining
from broker.net.connections.client import Client
from broker.net.connections.connection_log import ConnectionLog
from broker.net.log import Faults
from broker.net.monitor import LagMonitor, Monitor
from broker.net.refusal_log import RefusalLog
from broker.observe.alarms.alarms import Alarms
from broker.observe.explain.explaining import Explainer
from broker.observe.figures.sources import Sources
from broker.observe.top import Top
from broker.observe.trace.traces import Traces
from broker.process.process import Process
from broker.securing import Securing
from broker.settings import Settings
from broker.store.base import Store
from broker.storing import StoreWatch
from broker.upstream.links.links import Links


class Host(Protocol):
    """One running broker. A member that a route needs is added here."""

    log: Any
    connection_log: ConnectionLog
    faults: Faults
    router: Router
    settings: Settings
    loop: asyncio.AbstractEventLoop
    connections: set[Client]
    traces: Traces
    explainer: Explainer
    top: Top
    figures: Sources
    alarms: Alarms | None
    process: Process
    draining: Draining
    securing: Securing | None
    monitor: Monitor
    refusal_log: RefusalLog
    lag_monitor: LagMonitor
    store: Store | None
    store_watch: StoreWatch | None
    links: Links | None

    @property
    def listening(self) -> list[str]:
        """URLs of its listeners, with their real ports."""

    @property
    def stopping(self) -> bool:
        """Whether it ends, and nothing new is to begin."""

    @property
    def uptime(self) -> float:
        """Seconds since it began to serve."""

    def not_ready(self) -> list[str]:
        """Why clients should go elsewhere, a line each."""

    def after_batch(self) -> None:
        """To be called after whatever publishes, or changes who is subscribed."""

    async def reload(self, new: Settings) -> list[str]:
        """Apply other settings; a line for each that takes a restart."""
