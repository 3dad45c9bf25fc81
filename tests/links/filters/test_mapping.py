"""The name of a topic on the other side of a link, compared with matching topic by topic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.topic_names import matches
from canopy_mqtt.links.filters.mapping import Mapping
from tests.support.runs import for_each

LEVELS = ("a", "b", "", "$x")
PREFIXES = ("", "a/", "b/a/", "$x/", "site/7/")


def levels(wild: bool) -> st.SearchStrategy[str]:
    names = LEVELS + (("+",) if wild else ())
    made = st.lists(st.sampled_from(names), min_size=1, max_size=4)
    if wild:
        ends = st.sampled_from([[], [], ["#"]])
        return st.tuples(made, ends).map(lambda parts: "/".join(parts[0] + parts[1])) | st.just("#")
    return made.map("/".join)


topics = levels(False).filter(bool)
filters = levels(True).filter(bool)


@given(topics, st.sampled_from(PREFIXES), st.sampled_from(PREFIXES))
def test_a_topic_comes_back(topic: str, local: str, remote: str) -> None:
    mapping = Mapping(local, remote)
    there = mapping.remote_topic(topic.encode())
    if there is not None:
        assert there.startswith(remote.encode())
        assert mapping.local_topic(there) == topic.encode()
    else:
        assert not topic.startswith(local) or not remote + topic[len(local) :]


@given(filters, topics, st.sampled_from(PREFIXES), st.sampled_from(PREFIXES))
def test_a_filter_asks_for_what_it_matches_here(topic_filter: str, topic: str, local: str, remote: str) -> None:
    """Of the topics that have a name upstream, exactly those: the $ rule is that of this side, where it can be."""
    mapping = Mapping(local, remote)
    there = mapping.remote_topic(topic.encode())
    if there is None:
        return
    asked = mapping.remote_filter(topic_filter)
    name = there.decode()
    if matches(topic_filter, topic):
        # Upstream hides topics that begin with $ from a filter that begins with a wildcard, too.
        hidden = name.startswith("$") and asked is not None and asked.startswith(("+", "#"))
        assert hidden or (asked is not None and matches(asked, name))
    elif asked is not None and not topic.startswith("$"):
        assert not matches(asked, name)


@for_each(
    ("local", "remote", "topic_filter", "expected"),
    [
        ("", "", "a/+/#", "a/+/#"),
        ("", "site/7/", "a/#", "site/7/a/#"),
        ("", "site/7/", "#", "site/7/#"),
        ("plant/", "site/7/", "plant/a", "site/7/a"),
        ("plant/", "site/7/", "+/a", "site/7/a"),
        ("plant/", "site/7/", "#", "site/7/#"),
        ("plant/", "site/7/", "plant/#", "site/7/#"),
        ("plant/", "", "#", "#"),
        ("plant/", "site/7/", "plant", None),
        ("plant/", "site/7/", "other/a", None),
        ("$x/", "site/", "+/a", None),
        ("$x/", "site/", "#", None),
        ("$x/", "site/", "$x/#", "site/#"),
    ],
)
def test_filters(local: str, remote: str, topic_filter: str, expected: str | None) -> None:
    assert Mapping(local, remote).remote_filter(topic_filter) == expected


def test_what_is_the_brokers_own_stays() -> None:
    mapping = Mapping("", "site/7/")
    assert mapping.asked("$SYS/#") == []
    assert mapping.asked("$SYS") == []
    assert mapping.local_topic(b"site/7/$SYS/broker/uptime") is None
    # The other way it has a name of its own.
    assert mapping.remote_topic(b"$SYS/broker/uptime") == b"site/7/$SYS/broker/uptime"


def test_roots() -> None:
    mapping = Mapping("", "x/", ["site/7/#", "fleet/+/notice"])
    assert mapping.asked("#") == ["x/site/7/#", "x/fleet/+/notice"]
    assert mapping.asked("+/7/a") == ["x/site/7/a"]
    assert mapping.asked("fleet/9/notice") == ["x/fleet/9/notice"]
    assert mapping.asked("other/#") == []
    # Roots that overlap ask once.
    assert Mapping("", "", ["a/#", "a/b/#", "+/b/c"]).asked("a/b/c") == ["a/b/c"]


def test_names_that_are_none() -> None:
    assert Mapping("a/", "").remote_topic(b"a/") is None
    assert Mapping("", "p/").remote_topic(b"x" * 65_534) is None
    assert Mapping("", "p/").local_topic(b"other/x") is None
