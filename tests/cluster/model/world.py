"""One history of a cluster, from a seed: nodes, links, clients, faults, and whether the promises were kept.

Faults are kills and stops of nodes, cuts between nodes and from the database, transactions that are aborted, answers
that are lost, restarts of the database, living nodes that are declared dead, connections that linger, and clients that
go from node to node. Some transactions, links and polls are 60 times slower than others.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Final

from canopy_mqtt.store.shared.calls import End
from tests.cluster.model import functions
from tests.cluster.model.checks import check
from tests.cluster.model.clients import GROUPS, Publisher, Subscriber
from tests.cluster.model.database import Database, Transaction
from tests.cluster.model.network import FOR_EVER, PARTS, Connection, Network, Violation, Will
from tests.cluster.model.nodes import Node

STEPS: Final = 900
"""Events before everything is left to come to rest."""
FAULTS: Final = (
    "crash", "restart", "stop", "wake", "cut", "down", "db cut", "db heal", "db restart", "dead", "restart", "wake",
    "db heal",
)  # fmt: skip
DEATHS: Final = ("dead", "dead", "dead", "stop", "wake", "wake", "db cut", "db heal")
"""Faults of nodes that live on after they were declared dead."""
REST: Final = 600
"""Events for which nothing may be left to do: each node hears of all that is retained meanwhile."""
EXPIRY: Final = 150
"""Session Expiry of the clients whose sessions expire, in events."""


class World(Network):
    """A cluster and its clients."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        faults: bool = True,
        roam: bool = True,
        parts: frozenset[str] = PARTS,
        without: frozenset[str] = frozenset(),
        database: Callable[[frozenset[str]], Database] = Database,
    ) -> None:
        """`without`: the rules that are taken away; `roam`: whether clients go from node to node."""
        super().__init__(seed, faults=faults, roam=roam, parts=parts, database=database(without))
        rng = self.rng
        self.db.on_commit = self.saw_commit
        self._prepare()
        self.link_speed: dict[tuple[str, str], float] = defaultdict(lambda: rng.choice((4, 4, 1, 0.1)))
        self.tx_speed = rng.choice(((6.0,), (6.0, 6.0, 6.0, 0.3), (6.0, 1.0, 0.1)))
        self.poll_speed = rng.choice((0.4, 0.05))
        self.nodes: dict[str, Node] = {
            name: Node(self, name) for name in (f"n{number}" for number in range(1, nodes + 1))
        }
        for a in self.nodes:
            for b in self.nodes:
                if a != b:
                    self.links[(a, b)] = deque()
                    self.link_state[frozenset((a, b))] = "down"
        self.which_faults: tuple[str, ...] = FAULTS
        self.fault_speed, self.lost_answers = 0.25, 0.03
        self.keepers: dict[int, str] = {}
        """By number of a will, the node that has it."""
        self.stray: list[Connection] = []
        """Connections that have ended, which their node does not know yet."""
        self.roaming = rng.choice((0.12, 0.12, 0.8))
        self.topics = rng.choice((["a", "b", "s", "s"], ["a"], ["s", "a"]))
        count = rng.randint(4, 16)
        self.clients: dict[str, Publisher | Subscriber] = {
            "p1": Publisher(self, "p1", 1, count),
            "p2": Publisher(self, "p2", 2, count),
            "s1": Subscriber(self, "s1", ["+"], 2),
            "s2": Subscriber(self, "s2", ["a"], 1),
            "s3": Subscriber(self, "s3", [], 2, "s"),
            "c1": Subscriber(self, "c1", ["+"], 2, clean=True),
        }
        if "clean" in parts:
            if rng.random() < 0.5:
                self.which_faults, self.fault_speed, self.lost_answers = DEATHS, 1.0, 0.2
            self.clients["p3"] = Publisher(self, "p3", 2, count, lasts=False)
        if "shares" in parts:
            self.clients["g1"] = Subscriber(self, "g1", [*GROUPS, *rng.choice(([], ["a"]))], 2)
            self.clients["g2"] = Subscriber(self, "g2", [*GROUPS], 2, clean=rng.random() < 0.3)
        if "wills" in parts:
            self.clients["w1"] = Subscriber(self, "w1", [], 1, clean=rng.random() < 0.5, will=True)
            self.clients["s4"] = Subscriber(self, "s4", [], 2)
        for node in self.nodes.values():
            self.start(node)

    def _prepare(self) -> None:
        """One who gets all wills."""
        tables = self.db.tables
        unowned = {"node": None, "incarnation": 0, "epoch": 0, "expiry": FOR_EVER, "expires": None}
        if "wills" in self.parts:
            tables["node"]["n1"] = {"incarnation": 0, "alive": False}
            tables["beat"]["n1"] = 0
            tables["session"][800] = {**unowned, "client": "s4", "row": 800}
            tables["subscription"][(800, "w")] = {"qos": 2}
            tables["filter"]["w"] = {"gone": False, "node": "n1", "grp": 1, "share": None}

    def saw_commit(self, tx: Transaction, number: int) -> None:
        for (table, key), row in tx.written.items():
            if table == "message" and key[0] != functions.LONG and isinstance(row, dict):
                self.written_at[(row["pub"], row["n"])] = self.now
            elif table == "retained" and isinstance(row, dict):
                self.order[(key, row["msg"]["pub"], row["msg"]["n"])] = number
            elif table == "session" and isinstance(row, dict) and row["client"] in GROUPS:
                self.group_ids[key] = row["client"]
            elif table == "session" and isinstance(row, dict) and row["client"] == "c1":
                if row["expires"] is not None:
                    self.c1_expires = row["expires"]
                if key not in self.c1_ids:
                    self.c1_ids.add(key)
                    self.anew = self.now
            elif table == "session" and isinstance(row, dict) and row["client"] == "w1" and "claim" in tx.name:
                for will in self.wills.values():
                    if will.kept and will.back is None:
                        will.back = self.now, tx.name == "claim" and tx.args[3]
            elif table == "will" and isinstance(row, dict):
                will = self.wills[row["msg"]["n"]]
                if will.kept and row["node"] != self.keepers[row["msg"]["n"]]:
                    will.ended = min(will.ended, self.now)
                will.kept = True
                self.keepers[row["msg"]["n"]] = row["node"]
            elif table == "published_will":
                self.wills[row["n"]].published.append(self.now)
                self.published_wills.append(row["n"])

    # -- nodes and clients ---------------------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        node.clear()
        node.state = "run"
        node.logic.join()

    def crash(self, node: Node) -> None:
        node.state = "down"
        for connection in node.connections:
            connection.down.append(("closed",))
        for other in self.nodes:
            if other != node.name:
                self.link_down(node.name, other)
        node.clear()

    def connect(self, client: Publisher | Subscriber, name: str) -> None:
        client.connection = connection = Connection(client.name, name)
        connection.lasts = not isinstance(client, Publisher) or client.lasts
        connection.clean = client.clean and (not client.known or self.rng.random() < 0.4) and not self.ending
        connection.clean |= not connection.lasts
        connection.expiry = EXPIRY if client.clean and not client.with_will else FOR_EVER
        client.asked_at = self.now
        if client.with_will:
            number = len(self.wills) + 1
            connection.delay = self.rng.choice((0, 100))
            self.wills[number] = Will(connection.delay)
            connection.will = {"topic": "w", "pub": "w1", "n": number, "qos": 1}
        self.nodes[name].connections.append(connection)
        connection.up.append(("connect",))

    def disconnect(self, client: Publisher | Subscriber) -> None:
        connection, client.connection = client.connection, None
        assert connection is not None
        connection.open = False
        connection.down.clear()
        client.lost()
        if client.with_will:
            will = self.wills[connection.will["n"]]
            will.ended = min(will.ended, self.now)
            will.goodbye = not connection.known_lost and self.rng.random() < 0.3
            if will.goodbye:
                connection.up.append(("goodbye",))
        if not connection.known_lost:
            connection.up.append(("lost",))
            self.stray.append(connection)

    # -- what may happen next ------------------------------------------------------------------------------------------

    def events(self) -> list[tuple[Any, ...]]:
        """Return what may happen next: weight, function, arguments."""
        rng = self.rng
        out: list[tuple[Any, ...]] = []
        for tx in self.db.runnable():
            if tx.next == "begin" and tx.waits is None:
                tx.speed = rng.choice(self.tx_speed)
            out.append((6 if self.ending else tx.speed, self.step, tx))
        for node in self.nodes.values():
            if node.state != "run":
                continue
            if node.inbox:
                out.append((6, self.inbox, node))
            if node.logic.notes and node.logic.flight is None and node.incarnation:
                out.append((3, node.close_group))
            if node.logic.unread and not node.logic.is_reading:
                out.append((6, node.logic.read))
            if node.unclaimed:
                out.append((6, node.claims))
            if node.retry:
                out.append((2, self.retry, node))
            out.append((self.poll_speed if not self.ending else 1.5, node.poll))
        for (a, b), queue in self.links.items():
            if queue and self.link(a, b) == "up" and self.works(self.nodes[b]):
                out.append((4 if self.ending else self.link_speed[(a, b)], self.carry, a, b))
        for client in self.clients.values():
            out += self.client_events(client)
        for connection in self.stray:
            if self.nodes[connection.node].state == "run":
                out.append((1, self.up_stray, connection))
        if "retained" in self.parts and not self.ending and rng.random() < 0.2:
            out.append((3, self.get))
        for pair, state in self.link_state.items():
            if state == "down" and rng.random() < 0.3:
                out.append((1, self.link_up, *sorted(pair)))
        if rng.random() < 0.1:
            out += self.sweeps()
        if self.faults and not self.ending:
            out.append((self.fault_speed, self.fault))
        return out

    def client_events(self, client: Publisher | Subscriber) -> list[tuple[Any, ...]]:
        connection = client.connection
        if connection is None:
            up = [each.name for each in self.nodes.values() if each.incarnation or each.state == "stop"]
            if self.ending:
                up = [name for name in up if self.nodes[name].state == "run"]
            return [(2, self.connect, client, self.rng.choice(sorted(up)))] if up else []
        out: list[tuple[Any, ...]] = []
        if connection.up and self.nodes[connection.node].state == "run":
            out.append((4, self.up, connection))
        if connection.down:
            out.append((4, self.down, client))
        out.append((1.5, client.act))
        if not self.ending and self.roam:
            # A will is kept before its CONNACK: few connections would have one if all were given up early.
            often = (1 if client.ready else 0.02) if client.with_will else 0.12
            out.append((self.roaming if isinstance(client, Publisher) else often, self.disconnect, client))
        return out

    def sweeps(self) -> list[tuple[Any, ...]]:
        rng, tables = self.rng, self.db.tables
        out: list[tuple[Any, ...]] = [
            (weight, self.db.start, *call)
            for weight, *call in (
                (0.5, functions.change_slot),
                (0.5, functions.expire),
                (0.2, functions.trim),
                (0.2, functions.clean_long),
                (1, functions.empty_deliveries, rng.choice(functions.SLOTS)),
                (1, functions.empty_messages, rng.choice(functions.SLOTS)),
            )
        ]
        if tables["delivery"]:
            slot = rng.choice(sorted(tables["delivery"]))[0]
            if slot not in (functions.LONG, tables["slots"]["current"]):
                out.append((0.5, self.db.start, functions.move, slot))
        if tables["garbage"]:
            out.append((0.5, self.db.start, functions.collect))
        ready = [node for node in self.nodes.values() if self.works(node)]
        if ready and tables["filter"]:
            # Filters without a subscription leave the registry, in a group.
            out.append((0.5, self.end_filter, rng.choice(ready), rng.choice(sorted(tables["filter"]))))
        return out

    def end_filter(self, node: Node, name: str) -> None:
        node.logic.note(End(name))

    def step(self, tx: Transaction) -> None:
        rng = self.rng
        if self.faults and not self.ending and rng.random() < 0.004:
            self.db.abort(tx)
            self.reply(tx, None, True)
            return
        self.db.step(tx)

    def reply(self, tx: Transaction, result: Any, error: bool) -> None:
        if tx.back is not None:
            error = error or not tx.caller.reaches_db
            tx.back(None if error else result, error)

    def inbox(self, node: Node) -> None:
        # One connection writes groups, others claim and read: their answers come in any order.
        back, result, error = node.inbox.pop(self.rng.randrange(len(node.inbox)))
        back(result, error)

    def retry(self, node: Node) -> None:
        node.retry.pop(0)()

    def carry(self, a: str, b: str) -> None:
        self.nodes[b].logic.receive(self.links[(a, b)].popleft())

    def up(self, connection: Connection) -> None:
        packet = connection.up.popleft()
        if connection in self.nodes[connection.node].connections:
            self.nodes[connection.node].packet(connection, packet)

    def up_stray(self, connection: Connection) -> None:
        packet = connection.up.popleft()
        node = self.nodes[connection.node]
        if packet[0] == "lost":
            self.stray.remove(connection)
            if node.session_of(connection) is not None or connection in node.connections:
                node.gone(connection)
        elif connection in node.connections:
            node.packet(connection, packet)

    def down(self, client: Publisher | Subscriber) -> None:
        assert client.connection is not None
        packet = client.connection.down.popleft()
        if packet[0] == "closed":
            self.disconnect(client)
        else:
            client.packet(packet)

    def get(self) -> None:
        """A clean client subscribes to a retained topic: it gets what was acknowledged, or a later one."""
        nodes = [node for node in self.nodes.values() if self.works(node)]
        if not nodes:
            return
        node = self.rng.choice(nodes)
        topic = self.rng.choice(functions.RETAINED)
        floor = max([self.order.get((topic, *key), 0) for key in self.acked], default=0)

        def then() -> None:
            msg = node.copy.get(topic)
            at = 0 if msg is None else self.order[(topic, msg["pub"], msg["n"])]
            if at < floor:
                raise Violation(f"retained: {node.name} gave commit {at} of {topic}, acknowledged was {floor}")

        node.logic.look(then)

    def fault(self) -> None:
        rng = self.rng
        which = rng.choice(self.which_faults)
        node = self.nodes[rng.choice(sorted(self.nodes))]
        other = rng.choice([name for name in self.nodes if name != node.name])
        if which == "crash" and node.state != "down":
            self.crash(node)
        elif which == "restart" and node.state == "down":
            self.start(node)
        elif which == "stop" and node.state == "run":
            node.state = "stop"
        elif which == "wake" and node.state == "stop":
            node.state = "run"
        elif which == "cut" and self.link(node.name, other) == "up":
            self.link_state[frozenset((node.name, other))] = "cut"
        elif which == "down":
            self.link_down(node.name, other)
        elif which == "db cut":
            node.reaches_db = False
        elif which == "db heal":
            node.reaches_db = True
        elif which == "db restart":
            for tx in list(self.db.active):
                if tx in self.db.active:
                    self.db.abort(tx)
                    self.reply(tx, None, True)
        elif (
            which == "dead" and node.incarnation and (node.state != "run" or not node.reaches_db or rng.random() < 0.3)
        ):
            seen = self.db.tables["beat"].get(node.name)
            self.db.start(functions.declare_dead, node.name, node.incarnation, seen)

    # -- a history -----------------------------------------------------------------------------------------------------

    def run(self, steps: int = STEPS, limit: int = 60_000) -> None:
        """Let things happen, then come to rest without faults. Raises Violation."""
        for self.now in range(steps):
            self.one()
        self.ending = True
        for node in self.nodes.values():
            node.reaches_db = True
            if node.state == "stop":
                node.state = "run"
            elif node.state == "down":
                self.start(node)
        for pair, state in self.link_state.items():
            if state == "cut":
                self.link_down(*sorted(pair))
        calm = 0
        while calm < REST:
            self.now += 1
            if self.now > limit:
                raise Violation("it does not come to rest: " + self.unrest())
            self.one()
            calm = calm + 1 if self.rested() else 0
        check(self)

    def one(self) -> None:
        """Let one thing happen."""
        if self.db.deadlocked():
            waits = ", ".join(f"{tx.name} waits for {tx.waits}" for tx in self.db.active)
            raise Violation(f"deadlock: {waits}")
        events = self.events()
        _, call, *args = self.rng.choices(events, [event[0] for event in events])[0]
        call(*args)
        over, self.db.over = self.db.over, []
        for tx in over:
            lost = self.faults and not self.ending and self.rng.random() < self.lost_answers
            self.reply(tx, tx.result, lost)

    def _waiting(self) -> list[Any]:
        sessions = self.db.tables["session"]
        return [key for key in self.db.tables["delivery"] if key[1] in sessions]

    def rested(self) -> bool:
        tables = self.db.tables
        for row in tables["will"].values():
            node = tables["node"][row["node"]]
            if row["due"] is not None or not node["alive"] or node["incarnation"] != row["incarnation"]:
                return False
        if self._waiting():
            return False
        return all(each.quiet() and each.connection is not None and each.ready for each in self.clients.values())

    def unrest(self) -> str:
        clients = [(each.name, each.quiet(), each.ready) for each in self.clients.values()]
        return f"{self._waiting()} {clients}"
