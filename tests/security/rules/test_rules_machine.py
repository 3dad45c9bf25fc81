"""A broker under rules that change at any time, held against a model that knows nothing of indexes and memories.

Whatever is published, subscribed to, left, come back to and reloaded in any order: who gets what is what the rules of
that moment say, and nothing is ever delivered that they deny. Few topics, filters and users, so that whatever is
remembered anywhere is met again by somebody else; and steps that go straight to where something may outlive a reload.
"""

from __future__ import annotations

from itertools import count, cycle, product
from typing import Any, Final

import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.causes import NOT_AUTHORIZED as CAUSE
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import V5, V311, Connect, Will
from canopy_mqtt.core.codec.topic_names import matches
from canopy_mqtt.core.hooks import AccessControl, Origin, Ticket
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.protocol.subscribe import SubscriptionReview
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.guards.hook_guards import HookReporter
from canopy_mqtt.security.access_control import Prepared, SettingsAccessControl
from canopy_mqtt.security.rules.claims import read_claims
from canopy_mqtt.security.rules.rule_book import RuleBook
from canopy_mqtt.settings import Settings
from tests.core.harness import Client, Network, limits, total_ledger
from tests.support.runs import examples

USERS: Final = {"a": V5, "b": V311, "c": V5}
GROUPS: Final = [(), ("g",), ("g", "h")]
SHARE: Final = "$share/s/"
FILTERS = ["#", "x/#", "x/1", "y", "{user}/1", "{group}", "$SYS/#", "p/#"]
ASKED = ["#", "x/#", "x/1", "+/1", "y", "$SYS/#", SHARE + "x/#", SHARE + "y"]
TOPICS = ["x/1", "x/2", "y", "a/1", "g"]
OWN = ["$SYS/1", "p/a"]
"""Topics to which the broker alone publishes."""

LEVELS = ["x", "y", "a", "b", "c", "g", "h", "p", "1", "2", "z"]
UNIVERSE = ["/".join(levels) for depth in (1, 2, 3) for levels in product(LEVELS, repeat=depth)]
UNIVERSE += ["$SYS", "$SYS/1", "$SYS/1/2", "$SYS/z"]
MEANT: Final[dict[str, set[str]]] = {}

DELAY: Final = 10
WINDOW: Final = 3
"""What a client of 5.0 may have in flight."""

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
        "group": st.sampled_from(["g", "h"]),
        "retain": st.sampled_from([True, False]),
    },
).map(lambda table: table if table["action"] == "publish" else {**table, "retain": "any"})
allowing = st.builds(lambda table, qos: {**table, "max_qos": qos}, tables, st.sampled_from([0, 1, 2, 2, 2]))
denying = tables.map(lambda table: {**table, "effect": "deny"})
whatever = st.fixed_dictionaries(
    {
        "rule": st.lists(st.one_of(allowing, denying, denying), max_size=4),
        "access": st.sampled_from([{}, *[{"default": "allow"}] * 4, {"default": "deny"}]),
    }
)
# Some may not send or be sent something, and everybody may subscribe to everything: much is under way.
barring = st.builds(
    lambda filters, action, who: {"filters": filters, "action": action, "effect": "deny", **who},
    st.sampled_from([["#"], ["x/#"], ["y", "{user}/1"], ["x/1"], ["{group}", "p/#", "$SYS/#"]]),
    st.sampled_from(["publish", "receive", "receive"]),
    st.sampled_from([{}, {"user": ["a"]}, {"user": ["[bc]"]}, {"group": "g"}, {"group": "h"}]),
)
# Less QoS than is asked for; with the retain flag, or without it alone.
capped = st.builds(
    lambda table: {
        "rule": [
            {"filters": ["x/#", "y"], "action": "publish", **table},
            {"filters": ["#"], "action": "publish", "effect": "deny"},
        ],
        "access": {"default": "allow"},
    },
    st.sampled_from([{"max_qos": 0}, {"max_qos": 1}, {"retain": True}, {"retain": False}]),
)
rules = st.one_of(
    capped,
    st.builds(
        lambda tables: {"rule": tables, "access": {"default": "allow"}}, st.lists(barring, min_size=1, max_size=2)
    ),
    whatever,
)
own_rules = st.lists(
    st.fixed_dictionaries(
        {
            "filters": st.lists(st.sampled_from(["x/1", "y", "x/#"]), min_size=1, max_size=1),
            "action": st.sampled_from(["publish", "receive"]),
            "effect": st.sampled_from(["allow", "deny"]),
        }
    ),
    max_size=1,
)
principals = st.tuples(st.sampled_from(GROUPS), st.one_of(st.just([]), own_rules))
names = st.sampled_from(list(USERS))
topics = st.sampled_from(TOPICS)


def bar(topic_filter: str, **who: object) -> dict[str, Any]:
    """Rules under which everybody may do everything, but some are not sent something."""
    table = {"filters": [topic_filter], "action": "receive", "effect": "deny", **who}
    return {"rule": [table], "access": {"default": "allow"}}


class Who:
    """What the model knows of a client."""

    def __init__(self, name: str, groups: tuple[str, ...] = (), own: list[dict[str, Any]] | None = None) -> None:
        self.name = name
        self.groups = groups
        self.own = own or []


class Model:
    """What the tables say, asked one after the other."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.tables = given["rule"]
        self.default: bool = given["access"].get("default", "deny" if self.tables else "allow") == "allow"

    def _about(self, who: Who, action: str) -> list[tuple[dict[str, Any], str]]:
        found = []
        name = who.name
        for table in [*who.own, *self.tables]:
            users = table.get("user", ["[abc]"])
            if not any(user == name or (user.startswith("[") and name in user[1:-1]) for user in users):
                continue
            if table.get("client_id", "?") not in ("?", name):
                continue
            if "group" in table and table["group"] not in who.groups:
                continue
            said = table.get("action", "all")
            if said not in ("all", action) and not (said == "subscribe" and action == "receive"):
                continue
            for text in table["filters"]:
                for group in who.groups if "{group}" in text else ("",):
                    found.append((table, text.replace("{user}", name).replace("{group}", group)))
        return found

    def publishes(self, who: Who, topic: str, qos: int, retain: bool = False) -> bool:
        for table, text in self._about(who, "publish"):
            if not matches(text, topic) or table.get("retain", retain) not in (retain, "any"):
                continue
            if table.get("effect") == "deny" or qos <= table.get("max_qos", 2):
                return bool(table.get("effect") != "deny")
        return self.default

    def receives(self, who: Who, topic: str) -> bool:
        for table, text in self._about(who, "receive"):
            if matches(text, topic):
                return bool(table.get("effect") != "deny")
        return self.default

    def receives_qos(self, who: Who, topic: str) -> int:
        """The highest QoS with which it is sent a topic that it is sent at all."""
        for table, text in self._about(who, "receive"):
            if matches(text, topic):
                return int(table.get("max_qos", 2))
        return 2

    def subscribes(self, who: Who, topic_filter: str, qos: int) -> int:
        meant = _meant(topic_filter)
        for table, text in self._about(who, "subscribe"):
            said = _meant(text) & meant
            if table.get("effect") == "deny":
                if said:
                    return -1
            elif said == meant:
                return min(qos, int(table.get("max_qos", 2)))
        return qos if self.default else -1


def _meant(topic_filter: str) -> set[str]:
    """The topics of a filter."""
    found = MEANT.get(topic_filter)
    if found is None:
        found = MEANT[topic_filter] = {topic for topic in UNIVERSE if matches(topic_filter, topic)}
    return found


class Doors(AccessControl):
    """The rules of the settings, for clients who are who the model says."""

    def __init__(self) -> None:
        self.access = SettingsAccessControl(Settings(), (), HookReporter(), structlog.get_logger())
        self.present: dict[str, Who] = {}
        self.own = False
        self.epoch = 0
        self.filters_deliveries = False

    def apply(self, given: Settings) -> None:
        """Other rules."""
        self.access.apply(Prepared(given, {}, RuleBook(given)))
        self.look()
        self.epoch = self.access.epoch

    def look(self) -> None:
        """Whether there are rules about deliveries: also where a client brings them, as the access control has it."""
        self.filters_deliveries = self.access.filters_deliveries or self.own

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        del origin
        who = self.present[connect.client_id]
        own = tuple(each for table in who.own for each in read_claims([table]))
        ticket.principal = Principal(who.name, who.groups, rules=own, authenticator="model")
        return 0

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        return self.access.may_publish(principal, topic, qos, retain)

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        return self.access.may_subscribe(principal, topic_filter, qos)

    def may_receive(self, principal: Principal, topic: str) -> bool:
        return self.access.may_receive(principal, topic)

    def receive_qos(self, principal: Principal, topic: str) -> int:
        return self.access.receive_qos(principal, topic)


class Rules(RuleBasedStateMachine):
    """Three clients whose sessions last."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(limits(presence_topic=b"p"))
        self.doors = Doors()
        self.model = Model({"rule": [], "access": {}})
        self._read({"rule": [], "access": {}})
        self.network.router.access_control = self.doors
        self.clients: dict[str, Client] = {}
        self.who: dict[str, Who] = self.doors.present
        self.there: dict[str, bool] = {}
        self.subscribed: dict[str, dict[str, int]] = {}
        self.waiting: dict[str, list[tuple[str, bytes]]] = {}
        self.expected: dict[str, list[bytes]] = {}
        # For one member of the group, whichever may have it when it is sent; those that one has to get at once.
        self.shared: dict[bytes, str] = {}
        self.owed: dict[bytes, str] = {}
        self.retained: dict[str, bytes] = {}
        self.aliases: dict[str, str] = {}
        # The wills of those who are there; and of those who are not, with who it was and when it is due.
        self.wills: dict[str, tuple[Will, Who]] = {}
        self.due: dict[str, tuple[Will, Who, float]] = {}
        self.numbers = count(1)
        for name, version in USERS.items():
            self.clients[name] = self.network.idle(name, version)
            self.subscribed[name], self.waiting[name], self.expected[name] = {}, [], []
            self._connect(name, Who(name), None)

    # -- what the steps are made of ------------------------------------------------------------------------------------

    def _read(self, given: dict[str, Any]) -> None:
        self.doors.apply(Settings.model_validate(given))
        self.model = Model(given)

    def _connect(self, name: str, who: Who, will: Will | None) -> None:
        """Come, or take over."""
        self._look_at_what_came()
        self.there[name] = False
        before = self.wills.pop(name, None)
        if before is not None and before[0].delay == 0:
            self._publish_will(*before)
        self.due.pop(name, None)
        self.who[name] = who
        self.doors.own = self.doors.own or bool(who.own)
        if self.doors.own and not self.doors.filters_deliveries:
            self.doors.look()
            self.doors.epoch += 1
            self.doors.access.epoch = self.doors.epoch
        if will is not None and not self.model.publishes(who, will.topic, will.qos, will.retain):
            will = None
        expiry, window = (1_000_000, WINDOW) if USERS[name] == V5 else (None, None)
        client = self.clients[name]
        client.judge.withheld = {each.encode() for each in [*TOPICS, *OWN] if not self.model.receives(who, each)}
        answer = client.connect(clean=False, expiry=expiry, user_name=name, will=will, receive_maximum=window)
        assert answer.reason_code == 0
        self.there[name] = True
        self.aliases.pop(name, None)
        if will is not None:
            self.wills[name] = (will, who)
        # What another principal may not subscribe to has ended; nobody is told to go for it.
        self._look_through(name)
        for topic, payload in self.waiting[name]:
            if self.model.receives(who, topic):
                self.expected[name].append(payload)
        self.waiting[name].clear()

    def _look_through(self, name: str) -> bool:
        """What the model makes of subscriptions by now. Whether any has ended."""
        taken = False
        for topic_filter, qos in list(self.subscribed[name].items()):
            granted = self.model.subscribes(self.who[name], topic_filter.removeprefix(SHARE), qos)
            if granted < 0:
                del self.subscribed[name][topic_filter]
                taken = True
            else:
                self.subscribed[name][topic_filter] = granted
        return taken

    def _route(self, topic: str, payload: bytes, qos: int) -> None:
        members = 0
        for name, filters in self.subscribed.items():
            if not self.model.receives(self.who[name], topic):
                continue
            found = [granted for each, granted in filters.items() if matches(each, topic) and "share" not in each]
            if found:
                if self.there[name]:
                    self.expected[name].append(payload)
                elif min(qos, max(found), self.model.receives_qos(self.who[name], topic)) > 0:
                    self.waiting[name].append((topic, payload))
            for each in filters:
                if each.startswith(SHARE) and matches(each.removeprefix(SHARE), topic):
                    self.shared[payload] = topic
                    members += self.there[name]
        if members > 0:
            self.owed[payload] = topic

    def _number(self) -> bytes:
        return b"%d" % next(self.numbers)

    def _publish_will(self, will: Will, who: Who) -> None:
        if self.model.publishes(who, will.topic, will.qos, will.retain):
            self._route(will.topic, will.payload, will.qos)
            if will.retain:
                self.retained[will.topic] = will.payload

    def _gone(self, name: str) -> None:
        """Its connection has ended without a word."""
        self.there[name] = False
        if name in self.wills:
            will, who = self.wills.pop(name)
            if will.delay:
                self.due[name] = (will, who, self.network.now + will.delay)
            else:
                self._publish_will(will, who)

    def _send(self, name: str, topic: str, qos: int, retain: bool) -> None:
        payload = self._number()
        self.clients[name].post(topic, payload, qos, retain=retain)
        self._count(name, topic, payload, qos, retain)

    def _count(self, name: str, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        if topic not in OWN and self.model.publishes(self.who[name], topic, qos, retain):
            self._route(topic, payload, qos)
            if retain:
                self.retained[topic] = payload

    # -- steps ---------------------------------------------------------------------------------------------------------

    @initialize(
        filters=st.lists(st.sampled_from(ASKED), min_size=4, max_size=7), kept=st.lists(topics, max_size=3, unique=True)
    )
    def begin(self, filters: list[str], kept: list[str]) -> None:
        for topic in kept:
            self._send("a", topic, 1, True)
        for name, topic_filter in zip(cycle(USERS), filters, strict=False):
            self.subscribe(name, topic_filter, 1)
        self.all_publish()

    @rule(given=rules, flood=st.sampled_from([True, True, False]))
    def reload(self, given: dict[str, Any], flood: bool) -> None:
        """Other rules; what `Securing` does then; and whatever was remembered is used."""
        self._look_at_what_came()
        self._read(given)
        self._use(flood)

    def _use(self, flood: bool) -> None:
        router = self.network.router
        # Before anybody else has asked anything.
        for topic in TOPICS:
            payload = self._number()
            router.publish(Message(topic.encode(), payload, 0, False, b"", 0.0, ""), None)
            self._route(topic, payload, 0)
        self._look_at_what_came()
        for name in USERS:
            session = router.sessions[name]
            review = SubscriptionReview(session, self.doors, router)
            router.budget.begin(1)
            while not review.step(router.budget):
                router.budget.begin(1)
            taken = self._look_through(name)
            assert (review.ended > 0) is taken
            if taken and self.there[name]:
                self.clients[name].wire.protocol.close(CAUSE, reason_codes.NOT_AUTHORIZED, "", self.network.now)
                self._gone(name)
            self.network.settle()
        if flood:
            self.all_publish()

    @rule()
    def all_publish(self) -> None:
        """Everybody to everything, several in one read; and the broker itself."""
        self.broker_publishes(False)
        for name in [name for name in USERS if self.there[name]]:
            for topic in TOPICS:
                for qos in (0, 1, 1):
                    self._send(name, topic, qos, False)
            # The second time everything is known: they may go in one piece.
            for topic in [*OWN, *TOPICS, *TOPICS]:
                self._send(name, topic, 0, False)
            self.network.settle()

    @rule(retain=st.booleans())
    def broker_publishes(self, retain: bool) -> None:
        """What nobody else may publish: `$SYS`, and who is connected."""
        for topic in OWN:
            payload = self._number()
            self.network.router.publish(Message(topic.encode(), payload, 1, retain, b"", 0.0, ""), None)
            self._route(topic, payload, 1)
            if retain:
                self.retained[topic] = payload
        self.network.settle()

    @rule(
        name=names,
        burst=st.lists(topics, min_size=1, max_size=6),
        qos=st.sampled_from([0, 0, 1, 2]),
        retain=st.sampled_from([False, False, True]),
    )
    def publish(self, name: str, burst: list[str], qos: int, retain: bool) -> None:
        """In one read, each of them twice."""
        if not self.there[name]:
            self.come_back(name, ((), []))
        for topic in [topic for topic in burst for _ in range(2)]:
            self._send(name, topic, qos, retain)
        self.network.settle()

    @rule(name=st.sampled_from(["a", "c"]), topic=topics, qos=st.integers(0, 2))
    def publish_by_alias(self, name: str, topic: str, qos: int) -> None:
        """The name came once, perhaps under other rules."""
        if not self.there[name]:
            self.come_back(name, ((), []))
        named = "" if name in self.aliases else topic
        known = self.aliases.setdefault(name, topic)
        payload = self._number()
        self.clients[name].post(named, payload, qos, alias=1)
        self._count(name, known, payload, qos, False)
        self.network.settle()

    @rule(name=names, topic_filter=st.sampled_from(ASKED), qos=st.integers(0, 2))
    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        if not self.there[name]:
            self.come_back(name, ((), []))
        inner = topic_filter.removeprefix(SHARE)
        who = self.who[name]
        granted = self.model.subscribes(who, inner, qos)
        refused = 0x87 if USERS[name] == V5 else 0x80
        assert self.clients[name].subscribe(topic_filter, qos=qos) == [granted if granted >= 0 else refused]
        if granted < 0:
            return
        self.subscribed[name][topic_filter] = granted
        if inner == topic_filter:
            for topic, payload in self.retained.items():
                if matches(topic_filter, topic) and self.model.receives(who, topic):
                    self.expected[name].append(payload)

    @rule(name=names, topic_filter=st.sampled_from(["#", "x/#", "$SYS/#"]), given=rules, kept=st.lists(topics))
    def retained_then_subscribe(self, name: str, topic_filter: str, given: dict[str, Any], kept: list[str]) -> None:
        """Kept under some rules, asked for under others."""
        for topic in kept:
            self.publish(name, [topic], 0, True)
        self.broker_publishes(True)
        self.reload(given, False)
        self.subscribe(name, topic_filter, 1)

    @rule(name=names)
    def leave(self, name: str) -> None:
        if self.there[name]:
            self.clients[name].cut()
            self._gone(name)

    @rule(name=names, who=principals)
    def come_back(self, name: str, who: tuple[tuple[str, ...], list[dict[str, Any]]]) -> None:
        if not self.there[name]:
            self._connect(name, Who(name, *who), None)

    @rule(name=names, who=principals, topic=topics, delay=st.sampled_from([0, DELAY]), retain=st.booleans())
    def come_with_a_will(
        self, name: str, who: tuple[tuple[str, ...], list[dict[str, Any]]], topic: str, delay: int, retain: bool
    ) -> None:
        """In place of a connection that is there, or not."""
        will = Will(topic, self._number(), 1, retain, delay if USERS[name] == V5 else 0)
        self._connect(name, Who(name, *who), will)

    @rule(name=names, who=principals, given=rules)
    def away_while_they_change(
        self, name: str, who: tuple[tuple[str, ...], list[dict[str, Any]]], given: dict[str, Any]
    ) -> None:
        """What came to wait under some rules is sent under others, perhaps to one with other groups."""
        self.leave(name)
        for other in USERS:
            if other != name and self.there[other]:
                self.publish(other, TOPICS, 1, False)
                break
        self.reload(given, False)
        self.come_back(name, who)

    @rule(name=names, given=st.one_of(st.none(), rules), first=principals, second=principals)
    def one_after_the_other(
        self,
        name: str,
        given: dict[str, Any] | None,
        first: tuple[tuple[str, ...], list[dict[str, Any]]],
        second: tuple[tuple[str, ...], list[dict[str, Any]]],
    ) -> None:
        """One session, with other groups each time, and the rules stay: once taken over, once left and waited for."""
        if given is None:
            given, first, second = bar("x/#", group="h"), ((), []), (("h",), [])
        self.reload(given, False)
        self.subscribe(name, "#", 1)
        self._connect(name, Who(name, *first), None)
        self.all_publish()
        self._connect(name, Who(name, *second), None)
        self.all_publish()
        self.leave(name)
        self.all_publish()
        self.come_back(name, first)
        self.leave(name)
        self.all_publish()
        self.come_back(name, second)

    @rule(
        listeners=st.lists(names, min_size=1, max_size=3, unique=True),
        late=names,
        topic_filter=st.sampled_from(["#", "x/#"]),
        given=st.one_of(st.none(), rules),
    )
    def one_filter(self, listeners: list[str], late: str, topic_filter: str, given: dict[str, Any] | None) -> None:
        """All topics go the same way, to one or to several; then the rules change, or one more comes who may not."""
        for name in USERS:
            if not self.there[name]:
                self.come_back(name, ((), []))
            self.clients[name].unsubscribe(*ASKED)
            self.subscribed[name].clear()
        for name in listeners:
            if name != late or given is not None:
                self.subscribe(name, topic_filter, 1)
        self.all_publish()
        self.reload(bar("#", user=[late]) if given is None else given, True)
        self.subscribe(late, topic_filter, 0)
        self.all_publish()

    @rule(
        name=names,
        given=st.one_of(st.none(), rules),
        topic=topics,
        qos=st.sampled_from([1, 1, 2]),
        cut=st.booleans(),
    )
    def unacknowledged_while_they_change(
        self, name: str, given: dict[str, Any] | None, topic: str, qos: int, cut: bool
    ) -> None:
        """In flight, and behind that what waits for the window, under some rules; then come others."""
        if given is None:
            self.reload(bar("z"), False)
            given = bar(topic)
        self.subscribe(name, "#", 1)
        self._look_at_what_came()
        client, who = self.clients[name], self.who[name]
        found = [granted for each, granted in self.subscribed[name].items() if matches(each, topic)]
        if not self.there[name] or not found or not self.model.receives(who, topic):
            return
        shared = {each.removeprefix(SHARE) for held in self.subscribed.values() for each in held if SHARE in each}
        if any(matches(each, topic) for each in shared):
            # What one did not acknowledge may come to another as well.
            return
        client.answering = False
        sent = min(qos, max(found))
        payloads = [self._number() for _ in range(2 * WINDOW)]
        for payload in payloads:
            self.network.router.publish(Message(topic.encode(), payload, qos, False, b"", 0.0, ""), None)
            self._route(topic, payload, qos)
            self.expected[name].remove(payload)
        self.network.settle()
        came = client.payloads()
        assert came == payloads[: WINDOW if sent > 0 and USERS[name] == V5 else None]
        left = payloads[len(came) :]
        if cut:
            self.leave(name)
        self._look_at_what_came()
        self._read(given)
        # What comes with QoS 0 from now on needs no room in the window.
        at_once = self.there[name] and self.model.receives(who, topic) and not self.model.receives_qos(who, topic)
        if at_once:
            self.expected[name] += left
        self._use(False)
        client.answering = True
        if self.there[name]:
            if self.model.receives(who, topic) and not at_once:
                self.expected[name] += left
            client.answer()
        else:
            # QoS 1 is sent again, but to one who is barred; of QoS 2 the client knows that it has had it.
            self.waiting[name] += [(topic, payload) for payload in [*(came if sent == 1 else []), *left]]
            self.come_back(name, (who.groups, who.own))

    @rule()
    def time_passes(self) -> None:
        """Wills that were due later are due."""
        for name, (will, who, _) in list(self.due.items()):
            del self.due[name]
            self._publish_will(will, who)
        self.network.advance(DELAY + 1)

    # -- promises ------------------------------------------------------------------------------------------------------

    @invariant()
    def everybody_has_what_the_rules_give(self) -> None:
        self._look_at_what_came()

    def _look_at_what_came(self) -> None:
        self.network.settle()
        for name, client in self.clients.items():
            came = client.payloads()
            # What a group's member got besides comes once, and only if it may have it now.
            for payload in came:
                if payload in self.expected[name]:
                    self.expected[name].remove(payload)
                else:
                    assert self.model.receives(self.who[name], self.shared.pop(payload))
                    self.owed.pop(payload, None)
            assert self.expected[name] == []
        assert self.owed == {}

    @invariant()
    def the_ledgers_add_up(self) -> None:
        assert total_ledger(self.network.router.sessions.values()) == []


TestRules = Rules.TestCase
TestRules.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
