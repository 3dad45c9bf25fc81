"""The states of a client's connection, the events that end it, and what each event does in each state.

Rule 1: `Connection.end` and `Connection.end_later` are the only doors; this table decides.
Rule 2: any event may come in any state and any number of times; `_____` ignores it.
Rule 3: the protocol ends (P) once for a connection that was OPEN and never for another; it is forgotten (F) once, and
its state is GONE only when its socket is.
"""

from __future__ import annotations

from typing import Final

NEW: Final = 0
"""It has no place in the table of connections: it begins, or it was turned away."""
OPEN: Final = 1
FLUSHING: Final = 2
"""Its protocol is over, and the last packets leave."""
LINGERING: Final = 3
"""Our half of the socket is closed, and the peer's FIN is awaited."""
CLOSING: Final = 4
"""The transport is closed, and `connection_lost` is awaited, which comes when all was written."""
ABORTED: Final = 5
"""The transport is aborted, and `connection_lost` is certain."""
GONE: Final = 6

STATES: Final = ("new", "open", "flushing", "lingering", "closing", "aborted", "gone")

# The events. The first five can be what a connection that is OPEN is due to: a stronger one replaces a weaker one.
CLOSE: Final = 0
"""The broker ends the connection, with a reason code; or its core has done so."""
LEFT: Final = 1
"""The client's DISCONNECT came."""
PEER_CLOSED: Final = 2
"""The peer sends and reads nothing more, and its socket still exists: a WebSocket's close frame, an EOF."""
ABORT: Final = 3
"""The peer has stopped reading, or the broker has a fault: nothing more is written."""
SOCKET_LOST: Final = 4
"""The transport is gone (`connection_lost`)."""
DRAINED: Final = 5
"""All that waited was written to the transport."""
TIMEOUT: Final = 6
"""The linger time is over."""
TURN: Final = 7
"""A connection that is due has its turn: its event happens, and there is room for it."""

EVENTS: Final = ("close", "left", "peer-closed", "abort", "socket-lost", "drained", "timeout", "turn")

# The actions, in the order in which they are done; the lowest three bits of a cell are the next state.
Q: Final = 0x008
"""Only in a round that has room for it; else the connection stays, is due, and has a turn (`Rounds.end`)."""
P: Final = 0x010
"""End the protocol, which does nothing where the core has ended it already, and count the connection no more."""
T: Final = 0x020
"""Start the linger timer."""
S: Final = 0x040
"""Stop reading: what comes behind a DISCONNECT is not read."""
W: Final = 0x080
"""Write the final packet and close our half; close the whole where nothing is to be said, or there is no half."""
C: Final = 0x100
"""Close the transport."""
X: Final = 0x200
"""Abort the transport."""
F: Final = 0x400
"""Forget the connection: its timer, its place, and what refers to it."""
E: Final = 0x800
"""Log a fault: a transport says only once that it is gone."""

STATE: Final = 0x007
"""The bits of a cell with the next state."""

_____: Final = 0
"""Nothing happens."""

_DUE: Final = _____
"""`Connection.end` has put the event that is due in the place of the turn."""

TABLE: Final[tuple[int, ...]] = (
    # NEW
    *(X | ABORTED, _____, X | ABORTED, X | ABORTED, F | GONE, _____, _____, _____),
    # OPEN: close, left, peer closed, abort, socket lost, drained, timeout, turn
    *(P | T | FLUSHING, P | T | S | FLUSHING, Q | P | T | C | CLOSING, P | X | ABORTED),
    *(Q | P | F | GONE, _____, _____, _DUE),
    # FLUSHING
    *(_____, _____, C | CLOSING, X | ABORTED, F | GONE, W | LINGERING, X | ABORTED, _____),
    # LINGERING
    *(_____, _____, C | CLOSING, X | ABORTED, F | GONE, _____, X | ABORTED, _____),
    # CLOSING
    *(_____, _____, _____, X | ABORTED, F | GONE, _____, X | ABORTED, _____),
    # ABORTED
    *(_____, _____, _____, _____, F | GONE, _____, _____, _____),
    # GONE
    *(_____, _____, _____, _____, E | GONE, _____, _____, _____),
)
"""The effect of an event in a state, at `state * 8 + event`: the actions and the next state."""
