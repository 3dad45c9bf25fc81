"""Decides who comes in at the listener for the other nodes: the nodes of the settings, and nobody else.

A node that asks is told in its CONNACK which filters its session holds here: those of clients that it had before it was
started again, and has no more, would be forwarded to it for as long as the session lasts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from canopy_mqtt.cluster.greeting import Greeting, read
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import V5, Connect
from canopy_mqtt.core.codec.reason_codes import Refused
from canopy_mqtt.core.hooks import NodeDoor, Origin
from canopy_mqtt.core.routing.nodes import HELD, NODE, NODES, NodeSession

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server


class Door(NodeDoor):
    """The door of one node. Who shows a certificate is the node in its common name; on a Unix socket, which only the
    broker's user can open, and on a loopback address, a node is whom it says it is."""

    def __init__(self, server: Server, own: Greeting, nodes: Collection[str]) -> None:
        self._server = server
        self._own = own
        self._nodes = frozenset(nodes)
        self.spoken: dict[str, int] = {}
        """By node that came in last: the highest version that both know."""

    def check(self, connect: Connect, origin: Origin) -> list[tuple[str, str]]:
        """Let a node in, and return our greeting, and the filters that its session holds if it asks. Raises Refused."""
        client_id = connect.client_id
        if connect.version != V5 or not client_id.startswith(NODES):
            raise Refused("this listener is for the nodes of a cluster", reason_codes.NOT_AUTHORIZED)
        name = client_id[len(NODES) :]
        greeting = read(next((value for key, value in connect.properties.user if key == NODE), ""))
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
        self.spoken[name] = max(set(greeting.versions).intersection(self._own.versions))
        self._server.connection_table.at_door.know(f"from {client_id}", [origin.host])
        told = [(NODE, self._own.text())]
        session = self._server.router.sessions.get(client_id)
        if greeting.asks and isinstance(session, NodeSession) and not connect.clean_start:
            told += [(HELD, topic_filter) for topic_filter in session.subscriptions]
            for member in session.memberships or ():
                # Of share groups: the node has started again, and says anew which clients are there.
                if member.group is not None:
                    member.group.stand_for(member, 0, False)
        return told
