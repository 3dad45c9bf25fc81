"""The links to other brokers of a broker with workers: the first worker has them, for the clients of all.

Owns what the first worker asks the others for: what its links send up. What comes down goes to the other workers as
what its own clients publish; what clients of other workers want is asked for as what its own want. No other worker has
a link: so a message goes up once, and what has come down never goes up by another link without its path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from canopy_mqtt.cluster.greeting import Greeting
from canopy_mqtt.cluster.node_link import NodeLink
from canopy_mqtt.cluster.node_links import NodeLinks
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.links import parameters
from canopy_mqtt.links.filters.demand import is_of_worker
from canopy_mqtt.links.link import UpstreamLink
from canopy_mqtt.settings import Cluster, Settings, Upstream

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

OWNER = 0
"""The worker that has the links; also its store has what waits for them (`store.tools.dividing`)."""


def serve_all_workers(router: Router, worker: int) -> None:
    """Let the links of the worker that has them be for the clients of all."""
    router.retained_store.for_all_workers = worker == OWNER


class WorkerLinks(NodeLinks):
    """The links of a worker."""

    # What the others are asked for, since links send it up.
    _sent_up: frozenset[str] = frozenset()

    def __init__(self, server: Server, cluster: Cluster, own: Greeting) -> None:
        super().__init__(server, cluster, own)
        # Also without a store there is one who wants it: an upstream broker.
        self._wants_earlier |= bool(server.settings.upstream)

    def start(self) -> None:
        super().start()
        self._ask()

    async def apply(self, settings: Settings) -> None:
        try:
            await super().apply(settings)
        finally:
            self._ask()

    def link_of(self, settings: Upstream) -> UpstreamLink:
        made = super().link_of(settings)
        made.session.for_all_workers = True
        if isinstance(made, NodeLink):
            # The supervisor tells of each worker that ends, and the alarm of a link that stays down.
            made.quiet = True
        return made

    def subscribed(self, subscription: Subscription, topic_filter: str) -> None:
        """Ask the upstream brokers also for what another worker wants."""
        super().subscribed(subscription, topic_filter)
        for link in self._for_worker(subscription):
            link.subscriber.wanted(topic_filter)

    def unsubscribed(self, subscription: Subscription, topic_filter: str) -> None:
        """Ask them for it no longer."""
        super().unsubscribed(subscription, topic_filter)
        for link in self._for_worker(subscription):
            link.subscriber.unwanted(topic_filter)

    def _for_worker(self, subscription: Subscription) -> list[UpstreamLink]:
        """Return the links whose brokers are asked for a subscription because it is another worker's."""
        return [link for link in self._demanding if not link.session.node and is_of_worker(subscription)]

    def _ask(self) -> None:
        """Ask the other workers for what the links send up."""
        links = list(self.links.values())
        wanted = frozenset(
            topic_filter
            for link in links
            if not link.session.node
            for topic_filter in parameters.published(link.settings, link.mapping)
        )
        for link in links:
            if isinstance(link, NodeLink):
                for topic_filter in wanted - self._sent_up:
                    link.subscriber.wanted(topic_filter)
                for topic_filter in self._sent_up - wanted:
                    link.subscriber.unwanted(topic_filter)
        self._sent_up = wanted
