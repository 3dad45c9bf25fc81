"""What nodes and clients of a history share: its clock, links and connections, and what was sent and acknowledged."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Final

from canopy_mqtt.store.shared.calls import Hello
from tests.cluster.model.database import Database

FOR_EVER: Final = 1 << 60
PARTS: Final = frozenset({"clean", "retained", "wills", "shares"})
"""The parts of the design beyond sessions, subscriptions and messages."""


class Violation(Exception):
    """A promise is broken."""


class Connection:
    """A connection of a client to a node: what goes up and down it."""

    def __init__(self, client: str, node: str) -> None:
        self.client, self.node = client, node
        self.up: deque[Any] = deque()
        self.down: deque[Any] = deque()
        self.open = True
        """At the client."""
        self.known_lost = False
        """At the node."""
        self.clean = False
        self.lasts = True
        """Longer than its connection: its session is claimed."""
        self.expiry = 0
        self.will: Any = None
        self.delay = 0
        """Of the will, after the end of the connection."""


class Will:
    """What has happened to a will."""

    def __init__(self, delay: int) -> None:
        self.delay = delay
        self.published: list[int] = []
        """When."""
        self.kept = False
        """It is in the database, or was."""
        self.ended = FOR_EVER
        """When its connection ended, or a node that took it over from a dead one has begun to wait."""
        self.goodbye = False
        """Its client said goodbye."""
        self.back: tuple[int, bool] | None = None
        """When its client was back first, and whether with a clean start."""


class Network:
    """The state of a history that its nodes and clients share. `World` makes them and lets things happen."""

    topics: list[str]

    def __init__(self, seed: int, *, faults: bool, roam: bool, parts: frozenset[str], database: Database) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.faults, self.roam, self.parts = faults, roam, parts
        self.db = database
        self.without = database.without
        self.db.clock = lambda: self.now
        self.ending = False
        self.nodes: dict[str, Any] = {}
        self.clients: dict[str, Any] = {}
        self.links: dict[tuple[str, str], deque[Any]] = {}
        self.link_state: dict[frozenset[str], str] = {}
        """By pair of nodes: up, down, or cut, which neither knows."""
        self.begun: dict[tuple[str, int], tuple[int, Any]] = {}
        """By publisher and number of a message: when it was sent first."""
        self.acked: dict[tuple[str, int], int] = {}
        self.written_at: dict[tuple[str, int], int] = {}
        """When a message was written last. QoS 1 may come again from a connection that has ended."""
        self.order: dict[tuple[str, str, int], int] = {}
        """By (topic, publisher, number) of a retained message: the number of its commit."""
        self.retained_share = self.rng.choice((0.15, 0.7)) if "retained" in parts else 0.0
        """The share of messages that are retained."""
        self.wills: dict[int, Will] = {}
        """By number."""
        self.published_wills: list[int] = []
        """Their numbers, in the order in which they were published."""
        self.goodbyes: set[int] = set()
        """Wills of which it is written that their clients have said goodbye."""
        self.anew = -1
        """When the session of c1 began last. A claim of a connection that is gone may be carried out late, and begin it
        anew under another one."""
        self.c1_ids = set[int]()
        self.c1_expires = FOR_EVER
        """When the session of c1 ends, as it was written when a node let it go last."""
        self.group_ids: dict[int, str] = {}
        """The share groups, by their queues: one that ends and begins again has another."""
        self.members = {"g1", "g2"} if "shares" in parts else set[str]()

    def link(self, a: str, b: str) -> str:
        return self.link_state[frozenset((a, b))]

    def link_up(self, a: str, b: str) -> None:
        key = frozenset((a, b))
        if self.link_state[key] != "down" or not all(self.works(self.nodes[each]) for each in (a, b)):
            return
        self.link_state[key] = "up"
        for pair in ((a, b), (b, a)):
            self.links[pair] = deque([Hello()])

    def link_down(self, a: str, b: str) -> None:
        key = frozenset((a, b))
        if self.link_state[key] == "down":
            return
        self.link_state[key] = "down"
        for pair in ((a, b), (b, a)):
            self.links[pair].clear()

    def works(self, node: Any) -> bool:
        return node.state == "run" and node.incarnation is not None

    def close(self, connection: Connection) -> None:
        """A node ends a connection."""
        if connection.open:
            connection.down.append(("closed",))
        if connection in self.nodes[connection.node].connections:
            self.nodes[connection.node].connections.remove(connection)
