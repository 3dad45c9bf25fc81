"""The figures about the other nodes of a mesh, as this one sees them. A broker on its own has none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from broker.observe.figures.figure import Figure, Kind, Sample, Topic, Value
from broker.observe.figures.sources import Reading

if TYPE_CHECKING:
    from broker.mesh.status import MeshStatus, NodeStatus

COUNTER, GAUGE = Kind.COUNTER, Kind.GAUGE


def _mesh(name: str, kind: Kind, topic: str, text: str, read: Callable[[MeshStatus], Value]) -> Figure:
    """A figure of the mesh as a whole."""

    def samples(reading: Reading) -> Iterator[Sample]:
        if reading.mesh is not None:
            yield (), read(reading.mesh)

    return Figure(f"mesh_{name}", kind, text, samples, topics=(Topic(f"mesh/{topic}"),))


def _node(name: str, kind: Kind, topic: str, text: str, read: Callable[[NodeStatus], Value], unit: str = "") -> Figure:
    """A figure of each other node. There are as many as nodes: what is given up has none any more."""

    def samples(reading: Reading) -> Iterator[Sample]:
        for node in () if reading.mesh is None else reading.mesh.nodes:
            yield (node.name,), read(node)

    topics = (Topic(f"mesh/nodes/{{name}}/{topic}"),) if topic else ()
    return Figure(f"mesh_node_{name}", kind, text, samples, unit, ("name",), topics)


def _connected(mesh: MeshStatus) -> int:
    return sum(node.state == "connected" for node in mesh.nodes)


def _seconds(node: NodeStatus) -> float:
    return round(node.down, 3)


MESH: Final = (
    _mesh("name", Kind.TEXT, "name", "Name of the mesh", lambda mesh: mesh.mesh),
    _mesh("node", Kind.TEXT, "node", "Name of this node", lambda mesh: mesh.node),
    _mesh(
        "nodes",
        GAUGE,
        "known",
        "Other nodes that are connected, or for which messages are queued",
        lambda mesh: len(mesh.nodes),
    ),
    _mesh("nodes_connected", GAUGE, "connected", "Other nodes that are connected", _connected),
    _mesh(
        "filters_declared",
        GAUGE,
        "filters/declared",
        "Topic filters and share groups declared to other nodes",
        lambda mesh: mesh.declared,
    ),
    _mesh(
        "filters_left_out",
        GAUGE,
        "filters/left out",
        "Topic filters beyond mesh.max_node_filters, for which wider ones are declared",
        lambda mesh: mesh.left_out,
    ),
    _mesh(
        "filters_undeclared",
        GAUGE,
        "filters/undeclared",
        "Topic filters that are declared to other nodes in no form: their messages do not arrive",
        lambda mesh: mesh.undeclared,
    ),
    _mesh(
        "answers_waiting",
        GAUGE,
        "answers/waiting",
        "SUBACKs and session moves that wait until all nodes have confirmed the topic filters",
        lambda mesh: mesh.answers_waiting,
    ),
    _mesh(
        "answers_late",
        COUNTER,
        "answers/late",
        "SUBACKs and session moves that continued without that confirmation (mesh.confirm_timeout)",
        lambda mesh: mesh.answers_late,
    ),
    _mesh("sessions_in", COUNTER, "sessions/in", "Sessions moved here from other nodes", lambda mesh: mesh.sessions_in),
    _mesh("sessions_out", COUNTER, "sessions/out", "Sessions moved to other nodes", lambda mesh: mesh.sessions_out),
    _mesh(
        "sessions_incomplete",
        COUNTER,
        "sessions/incomplete",
        "Sessions moved here that may miss messages of a node: it was away for longer than mesh.node_expiry",
        lambda mesh: mesh.sessions_incomplete,
    ),
    _mesh(
        "messages_left_behind",
        COUNTER,
        "messages/left behind",
        "Messages of sessions that went to other nodes, lost because more of them waited on disk than goes along",
        lambda mesh: mesh.messages_left_behind,
    ),
    _mesh(
        "sessions_adopted",
        COUNTER,
        "sessions/adopted",
        "Sessions taken over from dead nodes (mesh.adopt_sessions)",
        lambda mesh: mesh.sessions_adopted,
    ),
    _mesh(
        "messages_not_adopted",
        COUNTER,
        "messages/not adopted",
        "Messages of sessions of dead nodes that could not be taken over: no room, or QoS 2 in flight",
        lambda mesh: mesh.messages_not_adopted,
    ),
    _mesh(
        "claims_unanswered",
        COUNTER,
        "claims/unanswered",
        "Answers that nodes did not give to connecting clients in time (mesh.confirm_timeout)",
        lambda mesh: mesh.claims_unanswered,
    ),
    _mesh(
        "wills_kept",
        GAUGE,
        "wills/kept",
        "Wills of other nodes' clients, to be published if their node dies",
        lambda mesh: mesh.wills_kept,
    ),
    _mesh("will_bytes", GAUGE, "wills/bytes", "Bytes of these wills", lambda mesh: mesh.will_bytes),
    _mesh(
        "wills_left_out",
        COUNTER,
        "wills/left out",
        "Wills of other nodes' clients beyond mesh.max_node_will_bytes, and wills here that are too large to be sent",
        lambda mesh: mesh.wills_left_out,
    ),
    _mesh(
        "wills_published",
        COUNTER,
        "wills/published",
        "Wills that this node has published for nodes that died",
        lambda mesh: mesh.wills_published,
    ),
    _mesh(
        "retained_sent",
        COUNTER,
        "retained/sent",
        "Retained messages, and cleared topics, sent to other nodes",
        lambda mesh: mesh.retained.sent,
    ),
    _mesh(
        "retained_applied",
        COUNTER,
        "retained/applied",
        "Retained messages, and cleared topics, received from other nodes and applied",
        lambda mesh: mesh.retained.applied,
    ),
    _mesh(
        "retained_outdated",
        COUNTER,
        "retained/outdated",
        "Retained messages, and cleared topics, received from other nodes after a later write",
        lambda mesh: mesh.retained.outdated,
    ),
    _mesh(
        "retained_refused",
        COUNTER,
        "retained/refused",
        "Retained messages of other nodes beyond this node's limits",
        lambda mesh: mesh.retained.refused,
    ),
    _mesh(
        "retained_corrected",
        COUNTER,
        "retained/corrected",
        "Retained messages of other nodes with a time too far ahead (mesh.max_clock_ahead)",
        lambda mesh: mesh.retained.corrected,
    ),
    _mesh(
        "retained_too_large",
        COUNTER,
        "retained/too large",
        "Retained messages that are too large for other nodes",
        lambda mesh: mesh.retained.too_large,
    ),
    _node("up", GAUGE, "", "1 while another node is connected, else 0", lambda node: int(node.state == "connected")),
    _node(
        "state",
        Kind.TEXT,
        "state",
        "`connected`; `joined`: connected, but it accepts no messages yet; `gone`: not connected",
        lambda node: node.state,
    ),
    _node(
        "down", GAUGE, "down", "Time since the node stopped accepting messages; 0: it accepts them", _seconds, "seconds"
    ),
    _node("filters", GAUGE, "filters", "Topic filters and share groups of the node", lambda node: node.filters),
    _node(
        "behind",
        GAUGE,
        "behind",
        "1 while the node has not confirmed all topic filters, else 0",
        lambda node: int(node.behind),
    ),
    _node(
        "synchronized",
        GAUGE,
        "retained/synchronized",
        "1 if retained messages have been compared since the node connected, else 0",
        lambda node: int(node.synchronized),
    ),
    _node(
        "waiting_messages",
        GAUGE,
        "messages/waiting",
        "Messages queued for the node, or not acknowledged by it",
        lambda node: node.waiting,
    ),
    _node("waiting", GAUGE, "bytes/waiting", "Bytes of these messages", lambda node: node.waiting_bytes, "bytes"),
    _node(
        "dropped",
        COUNTER,
        "messages/dropped",
        "Messages for the node that were lost: its queue was full, or it was away for too long",
        lambda node: node.dropped,
    ),
)
