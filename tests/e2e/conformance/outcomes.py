"""How a broker ends a connection, as assertions: what it may say, and that it says nothing else.

The reason codes asked for are those that the 5.0 specification names. Where it names none for a fault, a set is
given. In 3.1.1 a server has no packet to complain with: the connection closes, and that is all. This broker always
says in 5.0 why it closes; an outside broker need not, since the specification only permits it.
"""

from __future__ import annotations

from collections.abc import Collection

from tests.e2e.conftest import OUTSIDE
from tests.e2e.wire import CONNACK, DISCONNECT, PINGRESP, Packet, Peer

MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
BAD_TOPIC_NAME = 0x90
BAD_TOPIC_FILTER = 0x8F
UNREADABLE = (MALFORMED, PROTOCOL_ERROR)
"""Either way of saying that a packet breaks the protocol, where the specification leaves open which it is."""

# Table 3-1 and section 3.14.2.1: the codes a server may use.
CONNACK_CODES = {
    *(0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A),
    *(0x9B, 0x9C, 0x9D, 0x9F),
}
DISCONNECT_CODES = {
    *(0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98),
    *(0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2),
}


async def refused(peer: Peer, codes: Collection[int]) -> None:
    """CONNECT is refused: in 5.0 by a CONNACK of one of `codes`, in 3.1.1 (with 0 in `codes`) by closing alone.

    A CONNACK that refuses has Session Present 0 and is followed by the end of the connection, and by nothing else:
    no DISCONNECT, no answer to what was sent behind the CONNECT.
    """
    packets = await peer.closed()
    if not packets and (0 in codes or (OUTSIDE and peer.version == 5)):
        return
    assert [packet.kind for packet in packets] == [CONNACK], packets
    assert packets[0].code in codes, f"0x{packets[0].code:02x}"
    assert packets[0].code in (CONNACK_CODES if peer.version == 5 else range(1, 6))
    assert not packets[0].session_present


async def thrown_out(peer: Peer, codes: Collection[int]) -> list[Packet]:
    """The connection is closed by the broker: in 5.0 after a DISCONNECT of one of `codes`, in 3.1.1 without a word.

    Returns what came before. After the DISCONNECT comes nothing.
    """
    packets = await peer.closed()
    if peer.version == 5 and not (OUTSIDE and not packets):
        assert packets, "closed without a DISCONNECT"
        last = packets.pop()
        assert last.kind == DISCONNECT, last
        assert last.code in codes, f"0x{last.code:02x}"
        assert last.code in DISCONNECT_CODES
    assert not [packet for packet in packets if packet.kind in (DISCONNECT, PINGRESP)], packets
    return packets


async def alive(peer: Peer) -> None:
    """The connection works, and nothing unasked for came on it."""
    assert await peer.fence() == []
