"""What there is to say of a mesh, as one of its nodes sees it: for the API and `canopy ctl mesh`.

Owns no state. Cost: one step for each other node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.mesh.mesh import Mesh
    from broker.mesh.retained.replicas import ReplicaCounts


@dataclass(frozen=True)
class NodeStatus:
    """Another node: one that is there, or for which something waits."""

    name: str
    state: str
    """"connected"; "joined" (it is there, and takes no messages yet); "gone" (what is for it waits)."""
    filters: int
    """Topic filters and share groups that it wants."""
    behind: bool
    """Whether it has not confirmed yet all that is wanted here."""
    synchronized: bool
    """Whether what both retain has been compared since it came."""
    waiting: int
    """Messages that wait for it, or that it has not acknowledged."""
    waiting_bytes: int
    """The bytes of those that are not on their way."""
    dropped: int
    """Messages for it that were lost since it came first: its queue was full, or it stayed away."""
    down: float
    """Seconds for which it has taken nothing; 0.0: it is connected."""


@dataclass(frozen=True)
class MeshStatus:
    """A mesh, seen from one node."""

    mesh: str
    node: str
    declared: int
    """Topic filters and share groups that are declared to other nodes, which send the messages of these."""
    left_out: int
    """Those that found no room, and for which wider ones are declared."""
    undeclared: int
    """Those that are declared in no form, since there is no room for wider ones either."""
    answers_waiting: int
    """Who waits until all nodes know what is wanted here, and who went on before they did."""
    answers_late: int
    sessions_in: int
    """Sessions that have come here from other nodes since the start, and those that have gone there."""
    sessions_out: int
    sessions_incomplete: int
    """Sessions that have moved here while a node could not be reached that did not come back within
    `mesh.node_expiry`, counted once for each such node: they may miss messages of it."""
    messages_left_behind: int
    """Messages of sessions that went: lost, since more waited on disk than goes along."""
    sessions_adopted: int
    """Sessions of dead nodes that have come here out of their stores (`mesh.adopt_sessions`)."""
    messages_not_adopted: int
    """Messages of these that were lost: no room, or QoS 2 that must not be sent again."""
    claims_unanswered: int
    """Answers of nodes that clients waited for in vain (`mesh.confirm_timeout`)."""
    wills_kept: int
    """Wills of other nodes' clients that are published if their node dies."""
    will_bytes: int
    """Bytes that these take, and those of which it is known that they are over."""
    wills_left_out: int
    """Those that found no room here (`mesh.max_node_will_bytes`), and wills of clients here that are too large."""
    wills_published: int
    """Wills that this node has published for nodes that died."""
    retained: ReplicaCounts
    nodes: list[NodeStatus]


def status(mesh: Mesh) -> MeshStatus:
    """What a node of a mesh knows of it now."""
    there = set(mesh.bus.nodes())
    interest = mesh.interest.interest
    down = mesh.down()
    nodes: list[NodeStatus] = []
    for name, link in sorted(mesh.links.items()):
        remote = mesh.interest.remotes.get(name)
        session = link.session
        away = "joined" if name in there else "gone"
        nodes.append(
            NodeStatus(
                name=name,
                state="connected" if link.connected else away,
                filters=0 if remote is None else remote.count,
                behind=name in there and interest.confirmed_by(name) < interest.version,
                synchronized=name in there and mesh.retained.ready_with(name),
                waiting=int(session.queue.messages) + len(session.inflight),
                waiting_bytes=int(session.queue.bytes),
                dropped=session.ledger.in_all(),
                down=down[name],
            )
        )
    ownership = mesh.ownership
    return MeshStatus(
        mesh=mesh.settings.name,
        node=mesh.bus.node,
        declared=interest.declared.count,
        left_out=interest.declared.left_out,
        undeclared=interest.undeclared,
        answers_waiting=len(interest.waiting),
        answers_late=interest.waiting.late,
        sessions_in=ownership.taker.moved,
        sessions_out=ownership.giver.moved,
        sessions_incomplete=ownership.gates.opened_late,
        messages_left_behind=ownership.giver.left_behind,
        sessions_adopted=ownership.adopter.adopted,
        messages_not_adopted=ownership.adopter.dropped,
        claims_unanswered=ownership.claims.timed_out,
        wills_kept=mesh.wills.kept,
        will_bytes=mesh.wills.kept_bytes,
        wills_left_out=mesh.wills.left_out + mesh.wills.replicator.too_large,
        wills_published=mesh.wills.published,
        retained=mesh.retained.counts,
        nodes=nodes,
    )
