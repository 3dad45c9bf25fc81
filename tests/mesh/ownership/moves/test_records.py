"""A session as bytes between nodes: what is written is read, in parts of bounded size, and nothing else is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.codec.packets import NEVER, SubscriptionRequest, Will
from broker.core.persistence.journal import (
    DeliveryRecord,
    MessageRecord,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
)
from broker.core.principal import Principal
from broker.core.queues.delivery import QUEUED, RELEASED, SENT
from broker.core.queues.policies.queue_policy import QueueOptions
from broker.mesh.bus import ProtocolFault
from broker.mesh.ownership.moves.records import SessionReader, SessionWriter
from broker.store.groups.principals import Principals
from tests.core.strategies import binary, packet_ids, qos_levels, text, topic_filters, topic_names
from tests.support.runs import examples

PRINCIPALS = Principals()

seconds = st.none() | st.floats(-1e6, 1e9)
forwarded = st.sampled_from((b"", b"\x01\x01", b"\x26\0\1k\0\1v", b"\x09\0\2\xff\0\x26\0\0\0\0"))
messages = st.builds(
    MessageRecord,
    topic_names.map(str.encode),
    st.binary(max_size=300),
    qos_levels,
    st.booleans(),
    forwarded,
    seconds,
    text,
)


@st.composite
def deliveries(draw: st.DrawFn, packet_id: int) -> DeliveryRecord:
    """One that waits (`packet_id` 0), or is in flight."""
    state = QUEUED if packet_id == 0 else draw(st.sampled_from((SENT, RELEASED)))
    message = None if state == RELEASED else draw(messages)
    qos = 2 if state == RELEASED else draw(st.integers(0 if state == QUEUED else 1, 2))
    identifiers = tuple(draw(st.lists(st.integers(1, 268_435_455), max_size=2)))
    made = DeliveryRecord(0, message, qos, draw(st.booleans()), identifiers, draw(st.sampled_from(("", "$share/g/a"))))
    made.packet_id, made.state = packet_id, state
    made.attempts = 0 if state == QUEUED else draw(st.integers(0, 1))
    return made


@st.composite
def subscriptions(draw: st.DrawFn, topic_filter: str) -> SubscriptionRecord:
    request = SubscriptionRequest(
        topic_filter, draw(qos_levels), draw(st.booleans()), draw(st.booleans()), draw(qos_levels)
    )
    made = SubscriptionRecord(request, draw(st.integers(0, 268_435_455)), draw(st.booleans()))
    if draw(st.booleans()):
        made.options = QueueOptions(draw(st.integers(-1, 3)), draw(st.floats(-1.0, 1e6)), draw(st.integers(-1, 1_000)))
    return made


@st.composite
def sessions(draw: st.DrawFn) -> SessionRecord:
    """Any session that a router can have."""
    principal = Principal(
        draw(st.none() | text), tuple(draw(st.lists(text, max_size=2))), {"site": draw(text)}, mount=draw(text)
    )
    made = SessionRecord(draw(text), draw(st.integers(0, NEVER)), draw(st.floats(0.0, 1e9)), principal)
    for topic_filter in draw(st.lists(topic_filters, max_size=6, unique=True)):
        made.subscriptions.append(draw(subscriptions(topic_filter)))
    for packet_id in draw(st.lists(packet_ids, max_size=4, unique=True)):
        made.deliveries.append(draw(deliveries(packet_id)))
    for _ in range(draw(st.integers(0, 6))):
        made.deliveries.append(draw(deliveries(0)))
    made.received = sorted(draw(st.sets(packet_ids, max_size=4)))
    made.numbers = {each: draw(st.integers(1, 2**62)) for each in made.received if draw(st.booleans())}
    if draw(st.booleans()):
        will = Will(
            draw(topic_names),
            draw(binary),
            draw(qos_levels),
            draw(st.booleans()),
            draw(st.integers(0, NEVER)),
            -1,
            draw(forwarded),
        )
        made.will = WillRecord(will, draw(seconds))
    return made


def plain(thing: Any) -> Any:
    """Records as values that can be compared; without the numbers, which are the reader's own."""
    if isinstance(thing, list | tuple):
        return [plain(each) for each in thing]
    if isinstance(thing, Principal):
        return (thing.user_name, thing.groups, thing.attributes, thing.mount)
    if isinstance(thing, SessionRecord):
        return (
            *(thing.client_id, thing.expiry_interval, thing.disconnected_for, plain(thing.principal)),
            *(plain(thing.subscriptions), plain(thing.deliveries), thing.received, plain(thing.will)),
            thing.numbers,
        )
    if isinstance(thing, SubscriptionRecord):
        return (thing.request, thing.identifier, thing.streaming, plain(thing.options))
    if isinstance(thing, DeliveryRecord):
        return (
            *(plain(thing.message), thing.qos, thing.retain, thing.identifiers, thing.share),
            *(thing.packet_id, thing.state, thing.attempts),
        )
    if isinstance(thing, MessageRecord):
        return (
            *(thing.topic, thing.payload, thing.qos, thing.retain, thing.properties),
            *(thing.expires_in, thing.publisher),
        )
    if isinstance(thing, WillRecord):
        return (thing.will, thing.due_in)
    if isinstance(thing, QueueOptions):
        return (thing.policy, thing.max_age, thing.depth)
    return thing


def parts_of(record: SessionRecord, part_bytes: int = 1_000) -> list[bytes]:
    writer = SessionWriter(record, PRINCIPALS, part_bytes)
    parts = []
    while not writer.over:
        parts.append(writer.next())
    return parts


@settings(max_examples=examples(200), deadline=None)
@given(record=sessions(), part_bytes=st.sampled_from((1, 100, 1_000, 65_536)))
def test_what_is_written_is_read(record: SessionRecord, part_bytes: int) -> None:
    reader = SessionReader(PRINCIPALS)
    *before, last = parts_of(record, part_bytes)
    for part in before:
        assert reader.add(part) is None
    read = reader.add(last)
    assert plain(read) == plain(record)
    assert read is not None
    assert [kept.number for kept in read.deliveries] == list(range(1, len(read.deliveries) + 1))


def large(count: int) -> SessionRecord:
    record = SessionRecord("c", 100, 0.0)
    for number in range(count):
        record.subscriptions.append(SubscriptionRecord(SubscriptionRequest(f"a/{number}"), 0, False))
        message = MessageRecord(b"a", b"x" * 1_000, 1, False, b"", None, "p")
        record.deliveries.append(DeliveryRecord(number, message, 1, False, (), ""))
    return record


def test_parts_are_bounded() -> None:
    parts = parts_of(large(1_000), 65_536)
    assert 15 < len(parts) < 30
    assert max(len(part) for part in parts) < 65_536 + 2_000


def test_a_message_that_is_larger_than_a_part_is_one() -> None:
    record = SessionRecord("c", 100, 0.0)
    for _ in range(3):
        message = MessageRecord(b"a", b"x" * 5_000, 1, False, b"", None, "p")
        record.deliveries.append(DeliveryRecord(1, message, 1, False, (), ""))
    parts = parts_of(record, 1_000)
    assert [len(part) // 1_000 for part in parts] == [5, 5, 5]


def test_parts_have_their_order() -> None:
    first, second, *_ = parts_of(large(5))
    reader = SessionReader(PRINCIPALS)
    with pytest.raises(ProtocolFault):
        reader.add(second)
    reader.add(first)
    with pytest.raises(ProtocolFault):
        reader.add(first)


def anything(changed: list[Any]) -> bytes:
    return msgspec.msgpack.encode(changed)


PRINCIPAL = PRINCIPALS.write(Principal("u"))
HEAD = ["c", PRINCIPAL, 10, 0.0, None]
MESSAGE = [b"a", b"", 1, False, b"", None, "p"]


@pytest.mark.parametrize(
    "part",
    [
        [None, [], [], [], True],
        [["c", "no principal", 10, 0.0, None], [], [], [], True],
        [["c", '{"groups": []}', 10, 0.0, None], [], [], [], True],
        [["c", PRINCIPAL, 10, float("nan"), None], [], [], [], True],
        [["c", PRINCIPAL, -1, 0.0, None], [], [], [], True],
        [["c", PRINCIPAL, 10, 0.0, ["a/#", b"", 0, False, 0, -1, b"", None]], [], [], [], True],
        [HEAD, [0], [], [], True],
        [HEAD, [65_536], [], [], True],
        [HEAD, [], [["a/#/b", 0, False, False, 0, 0, False, None]], [], True],
        [HEAD, [], [["$share/g", 0, False, False, 0, 0, False, None]], [], True],
        [HEAD, [], [["a", 3, False, False, 0, 0, False, None]], [], True],
        [HEAD, [], [["a", 0, False, False, 0, 0, False, None]] * 2, [], True],
        [HEAD, [], [], [[None, 1, False, [], "", 0, QUEUED, 0]], True],
        [HEAD, [], [], [[None, 1, False, [], "", 5, RELEASED, 1]], True],
        [HEAD, [], [], [[MESSAGE, 2, False, [], "", 5, RELEASED, 1]], True],
        [HEAD, [], [], [[MESSAGE, 1, False, [], "", 5, QUEUED, 0]], True],
        [HEAD, [], [], [[MESSAGE, 1, False, [], "", 0, SENT, 1]], True],
        [HEAD, [], [], [[MESSAGE, 0, False, [], "", 5, SENT, 1]], True],
        [HEAD, [], [], [[MESSAGE, 1, False, [], "", 5, SENT, 1]] * 2, True],
        [HEAD, [], [], [[MESSAGE, 1, False, [], "", 5, 3, 1]], True],
        [HEAD, [], [], [[[b"\xff", b"", 1, False, b"", None, "p"], 1, False, [], "", 0, QUEUED, 0]], True],
        [HEAD, [], [], [[[b"a/+", b"", 1, False, b"", None, "p"], 1, False, [], "", 0, QUEUED, 0]], True],
        [HEAD, [], [], [[[b"a", b"", 1, False, b"\x26", None, "p"], 1, False, [], "", 0, QUEUED, 0]], True],
        [HEAD, [], [], [[[b"a", b"", 1, False, b"\x23\0\1", None, "p"], 1, False, [], "", 0, QUEUED, 0]], True],
    ],
)
def test_what_no_node_writes_is_a_fault(part: list[Any]) -> None:
    with pytest.raises(ProtocolFault):
        SessionReader(PRINCIPALS).add(anything(part))


@settings(max_examples=examples(300), deadline=None)
@given(data=st.binary(max_size=60), record=sessions(), at=st.integers(0, 400), byte=st.integers(0, 255))
def test_any_bytes_are_a_part_or_a_fault(data: bytes, record: SessionRecord, at: int, byte: int) -> None:
    spoilt = bytearray(parts_of(record, 65_536)[0])
    spoilt[at % len(spoilt)] = byte
    for part in (data, bytes(spoilt)):
        try:
            SessionReader(PRINCIPALS).add(part)
        except ProtocolFault:
            continue


def test_a_node_that_knows_no_numbers() -> None:
    """It passes them over, and a part of its own has none."""
    record = SessionRecord("c", 300, 0.0)
    record.received, record.numbers = [5], {5: 77}
    [part] = parts_of(record)
    *older, numbers = msgspec.msgpack.decode(part)
    assert numbers == {5: 77}
    read = SessionReader(PRINCIPALS).add(msgspec.msgpack.encode(older))
    assert read is not None
    assert (read.received, read.numbers) == ([5], {})
