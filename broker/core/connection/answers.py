"""Fits long control packets to one client's Maximum Packet Size and Request Problem Information."""

from __future__ import annotations

from mypy_extensions import i64

from broker.core.codec import reasons
from broker.core.codec.encoder import encode
from broker.core.codec.errors import ProtocolError
from broker.core.codec.framing import LARGEST_PACKET
from broker.core.codec.packets import V5, Connect, Disconnect, Packet, Suback
from broker.core.codec.properties import (
    MAXIMUM_PACKET_SIZE,
    REQUEST_PROBLEM_INFORMATION,
    SERVER_REFERENCE,
    Properties,
)
from broker.core.connection.connect import handshake
from broker.core.connection.phases import ADMITTING, AUTHENTICATING, CONNECTED
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.windows.held import send_promise


class Answers:
    """Encodes and queues control packets for one client, within the limits of its CONNECT."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._version = 0
        # Whether a SUBACK may have properties [MQTT-3.1.2-29]; of our answers only CONNACK and DISCONNECT do besides.
        self._wants_problems = True

    def connecting(self, connect: Connect) -> None:
        """The CONNECT came: how much the client takes, and what it wants to be told."""
        self._version = connect.version
        integers = connect.properties.integers
        self._wants_problems = integers.get(REQUEST_PROBLEM_INFORMATION, 1) != 0
        self._outbox.max_packet = integers.get(MAXIMUM_PACKET_SIZE, LARGEST_PACKET)

    def send(self, packet: Packet, kept: bool = False) -> None:
        """Queue a control packet. One that the client cannot take ends the connection [MQTT-3.1.2-24].

        `kept`: it says that something was done of which a journal was told: it leaves when that is committed.

        A SUBACK goes without its properties where the client takes less [MQTT-3.9.2-1] [MQTT-3.9.2-2], or wants none:
        its Request Problem Information was 0 [MQTT-3.1.2-29].

        Raises:
            ProtocolError: 0x95.
        """
        raw = encode(packet, self._version)
        largest = self._outbox.max_packet
        if isinstance(packet, Suback) and packet.properties and (not self._wants_problems or len(raw) > largest):
            packet.properties = Properties()
            raw = encode(packet, self._version)
        if len(raw) > largest:
            raise ProtocolError("the answer exceeds the client's Maximum Packet Size", reasons.PACKET_TOO_LARGE)
        if kept:
            send_promise(self._outbox, raw, True)
        else:
            self._outbox.control(raw)

    def last(self, phase: i64, reason_code: int, text: str, server_reference: str) -> bytes:
        """What a client hears when this side ends its connection: a DISCONNECT, where the protocol has one.

        That is in 5.0, when a CONNACK has accepted the client [MQTT-3.14.0-1].
        """
        if phase == CONNECTED and self._version == V5:
            moved = reason_code in (reasons.USE_ANOTHER_SERVER, reasons.SERVER_MOVED)
            return self.disconnect(reason_code, text, server_reference if moved else "")
        if phase in (AUTHENTICATING, ADMITTING) and reason_code == reasons.SERVER_SHUTTING_DOWN:
            # Of the reasons for which a server ends a connection, only this one has a CONNACK to tell it.
            return handshake.refusal(self._version, reasons.SERVER_UNAVAILABLE, text, self._outbox.max_packet)
        return b""

    def disconnect(self, reason_code: int, text: str, reference: str = "") -> bytes:
        """A DISCONNECT, to be written last. `reference`: the server to use, of which the client is told where it fits.

        Never longer than the client takes [MQTT-3.14.2-3]; it has no User Property to leave out [MQTT-3.14.2-4].
        """
        packet = Disconnect(reason_code)
        if reference:
            packet.properties.strings[SERVER_REFERENCE] = reference
            if len(encode(packet, self._version)) > self._outbox.max_packet:
                del packet.properties.strings[SERVER_REFERENCE]
        return handshake.with_reason(packet, packet.properties, text, self._outbox.max_packet)
