"""Which sessions two nodes both have: what a node that has come is asked, and what is said of sessions that turn up.

Owns the comparison with each node that has come, in pages. Of two sessions the one whose client came later keeps the
client, and claims the other one (`Claims.reclaim`). Promises: what is on its way to a node of it is one page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.core.connection.connect.handshake import RESERVED
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.mesh.bus import ProtocolFault
from broker.mesh.ownership.claims import Claims
from broker.mesh.ownership.messages import Compared, Held, Hello, Message

COMPARED: Final = 1_000
COMPARED_BYTES: Final = 65_536
"""Sessions, and characters of their client identifiers, that are compared with a node at a time."""


class Comparing:
    """The comparisons of one node. `nodes`: those that are there, and how many sessions they were told to be here."""

    def __init__(
        self, node: str, router: Router, claims: Claims, nodes: dict[str, int], send: Callable[[str, Message], None]
    ) -> None:
        self._node = node
        self._router = router
        self._claims = claims
        self._nodes = nodes
        self._send = send
        # The client identifiers that are still to be compared with a node, from the last on.
        self._left: dict[str, list[str]] = {}

    def begin(self, node: str, hello: Hello) -> None:
        """A node has come: the one with fewer sessions names them. Raises ProtocolFault."""
        self._claims.heard(hello.clock)
        mine = self._nodes.get(node)
        if mine is None or node in self._left:
            raise ProtocolFault("a second hello")
        self._left[node] = []
        if (mine, self._node) < (hello.sessions, node) and mine > 0:
            self._left[node] = [each.client_id for each in self._router.sessions.values() if counts(each)]
            self._name_some(node)

    def left(self, node: str) -> None:
        """A node is gone."""
        self._left.pop(node, None)

    def _name_some(self, node: str) -> None:
        """Name the next sessions that are here to a node."""
        left = self._left.get(node)
        named: list[tuple[str, int]] = []
        size = 0
        while left and len(named) < COMPARED and size < COMPARED_BYTES:
            client_id = left.pop()
            if client_id in self._router.sessions:
                named.append((client_id, self._claims.time_of(client_id)))
                size += len(client_id)
        if named:
            self._send(node, Held(named))

    def name(self, client_ids: list[str], nodes: Iterable[str] | None = None) -> None:
        """Name sessions that are here to some nodes, or to all."""
        sessions = self._router.sessions
        named = [(client_id, self._claims.time_of(client_id)) for client_id in client_ids if client_id in sessions]
        if named:
            for node in self._nodes if nodes is None else nodes:
                self._send(node, Held(named))

    def held(self, node: str, held: Held) -> None:
        """A node has named sessions that are there."""
        older: list[tuple[str, int]] = []
        for client_id, time in held.sessions:
            session = self._router.sessions.get(client_id)
            if self._claims.named(client_id, node) or session is None or not counts(session):
                continue
            if self._claims.later(client_id, node, time):
                self._claims.reclaim(client_id, session.user_name, node, time)
            else:
                older.append((client_id, self._claims.time_of(client_id)))
        self._send(node, Compared(older))

    def compared(self, node: str, compared: Compared) -> None:
        """Which of those named last are here as well, and were claimed earlier."""
        for client_id, time in compared.older:
            session = self._router.sessions.get(client_id)
            if session is not None and counts(session) and self._claims.later(client_id, node, time):
                self._claims.reclaim(client_id, session.user_name, node, time)
        self._name_some(node)


def counts(session: Session) -> bool:
    """Whether it is a client's: those of links, programs and nodes are on their own node for good."""
    return not (session.own or session.uplink or session.client_id.startswith(RESERVED))
