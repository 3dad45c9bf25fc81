"""A broker under rules that change at any time, held against a model that knows nothing of indexes and memories.

Whatever is published, subscribed to, left, come back to and reloaded in any order: who gets what is what the rules of
that moment say, and nothing is ever delivered that they deny.
"""

from __future__ import annotations

from itertools import count, cycle, product
from typing import Any

import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.core.causes import NOT_AUTHORIZED as CAUSE
from broker.core.codec import reasons
from broker.core.codec.packets import V5, V311
from broker.core.codec.topic_names import matches
from broker.core.connection.subscribing import SubscriptionReview
from broker.core.guards import HookReporter
from broker.security.access import Access, Prepared
from broker.security.rules.book import RuleBook
from broker.settings import Settings
from tests.core.harness import Client, Network, total_ledger
from tests.support.runs import examples

USERS = {"a": V5, "b": V311, "c": V5}
FILTERS = ["#", "x/#", "x/+", "+/1", "x/1", "y", "{user}/1", "c-{client}", "+"]
ASKED = ["#", "x/#", "x/+", "+/1", "x/1", "y", "a/1", "$share/g/x/+", "+"]
TOPICS = ["x/1", "x/2", "y", "a/1", "b/1", "c-a", "x/1/2"]
LEVELS = ["x", "y", "a", "b", "c-a", "c-b", "1", "2", "z"]
UNIVERSE = ["/".join(levels) for depth in (1, 2, 3) for levels in product(LEVELS, repeat=depth)]

# Mostly about single messages: what takes subscriptions away leaves little to look at.
ACTIONS = ["publish", "receive", "receive", "publish", "receive", "subscribe", "all"]

tables = st.fixed_dictionaries(
    {
        "filters": st.lists(st.sampled_from(FILTERS), min_size=1, max_size=2),
        "action": st.sampled_from(ACTIONS),
    },
    optional={
        "user": st.lists(st.sampled_from(["a", "b", "[bc]"]), min_size=1, max_size=2),
        "client_id": st.sampled_from(["a", "?", "zz"]),
    },
)
allowing = st.builds(lambda table, qos: {**table, "max_qos": qos}, tables, st.sampled_from([0, 1, 2, 2, 2]))
denying = tables.map(lambda table: {**table, "effect": "deny"})
rules = st.fixed_dictionaries(
    {
        "rule": st.lists(st.one_of(allowing, denying, denying), max_size=4),
        "access": st.sampled_from([{}, *[{"default": "allow"}] * 4, {"default": "deny"}]),
    }
)


class Model:
    """What the tables say, asked one after the other."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.tables = given["rule"]
        self.default: bool = given["access"].get("default", "deny" if self.tables else "allow") == "allow"

    def _about(self, name: str, action: str) -> list[tuple[dict[str, Any], str]]:
        found = []
        for table in self.tables:
            users = table.get("user", ["[abc]"])
            if not any(user == name or (user.startswith("[") and name in user[1:-1]) for user in users):
                continue
            if table.get("client_id", "?") not in ("?", name):
                continue
            said = table.get("action", "all")
            if said not in ("all", action) and not (said == "subscribe" and action == "receive"):
                continue
            for text in table["filters"]:
                found.append((table, text.replace("{user}", name).replace("{client}", name)))
        return found

    def publishes(self, name: str, topic: str, qos: int) -> bool:
        for table, text in self._about(name, "publish"):
            if matches(text, topic) and (table.get("effect") == "deny" or qos <= table.get("max_qos", 2)):
                return bool(table.get("effect") != "deny")
        return self.default

    def receives(self, name: str, topic: str) -> bool:
        for table, text in self._about(name, "receive"):
            if matches(text, topic):
                return bool(table.get("effect") != "deny")
        return self.default

    def subscribes(self, name: str, topic_filter: str, qos: int) -> int:
        meant = {topic for topic in UNIVERSE if matches(topic_filter, topic)}
        for table, text in self._about(name, "subscribe"):
            said = {topic for topic in meant if matches(text, topic)}
            if table.get("effect") == "deny":
                if said:
                    return -1
            elif said == meant:
                return min(qos, int(table.get("max_qos", 2)))
        return qos if self.default else -1


class Rules(RuleBasedStateMachine):
    """Three clients whose sessions last."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()
        self.access = Access(Settings(), (), HookReporter(), structlog.get_logger())
        self.model = Model({"rule": [], "access": {}})
        self._read({"rule": [], "access": {}})
        self.network.router.access_control = self.access
        self.clients: dict[str, Client] = {}
        self.there: dict[str, bool] = {}
        self.subscribed: dict[str, dict[str, int]] = {}
        self.waiting: dict[str, list[tuple[str, bytes]]] = {}
        self.expected: dict[str, list[bytes]] = {}
        # For one member of the group, whichever may have it when it is sent.
        self.shared: dict[bytes, str] = {}
        self.retained: dict[str, tuple[bytes, int]] = {}
        self.numbers = count(1)
        for name, version in USERS.items():
            self.clients[name] = self.network.idle(name, version)
            self.subscribed[name], self.waiting[name], self.expected[name] = {}, [], []
            self._connect(name)

    def _read(self, given: dict[str, Any]) -> None:
        settings = Settings.model_validate(given)
        self.access.apply(Prepared(settings, {}, RuleBook(settings)))
        self.model = Model(given)

    def _connect(self, name: str) -> None:
        expiry = 1_000_000 if USERS[name] == V5 else None
        assert self.clients[name].connect(clean=False, expiry=expiry, user_name=name).reason_code == 0
        self.there[name] = True

    @rule(given=rules)
    def reload(self, given: dict[str, Any]) -> None:
        """Other rules; what `Securing` does then."""
        self._read(given)
        router = self.network.router
        for name in USERS:
            session = router.sessions[name]
            review = SubscriptionReview(session, self.access, router)
            while not review.turn(router.work + 1):
                pass
            taken = False
            for topic_filter, qos in list(self.subscribed[name].items()):
                granted = self.model.subscribes(name, topic_filter.removeprefix("$share/g/"), qos)
                if granted < 0:
                    del self.subscribed[name][topic_filter]
                    taken = True
                else:
                    self.subscribed[name][topic_filter] = granted
            assert (review.ended > 0) is taken
            if taken and self.there[name]:
                link = self.clients[name].wire
                link.protocol.close(CAUSE, reasons.NOT_AUTHORIZED, "", self.network.now)
                self.there[name] = False
        self.network.settle()

    @initialize(filters=st.lists(st.sampled_from(ASKED), min_size=3, max_size=6))
    def begin(self, filters: list[str]) -> None:
        for name, topic_filter in zip(cycle(USERS), filters, strict=False):
            self.subscribe(name, topic_filter, 1)

    @rule(
        name=st.sampled_from(list(USERS)),
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=8),
        qos=st.sampled_from([0, 0, 1, 2]),
        retain=st.sampled_from([False, False, False, True]),
    )
    def publish(self, name: str, topics: list[str], qos: int, retain: bool) -> None:
        """In one read, each of them twice."""
        if not self.there[name]:
            self.come_back(name)
        for topic in [topic for topic in topics for _ in range(2)]:
            payload = b"%d" % next(self.numbers)
            self.clients[name].post(topic, payload, qos, retain=retain)
            if self.model.publishes(name, topic, qos):
                self._route(topic, payload, qos)
                if retain:
                    self.retained[topic] = (payload, qos)
        self.network.settle()

    def _route(self, topic: str, payload: bytes, qos: int) -> None:
        for name, filters in self.subscribed.items():
            if not self.model.receives(name, topic):
                continue
            found = [granted for each, granted in filters.items() if matches(each, topic) and "$" not in each]
            if found:
                if self.there[name]:
                    self.expected[name].append(payload)
                elif min(qos, max(found)) > 0:
                    self.waiting[name].append((topic, payload))
            if any("$" in each and matches(each.removeprefix("$share/g/"), topic) for each in filters):
                self.shared[payload] = topic

    @rule(name=st.sampled_from(list(USERS)), topic_filter=st.sampled_from(ASKED), qos=st.integers(0, 2))
    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        if not self.there[name]:
            self.come_back(name)
        inner = topic_filter.removeprefix("$share/g/")
        granted = self.model.subscribes(name, inner, qos)
        refused = 0x87 if USERS[name] == V5 else 0x80
        assert self.clients[name].subscribe(topic_filter, qos=qos) == [granted if granted >= 0 else refused]
        if granted < 0:
            return
        self.subscribed[name][topic_filter] = granted
        if inner == topic_filter:
            for topic, (payload, _) in self.retained.items():
                if matches(topic_filter, topic) and self.model.receives(name, topic):
                    self.expected[name].append(payload)

    @rule(name=st.sampled_from(list(USERS)))
    def leave(self, name: str) -> None:
        if self.there[name]:
            self.clients[name].cut()
            self.there[name] = False

    @rule(name=st.sampled_from(list(USERS)))
    def come_back(self, name: str) -> None:
        if not self.there[name]:
            self._connect(name)
            for topic, payload in self.waiting[name]:
                if self.model.receives(name, topic):
                    self.expected[name].append(payload)
            self.waiting[name].clear()

    @invariant()
    def everybody_has_what_the_rules_give(self) -> None:
        self.network.settle()
        for name, client in self.clients.items():
            came = client.payloads()
            # What a group's member got besides comes once, and only if it may have it now.
            for payload in came:
                if payload in self.expected[name]:
                    self.expected[name].remove(payload)
                else:
                    assert self.model.receives(name, self.shared.pop(payload))
            assert self.expected[name] == []

    @invariant()
    def the_ledgers_add_up(self) -> None:
        assert total_ledger(self.network.router.sessions.values()) == []


TestRules = Rules.TestCase
TestRules.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
