"""What nodes tell each other about retained messages: as it was, or ProtocolFault."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.core.codec.properties import ForwardScan
from broker.core.queues.message import Message
from broker.mesh.bus import ProtocolFault
from broker.mesh.retained.clock import Stamp
from broker.mesh.retained.stamps import BUCKETS, CLEARED, EXPIRED, KEPT
from broker.mesh.retained.wire import (
    DIFFERENT,
    DIGEST,
    ENTRIES,
    WANT,
    Batch,
    Change,
    different_message,
    digest_message,
    read_different,
    read_digest,
    read_entries,
    read_want,
    want_message,
)

numbers = st.integers(0, (1 << 64) - 1)
stamps = st.tuples(numbers, st.text("abcÜ-", max_size=20))
topics = st.text(st.characters(exclude_characters="+#\0", exclude_categories=["Cs"]), min_size=1, max_size=30).filter(
    lambda topic: not topic.startswith("$SYS")
)
PROPERTIES = b"\x03\x00\x04text\x26\x00\x01k\x00\x01v"


@st.composite
def changes(draw: st.DrawFn) -> Change:
    topic = draw(topics)
    state = draw(st.sampled_from([KEPT, CLEARED, EXPIRED]))
    message: Message | None = None
    left = draw(st.integers(0, 1 << 60))
    if state == KEPT:
        payload = draw(st.binary(min_size=1, max_size=50))
        properties = draw(st.sampled_from([b"", PROPERTIES]))
        message = Message(topic.encode(), payload, draw(st.integers(0, 2)), True, properties, 0.0, draw(topics))
        left = draw(st.sampled_from([-1, left]))
    return Change(topic, draw(stamps), state, message, left, draw(st.none() | stamps))


def parts(change: Change) -> tuple[object, ...]:
    message = change.message
    content = None
    if message is not None:
        content = message.topic, message.payload(), message.qos, message.retain, message.properties, message.publisher
    return change.topic, change.stamp, change.state, content, change.left, change.corrects


def batch(*changes: Change, done: bool = True) -> bytes:
    made = Batch()
    for change in changes:
        made.add(change)
    return made.message(done)


@given(written=st.lists(changes(), max_size=5), done=st.booleans())
def test_entries_arrive_as_they_were(written: list[Change], done: bool) -> None:
    was_done, read = read_entries(batch(*written, done=done), ForwardScan())
    assert was_done is done
    assert [parts(change) for change in read] == [parts(change) for change in written]


@given(milliseconds=numbers, sums=st.lists(numbers, min_size=3, max_size=3))
def test_digests_arrive_as_they_were(milliseconds: int, sums: list[int]) -> None:
    every = (sums * BUCKETS)[:BUCKETS]
    assert read_digest(digest_message(milliseconds, every)) == (milliseconds, every)


@given(buckets=st.sets(st.integers(0, BUCKETS - 1)), digests=st.lists(numbers, max_size=5))
def test_buckets_arrive_as_they_were(buckets: set[int], digests: list[int]) -> None:
    ordered = sorted(buckets)
    assert read_different(different_message(ordered)) == ordered
    wanted = [(bucket, digests) for bucket in ordered]
    assert read_want(want_message(wanted)) == wanted


def read(data: bytes) -> None:
    """Read a message as the room does."""
    if data[0] == DIGEST:
        read_digest(data)
    elif data[0] == DIFFERENT:
        read_different(data)
    elif data[0] == WANT:
        read_want(data)
    else:
        read_entries(data, ForwardScan())


@given(data=st.binary(max_size=60), kind=st.sampled_from([DIGEST, DIFFERENT, WANT, ENTRIES]))
@example(data=b"\0" * (2 + 8 + 8 * BUCKETS), kind=DIGEST)
def test_nonsense_is_a_fault(data: bytes, kind: int) -> None:
    with contextlib.suppress(ProtocolFault):
        read(bytes((kind,)) + data)


@given(written=st.lists(changes(), min_size=1, max_size=3), data=st.data())
def test_entries_that_were_cut_or_changed_are_read_or_a_fault(written: list[Change], data: st.DataObject) -> None:
    whole = bytearray(batch(*written))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(1, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(1, len(whole)))])
    with contextlib.suppress(ProtocolFault):
        read(cut)


def entry(topic: str, payload: bytes = b"x", properties: bytes = b"", stamp: Stamp = (1, "a")) -> bytes:
    return batch(Change(topic, stamp, KEPT, Message(topic.encode(), payload, 0, True, properties, 0.0, ""), -1, None))


@pytest.mark.parametrize(
    "data",
    [
        entry("a/+"),
        entry(""),
        entry("$SYS/broker/uptime"),
        entry("t", payload=b""),
        entry("t", properties=b"\x02\0\0\0\1"),  # the expiry has a place of its own
        entry("t", properties=b"\x23\0\1"),  # an alias is for one connection
        entry("t", properties=b"\xff"),
        entry("t")[:-1],
        batch(Change("t", (1, "a"), CLEARED, None, -1, None)),
        different_message([2, 1]),
        different_message([BUCKETS]),
        different_message([1]) + b"x",
        want_message([(1, []), (1, [])]),
        want_message([(1, [7])])[:-1],
        digest_message(0, [0] * BUCKETS)[:-1],
        bytes((DIGEST, 2)),
    ],
)
def test_what_no_node_says_is_a_fault(data: bytes) -> None:
    with pytest.raises(ProtocolFault):
        read(data)


def test_each_node_is_named_once() -> None:
    one = batch(Change("t", (1, "n" * 60), CLEARED, None, 5, None))
    two = batch(*(Change(topic, (1, "n" * 60), CLEARED, None, 5, (1, "n" * 60)) for topic in "tu"))
    assert len(two) < len(one) + 60
