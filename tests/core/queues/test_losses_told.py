"""Loss told in band: which message tells it, that nothing else of the message changes, and that it is told once.

First the bytes alone, with each boundary of the variable byte integers; then whole clients, whose losses are summed
over all that they are told.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import V5, Packet, Publish
from canopy_mqtt.core.codec.primitives import MAX_VARINT
from canopy_mqtt.core.codec.properties import decode_forward
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import (
    DISCONNECTED,
    DROP_CAUSES,
    Ledger,
    tell,
    with_properties,
)
from canopy_mqtt.core.queues.queue_terms import DROP_OLDEST, LATEST
from tests.core.harness import Network, limits
from tests.core.judge import ANY_SIZE
from tests.core.recount import LOST, Tally, ask, burst, frames, notes, numbers, told, user_wish
from tests.support.losses import dropped_by_cause
from tests.support.runs import examples, for_each

HOUR = 3_600
PING = b"\xd0\x00"


# Without what no string of the protocol holds [MQTT-1.5.4-1] [MQTT-1.5.4-2].
texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=130)


def packets(data: bytes) -> list[Packet]:
    """What some bytes of a 5.0 server are."""
    decoder = Decoder(ANY_SIZE, server=False, version=V5)
    decoder.feed(data)
    found = []
    while decoder.next_frame():
        found.append(decoder.packet())
    assert len(found) == len(list(frames(data)))
    return found


def publish(data: bytes) -> Publish:
    [packet] = packets(data)
    assert isinstance(packet, Publish)
    return packet


def ledger(**lost: int) -> Ledger:
    """A ledger of losses: causes with `_` for `-`."""
    made = Ledger("c", Counters())
    for name, count in lost.items():
        made.lost(DROP_CAUSES.index(name.replace("_", "-")), count)
    return made


def frame(
    payload: bytes = b"", properties: bytes = b"", qos: int = 0, topic: bytes = b"t", ids: tuple[int, ...] = ()
) -> bytes:
    return encode(Publish(topic, payload, qos, False, False, 7 if qos else 0, properties, 0, -1, ids), V5)


class TestBytes:
    """A frame that is ready, with more properties in it."""

    @given(
        properties=st.lists(st.tuples(texts, texts), max_size=4),
        ids=st.lists(st.sampled_from((1, 127, 128, 268_435_455)), max_size=3),
        payload=st.binary(max_size=300),
        topic=st.sampled_from((b"t", b"\xc3\xa9" * 60, b"t/" * 200)),
        qos=st.integers(0, 2),
        retain=st.booleans(),
        expiry=st.sampled_from((-1, 0, 77)),
        alias=st.sampled_from((0, 5)),
    )
    def test_any_frame(
        self,
        properties: list[tuple[str, str]],
        ids: list[int],
        payload: bytes,
        topic: bytes,
        qos: int,
        retain: bool,
        expiry: int,
        alias: int,
    ) -> None:
        """With retain flag, identifiers, aliases, expiry: all of it stays, the publisher's properties first."""
        given_user = user_section(properties)
        before = Publish(topic, payload, qos, retain, False, 9 if qos else 0, given_user, alias, expiry, tuple(ids))
        section = notes([1] * len(DROP_CAUSES))
        after = publish(with_properties(encode(before, V5), section))
        user = decode_forward(after.properties).user
        assert user[: len(properties)] == properties
        assert user[len(properties) :] == [(LOST, f"1;{cause}") for cause in DROP_CAUSES]
        after.properties = before.properties
        assert after == before

    def test_the_longest_there_is(self) -> None:
        """What would be longer than any packet can be is not made (section 2.1.4)."""
        section = notes([1] + [0] * 9)
        # The topic with its length, three bytes more for the length of the properties, and one byte too many.
        payload = MAX_VARINT - 3 - 1 - len(section) + 1
        long = b"\x30\xff\xff\xff\x7f\x00\x01t\x00" + bytes(payload)
        assert with_properties(long, section) == b""


def user_section(user: list[tuple[str, str]]) -> bytes:
    """User properties as they stand in a PUBLISH (section 3.3.2.3.7)."""
    return b"".join(b"\x26" + _string(name) + _string(value) for name, value in user)


def _string(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


class TestTelling:
    """Which frame of a batch."""

    def test_the_first_publish(self) -> None:
        """Control packets are passed over; a loss is told once."""
        lost = ledger(full_messages=2, age=1)
        batch = [PING, frame(b"1"), frame(b"2")]
        tell(batch, lost, ANY_SIZE)
        assert lost.untold is None
        assert batch[0] == PING
        assert batch[2] == frame(b"2")
        assert told(publish(batch[1])) == ["2;full-messages", "1;age"]
        again = [frame(b"3")]
        tell(again, lost, ANY_SIZE)
        assert again == [frame(b"3")]

    def test_no_publish(self) -> None:
        """Told later."""
        lost = ledger(full_messages=2)
        batch = [PING, b"\x40\x02\x00\x01"]
        tell(batch, lost, ANY_SIZE)
        assert batch == [PING, b"\x40\x02\x00\x01"]
        assert lost.untold is not None
        tell([], lost, ANY_SIZE)
        assert lost.untold is not None

    def test_the_first_of_a_run(self) -> None:
        """Frames side by side in one piece: the others stay as they are."""
        lost = ledger(full_messages=2)
        run = frame(b"1") + frame(b"2") + frame(b"3" * 200)
        batch = [run]
        tell(batch, lost, ANY_SIZE)
        assert batch[0].endswith(frame(b"2") + frame(b"3" * 200))
        first, *others = packets(batch[0])
        assert isinstance(first, Publish)
        assert told(first) == ["2;full-messages"]
        assert first.payload == b"1"
        assert others == packets(frame(b"2") + frame(b"3" * 200))

    @for_each("spare", [-1, 0, 1])
    def test_no_larger_than_the_client_takes(self, spare: int) -> None:
        """To the byte [MQTT-3.1.2-24]; else a later, smaller one tells it."""
        lost = ledger(full_messages=2)
        large, small = frame(b"x" * 50), frame(b"y")
        section = notes(lost.untold or [])
        most = len(large) + len(section) + spare
        batch = [large, small]
        tell(batch, lost, most)
        assert lost.untold is None
        assert max(map(len, batch)) <= most
        assert [bool(told(publish(each))) for each in batch] == ([False, True] if spare < 0 else [True, False])

    def test_more_causes_than_one_packet_has_room_for(self) -> None:
        """A message tells what it has room for, and the next one the rest: no loss stays untold for its company."""
        lost = ledger(full_messages=2, age=1)
        most = len(frame(b"x")) + len(notes(ledger(full_messages=2).untold or []))
        found = []
        for _ in range(2):
            batch = [frame(b"x")]
            tell(batch, lost, most)
            found.append(told(publish(batch[0])))
        assert found == [["2;full-messages"], ["1;age"]]
        assert lost.untold is None

    def test_what_nothing_can_carry_waits(self) -> None:
        """A client of small packets alone is told when it takes more."""
        lost = ledger(full_messages=2)
        batch = [frame(b"x"), frame(b"y")]
        tell(batch, lost, 20)
        assert batch == [frame(b"x"), frame(b"y")]
        assert lost.untold is not None


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.integers(1, 12), st.integers(0, 1), st.sampled_from((0, 30))),
            st.sampled_from(("thaw", "freeze", "cut", "back", "wait", "acks", "no acks")),
        ),
        max_size=30,
    ),
    policy=st.sampled_from((0, DROP_OLDEST, LATEST)),
    max_packet=st.sampled_from((None, 80)),
    options=st.sampled_from(([], user_wish("latest", "2"), user_wish("drop-oldest", depth="2"))),
)
@settings(max_examples=examples(80), deadline=None)
def test_each_loss_is_told_once(
    steps: list[tuple[int, int, int] | str],
    policy: int,
    max_packet: int | None,
    options: list[tuple[str, str]],
) -> None:
    """Over a whole life: what was told and what is not told yet is what was lost, but for QoS 0 while away."""
    network = Network(limits(live_messages=4, session_messages=3, queue_policy=policy))
    publisher = network.client("p")
    client = network.client("c", clean=False, expiry=HOUR, max_packet=max_packet, receive_maximum=2)
    client.judge = tally = Tally()
    tally.max_packet = max_packet or ANY_SIZE
    ask(client, "t/#", qos=1, user=options)
    away = 0
    for step in steps:
        if isinstance(step, tuple):
            count, qos, size = step
            burst(publisher, "t/1", numbers(count, size), qos)
            away += count if qos == 0 and client.wire.cut else 0
        elif step in ("thaw", "freeze"):
            client.wire.frozen = step == "freeze"
            network.settle()
        elif step == "cut":
            client.cut()
        elif step == "back" and client.wire.cut:
            client.connect(clean=False, expiry=HOUR, max_packet=max_packet, receive_maximum=2)
        elif step == "wait":
            network.advance(3)
            network.router.sweep(network.now)
        else:
            client.answering = step == "acks"
            if client.answering and not client.wire.cut:
                client.answer()
    session = network.session("c")
    untold = session.ledger.untold or [0] * len(DROP_CAUSES)
    for cause, dropped in enumerate(dropped_by_cause(session)):
        expected = dropped - (away if cause == DISCONNECTED else 0)
        assert tally.told[DROP_CAUSES[cause]] + untold[cause] == expected
