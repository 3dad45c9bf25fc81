"""The bytes between two nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mesh import frames
from broker.mesh.bus import ProtocolFault

MESSAGES = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)))
NUMBERS = st.integers(1, 2**64 - 1)


@given(NUMBERS, NUMBERS, NUMBERS, MESSAGES)
def test_a_frame_is_read_as_it_was_written(
    epoch: int, echo: int, number: int, messages: list[tuple[int, bytes]]
) -> None:
    data = frames.encode_frame(epoch, echo, number, [frames.message(kind, each) for kind, each in messages])
    assert data[0] == frames.FRAME
    assert frames.decode_frame(data) == (epoch, echo, number)
    assert frames.decode_messages(data) == messages


def test_the_layout_of_a_greeting_is_for_all_time() -> None:
    greeting = frames.Greeting(1, 3, frames.ASKS, 5, 7, 0)
    assert greeting.encode().hex() == "01010300000000000000000500000000000000070000000000000000"
    later = frames.decode_greeting(greeting.encode() + b"what a later version adds")
    assert (later.lowest, later.highest, later.incarnation, later.epoch, later.echo) == (1, 3, 5, 7, 0)


def test_the_layout_of_version_1() -> None:
    data = frames.encode_frame(5, 7, 1, [frames.message(3, b"ab")])
    assert data.hex() == "0200000000000000050000000000000007000000000000000103000000026162"


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=30)), min_size=1), st.integers(1, 34))
def test_a_frame_that_was_cut_off_is_refused_or_has_fewer_messages(messages: list[tuple[int, bytes]], cut: int) -> None:
    data = frames.encode_frame(1, 1, 1, [frames.message(kind, each) for kind, each in messages])[:-cut]
    try:
        frames.decode_frame(data)
        found = frames.decode_messages(data)
    except ProtocolFault:
        return
    assert found == messages[: len(found)]
    assert len(found) < len(messages)


def test_a_frame_of_several_messages_is_no_larger_than_any_that_is_sent() -> None:
    """A message of five bytes takes twenty times as many once it is read; a large one has a frame of its own."""
    small = frames.message(3, b"")
    fits = frames.encode_frame(1, 1, 1, [small] * (frames.LARGEST // len(small)))
    assert len(frames.decode_messages(fits)) == frames.LARGEST // len(small)
    with pytest.raises(ProtocolFault):
        frames.decode_messages(fits + small)
    large = frames.encode_frame(1, 1, 1, [frames.message(3, bytes(2 * frames.LARGEST))])
    assert len(frames.decode_messages(large)) == 1


@pytest.mark.parametrize(
    "greeting",
    [
        b"\1",
        frames.Greeting(1, 1, 0, 1, 1, 0).encode()[:-1],
        frames.Greeting(2, 1, 0, 1, 1, 0).encode(),
        frames.Greeting(1, 1, 0, 0, 1, 0).encode(),
        frames.Greeting(1, 1, 0, 1, 0, 0).encode(),
    ],
)
def test_what_is_no_greeting_is_refused(greeting: bytes) -> None:
    with pytest.raises(ProtocolFault):
        frames.decode_greeting(greeting)
