"""Which rule is whose: patterns, order, and what a rule says nothing about; against the rules said once more.

Also what a rule does to a client that comes with another user name, and that a rule with a topic filter speaks of
subscriptions and of no client's queue.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.packets import SubscriptionRequest
from canopy_mqtt.core.codec.topic_names import covers
from canopy_mqtt.core.jobs import TERMS_WORK, TURN_WORK
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queue_totals import UNLIMITED
from canopy_mqtt.core.queues.queue_terms import (
    DISCONNECT,
    DROP_NEWEST,
    LATEST,
    QueueRule,
    QueueTerms,
    queue_terms,
    subscription_rules,
    subscription_terms,
)
from tests.core import naive
from tests.core.harness import Network, limits
from tests.core.recount import ask, burst, numbers, user_wish

HOUR = 3_600
CLIENTS = ("a", "ab", "Ab", "b[c]", "a\nb", "")
USERS = (None, "a", "kiosk1", "KIOSK1", "")
PATTERNS = ("", "a", "a*", "*", "?", "[ab]*", "[!a]*", "kiosk*", "*1", "b[[]c]")
FILTERS = ("", "a/#", "a/+", "+/b", "#", "$x/#")
CLIENT_BOUNDS = ("live_messages", "live_bytes", "session_messages", "session_bytes")


def shell(pattern: str, text: str | None) -> bool:
    """Whether a shell pattern matches a whole text; an empty pattern is not looked at. Said without `fnmatch`."""
    if not pattern:
        return True
    if text is None:
        return False
    parts = re.findall(r"\[!?.[^]]*\]|.", pattern, re.DOTALL)
    spelled = {"*": ".*", "?": "."}
    expression = "".join(
        spelled.get(part) or ("[^" + part[2:] if part[:2] == "[!" else part if len(part) > 1 else re.escape(part))
        for part in parts
    )
    return re.fullmatch(expression.replace("[[]", r"\["), text, re.DOTALL) is not None


class Plain:
    """A rule as it stands in the settings."""

    def __init__(self, client_id: str, user: str, topic_filter: str, effects: dict[str, float]) -> None:
        self.client_id = client_id
        self.user = user
        self.topic_filter = topic_filter
        self.effects = effects

    def __repr__(self) -> str:
        return f"{self.client_id!r} {self.user!r} {self.topic_filter!r} {self.effects}"

    def made(self) -> QueueRule:
        effects: dict[str, int] = {name: int(value) for name, value in self.effects.items() if name != "max_age"}
        return QueueRule(
            self.client_id, self.user, self.topic_filter, max_age=self.effects.get("max_age", -1.0), **effects
        )

    def matches(self, client_id: str, user: str | None) -> bool:
        return shell(self.client_id, client_id) and shell(self.user, user)


plain_rules = st.builds(
    Plain,
    st.sampled_from(PATTERNS),
    st.sampled_from(PATTERNS),
    st.sampled_from(FILTERS),
    st.fixed_dictionaries(
        {},
        optional={
            "policy": st.integers(0, 3),
            "max_age": st.sampled_from((0.0, 2.5)),
            "depth": st.sampled_from((0, 7)),
            "live_messages": st.sampled_from((0, 3)),
            "live_bytes": st.sampled_from((0, 300)),
            "session_messages": st.sampled_from((0, 4)),
            "session_bytes": st.sampled_from((0, 400)),
        },
    ),
)


@given(
    rules=st.lists(plain_rules, max_size=6),
    client_id=st.sampled_from(CLIENTS),
    user=st.sampled_from(USERS),
    policy=st.integers(0, 3),
)
def test_a_clients_terms(rules: list[Plain], client_id: str, user: str | None, policy: int) -> None:
    """All that match apply in their order, and a later one wins for what it names; those with a topic filter do not."""
    given_limits = limits(queue_policy=policy, queue_max_age=9, live_messages=11, session_bytes=12_000)
    given_limits.rules = tuple(rule.made() for rule in rules)
    expected: dict[str, float] = {"policy": policy, "max_age": 9.0}
    expected |= {name: getattr(given_limits, name) for name in CLIENT_BOUNDS}
    for rule in rules:
        if not rule.topic_filter and rule.matches(client_id, user):
            expected |= {name: value for name, value in rule.effects.items() if name != "depth"}
    terms = queue_terms(given_limits, client_id, user)
    assert {name: getattr(terms, name) for name in expected} == expected


@given(
    rules=st.lists(plain_rules, max_size=6),
    client_id=st.sampled_from(CLIENTS),
    user=st.sampled_from(USERS),
    topic_filter=st.one_of(
        st.sampled_from([name for name in FILTERS if name]), naive.topic_filters.filter("/#".__ne__)
    ),
)
def test_a_subscriptions_terms(rules: list[Plain], client_id: str, user: str | None, topic_filter: str) -> None:
    """Beginning with the client's; then the rules about subscriptions that are its own and cover the filter."""
    given_limits = Limits()
    given_limits.rules = tuple(rule.made() for rule in rules)
    given_limits.queue_policy, given_limits.queue_max_age = DISCONNECT, 4.0
    terms = QueueTerms(given_limits)
    expected: dict[str, float] = {"policy": DISCONNECT, "max_age": 4.0, "depth": 0}
    for rule in rules:
        if rule.topic_filter and covers(rule.topic_filter, topic_filter) and rule.matches(client_id, user):
            expected |= {name: value for name, value in rule.effects.items() if name in expected}
    mine = subscription_rules(given_limits, client_id, user)
    assert set(mine) <= set(given_limits.rules)
    found = subscription_terms(mine, topic_filter, terms)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize("wished", [False, True])
def test_a_topic_rule_is_about_subscriptions(wished: bool) -> None:
    """Those whose filter it covers; the client's other messages wait as ever. Shared ones are meant by their filter."""
    given_limits = Limits()
    given_limits.rules = (QueueRule(topic_filter="s/+", policy=LATEST), QueueRule(topic_filter="s/1", depth=1))
    network = Network(given_limits)
    publisher, client = network.client("p"), network.client("c")
    user = user_wish(depth="5000") if wished else ()
    for topic_filter, policy, depth in (
        ("s/1", LATEST, 1),
        ("s/2", LATEST, None),
        ("$share/g/s/+", LATEST, None),
        ("s/#", None, None),
        ("#", None, None),
        ("u", None, None),
        ("s/1/2", None, None),
    ):
        ask(client, topic_filter, user=user)
        message_terms = client.session.subscriptions[topic_filter].message_terms
        if policy is None and not wished:
            assert message_terms is None
        else:
            assert message_terms is not None
            assert message_terms.policy == (DROP_NEWEST if policy is None else policy)
            assert message_terms.depth == depth or (5_000 if wished else UNLIMITED)
        client.unsubscribe(topic_filter)
    client.subscribe("s/1")
    client.subscribe("u")
    client.wire.frozen = True
    burst(publisher, "s/1", numbers(3))
    burst(publisher, "u", numbers(3))
    client.wire.frozen = False
    network.settle()
    assert client.payloads() == [b"0002", *numbers(3)]


@pytest.mark.parametrize(("first", "second", "kept"), [(None, "kiosk", 1), ("kiosk", None, 4)])
def test_another_user_of_overlapping_subscriptions(first: str | None, second: str | None, kept: int) -> None:
    """Also for a topic that has been routed before: what was worked out for it is not used again."""
    given_limits = Limits()
    given_limits.any_user_takes_over = True
    given_limits.rules = (QueueRule(user="kiosk", topic_filter="t/#", policy=LATEST),)
    network = Network(given_limits)
    publisher = network.client("p")
    client = network.client("c", clean=False, expiry=HOUR, user_name=first)
    client.subscribe("t/#")
    client.subscribe("t/+")
    publisher.publish("t/1", b"")
    client.connect(clean=False, expiry=HOUR, user_name=second)
    client.take()
    client.wire.frozen = True
    for payload in numbers(4):
        publisher.publish("t/1", payload)
    client.wire.frozen = False
    network.settle()
    assert client.payloads() == numbers(4)[-kept:]


def test_very_many_subscriptions_get_their_queues_in_turns() -> None:
    """Those of a session that another user takes up, also where its connection ends meanwhile."""
    given_limits = Limits()
    given_limits.any_user_takes_over = True
    given_limits.rules = (QueueRule(user="kiosk", topic_filter="t/#", policy=LATEST),)
    network = Network(given_limits)
    client = network.client("c", clean=False, expiry=HOUR, user_name="other")
    count = 3 * TURN_WORK // TERMS_WORK
    for number in range(count):
        name = f"t/{number}"
        network.router.subscribe(client.session, "", name, SubscriptionRequest(name, 0), 0)
    session = client.session

    def renewed() -> int:
        return sum(each.message_terms is not None for each in session.subscriptions.values())

    client.connect(clean=False, expiry=HOUR, user_name="kiosk", settle=False)
    client.wire.to_channel()
    most = TURN_WORK // TERMS_WORK
    assert 0 < renewed() <= most
    client.connect(clean=False, expiry=HOUR, user_name="kiosk", settle=False)
    client.wire.to_channel()
    before = renewed()
    while client.wire.protocol.unfinished:
        client.wire.go_on()
        assert renewed() - before <= most
        before = renewed()
    assert before == count
    client.cut()
    client.connect(clean=False, expiry=HOUR, user_name="kiosk", settle=False)
    client.wire.to_channel()
    assert not client.wire.protocol.unfinished
