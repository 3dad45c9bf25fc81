"""All links of a broker.

Owns the links, by name, and passes them the local clients' subscriptions.

Promises:
- A link that is added, removed or changed while the broker runs (`apply`) affects no other link and no client. A link
  whose settings change keeps its queued messages, unless its prefixes change.
- Without links there is no cost: the router has no listener.
- With a store, a link's queued messages are loaded before the first client connects.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from canopy_mqtt.core.codec.packets import NEVER
from canopy_mqtt.core.hooks import SubscriptionListener
from canopy_mqtt.core.persistence.journal import SessionRecord
from canopy_mqtt.core.persistence.restore import refill
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.guards.hook_guards import GuardedSubscriptionListener
from canopy_mqtt.links.filters.demand import is_asked_for
from canopy_mqtt.links.filters.mapping import Mapping
from canopy_mqtt.links.link import UpstreamLink
from canopy_mqtt.links.protocol.session import UplinkSession
from canopy_mqtt.settings import Settings, Upstream

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server


class NodeState(NamedTuple):
    """Another node: whether the link to it is up, what waits here for it, what was dropped for it, how many
    subscriptions it has here, and what it has otherwise than this node (a line; empty: nothing)."""

    name: str
    up: bool
    waiting_bytes: int
    dropped: int
    subscriptions: int
    differs: str = ""


class LinkManager(SubscriptionListener):
    """The links of one server. For a server that has been started."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.links: dict[str, UpstreamLink] = {}
        self._demanding: list[UpstreamLink] = []
        # Sessions of links that are in the settings no more; some may be over, or have their link again.
        self._abandoned: list[UplinkSession] = []
        self.state_changed: Callable[[UpstreamLink], None] | None = None
        """Called at once when a link has another state, also for links that are added later."""
        self._guarded = GuardedSubscriptionListener(self, server.faults)

    def prepare(self, records: Iterable[SessionRecord]) -> Iterator[None]:
        """Make the links of the settings, with what a store kept of them: before the first client comes.

        Whatever a client publishes waits for them from then on. In steps of bounded work.
        """
        for session in self.server.router.sessions.values():
            if isinstance(session, UplinkSession) and session.abandoned:
                self._abandoned.append(session)
        kept = {record.client_id: record for record in records}
        for settings in self.wanted_links(self.server.settings):
            yield from self._make(settings).prepare(kept.pop(UPLINKS + settings.name, None))
        for record in kept.values():
            yield from self._abandon(record)

    def start(self) -> None:
        for link in self.links.values():
            link.start()
        self._find_demanding()

    @property
    def session_count(self) -> int:
        """The number of the router's sessions that belong to links, and to no client."""
        return len(self.links) + sum(1 for each in self._abandoned if each.abandoned and not each.ended)

    def other_nodes(self) -> list[NodeState]:
        """Return the state of each other node of the cluster; without a cluster there is none."""
        return []

    async def stop(self) -> None:
        self.server.router.table.listener = None
        self._demanding = []
        flush = self.server.settings.shutdown.flush_timeout
        links = list(self.links.values())
        ends = await asyncio.gather(*(link.stop(flush, False) for link in links), return_exceptions=True)
        for link, error in zip(links, ends, strict=True):
            if isinstance(error, Exception):
                link.broke(error)

    async def apply(self, settings: Settings) -> None:
        flush = self.server.settings.shutdown.flush_timeout
        wanted = {each.name: each for each in self.wanted_links(settings)}
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
            self.server.log.info("upstream changed" if old else "upstream added", upstream=name)
        self._find_demanding()

    # -- demand --------------------------------------------------------------------------------------------------------

    def subscribed(self, subscription: Subscription, topic_filter: str) -> None:
        if is_asked_for(subscription, topic_filter):
            self.wanted(topic_filter)

    def unsubscribed(self, subscription: Subscription, topic_filter: str) -> None:
        if is_asked_for(subscription, topic_filter):
            self.unwanted(topic_filter)

    def wanted(self, topic_filter: str) -> None:
        for link in self._demanding:
            link.subscriber.wanted(topic_filter)

    def unwanted(self, topic_filter: str) -> None:
        for link in self._demanding:
            link.subscriber.unwanted(topic_filter)

    # -- which links ---------------------------------------------------------------------------------------------------

    def wanted_links(self, settings: Settings) -> Sequence[Upstream]:
        """Return the settings of all links that there are to be."""
        return settings.upstream

    def link_of(self, settings: Upstream) -> UpstreamLink:
        """Make a link."""
        router = self.server.router
        return UpstreamLink(self.server, settings, router.broker_id, router.limits.hop_limit)

    # -- one link ------------------------------------------------------------------------------------------------------

    def _make(self, settings: Upstream) -> UpstreamLink:
        link = self.link_of(settings)
        link.state_changed = self.state_changed
        self.links[link.name] = link
        return link

    def _add(self, settings: Upstream) -> None:
        link = self._make(settings)
        deque(link.prepare(None), 0)
        link.start()
        self._find_demanding()

    def _abandon(self, record: SessionRecord) -> Iterator[None]:
        """Restore the session that a store kept for a link that is no longer in the settings."""
        router = self.server.router
        name = record.client_id.removeprefix(UPLINKS)
        session = UplinkSession(name, Mapping("", ""), router.broker_id, 0, router.counters, router.sessions)
        router.adopt(session)
        yield from refill(router, session, record, self.server.loop.time())
        # While its link is there, a session is told of as connected.
        self._set_aside(session, record.disconnected_for or 0.0)

    def _set_aside(self, session: UplinkSession, gone_for: float) -> None:
        """Keep the queue of a link that was removed `gone_for` seconds ago in the store for some time, and add nothing
        to it.

        Without a store the queued messages are dropped, and counted.
        """
        server = self.server
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
        unfinished = waiting > 0 or session.inflight.count > 0 or bool(session.received_qos2)
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
        self.server.log.info("upstream removed", upstream=link.name)

    def _find_demanding(self) -> None:
        """Find the links that the router tells of its clients' subscriptions; without any, the router gets no
        listener. Each link is told whether others may bring messages."""
        self._demanding = [link for link in self.links.values() if link.demanding]
        bringing = [link for link in self.links.values() if link.brings]
        for link in self.links.values():
            link.session.alone = all(each is link for each in bringing)
            link.session.update_fast_path()
        self.server.router.table.listener = self._guarded if self._demanding else None
