"""The matching rules of section 4.7, said once more and in another way, to hold everything else against.

Owns an oracle that knows no tree and no table: a filter becomes a regular expression, and an index is a set that is
searched from end to end. Also the Hypothesis strategies for topic names and filters that all routing tests share; they
draw from few levels, so that what is drawn matches, nests and collides.
"""

from __future__ import annotations

import itertools
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


def _filter(levels: list[str], ends_with_hash: bool) -> str:
    return "/".join([*levels, "#"] if ends_with_hash else levels)


topic_names: st.SearchStrategy[str] = (
    st.lists(st.sampled_from(LEVELS), min_size=1, max_size=5).map("/".join).filter(bool)
)

topic_filters: st.SearchStrategy[str] = st.builds(
    _filter, st.lists(st.sampled_from([*LEVELS, "+", "+", "+"]), max_size=5), st.booleans()
).filter(bool)


def spelled(signs: Iterable[str], most: int) -> list[tuple[str, ...]]:
    """Everything that can be put together of these, up to so many at a time."""
    return [each for count in range(most + 1) for each in itertools.product(signs, repeat=count)]


# Every topic name and every filter of few levels. No filter spells "zz", and a name may be longer than each filter.
NAMES = ["/".join(levels) for levels in spelled(("a", "", "$x", "zz"), 4) if levels not in ((), ("",))]
FILTERS = [
    "/".join(levels)
    for some in spelled(("a", "", "$x", "+"), 3)
    for levels in (some, (*some, "#"))
    if levels not in ((), ("",))
]
MATCHED = {one: {name for name in NAMES if matches(one, name)} for one in FILTERS}
"""The names that each filter matches, as the oracle has it."""
