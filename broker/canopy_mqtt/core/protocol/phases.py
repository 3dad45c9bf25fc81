"""The phases of a connection, and what each packet from its client means in each of them.

Rule 1: every change of phase is in `NEXT`, and every packet that is allowed or not is in `ACTIONS`. The driver of a
connection asks both, and decides nothing of this itself.
Rule 2: this file knows packet types only. The handler of a packet judges its content.
Rule 3: a packet that is not allowed ends the connection; `ERRORS` has the error.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

CONNECTING: Final = 0
"""Nothing has come but bytes of a CONNECT."""
AUTHENTICATING: Final = 1
"""Its CONNECT named an authentication method, and the exchange goes on (section 4.12)."""
ADMITTING: Final = 2
"""Access control decides about its CONNECT, or its session is claimed. What has come behind it waits, unread."""
CONNECTED: Final = 3
"""A CONNACK has accepted it."""
CLOSED: Final = 4
"""Over: nothing is read any more, whatever becomes of the socket."""

PHASES: Final = ("connecting", "authenticating", "admitting", "connected", "closed")

NEXT: Final[list[list[int]]] = [
    [AUTHENTICATING, ADMITTING, CONNECTED, CLOSED],
    [ADMITTING, CONNECTED, CLOSED],
    [CONNECTED, CLOSED],
    [CLOSED],
    [],
]
"""The phases that may follow each."""

_FOLLOWING: Final[bytes] = bytes([sum([1 << to for to in following]) for following in NEXT])
"""The same, a bit for each, in a byte for each phase."""

# What is done with a packet.
OPEN: Final = 1
EXCHANGE: Final = 2
PUBLISH: Final = 3
ACKNOWLEDGE: Final = 4
FILTERS: Final = 5
PING: Final = 6
LEAVE: Final = 7
WAIT: Final = 8

# Why it may not come; from here on all are errors.
NOT_CONNECT: Final = 64
SECOND_CONNECT: Final = 65
TOO_EARLY: Final = 66
FROM_SERVER: Final = 67
OVER: Final = 68

ERRORS: Final[dict[int, str]] = {
    NOT_CONNECT: "the first packet is not CONNECT",  # [MQTT-3.1.0-1]
    SECOND_CONNECT: "a second CONNECT",  # whatever it says [MQTT-3.1.0-2]
    TOO_EARLY: "only AUTH or DISCONNECT may come before CONNACK",  # [MQTT-3.1.2-30]
    FROM_SERVER: "a packet that only a server sends",
    OVER: "a packet behind the end of the connection",  # [MQTT-3.1.4-6] [MQTT-3.14.4-1]
}
"""The text of each error; all of them are Protocol Errors (0x82)."""

_NO: Final = NOT_CONNECT
_2ND: Final = SECOND_CONNECT
_SOON: Final = TOO_EARLY
_SRV: Final = FROM_SERVER

ACTIONS: Final[bytes] = bytes(
    [
        # By packet type: reserved, CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP,
        # SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH.
        # Connecting.
        *(_NO, OPEN, _NO, _NO, _NO, _NO, _NO, _NO),
        *(_NO, _NO, _NO, _NO, _NO, _NO, _NO, _NO),
        # Authenticating.
        *(_SRV, _2ND, _SRV, _SOON, _SOON, _SOON, _SOON, _SOON),
        *(_SOON, _SRV, _SOON, _SRV, _SOON, _SRV, LEAVE, EXCHANGE),
        # Admitting.
        *([WAIT] * 16),
        # Connected.
        *(_SRV, _2ND, _SRV, PUBLISH, ACKNOWLEDGE, ACKNOWLEDGE, ACKNOWLEDGE, ACKNOWLEDGE),
        *(FILTERS, _SRV, FILTERS, _SRV, PING, _SRV, LEAVE, EXCHANGE),
        # Closed.
        *([OVER] * 16),
    ]
)
"""The action for a packet type in a phase: at `phase * 16 + type`."""


def action(phase: i64, kind: i64) -> i64:
    """Return what a packet of a type means in a phase: one of the actions, or from `NOT_CONNECT` on an error."""
    return ACTIONS[(phase << 4) + kind]


def follow(phase: i64, to: i64) -> i64:
    """The phase `to`, when it may follow `phase`. CLOSED follows each: `ServerProtocol.end` need not ask.

    Raises:
        RuntimeError: it may not: a fault of this program.
    """
    allowed: i64 = _FOLLOWING[phase]
    if not allowed >> to & 1:
        raise RuntimeError(f"a connection that is {PHASES[phase]} cannot be {PHASES[to]} next")
    return to
