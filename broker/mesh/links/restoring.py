"""What goes to other nodes, out of the store: before anything is published, and before a node has come.

Owns which of these sessions stand again, and which are given up: those of nodes that there cannot be any more, and
those whose nodes have been away for `mesh.node_expiry`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.core.persistence.journal import SessionRecord
from broker.core.persistence.restore import refill
from broker.core.routing.remote.loop_detection import TO_NODE
from broker.mesh.links.session import NodeSession

if TYPE_CHECKING:
    from broker.net.server import Server


def restore(server: Server, records: Iterable[SessionRecord], others: list[SessionRecord]) -> Iterator[None]:
    """Have the sessions of other nodes stand again, with their topic filters and with what waits for them, in steps of
    bounded work. `others` gets the records of other links."""
    router, now = server.router, server.loop.time()
    settings, companions = server.settings.mesh, server.companions
    for record in records:
        if not record.client_id.startswith(TO_NODE):
            others.append(record)
            continue
        session = NodeSession(record.client_id.removeprefix(TO_NODE), 0, settings.queue_bytes, router.counters)
        # Of one that was connected the store does not have all packet identifiers.
        session.known = record.disconnected_for is not None
        session.away_since = now - (record.disconnected_for or 0.0)
        router.session_table.add(session)
        yield from refill(router, session, record, now)
        for subscription in session.subscriptions.values():
            if subscription.group is not None:
                # Nobody knows yet whether members are connected there.
                subscription.weight = 0
        there_may_be = settings.name and (companions is None or companions.may_come(session.name))
        if not there_may_be or now - session.away_since >= settings.node_expiry:
            server.log.warning("node is given up", node=session.name, messages=session.queued())
            router.end_session(session, now)
        else:
            router.fanout.nodes.append(session)
