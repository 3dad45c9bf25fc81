"""A toy broker in plain Python: by the specification, one event after the other, with brute force. It tells no lies but
those it is asked for, and writes down each.

It shares nothing with the job: matching walks levels, subscriptions are a dictionary, and
each publish asks all of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from tests.pipeline.recorded import Story

Difference = tuple[str, str, int, str | None, str | None, str]
"""(outcome, run_id, publish, client, topic filter, why)."""

LEVELS: Final = ("a", "b", "", "$c", "ü")
FAULTS: Final = (
    "lost", "misrouted", "doubled", "deliver-and-drop", "qos", "own", "stranger", "invented", "dropped-for-nobody",
    "group-lost", "group-doubled", "group-qos",
)  # fmt: skip


def matches(topic_filter: str, topic: str) -> bool:
    """Section 4.7, level by level."""
    wanted, given = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at >= len(given) or level not in ("+", given[at]):
            return False
    return len(wanted) == len(given)


@dataclass
class Granted:
    qos: int
    no_local: bool


class Toy(Story):
    """A broker that does what chance says; `lies` are the differences that an oracle should find."""

    def __init__(self, run_id: str, seed: int, first_seq: int = 1, faults: bool = False) -> None:
        super().__init__(run_id, first_seq)
        self.random = random.Random(seed)
        self.held: dict[tuple[str, str], Granted] = {}
        self.clients = [f"c{number}" for number in range(8)]
        self.lies: list[Difference] = []
        self.faults = faults
        self.expected = 0

    def live(self, steps: int) -> None:
        """So many things happen."""
        if self.random.random() < 0.5:
            for _ in range(3):
                self._subscribes("snapshot")
        for _ in range(steps):
            chance = self.random.random()
            if chance < 0.25:
                self._subscribes()
            elif chance < 0.33 and self.held:
                client, topic_filter = self.random.choice(sorted(self.held))
                del self.held[client, topic_filter]
                self.unsubscribe(client, topic_filter)
            elif chance < 0.36:
                self._leaves(self.random.choice(self.clients))
            else:
                self._publishes()
        # Orderly to the end, so that the last publish can be judged, too.
        self.add("connect", client_id="last", protocol=5)

    def _subscribes(self, reason: str | None = None) -> None:
        client, topic_filter = self.random.choice(self.clients), self.filter()
        shared = topic_filter.startswith("$share/")
        granted = Granted(self.random.randrange(3), not shared and self.random.random() < 0.3)
        self.held[client, topic_filter] = granted
        self.subscribe(client, topic_filter, granted.qos, granted.no_local, reason=reason)

    def _leaves(self, client: str) -> None:
        self.add("disconnect", client_id=client, reason="connection-lost")
        for held in [key for key in self.held if key[0] == client]:
            del self.held[held]
            self.unsubscribe(*held, reason="session-ended")

    def filter(self) -> str:
        levels = [self.random.choice((*LEVELS, "+", "+")) for _ in range(self.random.randint(1, 3))]
        if self.random.random() < 0.35:
            levels.append("#")
        plain = "/".join(levels) or "#"
        return f"$share/{self.random.choice('gh')}/{plain}" if self.random.random() < 0.3 else plain

    def _topic(self) -> str:
        levels = [self.random.choice(LEVELS) for _ in range(self.random.randint(1, 4))]
        return "/".join(levels) or "a"

    def _publishes(self) -> None:
        publisher = None if self.random.random() < 0.1 else self.random.choice(self.clients)
        topic, qos = self._topic(), self.random.randrange(3)
        p = self.publish(publisher, topic, qos=qos)
        # Queues shed and forget meanwhile; that is nobody's fault.
        if self.random.random() < 0.1:
            self.drop(self.random.choice(self.clients), "expired", n=3)
        sessions: dict[str, list[tuple[str, int]]] = {}
        groups: dict[str, dict[str, int]] = {}
        own: dict[str, list[str]] = {}
        for (client, topic_filter), granted in sorted(self.held.items()):
            if topic_filter.startswith("$share/"):
                if matches(topic_filter.split("/", 2)[2], topic):
                    groups.setdefault(topic_filter, {})[client] = granted.qos
            elif matches(topic_filter, topic):
                if granted.no_local and client == publisher:
                    own.setdefault(client, []).append(topic_filter)
                else:
                    sessions.setdefault(client, []).append((topic_filter, granted.qos))
        fault = self.random.choice(FAULTS) if self.faults and self.random.random() < 0.4 else ""
        only_own = [client for client in own if client not in sessions]
        if fault and only_own:
            # Rare enough to be preferred.
            fault = "own"
        self.expected += len(sessions) + len(groups)
        for client, matched in sessions.items():
            filters, right = min(each for each, _ in matched), min(qos, max(each for _, each in matched))
            told = self._session(p, client, right, fault)
            if told:
                outcome, why = told
                self._lie(outcome, p, client, filters, why)
                fault = ""
        for topic_filter, members in groups.items():
            if self._group(p, topic_filter, members, qos, fault):
                fault = ""
        outsiders = [client for client in self.clients if client not in sessions and client not in own]
        if fault == "misrouted" and outsiders:
            client = self.random.choice(outsiders)
            self.deliver(client, p, 0)
            self._lie("unexpected", p, client, None, "no matching subscription")
        elif fault == "own" and only_own:
            self.deliver(only_own[0], p, 0)
            self._lie("unexpected", p, only_own[0], min(own[only_own[0]]), "No Local: the client's own message")
        elif fault == "dropped-for-nobody" and outsiders:
            self.drop(outsiders[0], "full-messages", ref_seq=p)
            self._lie("unexpected", p, outsiders[0], None, "no matching subscription")
        elif fault == "stranger":
            # A group that nobody ever joined, and one that has members, none of which this is.
            self.deliver("nobody", p, 0, "$share/none/#")
            self._lie("unexpected", p, "nobody", "$share/none/#", "no matching subscription")
            if groups:
                self.deliver("nobody", p, 0, min(groups))
                self._lie("unexpected", p, "nobody", min(groups), "not a member of the share group")
        elif fault == "invented":
            # Its own number: that of an event which is no publish.
            wrong = self.add("connect", client_id="c0", protocol=5)
            self.deliver("c0", wrong, 0)
            self._lie("unexpected", wrong, "c0", None, "no such publish")

    def _session(self, p: int, client: str, right: int, fault: str) -> tuple[str, str] | None:
        """One copy for a session, or what the fault makes of it."""
        if fault == "lost":
            return "missing", "no deliver and no drop"
        if fault == "qos":
            self.deliver(client, p, (right + 1) % 3)
            return "wrong", "QoS"
        if self.random.random() < 0.15:
            self.drop(client, "full-bytes", ref_seq=p)
        else:
            self.deliver(client, p, right)
        if fault == "doubled":
            self.deliver(client, p, right)
            return "wrong", "doubled"
        if fault == "deliver-and-drop":
            self.drop(client, "full-messages", ref_seq=p)
            return "wrong", "doubled"
        return None

    def _group(self, p: int, topic_filter: str, members: dict[str, int], qos: int, fault: str) -> bool:
        """One copy for a group; whether the fault was made use of."""
        if fault == "group-lost":
            self._lie("missing", p, None, topic_filter, "no deliver and no drop")
            return True
        chosen = self.random.choice(sorted(members))
        right = min(qos, members[chosen])
        if fault == "group-qos":
            self.deliver(chosen, p, (right + 1) % 3, topic_filter)
            self._lie("wrong", p, chosen, topic_filter, "QoS")
            return True
        if fault == "group-doubled":
            other = self.random.choice(sorted(members))
            self.deliver(chosen, p, right, topic_filter)
            self.deliver(other, p, min(qos, members[other]), topic_filter)
            self._lie("wrong", p, ", ".join(sorted({chosen, other})), topic_filter, "doubled")
            return True
        if self.random.random() < 0.2:
            self.drop(chosen, "full-messages", ref_seq=p)
            self.events[-1]["topic_filter"] = topic_filter
        else:
            self.deliver(chosen, p, right, topic_filter)
        return False

    def _lie(self, outcome: str, p: int, client: str | None, topic_filter: str | None, why: str) -> None:
        self.lies.append((outcome, self.run_id, p, client, topic_filter, why))

    # -- what the recorder loses ---------------------------------------------------------------------------------------

    def lose(self, at: int, length: int) -> tuple[int, int]:
        """Its queue was full for so many events and more, from that index on: the numbers that are missing."""
        # The gap needs a number of its own; it takes that of the last event, which therefore must be no publish.
        while self.events[at + length]["kind"] == "publish":
            length += 1
        length += 1
        lost = self.events[at : at + length]
        state = any(event["kind"] not in ("publish", "deliver", "drop") for event in lost)
        first, last = lost[0]["seq"], lost[-1]["seq"]
        told: dict[str, Any] = {"kind": "gap", "from_seq": first, "to_seq": last - 1, "n": last - first}
        told |= {"reason": "queue-full+state" if state else "queue-full"}
        told |= {name: lost[-1][name] for name in ("seq", "ts", "recv_ns", "run_id")}
        self.events[at : at + length] = [told]
        return first, last
