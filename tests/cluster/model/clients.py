"""The clients of the model, and what each of them was promised."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from tests.cluster.model.functions import RETAINED
from tests.cluster.model.network import FOR_EVER, Connection, Network, Violation

GROUPS: Final = {"$share/x/a": 2, "$share/x/b": 1}
"""Share groups, and the QoS of their members."""


class Client:
    """What both kinds of clients have."""

    def __init__(self, world: Network, name: str, *, clean: bool = False, will: bool = False) -> None:
        """`clean`: the session begins anew now and then, and may expire."""
        self.world, self.name, self.clean, self.with_will = world, name, clean, will
        self.connection: Connection | None = None
        self.ready = self.known = False
        self.asked_at = 0
        self.left_at = 0
        """When a connection that was accepted ended last."""
        self.born = -1
        """The session began after this."""

    def send(self, packet: Any) -> None:
        assert self.connection is not None
        self.connection.up.append(packet)

    def lost(self) -> None:
        if self.ready:
            self.left_at = self.world.now
        self.ready = False

    def connected(self, present: bool) -> None:
        """Hold a CONNACK against what was promised."""
        connection = self.connection
        assert connection is not None
        if self.known and not present and not connection.clean:
            if not self.clean:
                raise Violation(f"{self.name}: session not present")
            # A node that others declared dead had let it go before its client noticed anything.
            if self.world.now - self.left_at < connection.expiry and self.world.now < self.world.c1_expires:
                raise Violation(f"{self.name}: session expired after {self.world.now - self.left_at}")
        if not present:
            self.born = self.asked_at
        self.known = self.ready = True


class Publisher(Client):
    """Publishes with one QoS and a window of unacknowledged messages, and sends them again after a reconnect."""

    def __init__(self, world: Network, name: str, qos: int, count: int, *, lasts: bool = True) -> None:
        """`lasts`: its session is longer than a connection; without it, it sends nothing again."""
        super().__init__(world, name)
        self.qos, self.left, self.lasts = qos, count, lasts
        self.flight: dict[int, list[Any]] = {}
        """By packet identifier: message, state, whether it is retained."""
        self.number = self.last = 0

    def act(self) -> None:
        if not (self.ready and self.left and len(self.flight) < 3):
            return
        rng = self.world.rng
        self.left -= 1
        self.number += 1
        topic = rng.choice(self.world.topics)
        if "retained" in self.world.parts and self.lasts and rng.random() < self.world.retained_share:
            topic = rng.choice(RETAINED)
        retain = topic in RETAINED
        msg = {"topic": topic, "pub": self.name, "n": self.number, "qos": self.qos}
        if not self.lasts:
            msg["session"] = self.born
        if retain:
            msg["clear"] = rng.random() < 0.3
        while True:
            self.last = self.last % 9 + 1
            if self.last not in self.flight:
                break
        self.flight[self.last] = [msg, "pub", retain]
        self.world.begun[(self.name, self.number)] = (self.world.now, msg)
        self.send(("publish", self.qos, self.last, msg, retain))

    def packet(self, packet: Any) -> None:
        kind = packet[0]
        if kind == "connack":
            self.connected(packet[1])
            if not self.lasts:
                self.flight.clear()
            for pid, (msg, state, retain) in self.flight.items():
                self.send(("publish", self.qos, pid, msg, retain) if state == "pub" else ("pubrel", pid))
        elif kind == "puback":
            self.done(self.flight.pop(packet[1], None))
        elif kind == "pubrec":
            what = self.flight.get(packet[1])
            if what is not None:
                if what[1] == "pub":
                    what[1] = "rel"
                    self.done(what)
                self.send(("pubrel", packet[1]))
        elif kind == "pubcomp":
            self.flight.pop(packet[1], None)

    def done(self, what: list[Any] | None) -> None:
        if what is not None:
            self.world.acked.setdefault((self.name, what[0]["n"]), self.world.now)

    def quiet(self) -> bool:
        return not self.flight and not self.left


class Subscriber(Client):
    """A durable session with subscriptions. `changing`: one that comes and goes."""

    def __init__(
        self, world: Network, name: str, filters: list[str], qos: int, changing: str = "", *, clean: bool = False,
        will: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(world, name, clean=clean, will=will)
        self.qos, self.changing = qos, changing
        self.wanted = dict.fromkeys(filters, "no")  # no, asked, yes, leaving
        self.since: dict[str, int] = {}
        self.spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.received: dict[int, int] = {}
        """By packet identifier of a QoS 2 publish that is not released: when its connection sent its CONNECT."""
        self.mistaken: set[tuple[str, int]] = set()
        """Messages that were taken for a repetition of one of a session that has ended under the connection."""
        self.got: list[tuple[Any, int]] = []
        self.wills: list[int] = []
        if changing:
            self.wanted[changing] = "no"

    def act(self) -> None:
        if not self.ready:
            return
        rng = self.world.rng
        for each, state in self.wanted.items():
            if state == "no" and (each != self.changing or rng.random() < 0.5):
                self.wanted[each] = "asked"
                self.send(("subscribe", each, self.granted(each)))
                return
            if each == self.changing and state == "yes" and rng.random() < 0.1 and not self.world.ending:
                self.wanted[each] = "leaving"
                self.spans[each].append((self.since.pop(each), self.world.now))
                self.send(("unsubscribe", each))
                return

    def packet(self, packet: Any) -> None:
        kind = packet[0]
        if kind == "connack":
            self.connected(packet[1])
            if not packet[1]:
                self.received.clear()
                self.since.clear()
                self.spans.clear()
                self.wanted = dict.fromkeys(self.wanted, "no")
            if self.with_will:
                assert self.connection is not None
                self.wills.append(self.connection.will["n"])
            for each, state in self.wanted.items():
                if state == "asked":
                    self.send(("subscribe", each, self.granted(each)))
                elif state == "leaving":
                    self.send(("unsubscribe", each))
        elif kind == "suback":
            if self.wanted[packet[1]] == "asked":
                self.wanted[packet[1]] = "yes"
                self.since[packet[1]] = self.world.now
        elif kind == "unsuback":
            if self.wanted[packet[1]] == "leaving":
                self.wanted[packet[1]] = "no"
        elif kind == "publish":
            self.publish(*packet[1:])
        elif kind == "pubrel":
            self.received.pop(packet[1], None)
            self.send(("pubcomp", packet[1]))

    def publish(self, qos: int, pid: int, msg: Any, source: int) -> None:
        if qos == 2 and self.received.get(pid, FOR_EVER) <= self.world.anew:
            self.mistaken.add((msg["pub"], msg["n"]))
        if qos == 1 or pid not in self.received:
            if qos == 2:
                self.received[pid] = self.asked_at
            self.got.append((msg, source))
            if self.clean and not source and self.world.written_at[(msg["pub"], msg["n"])] < self.born:
                raise Violation(f"{self.name} got {msg['pub']} {msg['n']} of before its session began")
        self.send(("puback" if qos == 1 else "pubrec", pid))

    def granted(self, topic_filter: str) -> int:
        return GROUPS.get(topic_filter, self.qos)

    def quiet(self) -> bool:
        return all(state == "yes" for state in self.wanted.values())

    def subscribed(self, topic_filter: str) -> list[tuple[int, int]]:
        """Return when it was subscribed: from the SUBACK to the UNSUBSCRIBE."""
        now = [(self.since[topic_filter], FOR_EVER)] if topic_filter in self.since else []
        return self.spans[topic_filter] + now
