"""The path of a message: what is read from its properties, and what is appended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.properties import decode_forward, encode_forward
from canopy_mqtt.core.routing.links import LINK, VIA, visited, with_hop
from tests.core import strategies

ids = st.text("abcdef0123456789-_", min_size=0, max_size=32)


def test_the_names() -> None:
    """They are part of what brokers say to each other, and stay."""
    assert (LINK, VIA) == ("canopy-link", "canopy-via")


@pytest.mark.parametrize(
    "properties",
    [
        encode_forward(user=[("note", "canopy-via"), ("canopy-via2", "x"), ("xcanopy-via", "x"), ("Canopy-Via", "x")]),
        # The end of one name, the length of its value and the value: the very bytes of a name with its identifier.
        encode_forward(user=[("x&", "canopy-via")]),
        encode_forward(correlation_data=with_hop(b"", "a")),
        encode_forward(0, "t&", "r", b"&", [("&", "canopy-via")]),
    ],
)
def test_told_apart(properties: bytes) -> None:
    """What only looks like a path, in another property, is none; and one behind it is found."""
    assert visited(properties) == []
    assert visited(with_hop(properties, "real")) == ["real"]


@given(before=strategies.forwarded(), path=st.lists(ids, max_size=5), between=strategies.user_properties)
def test_round_trip(before: bytes, path: list[str], between: list[tuple[str, str]]) -> None:
    """Among any other properties, and these stay as they are and where they are [MQTT-3.3.2-18]."""
    others = [pair for pair in decode_forward(before).user if pair[0] != VIA]
    between = [pair for pair in between if pair[0] != VIA]
    properties = before
    expected = [value for name, value in decode_forward(before).user if name == VIA]
    for broker_id in path:
        properties = with_hop(properties, broker_id) + encode_forward(user=between)
    assert visited(properties) == expected + path
    assert properties.startswith(before)
    found = decode_forward(properties)
    assert [pair for pair in found.user if pair[0] != VIA] == others + between * len(path)
    assert found.strings == decode_forward(before).strings
    assert found.binaries == decode_forward(before).binaries


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_anything(before: bytes, behind: bytes) -> None:
    """Bytes that are no properties do no harm."""
    whole = before + with_hop(b"", "a") + behind
    for at in range(len(whole) + 1):
        for found in visited(whole[:at]):
            assert isinstance(found, str)


def test_cut_off() -> None:
    """A path that ends in the middle of an entry ends before it."""
    whole = with_hop(with_hop(b"", "one"), "two")
    first = len(with_hop(b"", "one"))
    for at in range(len(whole)):
        assert visited(whole[:at]) == (["one"] if at >= first else [])
