"""What a simulated client makes of the bytes that it reads."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_load.engine.clients.connection import ClientConnection
from canopy_load.engine.clients.sending import Session
from canopy_load.ledger.counters import Tally
from canopy_load.ledger.deliveries import Judge, Streams
from canopy_load.ledger.mark import SIZE, filler, pack
from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.packets import V5, Publish
from tests.support.runs import examples

RUN = 0x81
TOPICS = (b"t/0", b"t/1", b"t/longer")
USER_PROPERTY = b"\x26\x00\x01a\x00\x01b"


class Sent(NamedTuple):
    """A PUBLISH, which any number of others like it follow."""

    stream: int
    length: int
    alike: int
    qos: int
    properties: bytes


SENT = st.builds(
    Sent,
    st.integers(0, len(TOPICS) - 1),
    st.sampled_from((SIZE, SIZE + 1, 40)),
    st.integers(1, 4),
    st.sampled_from((0, 0, 0, 1)),
    st.sampled_from((b"", b"", USER_PROPERTY)),
)


@settings(max_examples=examples(100))
@given(st.lists(SENT, max_size=8), st.data())
def test_every_message_is_judged_once_and_unaltered_wherever_reads_are_cut(
    sent: list[Sent], data: st.DataObject
) -> None:
    """Messages like the last one are not decoded: what another one is must not be taken for them."""
    frames = b""
    count = 0
    numbers = [0] * len(TOPICS)
    for each in sent:
        for _ in range(each.alike):
            sequence = numbers[each.stream]
            numbers[each.stream] += 1
            payload = pack(RUN, 1, each.stream, sequence) + filler(each.length)[: each.length - SIZE]
            count += 1
            identifier = count if each.qos else 0
            packet = Publish(TOPICS[each.stream], payload, each.qos, False, False, identifier, each.properties)
            frames += encoder.publish(packet, V5)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(frames)), max_size=5)))

    streams = Streams(RUN, lambda number: TOPICS[number])
    tally = Tally()
    closed: list[str] = []
    judge = Judge(0, streams, tally)
    wire = ClientConnection(V5, judge, streams, tally, Session(False), lambda _: None, closed.append)
    for start, end in zip([0, *cuts], [*cuts, len(frames)], strict=True):
        if start < end:
            wire.data_received(frames[start:end])

    receipts = judge.receipts.values()
    assert {each.stream: each.received for each in receipts} == {at: each for at, each in enumerate(numbers) if each}
    assert not any(each.missing + each.duplicates + each.redelivered + each.altered for each in receipts)
    assert (wire.fault, closed) == ("", [])
    assert tally.received == count
