"""Secrets are in nothing that a trace keeps, whatever the packet; everything else is where it was."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.observe.trace.masking import masked
from tests.e2e import wire
from tests.support.runs import examples, for_each

SECRET = b"\x00correct horse battery staple\xff"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJib2IifQ.c2lnbmF0dXJl"
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@st.composite
def connects(draw: st.DrawFn) -> tuple[int, bytes]:
    """A CONNECT with a password, and with authentication data where the version has it; its version."""
    version = draw(st.sampled_from([4, 5]))
    properties: list[tuple[int, wire.Value]] = []
    if version == 5 and draw(st.booleans()):
        properties += [(wire.AUTH_METHOD, draw(names)), (wire.AUTH_DATA, SECRET)]
    if version == 5 and draw(st.booleans()):
        properties += [(wire.SESSION_EXPIRY, 5), (wire.USER_PROPERTY, ("name", draw(names)))]
    will = None
    if draw(st.booleans()):
        will = wire.Will("will/topic", draw(st.binary(max_size=40)), properties=[(wire.WILL_DELAY, 3)])
    user = draw(st.one_of(names, st.just(TOKEN)))
    return version, wire.connect(
        draw(names), version=version, will=will, user=user, password=SECRET, props=properties, keep_alive=7
    )


class TestConnect:
    @given(connects())
    @settings(max_examples=examples(300), deadline=None)
    def test_no_secret_is_left_and_the_layout_is_as_it_was(self, made: tuple[int, bytes]) -> None:
        version, packet = made
        shown = masked(packet, version)
        assert len(shown) == len(packet)
        assert SECRET not in shown
        assert TOKEN.encode() not in shown
        stars = b"*" * len(SECRET)
        expected = packet.replace(SECRET, stars).replace(TOKEN.encode(), b"*" * len(TOKEN))
        assert shown == expected

    @given(connects(), st.integers(0, 400))
    @settings(max_examples=examples(300), deadline=None)
    def test_of_one_that_is_cut_off_nothing_is_left_that_was_not_understood(
        self, made: tuple[int, bytes], kept: int
    ) -> None:
        version, packet = made
        shown = masked(packet[:kept], version)
        assert len(shown) == len(packet[:kept])
        for size in range(4, len(SECRET) + 1):
            assert SECRET[:size] not in shown

    @given(connects(), st.data())
    @settings(max_examples=examples(600), deadline=None)
    def test_nor_of_one_that_is_not_well_formed(self, made: tuple[int, bytes], data: st.DataObject) -> None:
        """A byte before the first secret is another one: what is a secret cannot be known any more."""
        version, packet = made
        at = data.draw(st.integers(2, packet.index(SECRET) - 3))
        broken = packet[:at] + bytes([packet[at] ^ data.draw(st.integers(1, 255))]) + packet[at + 1 :]
        decoder = Decoder(MAX_PACKET)
        decoder.feed(broken)
        try:
            whole = decoder.next_frame()
            connect = decoder.packet() if whole else None
        except ProtocolError:
            connect = None
        if connect is None:
            assert SECRET not in masked(broken, version)
        else:
            # Still a CONNECT, perhaps of other fields: its own secrets are in none of them.
            assert isinstance(connect, Connect)
            shown = masked(broken, version)
            if connect.password and connect.password != connect.client_id.encode():
                assert connect.password not in shown or set(connect.password) <= {0x2A} or len(connect.password) < 8

    def test_what_stands_behind_a_password_is_not_shown(self) -> None:
        packet = wire.connect("c", version=4, user="u", password=b"pw")
        behind = bytes([packet[0], packet[1] + 4]) + packet[2:] + b"leak"
        assert masked(behind, 4).endswith(b"**" + b"****")


class TestOthers:
    def test_authentication_data_of_an_auth_and_a_connack(self) -> None:
        section = wire.properties([(wire.AUTH_METHOD, "SCRAM"), (wire.AUTH_DATA, SECRET), (wire.REASON_STRING, "why")])
        for packet in (
            wire.packet(wire.AUTH, 0, b"\x18" + section),
            wire.packet(wire.CONNACK, 0, b"\0\0" + section),
        ):
            assert masked(packet, 5) == packet.replace(SECRET, b"*" * len(SECRET))

    @for_each(
        "packet",
        [
            wire.publish("t", b"payload", qos=1, packet_id=3, props=[(wire.USER_PROPERTY, ("name", "private"))]),
            wire.ack(wire.PUBACK, 3, 0x10, [(wire.USER_PROPERTY, ("name", "private"))]),
            wire.subscribe(3, [("t", 1)], [(wire.USER_PROPERTY, ("name", "private"))]),
            wire.disconnect(0, [(wire.USER_PROPERTY, ("name", "private"))]),
        ],
        ids=["PUBLISH", "PUBACK", "SUBSCRIBE", "DISCONNECT"],
    )
    def test_user_properties_are_shown_as_payloads_are(self, packet: bytes) -> None:
        assert masked(packet, 5) == packet

    def test_of_very_many_properties_those_behind_the_first_are_not_shown(self) -> None:
        """To look at 65,536 bytes of them would take 10 ms, for each packet of whoever wants that."""
        many: list[tuple[int, wire.Value]] = [(wire.USER_PROPERTY, ("", f"{number:04}")) for number in range(1_000)]
        for packet, version in (
            (wire.packet(wire.AUTH, 0, b"\x18" + wire.properties([*many, (wire.AUTH_DATA, SECRET)])), 5),
            (wire.connect("c", props=many, password=SECRET, user="u"), 5),
        ):
            shown = masked(packet, version)
            assert SECRET not in shown
            assert b"0999" not in shown
            assert shown.endswith(b"*" * 700 * 9)

    def test_what_comes_in_place_of_a_connect_is_not_shown(self) -> None:
        """A browser on the wrong port sends its passwords, too."""
        request = b"GET / HTTP/1.1\r\nAuthorization: Basic c2VjcmV0\r\n\r\n"
        assert masked(request, 0) == request[:2] + b"*" * (len(request) - 2)

    @given(st.binary(max_size=200), st.sampled_from([0, 3, 4, 5]))
    @settings(max_examples=examples(500), deadline=None)
    def test_it_never_raises_and_never_changes_a_length(self, data: bytes, version: int) -> None:
        assert len(masked(data, version)) == len(data)
