"""The packets of one client, on all of its connections.

Owns: `PacketLog`, and the line in which a packet is shown.

Promises: bytes are kept as they were written and read, and decoded when somebody wants to see them. No line has a
password or a payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from canopy_load.ledger.history import Stream
from canopy_load.ledger.streams import Streams
from canopy_mqtt.core.codec import packets
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from canopy_mqtt.core.codec.reason_codes import ProtocolError


class Seen(NamedTuple):
    """A packet. `connection`: the number of its `Connect` in the history; `message`: of a PUBLISH of this run."""

    at: float
    connection: int
    sent: bool
    packet: Packet
    message: tuple[Stream, int] | None = None

    @property
    def packet_id(self) -> int:
        """0: it has none."""
        packet = self.packet
        if isinstance(packet, Publish | Ack | Subscribe | Suback | Unsubscribe | Unsuback):
            return packet.packet_id
        return 0


class PacketLog:
    """What one client wrote and read."""

    def __init__(self, version: int, streams: Streams) -> None:
        self._version = version
        self._streams = streams
        self._pieces: list[tuple[float, int, bool, bytes]] = []
        self._seen: list[Seen] = []
        """The packets of all pieces; empty: nobody wanted to see them since the last piece."""

    def note(self, at: float, connection: int, sent: bool, data: bytes) -> None:
        """Note a write, or a read, on a connection."""
        self._pieces.append((at, connection, sent, data))
        self._seen = []

    def packets(self) -> list[Seen]:
        """Return the packets, in order; of a broken packet and what follows on its connection, nothing."""
        self._seen = self._seen or list(self._decoded())
        return self._seen

    def _decoded(self) -> Iterator[Seen]:
        decoders: dict[tuple[int, bool], Decoder] = {}
        for at, connection, sent, data in self._pieces:
            decoder = decoders.setdefault((connection, sent), Decoder(MAX_PACKET, sent, self._version))
            try:
                decoder.feed(data)
                while decoder.next_frame():
                    packet = decoder.packet()
                    yield Seen(at, connection, sent, packet, self._message(packet))
            except ProtocolError:
                decoders[connection, sent] = Decoder(0, sent, self._version)

    def _message(self, packet: Packet) -> tuple[Stream, int] | None:
        found = self._streams.read(packet.payload) if isinstance(packet, Publish) else None
        return None if found is None else (found[0], found[1])


class _NoLog(PacketLog):
    """It keeps nothing."""

    def note(self, at: float, connection: int, sent: bool, data: bytes) -> None:
        pass


NO_LOG: Final[PacketLog] = _NoLog(packets.V5, Streams(0))


def told(seen: Seen, client: str, origin: float) -> str:
    """Return a packet as a line for people; the time in seconds after `origin`."""
    packet = seen.packet
    words = [packets.NAMES[packet.kind]]
    if seen.packet_id:
        words.append(f"id {seen.packet_id}")
    match packet:
        case Connect():
            words += ["clean"] if packet.clean_start else []
            words += [f"keep alive {packet.keep_alive} s"] if packet.keep_alive else []
            words += [f"will {packet.will.topic}"] if packet.will is not None else []
        case Connack():
            words.append(f"0x{packet.reason_code:02x}, Session Present {int(packet.session_present)}")
        case Publish():
            number = "" if seen.message is None else f" number {seen.message[1]} of {seen.message[0][0]}"
            words.append(f"{packet.topic.decode(errors='replace')}{number}, QoS {packet.qos}")
            words += [name for name, on in (("DUP", packet.dup), ("RETAIN", packet.retain)) if on]
        case Ack() | Disconnect():
            words += [f"0x{packet.reason_code:02x}"] if packet.reason_code else []
        case Subscribe():
            words += [f"{each.topic_filter} QoS {each.qos}" for each in packet.requests]
        case Unsubscribe():
            words += packet.topic_filters
        case Suback() | Unsuback():
            words += [f"0x{code:02x}" for code in packet.reason_codes]
    way = "->" if seen.sent else "<-"
    return f"{seen.at - origin:9.3f} s  {client} {way} {' '.join(words)} (connection {seen.connection})"
