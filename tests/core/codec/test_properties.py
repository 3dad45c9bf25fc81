"""`canopy_mqtt.core.codec.properties`: the table against the specification's, sections parsed, scanned and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec import properties as pr
from canopy_mqtt.core.codec.primitives import Reader, four_bytes, varint
from canopy_mqtt.core.codec.properties import ForwardScan, Properties
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, ProtocolError, ProtocolViolation
from tests.core.codec.wire_cases import props
from tests.core.strategies import binary, properties, text, topic_names, user_properties
from tests.support.runs import for_each

PLACES = (*(kind for kind in range(1, 15) if kind not in (p.PINGREQ, p.PINGRESP)), p.AUTH, pr.WILL)

EVERYWHERE = (
    "connect connack publish will puback pubrec pubrel pubcomp subscribe suback unsubscribe unsuback disconnect auth"
)
# The table of section 2.2.2.2, written down a second time: identifier, type, and packets by name.
SPECIFIED = {
    0x01: (pr.BYTE, "publish will"),
    0x02: (pr.FOUR_BYTES, "publish will"),
    0x03: (pr.STRING, "publish will"),
    0x08: (pr.STRING, "publish will"),
    0x09: (pr.BINARY, "publish will"),
    0x0B: (pr.VARINT, "publish subscribe"),
    0x11: (pr.FOUR_BYTES, "connect connack disconnect"),
    0x12: (pr.STRING, "connack"),
    0x13: (pr.TWO_BYTES, "connack"),
    0x15: (pr.STRING, "connect connack auth"),
    0x16: (pr.BINARY, "connect connack auth"),
    0x17: (pr.BYTE, "connect"),
    0x18: (pr.FOUR_BYTES, "will"),
    0x19: (pr.BYTE, "connect"),
    0x1A: (pr.STRING, "connack"),
    0x1C: (pr.STRING, "connack disconnect"),
    0x1F: (pr.STRING, "connack puback pubrec pubrel pubcomp suback unsuback disconnect auth"),
    0x21: (pr.TWO_BYTES, "connect connack"),
    0x22: (pr.TWO_BYTES, "connect connack"),
    0x23: (pr.TWO_BYTES, "publish"),
    0x24: (pr.BYTE, "connack"),
    0x25: (pr.BYTE, "connack"),
    0x26: (pr.STRING_PAIR, EVERYWHERE),
    0x27: (pr.FOUR_BYTES, "connect connack"),
    0x28: (pr.BYTE, "connack"),
    0x29: (pr.BYTE, "connack"),
    0x2A: (pr.BYTE, "connack"),
}

# Lowest and highest value of each number that its section restricts, and what lies just outside.
RESTRICTED = {
    0x01: (0, 1, (2, 255)),
    0x0B: (1, 268_435_455, (0,)),
    0x17: (0, 1, (2, 255)),
    0x19: (0, 1, (2, 255)),
    0x21: (1, 65_535, (0,)),
    0x23: (1, 65_535, (0,)),
    0x24: (0, 1, (2, 255)),
    0x25: (0, 1, (2, 255)),
    0x27: (1, 4_294_967_295, (0,)),
    0x28: (0, 1, (2, 255)),
    0x29: (0, 1, (2, 255)),
    0x2A: (0, 1, (2, 255)),
}
WIDTH = {pr.BYTE: 1, pr.TWO_BYTES: 2, pr.FOUR_BYTES: 4}


def read(section: bytes, place: int) -> Properties:
    """Parse a section given without its length; nothing may be left."""
    raw = varint(len(section)) + section
    reader = Reader(raw, 0, len(raw))
    found = pr.parse(reader, place)
    assert reader.position == len(raw)
    return found


def scan(section: bytes, place: int) -> ForwardScan:
    return ForwardScan(b"!" + section + b"!", 1, 1 + len(section), place)


def number(identifier: int, value: int) -> bytes:
    """A numeric property, written without the module under test's table."""
    wire_type = SPECIFIED[identifier][0]
    encoded = varint(value) if wire_type == pr.VARINT else four_bytes(value)[4 - WIDTH[wire_type] :]
    return bytes((identifier,)) + encoded


def place_of(name: str) -> int:
    return pr.WILL if name == "will" else p.NAMES.index(name.upper())


class TestTable:
    """The table of section 2.2.2.2."""

    def test_is_the_specifications(self) -> None:
        assert set(pr.TABLE) == set(SPECIFIED)
        for identifier, (wire_type, places) in SPECIFIED.items():
            row = pr.TABLE[identifier]
            assert row.identifier == identifier
            assert row.wire_type == wire_type
            allowed = {place_of(name) for name in places.split()}
            assert {place for place in range(16) if row.allowed_in(place)} == allowed, row.name

    def test_forwarded(self) -> None:
        """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-20]"""
        assert set(pr.FORWARDED) == {0x01, 0x03, 0x08, 0x09, 0x26}


class TestParse:
    """Sections into `Properties` and back."""

    @given(st.data(), st.sampled_from(PLACES))
    def test_round_trip(self, data: st.DataObject, place: int) -> None:
        bag = data.draw(properties(place))
        raw = pr.encode(bag, place)
        reader = Reader(b"?" + raw + b"?", 1, 1 + len(raw))
        assert pr.parse(reader, place) == bag
        assert reader.position == 1 + len(raw)

    def test_unknown_identifier(self) -> None:
        for identifier in sorted(set(range(200)) - set(SPECIFIED)):
            with pytest.raises(MalformedPacket):
                read(varint(identifier) + b"\x00\x00\x00\x00", p.CONNACK)
            with pytest.raises(MalformedPacket):
                scan(varint(identifier) + b"\x00\x00\x00\x00", p.PUBLISH)

    @for_each("identifier", sorted(set(SPECIFIED) - {0x26}))
    def test_only_where_it_belongs(self, identifier: int) -> None:
        wire_type, places = SPECIFIED[identifier]
        value = number(identifier, 1) if wire_type <= pr.VARINT else bytes((identifier,)) + b"\x00\x01a"
        allowed = [place_of(name) for name in places.split()]
        for place in PLACES:
            if place in allowed:
                if place in (p.PUBLISH, pr.WILL):
                    scan(value, place)
                else:
                    read(value, place)
                continue
            with pytest.raises(MalformedPacket):
                read(value, place)
            if place in (p.PUBLISH, pr.WILL):
                with pytest.raises(MalformedPacket):
                    scan(value, place)

    @for_each("identifier", sorted(set(SPECIFIED) - {0x26}))
    def test_never_twice(self, identifier: int) -> None:
        wire_type, places = SPECIFIED[identifier]
        value = number(identifier, 1) if wire_type <= pr.VARINT else bytes((identifier,)) + b"\x00\x01a"
        for name in places.split():
            place = place_of(name)
            if place in (p.PUBLISH, pr.WILL):
                if identifier == pr.SUBSCRIPTION_IDENTIFIER:
                    assert scan(value * 2, place).subscription_ids == (1, 1)
                    continue
                with pytest.raises(ProtocolViolation):
                    scan(value * 2, place)
            else:
                with pytest.raises(ProtocolViolation):
                    read(value * 2, place)

    @for_each("identifier", sorted(RESTRICTED))
    def test_values(self, identifier: int) -> None:
        low, high, outside = RESTRICTED[identifier]
        place = place_of(SPECIFIED[identifier][1].split()[-1])
        for value in (low, high):
            if place in (p.PUBLISH, pr.WILL):
                scan(number(identifier, value), place)
            else:
                assert read(number(identifier, value), place).integers == {identifier: value}
            assert pr.encode_one(identifier, value) == number(identifier, value)
        for value in outside:
            run = scan if place in (p.PUBLISH, pr.WILL) else read
            with pytest.raises(ProtocolError) as caught:
                run(number(identifier, value), place)
            # [MQTT-3.3.2-8]
            assert caught.value.reason_code == (0x94 if identifier == pr.TOPIC_ALIAS else 0x82)
            with pytest.raises(ValueError, match=r"may not be"):
                pr.encode_one(identifier, value)

    @given(st.data(), st.sampled_from(PLACES))
    def test_every_truncation_is_malformed(self, data: st.DataObject, place: int) -> None:
        """Cut inside a property, with the length made to fit: Malformed Packet, or the properties before the cut."""
        bag = data.draw(properties(place))
        raw = pr.encode(bag, place)
        head = Reader(raw, 0, len(raw))
        assert head.varint() == len(raw) - head.position
        section = raw[head.position :]
        for size in range(len(section)):
            try:
                found = read(section[:size], place)
            except MalformedPacket:
                continue
            assert set(found.integers) <= set(bag.integers)
            assert set(found.strings) <= set(bag.strings)
            assert set(found.binaries) <= set(bag.binaries)
            assert found.user == bag.user[: len(found.user)]

    @for_each("length", [b"\x01", b"\x80", b"\x80\x00", b"\x80\x80\x80\x80\x01", b""])
    def test_bad_section_length(self, length: bytes) -> None:
        """[MQTT-1.5.5-1]"""
        with pytest.raises(MalformedPacket):
            pr.parse(Reader(length, 0, len(length)), p.CONNECT)


@for_each(
    ("bag", "place"),
    [
        (props(i={0x7E: 1}), p.CONNECT),
        (props(i={0x15: 1}), p.CONNECT),
        (props(s={0x16: "x"}), p.CONNECT),
        (props(b={0x15: b"x"}), p.CONNECT),
        (props(i={0x21: 65_536}), p.CONNECT),
        (props(i={0x21: 1}), p.SUBSCRIBE),
        (props(i={0x11: -1}), p.CONNECT),
        (props(i={0x11: 1 << 32}), p.CONNECT),
        (props(s={0x1F: "x"}), p.CONNECT),
        (props(b={0x09: b"x"}), p.CONNECT),
        (props(s={0x1F: "\ud800"}), p.CONNACK),
        (props(s={0x1F: "\0"}), p.CONNACK),
        (props(s={0x1F: "x" * 65_536}), p.CONNACK),
        (props(("a", "\0")), p.CONNACK),
    ],
)
def test_what_cannot_be_written(bag: Properties, place: int) -> None:
    """What cannot be written."""
    with pytest.raises(ValueError, match=r".+"):
        pr.encode(bag, place)


class TestForward:
    """What a message carries from publisher to subscriber."""

    @given(st.data(), st.sampled_from((p.PUBLISH, pr.WILL)))
    def test_hop_by_hop_is_cut_out_wherever_it_stands(self, data: st.DataObject, place: int) -> None:
        kept = data.draw(
            st.lists(st.builds(lambda pair: pr.encode_forward(user=[pair]), st.tuples(text, text)), max_size=3)
        )
        cut: list[bytes] = []
        expiry, delay, alias = -1, 0, 0
        identifiers: tuple[int, ...] = ()
        if data.draw(st.booleans()):
            expiry = data.draw(st.integers(0, 4_294_967_295))
            cut.append(b"\x02" + four_bytes(expiry))
        if place == pr.WILL:
            delay = data.draw(st.integers(0, 4_294_967_295))
            cut.append(b"\x18" + four_bytes(delay))
        else:
            alias = data.draw(st.integers(1, 65_535))
            identifiers = tuple(data.draw(st.lists(st.integers(1, 268_435_455), max_size=3)))
            cut.append(b"\x23" + four_bytes(alias)[2:])
            cut.extend(b"\x0b" + varint(identifier) for identifier in identifiers)
        # Shuffle, yet keep the order within the user properties and within the identifiers.
        marks = data.draw(st.permutations([True] * len(kept) + [False] * len(cut)))
        keep, drop = iter(kept), iter(cut)
        result = scan(b"".join(next(keep) if mark else next(drop) for mark in marks), place)
        assert result.forward == b"".join(kept)
        assert (result.topic_alias, result.message_expiry, result.will_delay) == (alias, expiry, delay)
        assert result.subscription_ids == identifiers

    @given(
        st.none() | st.integers(0, 1),
        st.none() | text,
        st.none() | topic_names,
        st.none() | binary,
        user_properties,
    )
    def test_encode_and_decode(
        self,
        payload_format: int | None,
        content_type: str | None,
        response_topic: str | None,
        correlation_data: bytes | None,
        user: list[tuple[str, str]],
    ) -> None:
        raw = pr.encode_forward(payload_format, content_type, response_topic, correlation_data, user)
        expected = props(*user)
        if payload_format is not None:
            expected.integers[0x01] = payload_format
        if content_type is not None:
            expected.strings[0x03] = content_type
        if response_topic is not None:
            expected.strings[0x08] = response_topic
        if correlation_data is not None:
            expected.binaries[0x09] = correlation_data
        assert pr.decode_forward(raw) == expected
        assert scan(raw, p.PUBLISH).forward == raw

    @for_each(
        ("raw", "error"),
        [
            (b"\x02\x00\x00\x00\x01", MalformedPacket),
            (b"\x23\x00\x01", MalformedPacket),
            (b"\x01", MalformedPacket),
            (b"\x01\x02", ProtocolViolation),
            (b"\x08\x00\x01#", MalformedPacket),
        ],
    )
    def test_decode_refuses(self, raw: bytes, error: type[ProtocolError]) -> None:
        with pytest.raises(error):
            pr.decode_forward(raw)

    @for_each("topic", ["", "a/+", "#"])
    def test_response_topic(self, topic: str) -> None:
        """[MQTT-3.3.2-14] [MQTT-4.7.3-1]"""
        with pytest.raises(ValueError, match="not a topic name"):
            pr.encode_forward(response_topic=topic)
