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
    _mesh("name", Kind.TEXT, "name", "What the mesh is called", lambda mesh: mesh.mesh),
    _mesh("node", Kind.TEXT, "node", "What this node is called", lambda mesh: mesh.node),
    _mesh(
        "nodes",
        GAUGE,
        "known",
        "Other nodes that are there, or for which something waits",
        lambda mesh: len(mesh.nodes),
    ),
    _mesh("nodes_connected", GAUGE, "connected", "Other nodes that are connected", _connected),
    _mesh(
        "filters_told",
        GAUGE,
        "filters/told",
        "Topic filters and share groups that other nodes are told to be wanted here",
        lambda mesh: mesh.told,
    ),
    _mesh(
        "filters_left_out",
        GAUGE,
        "filters/left out",
        "Of what is wanted here, what found no room (mesh.max_node_filters): wider filters are told in its place",
        lambda mesh: mesh.left_out,
    ),
    _mesh(
        "filters_unheard",
        GAUGE,
        "filters/unheard",
        "Of what is wanted here, what no other node is told of in any way: messages for it do not come",
        lambda mesh: mesh.unheard,
    ),
    _mesh(
        "answers_waiting",
        GAUGE,
        "answers/waiting",
        "SUBACKs and moves of sessions that wait until all nodes know what is wanted here",
        lambda mesh: mesh.answers_waiting,
    ),
    _mesh(
        "answers_late",
        COUNTER,
        "answers/late",
        "Those that went on before all nodes knew (mesh.confirm_timeout)",
        lambda mesh: mesh.answers_late,
    ),
    _mesh("sessions_in", COUNTER, "sessions/in", "Sessions that came from other nodes", lambda mesh: mesh.sessions_in),
    _mesh("sessions_out", COUNTER, "sessions/out", "Sessions that went to other nodes", lambda mesh: mesh.sessions_out),
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
        "Answers of nodes that connecting clients waited for in vain (mesh.confirm_timeout)",
        lambda mesh: mesh.claims_unanswered,
    ),
    _mesh(
        "wills_kept",
        GAUGE,
        "wills/kept",
        "Wills of other nodes' clients, to be published if their node dies",
        lambda mesh: mesh.wills_kept,
    ),
    _mesh("will_bytes", GAUGE, "wills/bytes", "Bytes that these take", lambda mesh: mesh.will_bytes),
    _mesh(
        "wills_left_out",
        COUNTER,
        "wills/left out",
        "Wills of other nodes' clients without room here (mesh.max_node_will_bytes); wills here too large to be told",
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
        "Retained messages, and that they were cleared, told to other nodes",
        lambda mesh: mesh.retained.sent,
    ),
    _mesh(
        "retained_applied",
        COUNTER,
        "retained/applied",
        "The same, heard from other nodes and taken over",
        lambda mesh: mesh.retained.applied,
    ),
    _mesh(
        "retained_outdated",
        COUNTER,
        "retained/outdated",
        "The same, heard from other nodes when a later write was here already",
        lambda mesh: mesh.retained.outdated,
    ),
    _mesh(
        "retained_refused",
        COUNTER,
        "retained/refused",
        "Retained messages of other nodes for which the limits here have no room",
        lambda mesh: mesh.retained.refused,
    ),
    _mesh(
        "retained_corrected",
        COUNTER,
        "retained/corrected",
        "Retained messages of other nodes from too far in the future (mesh.max_clock_ahead)",
        lambda mesh: mesh.retained.corrected,
    ),
    _mesh(
        "retained_too_large",
        COUNTER,
        "retained/too large",
        "Retained messages that stay on this node, larger than a message between nodes may be",
        lambda mesh: mesh.retained.too_large,
    ),
    _node("up", GAUGE, "", "1 while another node is connected, else 0", lambda node: int(node.state == "connected")),
    _node(
        "state",
        Kind.TEXT,
        "state",
        "`connected`; `joined`: it is there, and takes no messages yet; `gone`: what is for it waits",
        lambda node: node.state,
    ),
    _node("down", GAUGE, "down", "For how long another node has taken nothing; 0: it does", _seconds, "seconds"),
    _node("filters", GAUGE, "filters", "Topic filters and share groups that it wants", lambda node: node.filters),
    _node(
        "behind",
        GAUGE,
        "behind",
        "1 while it has not confirmed all that is wanted here, else 0",
        lambda node: int(node.behind),
    ),
    _node(
        "in_step",
        GAUGE,
        "retained/in step",
        "1 when retained messages have been compared since it came, else 0",
        lambda node: int(node.in_step),
    ),
    _node(
        "waiting_messages",
        GAUGE,
        "messages/waiting",
        "Messages that wait for it, or that it has not acknowledged",
        lambda node: node.waiting,
    ),
    _node("waiting", GAUGE, "bytes/waiting", "Bytes of those that wait", lambda node: node.waiting_bytes, "bytes"),
    _node(
        "dropped",
        COUNTER,
        "messages/dropped",
        "Messages for it that were lost: its queue was full, or it stayed away",
        lambda node: node.dropped,
    ),
)
