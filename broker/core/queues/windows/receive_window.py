"""Counts a peer's QoS 1 and 2 publishes whose last acknowledgement is not written yet (section 3.3.4).

A publish of the peer ends with our PUBACK, our PUBCOMP, or a PUBREC that refuses it. What the peer cannot have seen
still counts against its Receive Maximum: such a packet counts until it is written. A PUBCOMP for an unknown identifier
ends nothing, and one for a publish of an earlier connection ends none of this one. The session counts QoS 2 publishes
that wait for PUBREL.
"""

from __future__ import annotations

from mypy_extensions import i64


def ended_publishes(packet: bytes) -> i64:
    """Of how many publishes the acknowledgements in a piece are the last; any control packet may be asked about.

    A piece is one acknowledgement, or several of four bytes of one kind. 3.1.1 has no reason codes: there every PUBCOMP
    counts, as one packet more that the peer has to read.
    """
    kind: i64 = packet[0]
    size: i64 = len(packet)
    whole = size & 3 == 0
    if kind == 0x40:
        if whole:
            return size >> 2
        return 1
    if kind == 0x70:
        # With a reason code it is "Packet Identifier not found", or success of an earlier connection's publish.
        if whole:
            return size >> 2
        return 0
    if kind == 0x50 and not whole and packet[4] >= 0x80:
        return 1
    return 0


def uncounted_pubcomp(packet_id: int) -> bytes:
    """A PUBCOMP of 5.0 with success that ends no publish of its connection: it has its reason code written out."""
    return bytes((0x70, 3, packet_id >> 8, packet_id & 0xFF, 0))


class ReceiveWindow:
    """The counts of one connection. Neither is ever negative."""

    def __init__(self) -> None:
        # Last acknowledgements that are queued and not written.
        self.unwritten: i64 = 0
        # Those that are not even queued yet: something has to happen first. What waits for a commit: in bytes as well.
        self.held: i64 = 0
        self.held_bytes: i64 = 0

    def queued(self, packet: bytes) -> None:
        """A control packet was queued."""
        self.unwritten += ended_publishes(packet)

    def written(self, packet: bytes) -> None:
        """A control packet that was queued has been written."""
        self.unwritten -= ended_publishes(packet)

    def all_written(self) -> None:
        """Everything that was queued has been written."""
        self.unwritten = 0
