"""A visit leaves no trace: after clients have come, done whatever clients do, and gone in whatever way, everything that
the core keeps is what it was before, and messages take the same way through it.

The property compares two fingerprints (`tests.core.fingerprint`), each taken after every topic has been published to,
below the bounds of the match cache: a visit may push out what is cached, and a cached route is renewed when it is
looked up. The other tests are visits that did leave a trace.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec.packets import V5, V311, Subscribe, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.topics.topic_tree import TopicTree
from canopy_mqtt.core.topics.trie import LAYOUTS
from tests.core.fingerprint import branches, fingerprint, tree
from tests.core.harness import Client, Network, limits
from tests.core.recount import ask, user_wish
from tests.core.routing.test_permissions import Rules
from tests.support.runs import examples, for_each

TOPICS: Final = ("t/a", "t/b", "t/a/c", "u", "v/1", "v/2")
"""All of them are published to before, so that a visit makes no route. Visitors retain messages below `v` alone."""

FILTERS: Final = ("t/a", "t/b", "t/+", "t/#", "#", "+/a", "+/+", "u", "v/+", "+/#", "t/a/#", "nothing/+/x")
SHARES: Final = ("", "", "", "g", "h")
EXPIRY: Final = 5

Drawn = tuple[str, str, int, bool, bool, int, int, str]
"""A subscription: filter, share name, QoS, No Local, Retain As Published, Retain Handling, identifier, policy."""

qualities = st.sampled_from((0, 1, 2))
subscriptions = st.tuples(
    st.sampled_from(FILTERS),
    st.sampled_from(SHARES),
    qualities,
    st.booleans(),
    st.booleans(),
    st.sampled_from((0, 1, 2)),
    st.sampled_from((0, 0, 7, 300)),
    st.sampled_from(("", "", "", "latest")),
)
residents = st.lists(
    st.tuples(st.sampled_from((V5, V311)), st.lists(subscriptions, max_size=3, unique_by=lambda drawn: drawn[0])),
    min_size=1,
    max_size=4,
)
visitors = st.integers(0, 3)
# What a visitor does: its number, and the act with its arguments.
acts = st.one_of(
    st.tuples(visitors, st.just("come"), st.sampled_from((V5, V5, V311)), st.booleans(), st.booleans()),
    st.tuples(visitors, st.just("subscribe"), st.lists(subscriptions, min_size=1, max_size=4)),
    st.tuples(visitors, st.just("unsubscribe"), st.sampled_from(FILTERS), st.sampled_from(SHARES)),
    st.tuples(visitors, st.just("publish"), st.sampled_from(TOPICS), qualities, st.sampled_from((0, 0, 1, 2))),
    st.tuples(visitors, st.just("retain"), st.sampled_from(("v/1", "v/2")), qualities, st.booleans(), st.booleans()),
    st.tuples(visitors, st.just("leave"), st.sampled_from(("disconnect", "cut", "refused", "with will"))),
    st.tuples(visitors, st.just("freeze")),
    st.tuples(visitors, st.just("others publish"), st.sampled_from(TOPICS), qualities),
    st.tuples(visitors, st.just("wait")),
    st.tuples(visitors, st.just("rules")),
)


def request(drawn: Drawn, version: int = V5) -> Request:
    topic_filter, share, qos, no_local, keeps, handling, _, _ = drawn
    name = f"$share/{share}/{topic_filter}" if share else topic_filter
    if version != V5:
        return Request(name, qos)
    return Request(name, qos, no_local and not share, keeps, handling)


def subscribe(client: Client, drawn: Drawn) -> None:
    wanted = request(drawn, client.version)
    if client.version == V5:
        ask(client, wanted, user=user_wish(drawn[7]), identifier=drawn[6])
    else:
        client.subscribe(wanted)


class Lowering(Rules):
    """Also sends some clients everything with QoS 0."""

    def __init__(self) -> None:
        super().__init__()
        self.lowered: set[str] = set()

    def receive_qos(self, principal: Principal, topic: str) -> int:
        most = super().receive_qos(principal, topic)
        return min(most, 0) if principal.client_id in self.lowered else most


class Visits:
    """A broker with clients that stay, one who publishes for the test, and visitors."""

    def __init__(self, trie: str, rules: Lowering | None = None) -> None:
        self.network = Network(limits(tell_loss=0, live_messages=50, session_messages=50), trie=trie)
        self.rules = rules
        if rules is not None:
            self.network.router.access_control = rules
        self.publisher = self.network.client("publisher", V5)
        self.residents: list[Client] = []
        self.visitors = [self.network.idle(f"v{number}") for number in range(4)]

    def move_in(self, version: int) -> Client:
        made = self.network.client(f"r{len(self.residents)}", version)
        self.residents.append(made)
        return made

    def look(self) -> tuple[object, object]:
        """What is there, and how messages go through it."""
        network = self.network
        for topic in TOPICS:
            self.publisher.publish(topic, b"", 0)
        found = branches(network, self.publisher, TOPICS, self.residents)
        for client in (*self.residents, self.publisher):
            client.packets.clear()
        return found, fingerprint(network)

    def act(self, number: int, act: str, *drawn: Any) -> None:
        visitor = self.visitors[number]
        connected = visitor.link is not None and not visitor.wire.cut and not visitor.closed
        if act == "come":
            self.come(number, *drawn)
        elif act == "others publish":
            topic, qos = drawn
            self.publisher.publish(topic, b"to all", qos)
        elif act == "wait":
            self.network.advance(1.0)
        elif act == "rules":
            if self.rules is not None:
                self.rules.no_receive ^= {("v1", topic) for topic in TOPICS[number:]}
                self.rules.lowered ^= {f"v{number}"}
                self.rules.change()
        elif connected:
            getattr(self, act.replace(" ", "_"))(visitor, *drawn)

    def come(self, number: int, version: int, clean: bool, frozen: bool) -> None:
        """A visitor connects: for the first time, again, or in place of itself."""
        visitor = self.visitors[number]
        visitor.judge.enabled = False
        visitor.version = version
        will = Will("t/b", b"gone", 1, False, 2 if version == V5 else 0) if clean else None
        expiry = EXPIRY if version == V5 and not clean else None
        visitor.connect(clean=clean or version != V5, will=will, expiry=expiry, frozen=frozen)

    def subscribe(self, visitor: Client, drawn: list[Drawn]) -> None:
        for each in drawn:
            if visitor.wire.frozen:
                visitor.send(Subscribe(visitor.take_id(), [request(each, visitor.version)], Properties()))
                self.network.settle()
            else:
                subscribe(visitor, each)

    def unsubscribe(self, visitor: Client, topic_filter: str, share: str) -> None:
        if not visitor.wire.frozen:
            visitor.unsubscribe(f"$share/{share}/{topic_filter}" if share else topic_filter)

    def publish(self, visitor: Client, topic: str, qos: int, alias: int) -> None:
        visitor.publish(topic, b"of a visitor", qos, alias=alias if visitor.version == V5 else 0)

    def retain(self, visitor: Client, topic: str, qos: int, clear: bool, expires: bool) -> None:
        expiry = 3 if expires and visitor.version == V5 else -1
        visitor.publish(topic, b"" if clear else b"retained", qos, True, expiry=expiry)

    def freeze(self, visitor: Client) -> None:
        visitor.wire.frozen = not visitor.wire.frozen
        self.network.settle()

    def leave(self, visitor: Client, how: str) -> None:
        if how == "disconnect":
            visitor.disconnect()
        elif how == "with will" and visitor.version == V5:
            visitor.disconnect(4)
        elif how == "refused":
            visitor.raw(b"\xf0\xff\xff\xff\xff")
        visitor.cut()
        self.network.settle()

    def all_leave(self) -> None:
        """What is retained is cleared, and what expires does."""
        for visitor in self.visitors:
            if visitor.link is not None:
                visitor.killed()
        self.network.settle()
        for topic in ("v/1", "v/2"):
            self.publisher.publish(topic, b"", 0, True)
        if self.rules is not None:
            self.rules.no_receive.clear()
            self.rules.lowered.clear()
            self.rules.change()
        for _ in range(2):
            self.network.advance(EXPIRY + 1.0)
            self.network.router.sweep(self.network.now)
            self.network.settle()


def compare(trie: str, ruled: bool, residents: list[tuple[int, list[Drawn]]], done: list[tuple[Any, ...]]) -> None:
    """Look, have visitors do that, and look again."""
    visits = Visits(trie, Lowering() if ruled else None)
    for version, drawn in residents:
        client = visits.move_in(version)
        for each in drawn:
            subscribe(client, each)
    before = visits.look()
    for number, act, *arguments in done:
        visits.act(number, act, *arguments)
    visits.all_leave()
    after = visits.look()
    assert after[0] == before[0]
    assert after[1] == before[1]


@pytest.mark.crowd
@pytest.mark.parametrize("ruled", [False, True], ids=["open", "ruled"])
@pytest.mark.parametrize("trie", LAYOUTS)
@given(residents=residents, done=st.lists(acts, max_size=25))
@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_visit_leaves_no_trace(
    trie: str, ruled: bool, residents: list[tuple[int, list[Drawn]]], done: list[tuple[Any, ...]]
) -> None:
    compare(trie, ruled, residents, done)


def one(topic_filter: str, share: str = "", qos: int = 1, identifier: int = 0, policy: str = "") -> Drawn:
    return (topic_filter, share, qos, False, False, 0, identifier, policy)


RESIDENTS: Final[list[tuple[int, list[Drawn]]]] = [
    (V5, [one("t/a")]),
    (V5, [one("t/b", qos=2), one("v/+", qos=0)]),
    (V311, [one("u", qos=0)]),
    (V5, [one("t/a/#"), one("t/a/c", identifier=3)]),
]
"""Somebody alone at a filter, with each QoS; and one with two filters that match one topic."""

COME: Final = (0, "come", V5, True, False)
BACK: Final = (0, "come", V5, False, False)
LEAVE: Final = (0, "leave", "disconnect")
HEARD: Final = [(0, "others publish", topic, qos) for topic in TOPICS for qos in (0, 1)]

VISITS: Final[dict[str, list[tuple[Any, ...]]]] = {
    "a subscriber of everything": [COME, (0, "subscribe", [one("#")]), *HEARD, LEAVE],
    "who hears nothing meanwhile": [COME, (0, "subscribe", [one("#")]), LEAVE],
    "and comes again and again": [COME, (0, "subscribe", [one("#")]), *HEARD, (0, "unsubscribe", "#", "")] * 9,
    "a second subscriber": [COME, (0, "subscribe", [one("t/a"), one("t/b"), one("u")]), *HEARD, LEAVE],
    "one with an identifier": [COME, (0, "subscribe", [one("u", identifier=7), one("t/+", identifier=7)]), *HEARD],
    "one with a queue of its own": [COME, (0, "subscribe", [one("u", policy="latest")]), *HEARD, LEAVE],
    "a share group": [COME, (0, "subscribe", [one("t/a", "g"), one("u", "g"), one("#", "h")]), *HEARD, LEAVE],
    "a share group of members who are away": [
        *(
            (number, *act)
            for number in range(3)
            for act in (BACK[1:], ("subscribe", [one("t/+", "g")]), ("leave", "cut"), ("others publish", "t/a", 1))
        ),
    ],
    "another version": [(0, "come", V311, True, False), (0, "subscribe", [one("u"), one("t/a")]), *HEARD, LEAVE],
    "one who does not read": [
        COME,
        (0, "subscribe", [one("#", qos=2)]),
        (0, "freeze"),
        *HEARD * 9,
        (0, "leave", "cut"),
    ],
    "a session that expires": [BACK, (0, "subscribe", [one("#")]), *HEARD, (0, "leave", "cut"), *HEARD, (0, "wait")],
    "a will": [COME, (0, "subscribe", [one("#")]), (0, "leave", "with will"), (0, "wait"), (0, "wait")],
    "a takeover": [BACK, (0, "subscribe", [one("t/#")]), BACK, COME, (0, "subscribe", [one("t/#")]), *HEARD],
    "one that is refused": [COME, (0, "subscribe", [one("+/+")]), *HEARD, (0, "leave", "refused")],
    "a publisher": [COME, *((0, "publish", topic, qos, 1) for topic in TOPICS for qos in (0, 1, 2)), LEAVE],
    "what is retained": [COME, (0, "retain", "v/1", 1, False, True), (0, "retain", "v/2", 0, False, False), LEAVE],
    "what is retained and cleared": [COME, *((0, "retain", "v/1", 1, clear, False) for clear in (False, True)), LEAVE],
    "rules about it": [
        *((number, "come", V5, True, False) for number in (0, 1)),
        *((number, "subscribe", [one("t/a"), one("t/b", qos=2)]) for number in (0, 1)),
        *HEARD,
        (1, "rules"),
        *HEARD,
        (0, "rules"),
        *HEARD,
    ],
}


@for_each("ruled", [False, True])
@for_each("trie", LAYOUTS)
@for_each("visit", VISITS)
def test_this_visit_leaves_no_trace(visit: str, trie: str, ruled: bool) -> None:
    compare(trie, ruled, RESIDENTS, VISITS[visit])


def test_a_level_that_had_a_second_child_is_as_before() -> None:
    """Retained topics, and those of the match cache: also amid a walk, which then finds all that was there."""
    found = TopicTree()
    for topic in ("a/x", "b/y/z"):
        found.set(topic, object())
    before = tree(found)
    for visitor in ("a/w", "b", "b/y/zz", "c"):
        cursor = found.walk("#")
        first = [node.topic for node in cursor.take(1)]
        found.set(visitor, object())
        found.remove(visitor)
        assert tree(found) == before
        assert sorted(first + [node.topic for node in cursor.take(9)]) == ["a/x", "b/y/z"]
