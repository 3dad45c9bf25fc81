"""The rules for topic names and filters: the specification's own examples, and everything against the oracle."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec import reason_codes, topic_names
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, ProtocolError, Refused
from tests.core import naive
from tests.support.runs import for_each

# Filter, topic, whether they match: the examples of section 4.7, and the corners beside them.
EXAMPLES = [
    # Section 4.7.1.2, the multi-level wildcard [MQTT-4.7.1-1].
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/tennis/player1/#", "sport/tennis/player2", False),
    ("sport/tennis/player1/#", "sport/tennis/player1x", False),
    ("sport/#", "sport", True),
    ("sport/#", "sport/", True),
    ("#", "sport", True),
    ("#", "/", True),
    ("#", "/finance", True),
    # Section 4.7.1.3, the single-level wildcard [MQTT-4.7.1-2].
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("+", "finance", True),
    ("+/tennis/#", "sport/tennis", True),
    ("+/tennis/#", "sport/tennis/a/b", True),
    ("sport/+/player1", "sport/tennis/player1", True),
    ("sport/+/player1", "sport//player1", True),
    ("+/#", "a", True),
    ("+/+/#", "a", False),
    ("a/+/#", "a/b", True),
    ("a/+/#", "a", False),
    # Section 4.7.2, topics that begin with $ [MQTT-4.7.2-1].
    ("#", "$SYS/broker/uptime", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("+", "$SYS", False),
    ("+/#", "$SYS", False),
    ("$SYS/#", "$SYS/broker/uptime", True),
    ("$SYS/#", "$SYS", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("a/+", "a/$SYS", True),
    ("a/#", "a/$SYS", True),
    ("$", "$", True),
    ("#", "$", False),
    # Section 4.7.3: nothing is folded or normalised [MQTT-4.7.3-4].
    ("ACCOUNTS", "Accounts", False),
    ("/finance", "finance", False),
    ("a//b", "a/b", False),
    ("a/", "a", False),
    ("\u00e9", "e\u0301", False),
    ("Accounts payable", "Accounts payable", True),
]


@for_each(("topic_filter", "topic", "expected"), EXAMPLES)
def test_examples(topic_filter: str, topic: str, expected: bool) -> None:
    topic_names.validate_filter(topic_filter)
    topic_names.validate_topic(topic)
    assert topic_names.matches(topic_filter, topic) is expected
    assert naive.matches(topic_filter, topic) is expected


@given(naive.topic_filters, naive.topic_names)
def test_matches_as_the_oracle_does(topic_filter: str, topic: str) -> None:
    assert topic_names.matches(topic_filter, topic) is naive.matches(topic_filter, topic)


@for_each("topic_filter", ["a", "/", "//", "+", "#", "+/+", "a/+/b/#", " ", "$SYS/#", "$share", "$"])
def test_valid_filters(topic_filter: str) -> None:
    topic_names.validate_filter(topic_filter)


@for_each(
    "topic_filter",
    [
        "",  # [MQTT-4.7.3-1]
        "a\0b",  # [MQTT-4.7.3-2]
        "sport/tennis#",  # [MQTT-4.7.1-1], from here on
        "sport/tennis/#/ranking",
        "#/a",
        "##",
        "a/##",
        "#/#",
        "a/#b",
        "+#",
        "sport+",  # [MQTT-4.7.1-2], from here on
        "+sport/a",
        "a/++/b",
        "a/b+",
        "+a/#",
    ],
)
def test_filters_that_are_refused(topic_filter: str) -> None:
    with pytest.raises(MalformedPacket) as caught:
        topic_names.validate_filter(topic_filter)
    assert caught.value.reason_code == reason_codes.MALFORMED_PACKET


@given(st.text(alphabet="a/+#$\0", max_size=6))
def test_filters_are_valid_as_the_grammar_says(text: str) -> None:
    """A level is "+", free of wildcards, or "#" in the last place [MQTT-4.7.1-1] [MQTT-4.7.1-2]."""
    levels = text.split("/")
    allowed = (
        text != ""
        and "\0" not in text
        and all(level == "+" or not set(level) & {"+", "#"} for level in levels[:-1])
        and (levels[-1] in ("+", "#") or not set(levels[-1]) & {"+", "#"})
    )
    if allowed:
        topic_names.validate_filter(text)
    else:
        with pytest.raises(MalformedPacket):
            topic_names.validate_filter(text)


def test_limit_on_levels() -> None:
    topic_names.validate_filter("a/b/#", max_levels=3)
    with pytest.raises(Refused) as caught:
        topic_names.validate_filter("a/b/c/#", max_levels=3)
    assert caught.value.reason_code == reason_codes.TOPIC_FILTER_INVALID
    topic_names.validate_topic("a/b/c", max_levels=3)
    with pytest.raises(Refused) as caught:
        topic_names.validate_topic("a/b//c", max_levels=3)
    assert caught.value.reason_code == reason_codes.TOPIC_NAME_INVALID


@for_each("letter", ["a", "é", "漢", "🦜"])
def test_longest_strings(letter: str) -> None:
    """65,535 bytes of UTF-8 are allowed, and not one more [MQTT-4.7.3-3]."""
    width = len(letter.encode())
    longest = letter * (topic_names.MAX_BYTES // width) + "x" * (topic_names.MAX_BYTES % width)
    topic_names.validate_filter(longest)
    topic_names.validate_topic(longest)
    with pytest.raises(MalformedPacket):
        topic_names.validate_filter(longest + "x")
    with pytest.raises(MalformedPacket):
        topic_names.validate_topic(longest + "x")


@for_each("topic", ["", "a/+", "#", "a#", "+a", "a\0"])
def test_topics_that_are_refused(topic: str) -> None:
    """Wildcards are for filters [MQTT-4.7.0-1] [MQTT-3.3.2-2]; empty and U+0000 are for nobody."""
    with pytest.raises(MalformedPacket) as caught:
        topic_names.validate_topic(topic)
    assert caught.value.reason_code == reason_codes.MALFORMED_PACKET


@for_each(
    ("topic_filter", "expected"),
    [
        ("a/b", ("", "a/b")),
        ("$share/g/a/b", ("g", "a/b")),
        ("$share/g//", ("g", "/")),
        ("$share/g/#", ("g", "#")),
        ("$share/$g/$SYS/#", ("$g", "$SYS/#")),
        ("$share/g/$share/h/a", ("g", "$share/h/a")),
        ("$share", ("", "$share")),
        ("$shared/g/a", ("", "$shared/g/a")),
        ("a/$share/g/a", ("", "a/$share/g/a")),
    ],
)
def test_shared_filters(topic_filter: str, expected: tuple[str, str]) -> None:
    assert topic_names.parse_shared(topic_filter) == expected


@for_each(
    "topic_filter",
    [
        "$share/",  # [MQTT-4.8.2-1], and the next
        "$share//a",
        "$share/g",  # [MQTT-4.8.2-2], from here on
        "$share/g/",
        "$share/+/a",
        "$share/g+/a",
        "$share/#",
        "$share/#/a",
        "$share/a#/a",
    ],
)
def test_shared_filters_that_are_refused(topic_filter: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        topic_names.parse_shared(topic_filter)
    assert caught.value.reason_code == reason_codes.MALFORMED_PACKET


def test_levels() -> None:
    assert topic_names.level_count("/a//") == 4
    assert topic_names.level_count("a") == 1


@given(st.text(alphabet="a/+#$é\0", max_size=12))
def test_what_the_scan_lets_through_is_valid(topic_filter: str) -> None:
    """`scan_filter` is a short cut: it never says yes where the rules say no, and counts the levels right."""
    raw = topic_filter.encode()
    levels = topic_names.scan_filter(b"+" + raw + b"/", 1, 1 + len(raw))
    if levels:
        topic_names.validate_filter(topic_filter)
        assert topic_names.parse_shared(topic_filter) == ("", topic_filter)
        assert levels == topic_names.level_count(topic_filter)
    elif topic_filter.isascii() and topic_filter and not topic_filter.startswith("$"):
        with pytest.raises(MalformedPacket):
            topic_names.validate_filter(topic_filter)


# A wide filter, another, whether the first matches all that the second does.
COVERING = [
    ("a", "a", True),
    ("a", "b", False),
    ("#", "a/b/c", True),
    ("#", "#", True),
    ("#", "+", True),
    ("+", "#", False),
    ("a/#", "a", True),
    ("a/#", "a/#", True),
    ("a/#", "a/+/b", True),
    ("a/+", "a/#", False),
    ("a/+/#", "a/#", False),
    ("a/+/#", "a/b/#", True),
    ("+/+", "a/+", True),
    ("a/+", "a/+/b", False),
    ("a/b", "a/+", False),
    ("+/#", "a", True),
    # One level at least, and a topic has that.
    ("+/#", "#", True),
    ("/+", "/", True),
    ("a//#", "a/+/b", False),
    # Section 4.7.2: what begins with a wildcard does not match what begins with $.
    ("#", "$SYS/#", False),
    ("+/#", "$SYS/a", False),
    ("$SYS/#", "$SYS/+/a", True),
    ("$SYS/#", "#", False),
    ("$SYS/#", "+/a", False),
    ("a/#", "a/$x", True),
]


@for_each(("wide", "topic_filter", "expected"), COVERING)
def test_covers(wide: str, topic_filter: str, expected: bool) -> None:
    assert topic_names.covers(wide, topic_filter) == expected
    assert naive.covers(wide, topic_filter) == expected


@given(naive.topic_filters, naive.topic_filters.filter("/#".__ne__), naive.topic_names)
def test_covers_what_it_matches(wide: str, topic_filter: str, topic: str) -> None:
    """Against the oracle, and against any topic [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1]."""
    covered = topic_names.covers(wide, topic_filter)
    assert covered == naive.covers(wide, topic_filter)
    if covered and naive.matches(topic_filter, topic):
        assert naive.matches(wide, topic)
    assert topic_names.covers(topic_filter, topic_filter)
    assert topic_names.covers(topic_filter, topic) == naive.matches(topic_filter, topic)


# A filter, another, what matches the topics of both.
COMMON = [
    ("a", "a", "a"),
    ("a", "b", None),
    ("a", "a/b", None),
    ("#", "a/b", "a/b"),
    ("#", "#", "#"),
    ("#", "+/#", "+/#"),
    ("+", "#", "+"),
    ("+/b", "a/+", "a/b"),
    ("+/b", "a/+/c", None),
    ("a/#", "+/b/#", "a/b/#"),
    ("a/+/c", "a/b/#", "a/b/c"),
    ("a/+/#", "a/#", "a/+/#"),
    # The level before # is matched too (section 4.7.1.2).
    ("a/#", "a", "a"),
    ("a/#", "+", "a"),
    ("a/b/#", "a/+", "a/b"),
    ("a/+/#", "a", None),
    ("/#", "+", None),
    ("/#", "+/#", "/#"),
    # Section 4.7.2: what begins with a wildcard does not match what begins with $ [MQTT-4.7.2-1].
    ("#", "$SYS/#", None),
    ("+", "$SYS", None),
    ("$SYS/#", "$SYS/+/a", "$SYS/+/a"),
    ("$a/#", "$b/#", None),
    ("a/+", "a/$x", "a/$x"),
]

# Every name of four levels at most, one of which no filter below spells.
NAMES = [
    "/".join(levels)
    for depth in range(1, 5)
    for levels in itertools.product(("a", "b", "", "$x", "zz"), repeat=depth)
    if levels != ("",)
]
few_filters = (
    st.builds(
        lambda levels, ends: "/".join([*levels, "#"] if ends else levels),
        st.lists(st.sampled_from(["a", "b", "", "$x", "+", "+"]), max_size=3),
        st.booleans(),
    )
    .filter(bool)
    .map(str)
)


@for_each(("one", "other", "expected"), COMMON)
def test_intersect(one: str, other: str, expected: str | None) -> None:
    assert topic_names.intersect(one, other) == expected
    assert topic_names.intersect(other, one) == expected
    assert topic_names.overlaps(one, other) is (expected is not None)


@given(few_filters, few_filters)
def test_the_intersection_matches_what_both_match(one: str, other: str) -> None:
    """No topic more and none less [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1]."""
    both = {name for name in NAMES if topic_names.matches(one, name) and topic_names.matches(other, name)}
    common = topic_names.intersect(one, other)
    assert topic_names.overlaps(one, other) is topic_names.overlaps(other, one) is bool(both)
    if common is None:
        assert not both
    else:
        topic_names.validate_filter(common)
        assert {name for name in NAMES if topic_names.matches(common, name)} == both
        assert topic_names.covers(one, common)
        assert topic_names.covers(other, common)
    if topic_names.covers(one, other):
        assert both == {name for name in NAMES if topic_names.matches(other, name)}
