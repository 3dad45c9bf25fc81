"""The rules for topic names and filters: the specification's own examples, and everything against the oracle."""

from __future__ import annotations

import itertools

import pytest

from canopy_mqtt.core.codec import reason_codes, topic_names
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, ProtocolError, Refused
from tests.core import naive
from tests.support.runs import for_each


def test_what_filters_match() -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1]"""
    for one in naive.FILTERS:
        assert {name for name in naive.NAMES if topic_names.matches(one, name)} == naive.MATCHED[one], one


def test_what_two_filters_have_in_common() -> None:
    """Their intersection is a filter that matches what both match, and a wide filter covers what it matches.

    "/#" is covered by more filters than are told: the level before "#", an empty name, is no topic [MQTT-4.7.3-1].
    """
    for one, other in itertools.product(naive.FILTERS, repeat=2):
        both = naive.MATCHED[one] & naive.MATCHED[other]
        common = topic_names.intersect(one, other)
        assert (naive.MATCHED[common] if common is not None else set()) == both, (one, other)
        assert topic_names.overlaps(one, other) is bool(both), (one, other)
        covered = topic_names.covers(one, other)
        assert covered is (naive.MATCHED[other] <= naive.MATCHED[one]) or (other == "/#" and not covered), (one, other)


def is_valid(topic_filter: str) -> bool:
    try:
        topic_names.validate_filter(topic_filter)
    except MalformedPacket:
        return False
    return True


def test_which_filters_are_valid() -> None:
    """A level is "+", free of wildcards, or "#" in the last place [MQTT-4.7.1-1] [MQTT-4.7.1-2]; none is empty.

    `scan_filter` counts the levels of the same ones, but for those that it leaves to the others.
    """
    for signs in naive.spelled("a/+#$é\0", 5):
        text = "".join(signs)
        levels = text.split("/")
        allowed = (
            text != ""
            and "\0" not in text
            and all(level == "+" or not set(level) & {"+", "#"} for level in levels[:-1])
            and (levels[-1] in ("+", "#") or not set(levels[-1]) & {"+", "#"})
        )
        assert is_valid(text) is allowed, text
        raw = text.encode()
        plain = allowed and text.isascii() and not text.startswith("$")
        assert topic_names.scan_filter(b"+" + raw + b"/", 1, 1 + len(raw)) == (len(levels) if plain else 0), text


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
