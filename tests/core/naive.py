"""The matching rules of section 4.7, said once more and in another way, to hold everything else against.

Owns an oracle that knows no tree and no table: a filter becomes a regular expression, and an index is a set that is
searched from end to end. Also the Hypothesis strategies for topic names and filters that all routing tests share; they
draw from few levels, so that what is drawn matches, nests and collides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hypothesis import strategies as st

LEVELS = ["a", "b", "", "$x", "$", "é", "aa"]


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a valid filter matches a valid topic name."""
    if topic[0] == "$" and topic_filter[0] in "+#":  # [MQTT-4.7.2-1]
        return False
    if topic_filter == "#":
        return True
    pattern = re.escape(topic_filter).replace(r"\+", "[^/]*")
    if topic_filter.endswith("/#"):
        pattern = pattern.removesuffix(r"/\#") + "(/.*)?"
    return re.fullmatch(pattern, topic, re.DOTALL) is not None


def matching(filters: Iterable[str], topic: str) -> list[str]:
    """The filters that match a topic, sorted."""
    return sorted(topic_filter for topic_filter in filters if matches(topic_filter, topic))


def matched(topic_filter: str, names: Iterable[str]) -> list[str]:
    """The topics that a filter matches, sorted."""
    return sorted(topic for topic in names if matches(topic_filter, topic))


def covers(wide: str, topic_filter: str) -> bool:
    """Whether every topic that `topic_filter` matches is matched by `wide`.

    Tried with topics that have a level of nobody's where `topic_filter` has a wildcard: what matches those has a
    wildcard there as well. `#` stands for none of them, and for more than `wide` has levels. Not for "/#", whose parent
    would be the empty topic name, which is none [MQTT-4.7.3-1].
    """
    levels = ["zz" if level == "+" else level for level in topic_filter.split("/")]
    names = [levels]
    if levels[-1] == "#":
        names = [levels[:-1] + ["zz"] * more for more in range(wide.count("/") + 3)]
    return all(matches(wide, "/".join(name)) for name in names if name)


def _filter(levels: list[str], ends_with_hash: bool) -> str:
    return "/".join([*levels, "#"] if ends_with_hash else levels)


topic_names: st.SearchStrategy[str] = (
    st.lists(st.sampled_from(LEVELS), min_size=1, max_size=5).map("/".join).filter(bool)
)

topic_filters: st.SearchStrategy[str] = st.builds(
    _filter, st.lists(st.sampled_from([*LEVELS, "+", "+", "+"]), max_size=5), st.booleans()
).filter(bool)
