"""Which terms a client gets, and a subscription: settings, then rules in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.codec.topic_names import covers, matches
from broker.core.queues.queue_policy import DISCONNECT, DROP_NEWEST, DROP_OLDEST, LATEST, QueueTerms
from broker.core.queues.queue_rules import QueueRule, queue_terms, sub_queue_terms, subscription_rules
from tests.core.harness import limits


def terms(*rules: QueueRule, client_id: str = "c1", user: str | None = None) -> QueueTerms:
    """What a client gets under these rules."""
    given = limits(live_messages=100, live_bytes=1_000, session_messages=200, session_bytes=2_000)
    given.queue_max_age = 9.0
    given.rules = rules
    return queue_terms(given, client_id, user)


def shown(found: QueueTerms) -> tuple[int, float, int, int, int, int]:
    return (
        found.policy, found.max_age, found.live_messages, found.live_bytes, found.session_messages, found.session_bytes
    )  # fmt: skip


def test_without_rules_the_settings_hold() -> None:
    assert shown(terms()) == (DROP_NEWEST, 9.0, 100, 1_000, 200, 2_000)


def test_a_later_rule_wins_for_what_it_names_and_for_nothing_else() -> None:
    first = QueueRule(client_id="c*", policy=LATEST, live_messages=7)
    second = QueueRule(client_id="*1", live_messages=0, max_age=0.0, session_bytes=5)
    assert shown(terms(first, second)) == (LATEST, 0.0, 0, 1_000, 200, 5)
    assert terms(second, first).live_messages == 7


@pytest.mark.parametrize(
    ("rule", "client_id", "user", "applies"),
    [
        (QueueRule(client_id="display-*"), "display-1", None, True),
        (QueueRule(client_id="display-*"), "a-display-1", None, False),
        (QueueRule(client_id="display-?"), "display-12", None, False),
        (QueueRule(client_id="Display"), "display", None, False),
        (QueueRule(client_id="[ab]"), "b", None, True),
        (QueueRule(client_id="a.c"), "abc", None, False),
        (QueueRule(user="kiosk*"), "c", "kiosk7", True),
        (QueueRule(user="*"), "c", None, False),
        (QueueRule(user="*"), "c", "", True),
        (QueueRule(client_id="c", user="u"), "c", "v", False),
        (QueueRule(client_id="c", user="u"), "c", "u", True),
        (QueueRule(client_id="*"), "line\nend", None, True),
    ],
)
def test_patterns(rule: QueueRule, client_id: str, user: str | None, applies: bool) -> None:
    """Shell patterns over the whole text; who has no user name matches no pattern for one."""
    assert rule.applies_to(client_id, user) is applies


def test_rules_about_subscriptions_do_not_touch_the_client_and_the_other_way_round() -> None:
    about_filter = QueueRule(topic_filter="a/#", policy=LATEST, depth=3)
    about_client = QueueRule(client_id="c1", policy=DISCONNECT)
    given = limits()
    given.rules = (about_filter, about_client)
    client = queue_terms(given, "c1", None)
    assert client.policy == DISCONNECT
    rules = subscription_rules(given, "c1", None)
    assert rules == (about_filter,)
    assert sub_queue_terms(rules, "b", client).policy == DISCONNECT
    found = sub_queue_terms(rules, "a/+", client)
    assert (found.policy, found.max_age, found.depth) == (LATEST, 0.0, 3)


def test_what_a_rule_leaves_open_a_subscription_has_from_its_client() -> None:
    given = limits()
    given.rules = (QueueRule(topic_filter="a/#", depth=3), QueueRule(topic_filter="#", client_id="c1", max_age=2.0))
    client = queue_terms(given, "c1", None)
    client.policy = DROP_OLDEST
    assert len(subscription_rules(given, "c2", None)) == 1
    found = sub_queue_terms(subscription_rules(given, "c1", None), "a/b", client)
    assert (found.policy, found.max_age, found.depth) == (DROP_OLDEST, 2.0, 3)


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ("a/#", "a", True), ("a/#", "a/+/c", True), ("a/#", "a/#", True), ("#", "+/b", True), ("+", "#", False),
        ("a/+", "a/b", True), ("a/+", "a/#", False), ("a/b", "a/+", False), ("a/+/#", "a", False),
        ("a/+/#", "a/b", True), ("#", "$SYS/x", False), ("+/x", "$SYS/x", False), ("$SYS/#", "$SYS/x", True),
        ("$SYS/#", "#", False), ("a", "a/b", False), ("a/b", "a", False), ("+/+", "a/b", True), ("/#", "/", True),
    ],
)  # fmt: skip
def test_covers(wide: str, narrow: str, covered: bool) -> None:
    """A filter covers another when it matches all that the other matches [MQTT-4.7.2-1]."""
    assert covers(wide, narrow) is covered


levels = st.sampled_from(["a", "b", "+", "", "$x"])
filters = st.tuples(st.lists(levels, min_size=1, max_size=3), st.booleans()).map(
    lambda parts: "/".join(parts[0] + (["#"] if parts[1] else []))
)
topics = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join)


@given(filters.filter(bool), filters.filter(bool), topics.filter(bool))
def test_what_is_covered_matches_nothing_else(wide: str, narrow: str, topic: str) -> None:
    if covers(wide, narrow) and matches(narrow, topic):
        assert matches(wide, topic)
