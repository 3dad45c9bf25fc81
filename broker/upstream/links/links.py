"""All links of a broker.

Owns the links, by name, and passes them the local clients' subscriptions.

Promises:
- A link that is added, removed or changed while the broker runs (`apply`) affects no other link and no client. A link
  whose settings change keeps its queued messages, unless its prefixes change.
- Without links there is no cost: the router has nobody to tell.
- With a store, a link's queued messages are loaded before the first client connects.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from broker.core.codec.packets import NEVER
from broker.core.guards import GuardedSubscriptionListener
from broker.core.hooks import SubscriptionListener
from broker.core.persistence.journal import SessionRecord
from broker.core.persistence.restore import refill
from broker.core.routing.loop_detection import UPLINKS
from broker.settings import Settings, Upstream
from broker.upstream.filters.mapping import Mapping
from broker.upstream.links.link import UpstreamLink
from broker.upstream.protocol.session import UplinkSession

if TYPE_CHECKING:
    from broker.net.server import Server


class Links(SubscriptionListener):
    """The links of one server. For a server that has been started."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.links: dict[str, UpstreamLink] = {}
        self._demanding: list[UpstreamLink] = []
        # Sessions of links that are in the settings no more; some may be over, or have their link again.
        self._abandoned: list[UplinkSession] = []
        self.state_changed: Callable[[UpstreamLink], None] | None = None
        """Whoever wants to be told at once when a link, which it knows or which comes later, has another state."""
        self._guarded = GuardedSubscriptionListener(self, server.faults)

    def prepare(self, records: Iterable[SessionRecord]) -> Iterator[None]:
        """Make the links of the settings, with what a store kept of them: before the first client comes.

        Whatever a client publishes waits for them from then on. In steps of bounded work.
        """
        for session in self._server.router.sessions.values():
            if isinstance(session, UplinkSession) and session.abandoned:
                self._abandoned.append(session)
        kept = {record.client_id: record for record in records}
        for settings in self._server.settings.upstream:
            yield from self._make(settings).prepare(kept.pop(UPLINKS + settings.name, None))
        for record in kept.values():
            yield from self._abandon(record)

    def start(self) -> None:
        for link in self.links.values():
            link.start()
        self._find_demanding()

    @property
    def session_count(self) -> int:
        """How many of the router's sessions are those of links, and no client's."""
        return len(self.links) + sum(1 for each in self._abandoned if each.abandoned and not each.ended)

    async def stop(self) -> None:
        self._server.router.table.listener = None
        self._demanding = []
        flush = self._server.settings.shutdown.flush_timeout
        links = list(self.links.values())
        ends = await asyncio.gather(*(link.stop(flush, False) for link in links), return_exceptions=True)
        for link, error in zip(links, ends, strict=True):
            if isinstance(error, Exception):
                link.broke(error)

    async def apply(self, settings: Settings) -> None:
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
        for link in self._demanding:
            link.demand.wanted(topic_filter)

    def unwanted(self, topic_filter: str) -> None:
        for link in self._demanding:
            link.demand.unwanted(topic_filter)

    # -- one link ------------------------------------------------------------------------------------------------------

    def _make(self, settings: Upstream) -> UpstreamLink:
        router = self._server.router
        link = UpstreamLink(self._server, settings, router.broker_id, router.limits.hop_limit)
        link.state_changed = self.state_changed
        self.links[link.name] = link
        return link

    def _add(self, settings: Upstream) -> None:
        link = self._make(settings)
        deque(link.prepare(None), 0)
        link.start()
        self._find_demanding()

    def _abandon(self, record: SessionRecord) -> Iterator[None]:
        """Take back what a store kept for a link that is in the settings no more."""
        router = self._server.router
        name = record.client_id.removeprefix(UPLINKS)
        session = UplinkSession(name, Mapping("", ""), router.broker_id, 0, router.counters, router.sessions)
        router.adopt(session)
        yield from refill(router, session, record, self._server.loop.time())
        # While its link is there, a session is told of as connected.
        self._set_aside(session, record.disconnected_for or 0.0)

    def _set_aside(self, session: UplinkSession, gone_for: float) -> None:
        """Have a store keep for a while what waits for a link that went so many seconds ago; nothing new comes to it.

        Without a store what waits is lost, and counted.
        """
        server = self._server
        router, now = server.router, server.loop.time()
        journal = router.journal
        for topic_filter in list(session.subscriptions):
            router.unsubscribe(session, topic_filter)
        waiting = session.queue.messages + session.inflight.unsent() + len(session.unacknowledged())
        left = (server.settings.session.max_expiry or NEVER) - gone_for
        if journal is not None and waiting > 0:
            server.log.warning(
                "messages wait for an upstream that is not in the settings",
                upstream=session.client_id.removeprefix(UPLINKS),
                messages=waiting,
                dropped_in=round(max(left, 0.0)),
            )
        # The upstream may have the other half of a QoS 2 message: a PUBREL is owed, or an identifier is known.
        unfinished = waiting > 0 or session.inflight.count > 0 or bool(session.incoming_qos2)
        if journal is None or not unfinished or left <= 0.0:
            router.end_session(session, now)
            return
        session.abandoned = True
        self._abandoned = [each for each in self._abandoned if each is not session and not each.ended]
        self._abandoned.append(session)
        session.expires_at = now + left
        router.schedule(session)
        journal.session_kept(session.client_id, session.principal, session.expiry_interval, now - gone_for)

    async def _remove(self, link: UpstreamLink, flush: float) -> None:
        del self.links[link.name]
        self._find_demanding()
        await link.stop(flush, True)
        self._set_aside(link.session, 0.0)
        await link.forget_retained()
        self._server.log.info("upstream removed", upstream=link.name)

    def _find_demanding(self) -> None:
        """Whom the router's clients are of interest to; without any the router has nobody to tell."""
        self._demanding = [link for link in self.links.values() if link.demanding]
        self._server.router.table.listener = self._guarded if self._demanding else None
