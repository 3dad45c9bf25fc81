"""The mark that nodes put on messages, and what clients write of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.primitives import text
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.node_messages import MARK_SIZE, NAME, for_group, from_group, marked, read_mark

FORGED = b"\x26" + text(NAME) + text("10" + "9" * 17)
"""A mark as a client may write it."""

PARTS = st.sampled_from(
    [FORGED, FORGED[:-1], FORGED[1:], b"\x09\x00\x38" + FORGED, b"\x26" + text("a") + text("b"), b"x"]
)
PROPERTIES = st.lists(PARTS, max_size=4).map(b"".join)


@given(PROPERTIES, st.integers(0, 2), st.integers(0, 10**17 - 1), st.booleans())
def test_what_a_node_says_is_read_and_the_rest_comes_as_it_was(
    properties: bytes, qos: int, at: int, clears: bool
) -> None:
    sent = marked(properties, qos, at, clears)
    mark = read_mark(sent)
    if mark is None:
        # Nothing was to be said.
        assert (sent, qos == 1, at, clears) == (properties, False, 0, False)
    else:
        assert sent[:-MARK_SIZE] == properties
        assert (mark.qos == 1, mark.at, mark.clears) == (qos == 1, at, clears)


def test_a_time_that_is_none_is_no_time() -> None:
    assert read_mark(FORGED[:-1] + b"x").at == 0  # type: ignore[union-attr]
    assert read_mark(marked(b"", 0, 1 << 60)).at == 10**17 - 1  # type: ignore[union-attr]


@given(
    PROPERTIES,
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=99),
)
def test_what_is_for_a_share_group_is_afterwards_as_it_was(
    properties: bytes, qos: int, retain: bool, away: bool, topic_filter: str
) -> None:
    sent = for_group(Message(b"t", b"1", qos, retain, properties, 7.0, "p"), qos, f"$share/g/{topic_filter}", away)
    mark = read_mark(sent.properties)
    assert mark is not None
    assert (mark.share, mark.qos, mark.retain, mark.away) == (f"$share/g/{topic_filter}", qos, retain, away)
    assert (mark.at, mark.clears, sent.retain) == (0, False, False)
    back = from_group(sent)
    assert (back.topic, back.payload(), back.qos, back.retain) == (b"t", b"1", qos, retain)
    assert (back.properties, back.expires_at, back.publisher) == (properties, 7.0, "p")
    # Of any other message it takes nothing.
    assert from_group(back) is back
