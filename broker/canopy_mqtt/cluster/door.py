"""Decides who comes in at the listener for the other nodes: the nodes of the settings, and nobody else.

Owns the incarnation in which each node was here last. A node of another incarnation is told which filters its session
holds here: those of clients that it had then, and has no more, would be forwarded to it for as long as the session
lasts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from canopy_mqtt.cluster.greeting import Greeting, read
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import V5, Connect
from canopy_mqtt.core.codec.reason_codes import Refused
from canopy_mqtt.core.hooks import NodeDoor, Origin
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.nodes import HELD, NODE, NODES
from canopy_mqtt.core.routing.router import Router

MAX_HELD_BYTES: Final = 60_000
"""Characters of filters in one message about the filters that a session holds."""


class Door(NodeDoor):
    """The door of one node. Who shows a certificate is the node in its common name; on a Unix socket, which only the
    broker's user can open, and on a loopback address, a node is whom it says it is."""

    def __init__(self, router: Router, own: Greeting, nodes: Collection[str]) -> None:
        self._router = router
        self._own = own
        self._nodes = frozenset(nodes)
        self._incarnations: dict[str, str] = {}

    def check(self, connect: Connect, origin: Origin) -> str:
        """Let a node in, and return our greeting. Raises Refused."""
        client_id = connect.client_id
        if connect.version != V5 or not client_id.startswith(NODES):
            raise Refused("this listener is for the nodes of a cluster", reason_codes.NOT_AUTHORIZED)
        name = client_id[len(NODES) :]
        said = next((value for key, value in connect.properties.user if key == NODE), "")
        greeting = read(said)
        refusal = self._own.refusal(greeting)
        if not refusal and greeting is not None and greeting.node != name:
            refusal = f'it names itself "{greeting.node}" and connects as "{name}"'
        if not refusal and name not in self._nodes:
            refusal = f'no node of the name "{name}" is in cluster.nodes'
        if not refusal and origin.secure:
            certificate = origin.certificate
            shown = "" if certificate is None else certificate.common_name
            if shown != name:
                refusal = f'its certificate is that of "{shown}"'
        if not refusal and connect.will is not None:
            refusal = "a node has no will"
        if refusal or greeting is None:
            raise Refused(f"not this node: {refusal}", reason_codes.NOT_AUTHORIZED)
        if self._incarnations.get(name) != greeting.incarnation:
            self._incarnations[name] = greeting.incarnation
            if not connect.clean_start:
                self._tell_held(client_id)
        return self._own.text()

    def _tell_held(self, client_id: str) -> None:
        """Queue messages with the filters that a node's session holds from an earlier incarnation."""
        session = self._router.sessions.get(client_id)
        if session is None:
            return
        part: list[str] = []
        size = 0
        parts = [part]
        for topic_filter in session.subscriptions:
            if size > MAX_HELD_BYTES:
                part, size = [], 0
                parts.append(part)
            part.append(topic_filter)
            size += len(topic_filter)
        for each in parts:
            if each:
                payload = "\n".join(each).encode()
                session.deliver(Message(HELD, payload, 1, False, b"", 0.0, NODES), 1, False, (), None)
