"""The sessions of a node that is about to go: others are asked to fetch those whose clients are away.

Owns which sessions are offered to which node, and how many at a time. Each is offered to one node, the same whoever
offers it (rendezvous hashing over the nodes that are there), and fetched by an ordinary claim, which a client that
comes elsewhere meanwhile beats. A node that is about to go itself, or does not answer in time, has not taken it: the
session stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.mesh.ownership.messages import Offer

AT_ONCE: Final = 256
"""Sessions that are offered and have not gone yet, at most."""

LOOKED_AT: Final = 1_024
"""Sessions that are looked at in a turn."""


class Leaving:
    """The offers of one node. `turn` is called again and again until it returns 0."""

    def __init__(
        self,
        router: Router,
        moves: Callable[[Session], bool],
        time_of: Callable[[str], int],
        offer: Callable[[str, Offer], None],
        going: Callable[[str], bool],
        timeout: float,
    ) -> None:
        """`moves`: whether a session is one that other nodes take. `time_of`: when it was claimed. `timeout`: seconds
        within which an offered session has gone, or is about to: as long as it is `going` it is waited for."""
        self._router = router
        self._moves = moves
        self._time_of = time_of
        self._offer = offer
        self._going = going
        self._timeout = timeout
        self._line: deque[str] = deque()
        # By client identifier: until when they are waited for.
        self._offered: dict[str, float] = {}

    def look(self) -> None:
        """Have all sessions offered whose clients are away now."""
        self._line = deque(each for each in self._router.sessions if each not in self._offered)

    def turn(self, nodes: list[str], now: float) -> int:
        """Offer some more to these nodes. How many are on their way, or to be offered."""
        sessions = self._router.sessions
        for each in [each for each, due in self._offered.items() if due <= now and self._going(each)]:
            self._offered[each] = now + self._timeout
        self._offered = {each: due for each, due in self._offered.items() if each in sessions and due > now}
        if not nodes:
            self._line.clear()
        room = AT_ONCE - len(self._offered)
        for _ in range(min(len(self._line), LOOKED_AT)):
            if room == 0:
                break
            client_id = self._line.popleft()
            session = sessions.get(client_id)
            if session is None or session.outbox is not None or not self._moves(session):
                continue
            room -= 1
            self._offered[client_id] = now + self._timeout
            self._offer(chosen(client_id, nodes), Offer(client_id, session.user_name, self._time_of(client_id)))
        return len(self._line) + len(self._offered)


def chosen(client_id: str, nodes: list[str]) -> str:
    """The node of these that has the say for a client identifier: the one with the highest hash of both."""
    return max(nodes, key=lambda node: weight(client_id, node))


def weight(client_id: str, node: str) -> bytes:
    """By which a node comes before others for a client identifier."""
    name = client_id.encode("utf-8", "surrogatepass")
    return blake2b(name, digest_size=8, key=node.encode()[:64]).digest()
