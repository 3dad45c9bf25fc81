"""The figures of a link under `$SYS/broker/upstream/<name>/`.

Owns the names of the topics and their values. docs/federation.md explains each; a test compares the two.
"""

from __future__ import annotations

from canopy_mqtt.links.filters.budget import BudgetedFilters
from canopy_mqtt.links.link import UpstreamLink


def state(link: UpstreamLink) -> list[tuple[str, object]]:
    """The part of `status` that is told as soon as it changes."""
    connection = link.connection
    return [
        ("state", link.state),
        ("trouble", link.trouble),
        ("version", connection.uplink.spoken if connection is not None and link.connected else ""),
        ("connects", link.connects),
    ]


def status(link: UpstreamLink) -> list[tuple[str, object]]:
    """Topic (below the link's) and value of everything that is told of it."""
    figures = link.link_state.figures
    session = link.session
    declarer = link.declarer
    filters = link.subscriber.filters
    return [
        *state(link),
        ("filters/demanded", filters.demanded),
        ("filters/declared", len(declarer.wanted)),
        ("filters/held", declarer.confirmed),
        ("filters/refused", len(declarer.refused)),
        ("filters/without room", filters.refused if isinstance(filters, BudgetedFilters) else 0),
        ("filters/outside", link.subscriber.outside),
        ("messages/received", figures.received),
        ("messages/unmatched", figures.unmatched),
        ("messages/over-forwarding", f"{figures.unmatched / figures.received:.4f}" if figures.received else "0"),
        ("messages/outside", figures.outside),
        ("messages/copies", figures.copies),
        ("messages/replayed", figures.replayed),
        ("messages/looped", figures.looped),
        ("messages/nameless", figures.nameless),
        ("messages/sent", session.delivered_in_all()),
        ("messages/rejected", figures.rejected),
        ("messages/given up", figures.given_up),
        ("messages/doubtful", len(session.trial.doubtful)),
        ("messages/kept back", session.kept_back),
        ("messages/queued", session.queued()),
        ("messages/dropped", session.ledger.in_all()),
    ]
