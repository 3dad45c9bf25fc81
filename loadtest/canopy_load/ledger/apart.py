"""What several nodes do not promise where each session stays at its node, and nodes send each other messages: the
limits that ``docs/cluster.md`` names for Canopy.

Owns: `Apart`, and what is said of a session (`of_session`), which nodes may have in a database. Promises to excuse what
``docs/prove.md`` lists for such nodes, and nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from canopy_load.ledger.checker import Finding
from canopy_load.ledger.history import Connect, Delivery, Event, History, Look, Ping, Publish, Stream, Subscribe

OF_SESSIONS: Final = frozenset({"lost", "session", "twice", "order", "unsubscribed", "DUP", "UNSUBACK"})
"""The promises that are about a session alone."""

Cut = Callable[[str, str, float, float], bool]
"""Whether what one node had at a time may not have reached another one by a later time."""


class InDatabase(Protocol):
    """What may go wrong between nodes that have durable sessions and retained messages in a database."""

    def hung(self, one: str, other: str, began: float, ended: float) -> bool:
        """Return True if live messages of that time between two nodes may be lost, since one of these stands still, or
        has a moment ago."""

    def at_once(self, since: float, at: float) -> bool:
        """Return True if no more than a moment has passed."""

    def away(self, began: float, ended: float) -> bool:
        """Return True if the database was away in that time, or a moment before."""

    def cut_off(self, node: str, began: float, ended: float) -> bool:
        """Return True if a node stood still in that time or a moment before, or it and another one could not reach each
        other."""


class Apart:
    """The nodes of a history."""

    def __init__(self, history: History, cut: Cut, database: InDatabase | None = None) -> None:
        """`database`: None: each session and each retained message is of one node."""
        self._cut = cut
        self._database = database
        self._stays: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        """By client: from when to when it was at which node, or tried to be."""
        self._homes: dict[str, list[tuple[float, str]]] = {}
        """By client: since when it was accepted at which node. Until then it may get something at the one before."""
        self._fresh: dict[str, list[int]] = defaultdict(list)
        """By client: the numbers of the connections with which its sessions began."""
        connects = self._connects = defaultdict[str, list[Connect]](list)
        for connect in history.of(Connect):
            connects[connect.client].append(connect)
            if not connect.present:
                self._fresh[connect.client].append(connect.number)
        for client, those in connects.items():
            ends = [*(each.began for each in those[1:]), inf]
            self._stays[client] = [(each.began, end, each.node) for each, end in zip(those, ends, strict=True)]
            self._homes[client] = [(each.ended, each.node) for each in those if each.outcome == "ok"]
        self._messages = {(each.stream, each.sequence): each for each in history.of(Publish)}
        self._came: dict[tuple[str, Stream, int], list[Delivery]] = defaultdict(list)
        for each in history.of(Delivery):
            if not each.retained:
                self._came[each.client, each.stream, each.qos].append(each)

    def excuse(self, promise: str, events: list[Event], everywhere: bool = False, once: bool = False) -> bool:
        """Return True if the nodes do not promise what a finding says. `everywhere`: it is about a session that all
        nodes have in a database, in the order in which messages were written there; `once`: about a message of such a
        session.

        Excused are the order of messages that their publisher sent by different nodes, and an older retained message,
        also for Retain Handling 2, at a node that a newer one can hardly have reached; to a session at one node, or
        another member, a second copy of what its publisher sent by two, and one with QoS 0 to a client that has changed
        nodes; a connection that can hardly know of a later one at another node. With a database: DUP 0 in a second copy
        with QoS 1, RETAIN 1 in what another node was sent a moment after a SUBACK, the loss of what was on its way
        from or to a node that stood still, to a session that ends with its connection, and a member of a share group
        that others leave nothing, since its node is cut off from theirs or stands still; a session that a clean
        CONNECT left, since the database was away, and what comes again or late from it; the place of a will whose
        CONNECT was given up: a node may have carried that out late.
        """
        match promise, events:
            case "order" | "twice", [*_, Delivery() as again] if self._was_left(again.client, again.at):
                return True
            case "order", [_, Publish(will=True) as will, *_] if self._database is not None and self._is_late(will):
                return True
            case "order", [*_, Delivery(qos=0) as one, Delivery() as other] if self._moved(one, other):
                return True
            case "order", [Publish() as publish, *_, Delivery() as late] if late.qos == 0 or not everywhere:
                # A will may come from a database, to any node.
                return self._overtaken(late, publish.will)
            case "twice", [*_, Delivery() as again] if not everywhere and not once:
                # Its publisher sent it again to another node before the first one had acknowledged it.
                return len(self._ways(again, again.sequence)) > 1
            case "to two members", [Publish(), *_, Delivery(qos=0)] if everywhere:
                # Without a database in between, each node has a member of its own take it.
                copies = [each for each in events if isinstance(each, Delivery)]
                return len({self._node(each.client, each.at) for each in copies}) == len(copies)
            case "to two members", [Publish(), *_, Delivery() as again]:
                return len(self._ways(again, again.sequence)) > 1
            case "twice with QoS 0", [Publish(), Delivery() as one, *_, Delivery() as again]:
                return self._moved(one, again)
            case "lost", [Subscribe() as asked, Publish() as publish] if self._database is not None and not everywhere:
                home = self._node(asked.client, publish.ended)
                ways = self._sent_by(publish, publish.ended)
                hung = self._database.hung
                return bool(ways) and all(way != home and hung(way, home, publish.began, publish.ended) for way in ways)
            case "starved", [Connect() as connect, Subscribe()] if self._database is not None:
                ends = next((end for began, end, _ in self._stays[connect.client] if began == connect.began), inf)
                return self._database.cut_off(connect.node, connect.ended, ends)
            case "session", [Connect(clean=True) as left, Connect(present=True)] if self._database is not None:
                return self._database.away(left.began, left.ended)
            case "RETAIN", [Subscribe() as asked, Publish() as publish, Delivery(retain=True) as came]:
                # What was retained is read behind the SUBACK: it may be there by then.
                if self._database is None or asked.as_published or not publish.retain:
                    return False
                # A will may come from any node.
                others = self._sent_by(publish, came.at) - {self._node(came.client, came.at)}
                return (publish.will or bool(others)) and self._database.at_once(asked.ended, publish.since)
            case "DUP", [Publish(), Delivery(), Delivery() as again] if everywhere:
                # A database does not keep that it was sent.
                return again.qos == 1
            case "one connection", [Connect() as one, Connect() as other, Ping() as ping]:
                return one.node != other.node and self._cut(other.node, one.node, other.ended, ping.ended)
            case "retained, the last", [*newer, Look() as look]:
                return bool(newer) and all(self._misses(look.node, each, look.at) for each in newer)
            case "retained, each node" | "retained, the same", [Publish() as newest, Look() as one, Look() as other]:
                return self._misses(one.node, newest, one.at) or self._misses(other.node, newest, other.at)
            case "Retain Handling", [Subscribe() as asked, *_, publish, Delivery()]:
                return self._misses(self._node(asked.client, asked.began), publish, asked.began)
        return False

    def _was_left(self, client: str, at: float) -> bool:
        """Return True if a client had a session that its last clean CONNECT left, since the database was away."""
        if self._database is None:
            return False
        before = [each for each in self._connects[client] if each.began <= at]
        cleans = [each for each in before if each.clean]
        return bool(cleans) and cleans[-1] is not before[-1] and self._database.away(cleans[-1].began, cleans[-1].ended)

    def _is_late(self, will: Publish) -> bool:
        """Return True if the CONNECT with a will was given up before it was answered."""
        own = min(self._connects[will.client], key=lambda each: abs(each.began - will.began), default=None)
        return own is not None and own.outcome == "unknown"

    def _node(self, client: str, at: float) -> str:
        """Return the node where a client was at a time."""
        return next((node for began, end, node in self._stays[client] if began <= at < end), "")

    def _home(self, late: Delivery) -> str:
        """Return the node where a client was when it got something."""
        return next((node for since, node in reversed(self._homes.get(late.client, ())) if since <= late.at), "")

    def _moved(self, one: Delivery, other: Delivery) -> bool:
        """Return True if a client was at another node for each of two: what is live comes to each node in its time."""
        return self._home(one) != self._home(other)

    def _ways(self, late: Delivery, sequence: int) -> set[str]:
        """Return the nodes to which the publisher of a delivery has sent a message of that stream until then."""
        publish = self._messages.get((late.stream, sequence))
        return set() if publish is None else self._sent_by(publish, late.at)

    def _sent_by(self, publish: Publish, until: float) -> set[str]:
        """Return the nodes to which the publisher of a message has sent it until then."""
        until = min(publish.ended, until)
        return {node for began, end, node in self._stays[publish.client] if began <= until and publish.began < end}

    def _overtaken(self, late: Delivery, anywhere: bool) -> bool:
        """Return True if a message came by another node than each later one that came before in that session, and not
        by the receiver's own, unless that may be any (`anywhere`)."""
        ways = self._ways(late, late.sequence)
        begun = max((each for each in self._fresh[late.client] if each < late.number), default=-1)
        came = self._came[late.client, late.stream, late.qos]
        # What came to it at another node came there in that node's time.
        before = {each.sequence for each in came if begun < each.number < late.number and not self._moved(each, late)}
        later = [self._ways(late, sequence) for sequence in before if sequence > late.sequence]
        another = anywhere or ways != {self._home(late)}
        return bool(ways) and another and all(len(each | ways) > 1 for each in later)

    def _misses(self, node: str, publish: Event, at: float) -> bool:
        """Return True if a message that another node has acknowledged may not have come to a node by a time."""
        if not isinstance(publish, Publish) or publish.outcome != "ok":
            return False
        home = self._node(publish.client, publish.ended)
        return home != node and self._cut(home, node, publish.ended, at)


def of_session(finding: Finding, events: list[Event], in_database: bool = False) -> bool:
    """Return True if a finding is about a session, and about no will; of a will, the second copy that comes from a
    session is (`in_database`)."""
    if in_database and finding.promise == "DUP":
        return True
    return finding.promise in OF_SESSIONS and not any(isinstance(each, Publish) and each.will for each in events)
