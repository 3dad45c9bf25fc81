"""The mark that nodes put on messages, and what clients write of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.primitives import text
from canopy_mqtt.core.routing.node_messages import MARK_SIZE, NAME, marked, read_mark

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
