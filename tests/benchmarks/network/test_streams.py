"""The checks against streams with losses, repetitions and every kind of cut, beside a naive count.

Every test builds the stream that a broker would have sent from a list of sequence numbers.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.network.streams import AckedCheck, Ledger, MergedCheck, PublisherAcks, StreamCheck, Templates
from canopy_load.brokers import frames
from canopy_load.brokers.frames import FrameError
from tests.support.runs import for_each

CYCLE = 16
LEVELS = st.sampled_from([frames.MQTT_3_1_1, frames.MQTT_5])


def quiet(publisher: int, sequence: int, level: int = frames.MQTT_3_1_1) -> bytes:
    body = frames.payload(publisher, sequence % CYCLE, 24)
    return frames.publish(f"bench/{publisher:04d}", body, level=level)


def acked(sequence: int, qos: int, packet_id: int, dup: bool = False) -> bytes:
    frame = frames.publish("bench/0000", frames.payload(0, sequence % CYCLE, 24), qos, packet_id)
    return bytes((frame[0] | (8 if dup else 0),)) + frame[1:]


def cut(data: bytes, cuts: list[int]) -> list[memoryview]:
    """The stream in reads: cut at these places (modulo its length)."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [memoryview(data)[begin:end] for begin, end in pairwise(places)]


@st.composite
def faulty(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Sequence numbers as delivered, with how many were lost and how many came twice in a row."""
    delivered: list[int] = []
    lost = doubled = 0
    gap = 0
    for number in range(draw(st.integers(1, 60))):
        fate = draw(st.sampled_from(["once"] * 6 + ["lost", "twice"]))
        if fate == "lost" and gap < CYCLE // 2 - 2:
            gap += 1
            continue
        lost += gap
        gap = 0
        delivered.append(number)
        if fate == "twice":
            delivered.append(number)
            doubled += 1
    return delivered, lost, doubled


CUTS = st.lists(st.integers(0, 10_000), max_size=40)


@given(faulty(), CUTS, LEVELS)
def test_one_stream_is_accounted_for(case: tuple[list[int], int, int], cuts: list[int], level: int) -> None:
    numbers, lost, doubled = case
    ledger = Ledger()
    check = StreamCheck(Templates(CYCLE, level), ledger)
    data = b"".join(quiet(0, number, level) for number in numbers)
    advanced = sum(check.feed(chunk) for chunk in cut(data, cuts))
    assert ledger == Ledger(len(numbers) - doubled, lost, doubled)
    assert advanced == ledger.delivered + ledger.lost


def test_a_stream_whole_byte_by_byte_and_at_every_cut() -> None:
    data = b"".join(quiet(0, number) for number in range(2 * CYCLE + 3))
    for cuts in ([], list(range(len(data))), *([place] for place in range(len(data)))):
        ledger = Ledger()
        check = StreamCheck(Templates(CYCLE, frames.MQTT_3_1_1), ledger)
        assert sum(check.feed(chunk) for chunk in cut(data, cuts)) == 2 * CYCLE + 3
        assert ledger == Ledger(delivered=2 * CYCLE + 3)


@for_each("at", [0, 5])
def test_a_changed_payload_is_refused(at: int) -> None:
    good = b"".join(quiet(0, number) for number in range(at))
    bad = quiet(0, at)[:-1] + b"?"
    check = StreamCheck(Templates(CYCLE, frames.MQTT_3_1_1), Ledger())
    check.feed(memoryview(good))
    with pytest.raises(FrameError, match="bench/0000"):
        check.feed(memoryview(bad))


def test_a_disconnect_within_a_stream_is_named() -> None:
    check = StreamCheck(Templates(CYCLE, frames.MQTT_5), Ledger())
    check.feed(memoryview(quiet(0, 0, frames.MQTT_5)))
    with pytest.raises(FrameError, match="DISCONNECT"):
        check.feed(memoryview(b"\xe0\x02\x8b\x00"))


@given(st.lists(faulty(), min_size=1, max_size=4), st.randoms(use_true_random=False), CUTS)
def test_a_merged_stream_is_accounted_for(
    cases: list[tuple[list[int], int, int]], random: Random, cuts: list[int]
) -> None:
    queues = [[quiet(publisher, number) for number in case[0]] for publisher, case in enumerate(cases)]
    merged: list[bytes] = []
    order = [publisher for publisher, queue in enumerate(queues) for _ in queue]
    random.shuffle(order)
    for publisher in order:
        merged.append(queues[publisher].pop(0))
    ledger = Ledger()
    check = MergedCheck(Templates(CYCLE, frames.MQTT_3_1_1), ledger, len(cases), burst=4)
    touched: set[int] = set()
    for chunk in cut(b"".join(merged), cuts):
        touched.update(check.feed(chunk))
    lost, doubled = sum(case[1] for case in cases), sum(case[2] for case in cases)
    assert ledger == Ledger(len(order) - doubled, lost, doubled)
    assert touched == set(order)
    assert sum(check.advanced) == ledger.delivered + ledger.lost


def test_a_merged_stream_refuses_strangers() -> None:
    check = MergedCheck(Templates(CYCLE, frames.MQTT_3_1_1), Ledger(), 2, burst=4)
    with pytest.raises(FrameError, match="publisher 2"):
        check.feed(memoryview(quiet(2, 0)))


def replies(kind: int, packet_ids: list[int]) -> bytes:
    return b"".join(struct.pack(">BBH", kind, 2, packet_id) for packet_id in packet_ids)


@given(faulty(), CUTS, st.sampled_from([1, 2]), st.booleans())
def test_acknowledged_messages_are_accounted_for_and_answered(
    case: tuple[list[int], int, int], cuts: list[int], qos: int, releases: bool
) -> None:
    numbers, lost, doubled = case
    ledger = Ledger()
    check = AckedCheck(Templates(CYCLE, frames.MQTT_3_1_1), ledger, qos)
    stream = b""
    wanted = b""
    previous = -1
    for packet_id, number in enumerate(numbers, 500):
        stream += acked(number, qos, packet_id, dup=number == previous)
        wanted += replies(frames.PUBACK if qos == 1 else frames.PUBREC, [packet_id])
        if releases and qos == 2 and packet_id % 3 == 0:
            stream += replies(frames.PUBREL, [packet_id - 1, packet_id])
            wanted += replies(frames.PUBCOMP, [packet_id - 1, packet_id])
        previous = number
    advanced = sum(check.feed(chunk) for chunk in cut(stream, cuts))
    assert ledger == Ledger(len(numbers) - doubled, lost, doubled)
    assert advanced == ledger.delivered + ledger.lost
    assert bytes(check.answer) == wanted


def test_a_downgraded_delivery_is_refused() -> None:
    check = AckedCheck(Templates(CYCLE, frames.MQTT_3_1_1), Ledger(), 1)
    with pytest.raises(FrameError, match="QoS 0"):
        check.feed(memoryview(quiet(0, 0)))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 65_535)), max_size=80), CUTS)
def test_a_publisher_counts_what_is_finished_and_releases_what_was_received(
    packets: list[tuple[bool, int]], cuts: list[int]
) -> None:
    acks = PublisherAcks()
    stream = b"".join(replies(frames.PUBREC if received else frames.PUBCOMP, [number]) for received, number in packets)
    finished = sum(acks.feed(chunk) for chunk in cut(stream, cuts))
    assert finished == sum(not received for received, _ in packets)
    assert bytes(acks.answer) == replies(frames.PUBREL, [number for received, number in packets if received])


@for_each(("data", "message"), [(b"\x40\x03\x00\x01\x10", "reason code"), (b"\xd0\x02\0\0", "PINGRESP")])
def test_a_publisher_refuses_other_answers(data: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        PublisherAcks().feed(memoryview(data))
