"""The alarms of a broker, made of its settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from broker.observe.alarms.alarms import Alarms, Receiver
from broker.observe.alarms.observer import Observer
from broker.settings import Alarms as AlarmSettings

if TYPE_CHECKING:
    from broker.net.server import Server
    from broker.observe.figures.sources import Sources


def alarms(server: Server, sources: Sources, publish: Callable[[str, bytes], None]) -> Alarms:
    """`publish`: topic below `$SYS/broker/` and payload, for each that is raised or cleared."""
    settings = server.settings
    wanted = settings.alarms
    folders = {"store": settings.store.path, "recorder": settings.recorder.directory}
    observer = Observer(sources, wanted, {name: path for name, path in folders.items() if path})
    made = Alarms(server, wanted, observer, partial(_webhook, server))
    made.publish = publish
    sources.alarms = made.counts
    return made


def _webhook(server: Server, wanted: AlarmSettings) -> Receiver | None:
    """Who posts them, where the settings name a URL."""
    if not wanted.webhook or wanted.interval <= 0.0:
        return None
    # Not before: it brings in aiohttp.
    from broker.observe.alarms.webhook import Webhook

    return Webhook(wanted, server.router.broker_id, server.log)
