"""What no server may ever do on the wire, checked on every packet of one client over all its connections.

Owns `Judge`. The harness shows it both directions as the broker sees them: what its writer wrote, and what it got.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import Ack, Connack, Connect, Packet, Publish

ANY_SIZE: Final = 268_435_460
"""Bytes: the largest packet there is."""


class Judge:
    """Watches both directions of one client's wire, over all its connections, and asserts what must always hold."""

    def __init__(self) -> None:
        # Sent by the server with QoS 1 or 2 and not acknowledged, in the order of sending, with the frames' sizes;
        # those whose PUBREC came are released.
        self.open: dict[int, Publish] = {}
        self.sizes: dict[int, int] = {}
        self.released: set[int] = set()
        # The same, sent on this connection only; and what is still to be sent again on it.
        self.open_now: set[int] = set()
        self.resend: list[int] = []
        self.receive_maximum = 65_535
        self.max_packet = ANY_SIZE
        self.high_water = 0
        # Topics that access control withholds from the client since it has connected last.
        self.withheld: set[bytes] = set()
        self.enabled = True

    def connecting(self, connect: Connect) -> None:
        """The server gets a CONNECT."""
        self.receive_maximum = connect.properties.integers.get(0x21, 65_535)
        self.max_packet = connect.properties.integers.get(0x27, ANY_SIZE)
        self.open_now = set()

    def from_client(self, packet: Packet) -> None:
        """The server gets a packet."""
        if isinstance(packet, Connect):
            self.connecting(packet)
        elif isinstance(packet, Ack):
            number = packet.packet_id
            done = packet.kind in (p.PUBACK, p.PUBCOMP) or (packet.kind == p.PUBREC and packet.reason_code >= 0x80)
            if done:
                self.open.pop(number, None)
                self.released.discard(number)
                self.open_now.discard(number)
                if number in self.resend:
                    self.resend.remove(number)
            elif packet.kind == p.PUBREC and number in self.open:
                self.released.add(number)
                if number in self.resend:
                    self.resend.remove(number)

    def from_server(self, packet: Packet, size: int) -> None:
        """The server's writer wrote a packet."""
        if isinstance(packet, Connack):
            if packet.reason_code == 0 and not packet.session_present:
                self.open, self.released = {}, set()
            # What has become too large for the client is dropped, as if it had been sent [MQTT-3.1.2-25].
            for number in [each for each in self.open if self.sizes[each] > self.max_packet]:
                if number not in self.released:
                    del self.open[number]
            for number in [each for each, sent in self.open.items() if sent.topic in self.withheld and sent.qos == 1]:
                del self.open[number]
            self.resend = [number for number in self.open if number not in self.released]
        if not self.enabled:
            return
        # [MQTT-3.1.2-24]
        assert size <= self.max_packet, f"{size} bytes to a client that takes {self.max_packet}: {packet!r}"
        if isinstance(packet, Publish) and packet.qos > 0:
            self._publish(packet)
            self.sizes[packet.packet_id] = size
        elif isinstance(packet, Ack) and packet.kind == p.PUBREL and packet.packet_id in self.open:
            # The publish of an earlier connection that this stands for is unacknowledged on this one, too.
            self.open_now.add(packet.packet_id)

    def _publish(self, packet: Publish) -> None:
        number = packet.packet_id
        assert number not in self.open_now, f"packet identifier {number} is in flight"  # [MQTT-2.2.1-4]
        first = self.open.get(number)
        if first is None:
            # [MQTT-3.3.1-3]
            assert not packet.dup, f"DUP on what was not sent before: {packet!r}"
            # [MQTT-4.4.0-1]: what was in flight comes first.
            assert not self.resend, f"{packet!r} before {self.resend} were sent again"
            self.open[number] = packet
        else:
            # [MQTT-3.3.1-1] [MQTT-4.4.0-1]
            assert packet.dup, f"sent again without DUP: {packet!r}"
            # [MQTT-4.3.3-6]
            assert number not in self.released, f"PUBLISH after PUBREL: {packet!r}"
            assert (packet.topic, packet.payload, packet.qos) == (first.topic, first.payload, first.qos)
            # [MQTT-4.6.0-1]
            assert self.resend[:1] == [number], f"{number} was sent again before {self.resend}"
            self.resend.remove(number)
        self.open_now.add(number)
        self.high_water = max(self.high_water, len(self.open_now))
        # [MQTT-3.3.4-9] [MQTT-4.9.0-2]
        assert len(self.open_now) <= self.receive_maximum, f"{self.open_now} above {self.receive_maximum}"
