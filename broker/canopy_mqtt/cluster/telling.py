"""Carries what nodes that share their sessions tell each other over the links between them.

A node hears the others over the links that it has dialled itself: while these are up, nothing passes it by. What was
told before a link came up may be missing, and so may what had no room on the way (`cluster.link_bytes`): either is made
up for by one read of all that the node's sessions have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from canopy_mqtt.cluster.pieces import encode
from canopy_mqtt.core.ledger import ACCEPTED
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.store.shared.calls import General, Piece

if TYPE_CHECKING:
    from canopy_mqtt.cluster.node_links import NodeLinks
    from canopy_mqtt.net.server import Server

AGAIN: Final = 1.0
"""Seconds until a node for which something had no room is told that it is missing."""


class Telling:
    """What one node tells the others."""

    def __init__(self, server: Server, links: NodeLinks, spoken: Mapping[str, int]) -> None:
        """`spoken`: the version of what nodes say to each other, by node that has come in."""
        self._server = server
        self._links = links
        self._spoken = spoken
        self._publisher = NODES + server.settings.cluster.node
        self._owed: dict[str, asyncio.TimerHandle] = {}
        """By node for which a piece had no room: when it is told so."""

    def tell(self, piece: Piece) -> None:
        """Tell all nodes that have a link to this one."""
        messages = self._messages(piece)
        for name in self._links.nodes:
            self._send(name, messages)
        self._server.after_batch()

    def say(self, version: int, topic: bytes, payload: bytes) -> None:
        """Say something to all nodes that have a link to this one, and know this version. Where it has no room, nobody
        hears of that."""
        for name in self._links.nodes:
            session = self._links.node_session(name)
            knows = self._spoken.get(name, 0) >= version
            if knows and session is not None and session.send_buffer is not None:
                session.send(Message(topic, payload, 0, False, b"", 0.0, self._publisher))
        self._server.after_batch()

    def close(self) -> None:
        """Tell nothing more."""
        for timer in self._owed.values():
            timer.cancel()
        self._owed.clear()

    def _messages(self, piece: Piece) -> list[Message]:
        return [Message(topic, payload, 0, False, b"", 0.0, self._publisher) for topic, payload in encode(piece)]

    def _send(self, name: str, messages: list[Message]) -> None:
        session = self._links.node_session(name)
        if session is None or session.send_buffer is None:
            # It reads what its sessions have when its link comes up.
            return
        refused = [message for message in messages if session.send(message) != ACCEPTED]
        if refused and name not in self._owed:
            self._owed[name] = self._server.loop.call_later(AGAIN, self._make_up, name)

    def _make_up(self, name: str) -> None:
        del self._owed[name]
        self._send(name, self._messages(General()))
        self._server.after_batch()
