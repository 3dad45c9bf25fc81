"""The last writes of topics: sums that say whether two nodes have the same, and bounds of what has no message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.queues.message import Message
from broker.mesh.retained.clock import Stamp
from broker.mesh.retained.stamps import (
    ABSENT_BYTES,
    BUCKETS,
    CLEARED,
    EXPIRED,
    KEPT,
    REFUSED,
    Stamps,
    bucket_of,
    kept_stamp,
)

ALL = 1 << 30
writes = st.lists(
    st.tuples(st.sampled_from(["a", "a/b", "ü", "$x/y"]), st.integers(0, 3), st.sampled_from([KEPT, CLEARED, REFUSED]))
)


@given(writes=writes, data=st.data())
def test_sums_tell_the_last_writes_and_not_how_they_came(
    writes: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    stamps = Stamps(ALL)
    last: dict[str, tuple[Stamp, int]] = {}
    for topic, time, state in writes:
        last[topic] = (time, "n"), state
        stamps.set(topic, (time, "n"), state, 10.0)
    other = Stamps(ALL)
    for topic in data.draw(st.permutations(list(last))):
        other.set(topic, last[topic][0], KEPT, 0.0)
    assert stamps.sums == other.sums
    for number in range(BUCKETS):
        assert sorted(stamps.digests(number)) == sorted(other.digests(number))
    absent = [topic for topic, (_, state) in last.items() if state != KEPT]
    assert (stamps.kept, stamps.absent) == (len(last) - len(absent), len(absent))
    while stamps.forget_due(10.0, 1):
        pass
    for topic in absent:
        other.set(topic, last[topic][0], CLEARED, 1.0)
    other.forget_due(1.0, 100)
    assert stamps.sums == other.sums
    assert stamps.absent_bytes == other.absent_bytes == 0


def test_another_write_and_another_writer_change_the_sum() -> None:
    sums = set()
    for stamp in ((1, "a"), (2, "a"), (1, "b")):
        stamps = Stamps(ALL)
        stamps.set("t", stamp, KEPT, 0.0)
        sums.add(stamps.sums[bucket_of("t")])
    assert len(sums) == 3


def test_what_has_no_message_is_bounded_and_the_one_with_the_least_time_goes_first() -> None:
    stamps = Stamps(3 * (ABSENT_BYTES + 100))
    for topic, until in (("one", 30.0), ("two", 10.0), ("three", 20.0), ("four", 40.0)):
        stamps.set(topic, (1, "a"), CLEARED, until)
    assert stamps.forgotten == 1
    assert stamps.get("two") is None
    assert stamps.absent == 3
    stamps.set("one", (2, "a"), KEPT, 0.0)
    assert stamps.absent == 2
    assert stamps.next_due() == 20.0


def test_a_message_that_expires_leaves_its_stamp() -> None:
    stamps = Stamps(ALL)
    stamps.set("t", (1, "a"), KEPT, 0.0)
    before = list(stamps.sums)
    stamps.expire("t", 5.0)
    entry = stamps.get("t")
    assert entry is not None
    assert (entry.stamp, entry.state, stamps.kept) == ((1, "a"), EXPIRED, 0)
    assert stamps.sums == before
    assert stamps.forget_due(5.0, 10) == 1
    assert stamps.get("t") is None


def test_what_stores_kept_has_the_same_stamp_where_it_is_the_same() -> None:
    def stamp(payload: bytes, properties: bytes = b"", expires_at: float = 0.0) -> Stamp:
        return kept_stamp(Message(b"t", payload, 1, True, properties, expires_at, "client"))

    assert stamp(b"x") == stamp(b"x", expires_at=5.0)
    assert len({stamp(b"x"), stamp(b"y"), stamp(b"x", b"\x01\x00"), stamp(b"", b"x\x01\x00")}) == 4
    assert stamp(b"x") < (1, "")
