"""Fits control packets with properties to one client's Maximum Packet Size and Request Problem Information."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import V5, V311, Connack, Disconnect, Packet
from canopy_mqtt.core.codec.properties import REASON_STRING, SERVER_REFERENCE, Properties
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.hooks import Confirmed
from canopy_mqtt.core.protocol.phases import ADMITTING, AUTHENTICATING, CONNECTED
from canopy_mqtt.core.queues.held import send_promise

if TYPE_CHECKING:
    from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
    from canopy_mqtt.core.queues.send_buffer import SendBuffer
    from canopy_mqtt.core.session.session import Session


class LateSuback(Confirmed):
    """A SUBACK that is sent once the other nodes of the cluster know the filters, or are not waited for any longer."""

    def __init__(self, protocol: ServerProtocol, session: Session) -> None:
        super().__init__(session.client_id, session.account.owner)
        self.packet = b""
        self.kept = False  # as in `send`
        self._protocol = protocol
        self._session = session

    def confirmed(self) -> None:
        """Send it, if its connection still exists."""
        if self._protocol.session is self._session:
            send(self._protocol.send_buffer, self.packet, self.kept)


def send(send_buffer: SendBuffer, packet: bytes, kept: bool = False, late: LateSuback | None = None) -> None:
    """Queue a control packet. One that the client cannot take ends the connection [MQTT-3.1.2-24].

    `kept`: it says that something was done of which a journal was told: it leaves when that is committed. `late`: it
    gets the packet instead.

    Raises:
        ProtocolError: 0x95.
    """
    if len(packet) > send_buffer.max_packet:
        raise ProtocolError("the answer exceeds the client's Maximum Packet Size", reason_codes.PACKET_TOO_LARGE)
    if late is not None:
        late.packet = packet
        late.kept = kept
    elif kept:
        send_promise(send_buffer, packet, True)
    else:
        send_buffer.control(packet)


def last(protocol: ServerProtocol, phase: i64, reason_code: int, text: str) -> bytes:
    """Make the packet with which this side ends a connection in a phase: a DISCONNECT, where the protocol has one.

    That is in 5.0, when a CONNACK has accepted the client [MQTT-3.14.0-1].
    """
    if phase == CONNECTED and protocol.v5:
        moved = reason_code in (reason_codes.USE_ANOTHER_SERVER, reason_codes.SERVER_MOVED)
        return disconnect(protocol, reason_code, text, protocol.router.limits.server_reference if moved else "")
    if phase in (AUTHENTICATING, ADMITTING) and reason_code == reason_codes.SERVER_SHUTTING_DOWN:
        # Of the reasons for which a server ends a connection, only this one has a CONNACK to tell it.
        return refusal(protocol.version, reason_codes.SERVER_UNAVAILABLE, text, protocol.send_buffer.max_packet)
    return b""


def disconnect(protocol: ServerProtocol, reason_code: int, text: str, reference: str = "") -> bytes:
    """Make a DISCONNECT, to be written last. `reference`: the server to use, of which the client is told where it fits.

    Never longer than the client takes [MQTT-3.14.2-3]; it has no User Property to leave out [MQTT-3.14.2-4].
    """
    max_packet = protocol.send_buffer.max_packet
    packet = Disconnect(reason_code)
    if reference:
        packet.properties.strings[SERVER_REFERENCE] = reference
        if len(encode(packet, protocol.version)) > max_packet:
            del packet.properties.strings[SERVER_REFERENCE]
    return _with_reason(packet, packet.properties, text, max_packet)


def refusal(version: int, reason_code: int, text: str, max_packet: int) -> bytes:
    """Make the CONNACK with which a CONNECT is refused; empty where the protocol has none.

    `version` 0: no CONNECT was understood. Then only an unsupported version is answered, in the old form that every
    client knows [MQTT3-3.1.2-2]; anything else is closed without a word, since the peer may not speak MQTT at all.
    """
    if version == V5:
        connack = Connack(False, reason_code)
        # The Reason String is left out where it would exceed what the client takes [MQTT-3.2.2-19], and a client that
        # takes less than a CONNACK gets none.
        made = _with_reason(connack, connack.properties, text, max_packet)
        return made if len(made) <= max_packet else b""
    if version == 0 and reason_code != reason_codes.UNSUPPORTED_PROTOCOL_VERSION:
        return b""
    code = reason_codes.v3_connack(reason_code)
    if code < 0:
        return b""  # [MQTT3-3.2.2-6]
    return encode(Connack(False, code), V311)


def _with_reason(packet: Packet, properties: Properties, text: str, max_packet: int) -> bytes:
    """Encode a packet of 5.0 with a Reason String, if there is one and the client takes so much; else without.

    `properties` are the packet's own.
    """
    plain = encode(packet, V5)
    if not text:
        return plain
    properties.strings[REASON_STRING] = text
    told = encode(packet, V5)
    return told if len(told) <= max_packet else plain
