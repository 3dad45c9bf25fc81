"""A client for tests that want single packets: it sends what it is given and hands out what comes, by the core's codec.

It never acknowledges, pings or reconnects by itself: that is left to the test.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from canopy_mqtt.client.machine import connect_packet
from canopy_mqtt.core.codec import encoder, packets
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import (
    Ack,
    Connack,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)

P = TypeVar("P", bound=Packet)

TIMEOUT: Final = 5.0
"""Seconds that `receive` waits."""


class RawClient:
    """One connection to 127.0.0.1. A context manager; all of it blocks."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        self._decoder = Decoder(MAX_PACKET, False, packets.V5)
        self._next_id = 0
        self._name = f"127.0.0.1:{port}"
        self.version = packets.V5

    def __repr__(self) -> str:
        return f"<RawClient {self._name}{' (closed)' if self._socket.fileno() < 0 else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self, client_id: str = "", **options: Any) -> Connack:
        """Send CONNECT, and return its CONNACK, whatever it says. `options`: `version` 4 or 5, `clean_start`,
        `session_expiry`, `keep_alive` (0 unless it is given), `user_name`, `password`, `will`, and others of
        `connect_packet`."""
        packet = connect_packet(client_id, **{"keep_alive": 0, **options})
        self.version = self._decoder.version = packet.version
        self._name = f"{client_id!r} to {self._name.rpartition(' ')[2]}"
        self.send(packet)
        return self.expect(Connack)

    def subscribe(self, *topic_filters: str, qos: int = 0) -> Suback:
        """Send SUBSCRIBE, and return its SUBACK. Messages that come before it are an error of the test: receive them
        first."""
        self.send(Subscribe(self.packet_id(), [SubscriptionRequest(each, qos) for each in topic_filters]))
        return self.expect(Suback)

    def publish(self, topic: str, payload: bytes = b"", *, qos: int = 0, retain: bool = False) -> int:
        """Send PUBLISH, and return its packet identifier, 0 for QoS 0. Waits for nothing."""
        packet_id = self.packet_id() if qos else 0
        self.send(Publish(topic.encode(), payload, qos, retain, False, packet_id))
        return packet_id

    def ack(self, packet: Publish) -> None:
        """Send PUBACK or PUBREC for a message."""
        self.send(Ack(packets.PUBACK if packet.qos == 1 else packets.PUBREC, packet.packet_id))

    def disconnect(self) -> None:
        """Send DISCONNECT and close the connection."""
        self.send(Disconnect())
        self.close()

    def packet_id(self) -> int:
        """Return the next packet identifier."""
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    def send(self, *each: Packet | bytes) -> None:
        """Send packets, or bytes as they are."""
        data = [item if isinstance(item, bytes) else encoder.encode(item, self.version) for item in each]
        self._socket.sendall(b"".join(data))

    def receive(self, timeout: float = TIMEOUT) -> Packet | None:
        """Return the next packet; None: the broker has closed the connection.

        Raises:
            TimeoutError: none came within `timeout` seconds.
            ConnectionError: the connection was reset.
        """
        self._socket.settimeout(timeout)
        while not self._decoder.next_frame():
            data = self._socket.recv(65_536)
            if not data:
                return None
            self._decoder.feed(data)
        return self._decoder.packet()

    def expect(self, kind: type[P], timeout: float = TIMEOUT) -> P:
        """Return the next packet, which has to be of this class. Raises AssertionError."""
        __tracebackhide__ = True
        try:
            packet = self.receive(timeout)
        except TimeoutError:
            raise AssertionError(f"no {kind.__name__} within {timeout:g} s") from None
        if not isinstance(packet, kind):
            found = "the end of the connection" if packet is None else repr(packet)
            raise AssertionError(f"expected {kind.__name__}, received {found}")
        return packet

    def close(self) -> None:
        """Close the connection without a DISCONNECT."""
        self._socket.close()
