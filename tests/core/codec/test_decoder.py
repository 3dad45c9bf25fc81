"""`canopy_mqtt.core.codec.decoder`: every wire case in every way it can arrive, streams, limits, reason codes,
topics.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import Packet
from canopy_mqtt.core.codec.primitives import varint
from canopy_mqtt.core.codec.reason_codes import ProtocolError, ProtocolViolation
from tests.core.codec import reason_codes
from tests.core.codec.wire_cases import CASES, MAX_PACKET_SIZE, VALID, Case, senders
from tests.core.strategies import VERSIONS, client_packets, server_packets
from tests.support.frames import pending_size
from tests.support.runs import for_each

LARGEST = 268_435_460
"""Bytes of the largest packet that the protocol knows: five of fixed header and the largest Remaining Length."""

RECEIVED = [(case, server) for case in CASES for server in senders(case)]
RECEIVED_VALID = [(case, server) for case in VALID for server in senders(case)]


def drain(decoder: Decoder) -> list[Packet]:
    """Every packet that is whole."""
    found: list[Packet] = []
    while decoder.next_frame():
        found.append(decoder.packet())
    return found


def receive(case: Case, server: bool, *reads: bytes) -> list[Packet]:
    """Decode the reads; the case's version is in force, packets are taken out after each read."""
    decoder = Decoder(MAX_PACKET_SIZE, server, case.version)
    found: list[Packet] = []
    for read in reads:
        decoder.feed(read)
        found.extend(drain(decoder))
    if case.packet is not None:
        assert pending_size(decoder) == 0
    return found


def expect(case: Case, server: bool, *reads: bytes) -> None:
    """The reads give the case's packet and nothing else, or its error."""
    if case.error is None:
        assert receive(case, server, *reads) == [case.packet]
        return
    with pytest.raises(case.error) as caught:
        receive(case, server, *reads)
    assert type(caught.value) is case.error
    assert caught.value.reason_code == case.reason


class TestCases:
    """The table of wire cases."""

    @for_each(("case", "server"), RECEIVED)
    def test_in_any_pieces(self, case: Case, server: bool) -> None:
        """Whole, byte by byte, in two parts wherever it is split; each part alone is incomplete or refused."""
        expect(case, server, case.raw)
        expect(case, server, *(case.raw[i : i + 1] for i in range(len(case.raw))))
        for cut in range(1, len(case.raw)):
            expect(case, server, case.raw[:cut], case.raw[cut:])
        for size in range(len(case.raw)):
            if case.error is None:
                assert receive_prefix(case, server, size) == []
                continue
            try:
                found = receive_prefix(case, server, size)
            except case.error:
                continue
            assert found == []

    @for_each(("case", "server"), RECEIVED_VALID)
    def test_every_shortened_packet_is_decoded_or_refused(self, case: Case, server: bool) -> None:
        """A packet whose declared length is honest and too short: a ProtocolError or a packet, no other exception."""
        body_at = len(case.raw) - _remaining_length(case.raw)
        for size in range(len(case.raw) - body_at):
            raw = case.raw[:1] + varint(size) + case.raw[body_at : body_at + size]
            decoder = Decoder(MAX_PACKET_SIZE, server, case.version)
            decoder.feed(raw + b"\xff" * 8)
            assert decoder.next_frame()
            try:
                decoder.packet()
            except ProtocolError:
                continue
            assert decoder.end == len(raw)

    @for_each(("case", "server"), RECEIVED_VALID)
    def test_bytes_of_the_next_packet_behind_it(self, case: Case, server: bool) -> None:
        decoder = Decoder(MAX_PACKET_SIZE, server, case.version)
        decoder.feed(case.raw * 2 + case.raw[:1])
        for _ in range(2):
            assert decoder.next_frame()
            assert decoder.buffer[decoder.start : decoder.end] == case.raw
            assert decoder.packet() == case.packet
        assert not decoder.next_frame()
        assert pending_size(decoder) == 1
        decoder.feed(case.raw[1:])
        assert drain(decoder) == [case.packet]


@for_each(("case", "server"), RECEIVED)
def test_the_short_way_takes_plain_acknowledgements_alone(case: Case, server: bool) -> None:
    """It reads those that succeed and have no properties, in whatever form; all else is left to `packet`."""
    decoder = Decoder(MAX_PACKET_SIZE, server, case.version)
    decoder.feed(case.raw)
    try:
        there = decoder.next_frame()
    except ProtocolError:
        return
    packet, expected = case.packet, -1
    if isinstance(packet, p.Ack) and packet == p.Ack(packet.kind, packet.packet_id):
        expected = packet.packet_id
    assert not there or decoder.short_ack() == expected


def receive_prefix(case: Case, server: bool, size: int) -> list[Packet]:
    decoder = Decoder(MAX_PACKET_SIZE, server, case.version)
    decoder.feed(case.raw[:size])
    found = drain(decoder)
    assert pending_size(decoder) == size
    return found


def _remaining_length(raw: bytes) -> int:
    length = 0
    for index in range(1, 5):
        length |= (raw[index] & 127) << 7 * (index - 1)
        if raw[index] < 128:
            break
    return length


@given(st.data(), st.sampled_from(VERSIONS), st.booleans())
def test_any_packets_in_any_reads(data: st.DataObject, version: int, server: bool) -> None:
    """Packets one after another, cut anywhere."""
    kinds = client_packets(version) if server else server_packets(version)
    sent = data.draw(st.lists(kinds, max_size=6))
    stream = b"".join(encode(packet, version) for packet in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder = Decoder(LARGEST, server, version)
    found: list[Packet] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.feed(stream[start:stop])
        found.extend(drain(decoder))
    assert found == sent
    assert pending_size(decoder) == 0


@for_each(
    ("head", "tail", "server", "allowed"),
    [
        (b"\x20\x03\x00", b"\x00", False, reason_codes.CONNACK),  # [MQTT-3.2.2-8]
        (b"\x40\x03\x00\x01", b"", True, reason_codes.PUBACK),  # [MQTT-3.4.2-1]
        (b"\x50\x03\x00\x01", b"", True, reason_codes.PUBACK),  # [MQTT-3.5.2-1]
        (b"\x62\x03\x00\x01", b"", True, reason_codes.PUBREL),  # [MQTT-3.6.2-1]
        (b"\x70\x03\x00\x01", b"", True, reason_codes.PUBREL),  # [MQTT-3.7.2-1]
        (b"\x90\x04\x00\x01\x00", b"", False, reason_codes.SUBACK),  # [MQTT-3.9.3-2]
        (b"\xb0\x04\x00\x01\x00", b"", False, reason_codes.UNSUBACK),  # [MQTT-3.11.3-2]
        (b"\xe0\x01", b"", True, reason_codes.DISCONNECT_CLIENT),  # [MQTT-3.14.2-1]
        (b"\xe0\x01", b"", False, (*reason_codes.DISCONNECT_SERVER, 0x8C)),  # [MQTT-3.14.2-1]; 0x8C: section 2.4
        (b"\xf0\x06", b"\x04\x15\x00\x01m", True, (0x18, 0x19)),  # [MQTT-3.15.2-1]
        (b"\xf0\x06", b"\x04\x15\x00\x01m", False, (0x00, 0x18)),  # [MQTT-3.15.2-1]
    ],
)
def test_each_packet_accepts_the_reason_codes_of_its_table_and_no_others(
    head: bytes, tail: bytes, server: bool, allowed: tuple[int, ...]
) -> None:
    """Each packet accepts the reason codes of its table and no others."""
    accepted = []
    for code in range(256):
        decoder = Decoder(100, server, 5)
        decoder.feed(head + bytes((code,)) + tail)
        assert decoder.next_frame()
        try:
            decoder.packet()
        except ProtocolViolation:
            continue
        accepted.append(code)
    assert accepted == sorted(allowed)


def test_publish_before_connect() -> None:
    """[MQTT-3.1.0-1]"""
    decoder = Decoder(100)
    decoder.feed(b"\x30\x03\x00\x01a")
    assert decoder.next_frame()
    with pytest.raises(ProtocolViolation):
        decoder.publish()
