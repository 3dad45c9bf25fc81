"""The bytes of the interest tables: what is laid out is read again, and anything else is a ProtocolFault."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mesh.bus import ProtocolFault
from broker.mesh.interest import wire

KEYS = ["a", "a/b", "+/#", "#", "/", "$x/+", "ä/ö", "x" * 65_535, "$share/g/a/+", "$share/g/#"]
numbers = st.integers(min_value=0, max_value=(1 << 64) - 1)


@given(
    states=st.lists(st.tuples(st.sampled_from(KEYS[:7]), st.sampled_from([0, 1])), max_size=20),
    groups=st.lists(st.tuples(st.sampled_from(KEYS[8:]), st.sampled_from([0, 1, 2, 255, 256])), max_size=20),
    version=numbers,
    begins=st.booleans(),
)
def test_a_tell_is_read_as_it_was_laid_out(
    states: list[tuple[str, int]], groups: list[tuple[str, int]], version: int, begins: bool
) -> None:
    both = [*states, *groups]
    data = wire.declare([key for key, _ in both], [state for _, state in both], version, begins)
    message = wire.decode(data)
    assert (message.kind, message.version, message.begins) == (wire.DECLARE, version, begins)
    assert list(zip(message.keys, message.states, strict=True)) == both


@given(one=numbers, two=numbers, same=st.booleans())
def test_the_other_messages_are_read_as_they_were_laid_out(one: int, two: int, same: bool) -> None:
    hello = wire.decode(wire.hello(one, two))
    assert (hello.kind, hello.most, hello.most_bytes) == (wire.HELLO, one, two)
    confirm = wire.decode(wire.confirm(one))
    assert (confirm.kind, confirm.version) == (wire.CONFIRM, one)
    digest = wire.decode(wire.digest(one, two))
    assert (digest.kind, digest.most, digest.digest) == (wire.DIGEST, one, two)
    answer = wire.decode(wire.answer(same))
    assert (answer.kind, answer.same) == (wire.ANSWER, same)


def test_the_longest_topic_filter_fits_into_the_last_place_of_a_message() -> None:
    longest = "x" * 65_535
    keys = ["y" * 32_700, longest]
    assert wire.decode(wire.declare(keys, [1, 1], 7, False)).keys == keys


WHOLE = [
    wire.hello(1, 2),
    wire.declare(["a/b", "$share/g/a"], [1, 256], 3, True),
    wire.confirm(3),
    wire.digest(1, 2),
    wire.answer(True),
]


@pytest.mark.parametrize("data", WHOLE, ids=["hello", "declare", "confirm", "digest", "answer"])
def test_a_message_that_ends_early_or_late_is_a_fault(data: bytes) -> None:
    complete = {10, 10 + 1 + 2 + 3} if data[0] == wire.DECLARE else set()  # ends of whole keys
    for size in range(len(data)):
        if size in complete:
            wire.decode(data[:size])
            continue
        with pytest.raises(ProtocolFault):
            wire.decode(data[:size])
    with pytest.raises(ProtocolFault):
        wire.decode(data + b"\0")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x06",
        b"\x02\x02" + bytes(8),
        b"\x05\x02",
        wire.declare(["a"], [2], 1, False),
        wire.declare(["$share/g/a"], [257], 1, False),
        wire.declare(["a#"], [1], 1, False),
        wire.declare([""], [1], 1, False),
        wire.declare(["$share/g"], [1], 1, False),
        wire.declare(["$share/+/a"], [1], 1, False),
        wire.declare(["a"], [1], 1, False)[:-1] + b"\xff",
        wire.declare(["a"], [1], 1, False)[:-1] + b"\0",
        wire.declare(["a"] * 1_025, [1] * 1_025, 1, False),
        wire.declare(["x" * 60_000] * 2, [1, 1], 1, False),
    ],
)
def test_what_no_node_says_is_a_fault(data: bytes) -> None:
    with pytest.raises(ProtocolFault):
        wire.decode(data)


def read(data: bytes) -> None:
    """Whatever it is: a message with valid fields, or a ProtocolFault."""
    try:
        message = wire.decode(data)
    except ProtocolFault:
        return
    assert message.kind in range(1, 6)
    again = wire.declare(message.keys, message.states, message.version, message.begins)
    if message.kind == wire.DECLARE:
        assert again == data


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read(data)


@given(which=st.sampled_from(WHOLE), at=st.integers(0, 40), put=st.binary(max_size=3), cut=st.integers(0, 3))
def test_any_change_of_a_message_is_read_or_refused(which: bytes, at: int, put: bytes, cut: int) -> None:
    read(which[:at] + put + which[at + cut :])
