"""All links of a broker to others.

Owns the links, by name, and hands them what local clients ask for.

Promises:
- A link that is added, removed or changed while the broker runs (`apply`) touches no other link and no client. A link
  whose settings change keeps what waits to go up, unless its prefixes are others.
- Without links nothing is paid: the router has nobody to tell.

Refuses: to know how a link works (`link`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.core.guards import GuardedSubscriptionListener
from broker.core.hooks import SubscriptionListener
from broker.settings import Settings, Upstream
from broker.upstream.links.link import UpstreamLink

if TYPE_CHECKING:
    from broker.net.server import Server


class Links(SubscriptionListener):
    """The links of one server. For a server that has been started."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.links: dict[str, UpstreamLink] = {}
        self._demanding: list[UpstreamLink] = []
        self.state_changed: Callable[[UpstreamLink], None] | None = None
        """Whoever wants to be told at once when a link, which it knows or which comes later, has another state."""
        self._guarded = GuardedSubscriptionListener(self, server.faults)

    def start(self) -> None:
        """Make the links of the settings and begin to connect."""
        for settings in self._server.settings.upstream:
            self._add(settings)

    async def stop(self) -> None:
        """End all links in order, side by side."""
        self._server.router.subscription_listener = None
        self._demanding = []
        flush = self._server.settings.shutdown.flush_timeout
        links = list(self.links.values())
        ends = await asyncio.gather(*(link.stop(flush, False) for link in links), return_exceptions=True)
        for link, error in zip(links, ends, strict=True):
            if isinstance(error, Exception):
                link.broke(error)

    async def apply(self, settings: Settings) -> None:
        """Have the links be those of these settings."""
        flush = self._server.settings.shutdown.flush_timeout
        wanted = {each.name: each for each in settings.upstream}
        for name, link in list(self.links.items()):
            if name not in wanted:
                await self._remove(link, flush)
        for name, each in wanted.items():
            old = self.links.get(name)
            if old is None:
                self._add(each)
            elif old.settings == each:
                continue
            elif not old.change(each):
                await self._remove(old, flush)
                self._add(each)
            self._server.log.info("upstream changed" if old else "upstream added", upstream=name)
        self._find_demanding()

    # -- demand --------------------------------------------------------------------------------------------------------

    def wanted(self, topic_filter: str) -> None:
        """One more local subscription (`hooks.SubscriptionListener`)."""
        for link in self._demanding:
            link.demand.wanted(topic_filter)

    def unwanted(self, topic_filter: str) -> None:
        """One local subscription less (`hooks.SubscriptionListener`)."""
        for link in self._demanding:
            link.demand.unwanted(topic_filter)

    # -- one link ------------------------------------------------------------------------------------------------------

    def _add(self, settings: Upstream) -> None:
        router = self._server.router
        link = UpstreamLink(self._server, settings, router.broker_id, router.limits.hop_limit)
        link.state_changed = self.state_changed
        self.links[link.name] = link
        link.start()
        self._find_demanding()

    async def _remove(self, link: UpstreamLink, flush: float) -> None:
        del self.links[link.name]
        self._find_demanding()
        await link.stop(flush, True)
        await link.leave()
        self._server.log.info("upstream removed", upstream=link.name)

    def _find_demanding(self) -> None:
        """Whom the router's clients are of interest to; without any the router has nobody to tell."""
        self._demanding = [link for link in self.links.values() if link.demanding]
        self._server.router.subscription_listener = self._guarded if self._demanding else None
