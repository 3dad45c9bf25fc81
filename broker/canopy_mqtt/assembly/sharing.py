"""A broker whose durable sessions are in a database that the nodes of its cluster share.

Owns the ways between the store of these sessions, the core, and the links to the other nodes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from canopy_mqtt.cluster import greeting
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.postgresql.database import FAILURES
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.store import SharedStore

if TYPE_CHECKING:
    from collections.abc import Collection

    from canopy_mqtt.cluster.cluster import Cluster
    from canopy_mqtt.net.server import Server
    from canopy_mqtt.settings import Settings
    from canopy_mqtt.store.group_commit.principals import RuleTexts
    from canopy_mqtt.store.shared.calls import Piece

WINDOW: Final = 0.01
"""The commit window of nodes with one database, where it is not set: a group, and what other nodes read of it, cost the
database as much as ten messages."""
ANY_USER: Final = "any-user"
"""The value of `session.takeover` with which a client takes over sessions of other users."""


def make(settings: Settings, rules: RuleTexts | None) -> SharedStore:
    """Make the store that the nodes of a cluster share. Touches nothing."""
    wanted, cluster = settings.store, settings.cluster
    database = SharedDatabase(
        wanted.url,
        wanted.name,
        node=cluster.node,
        cluster=cluster.name,
        synchronous=wanted.synchronous,
        speaks=greeting.VERSIONS,
        strangers=greeting.strangers,
    )
    terms = {"most": wanted.memory_messages} if wanted.memory_messages else {}
    return SharedStore(
        database,
        window=wanted.commit_window if "commit_window" in wanted.model_fields_set else WINDOW,
        dead_after=cluster.dead_after,
        any_user=settings.session.takeover == ANY_USER,
        rules=rules,
        **terms,
    )


class Sharing:
    """A broker's part in the sessions that nodes share. Made before the store is open."""

    def __init__(self, server: Server, store: SharedStore) -> None:
        self._server, self._store = server, store
        self._cluster: Cluster | None = None
        router = server.router
        router.shared = store
        router.limits.retained_in_store = True
        store.attach(router, after_batch=server.after_batch, tell=self._tell, linked=self._linked)

    @property
    def identity(self) -> str:
        """The identity of the open store: nodes that share their sessions have the same one."""
        return self._store.running.database.identity

    async def write_wills(self) -> None:
        """Wait until the wills of clients whose connections have ended are written: then they go to the other nodes."""
        self._server.router.peers.drain(self._server.router, self._server.loop.time())
        if not self._store.in_trouble:
            with suppress(StoreError):
                await self._store.flush()

    async def living(self) -> frozenset[str] | None:
        """Return the nodes that are not known to be dead; None: the database does not answer."""
        try:
            return frozenset(each.name for each in await self._store.running.database.nodes() if each.alive)
        except FAILURES:
            return None

    def join(self, cluster: Cluster) -> None:
        """Tell and hear the other nodes by their links, which are not prepared yet."""
        self._cluster = cluster
        cluster.hear(self._store.hear)

    def _tell(self, piece: Piece) -> None:
        if self._cluster is not None:
            self._cluster.telling.tell(piece)

    def _linked(self, nodes: Collection[str]) -> bool:
        return self._cluster is not None and self._cluster.links.linked(nodes)
