"""The ledger of one client: its losses by cause, for the lifetime of its session.

Owns the drop causes, which are what an offer answers, and the `Ledger`, to which the session and the buffer of each of
its connections write, and from which the client, the log and `$SYS` are told. Promises: a loss costs some additions,
and is reported later. Each loss is told to a 5.0 client once (but for expired messages), as `canopy-lost` =
`count;cause`, and is in one log line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.framing import fields_end, frame_body, frame_end
from canopy_mqtt.core.codec.primitives import MAX_VARINT, Reader, string, varint
from canopy_mqtt.core.codec.properties import USER_PROPERTY
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.refusals import RECEIVE, Refused

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.counters import Counters

ACCEPTED: Final = -1
"""The message was queued, put in flight, or put in the place of an older one."""

GO_ON: Final = -2
"""Answer of `apply_terms` while nothing is decided: the terms of the subscription leave room."""

EXCLUDED: Final = -3
"""Answer of a session that the message is not for: a link that does not forward it, or a session that has ended."""

NO_ROOM: Final = -5
"""Answer of `SendBuffer.offer_retained`: the retained message waits for room, and is not lost."""

# Why a message that was offered to a session did not reach it. The order is that of `Counters.dropped`.
FULL_MESSAGES: Final = 0
FULL_BYTES: Final = 1
TOO_LARGE: Final = 2
EXPIRED: Final = 3
DISCONNECTED: Final = 4
SESSION_ENDED: Final = 5
AGE: Final = 6
REPLACED: Final = 7
GLOBAL: Final = 8
NO_QUOTA: Final = 9
REFUSED: Final = 10
NOT_AUTHORIZED: Final = 11
DROP_CAUSES: Final[tuple[str, ...]] = (
    "full-messages",
    "full-bytes",
    "too-large",
    "expired",
    "disconnected",
    "session-ended",
    "age",
    "replaced-by-latest",
    "global",
    "no-quota",
    "refused",
    "not-authorized",
)
"""The names, as logs, `$SYS` and the `canopy-lost` property show them; `docs/overload.md` explains each."""


def add_loss(losses: list[int] | None, cause: int, count: int) -> list[int]:
    """Count a loss in a table by cause, which is made where there is none yet, and return the table."""
    if losses is None:
        losses = [0] * len(DROP_CAUSES)
    losses[cause] += count
    return losses


def by_cause(losses: list[int] | None, names: tuple[str, ...] = DROP_CAUSES) -> dict[str, int]:
    """Return the losses of a table by the names of their causes, without causes that have none."""
    return {} if losses is None else {names[cause]: count for cause, count in enumerate(losses) if count}


class Ledger:
    """The losses of one client. `dropped`: all of them, by cause; None if there are none."""

    def __init__(self, client_id: str, counters: Counters) -> None:
        self.client_id = client_id
        self.refused: Refused | None = None
        # The client that its session belonged to, once that has ended; until then the session tells.
        self.principal: Principal | None = None
        self._counters = counters
        self._totals = counters.totals
        self.dropped: list[int] | None = None
        # What had been lost when subscribers were last compared (`observe.sampling.subscribers`).
        self.compared: i64 = 0
        # Losses that the client, and the log, have not been told of; None: there are none.
        self.untold: list[int] | None = None
        self.unreported: list[int] | None = None

    def lost(self, cause: int, count: int) -> int:
        """Count messages for this client that were dropped for `cause`; return the cause.

        Expired ones are no news to it: their publisher did not want them to come so late.
        """
        self._count(cause, count)
        if self.unreported is None:
            self._totals.unreported.append(self)
        self.unreported = add_loss(self.unreported, cause, count)
        if cause != EXPIRED:
            self.untold = add_loss(self.untold, cause, count)
        return cause

    def away(self) -> None:
        """Count a QoS 0 message that came while the client was offline: no news to a client that knows it was."""
        self._count(DISCONNECTED, 1)

    def barred(self, principal: Principal, topic: bytes, retain: bool) -> None:
        """Count a message that access control does not let the client receive: a retained one, or one for its share
        group, of which no member may have it."""
        self._counters.denied_deliveries += 1
        self._counters.refusals.note(
            self, principal, RECEIVE, topic.decode(), reason_codes.NOT_AUTHORIZED, self._totals.now, "", 0, retain
        )

    def _count(self, cause: int, count: int) -> None:
        self.dropped = add_loss(self.dropped, cause, count)
        self._counters.dropped[cause] += count
        if self._totals.tap is not None:
            self._totals.tap.lost_messages(self.client_id, cause, count)
        if self._totals.loss_listener is not None:
            self._totals.loss_listener.lost_messages(self.client_id, cause, count)

    def in_all(self) -> int:
        """Return the messages dropped, over all causes."""
        return 0 if self.dropped is None else sum(self.dropped)

    def take_report(self) -> list[int]:
        """Take the losses that no log line has told of, by cause; from now on they count as told.

        The caller takes the ledger out of `QueueTotals.unreported`.
        """
        taken = self.unreported
        self.unreported = None
        return [0] * len(DROP_CAUSES) if taken is None else taken


# -- what the client is told -------------------------------------------------------------------------------------------

LOST_NAME: Final = b"canopy-lost"
LOST_PROPERTY: Final = bytes((USER_PROPERTY,)) + string(LOST_NAME)
"""The user property that tells of losses: its name, and its bytes up to the value."""

MAX_TRIES: Final = 8
"""Messages of a batch that are tried, where the client takes only small ones."""


def tell(batch: list[bytes], ledger: Ledger, max_packet: i64) -> None:
    """Put the losses that the client was not told of into the first PUBLISH of a batch that has room, if one has.

    As many causes as it takes; the others are told later. The message is otherwise the same, with the publisher's own
    user properties first and in their order [MQTT-3.3.2-18], and within `max_packet` bytes [MQTT-3.1.2-24].
    """
    untold = ledger.untold
    if untold is None:
        return
    sections = [each for each in [property_of(cause, count) for cause, count in enumerate(untold)] if each]
    tries = MAX_TRIES
    at: i64 = 0
    while at < len(batch):
        piece = batch[at]
        # Not in one that is sent again: the client may know it, and look at nothing of it.
        if piece[0] & 0xF8 == 0x30:
            if tries == 0:
                return
            tries -= 1
            end: i64 = frame_end(piece, 0, len(piece))
            frame = piece if end == len(piece) else piece[:end]
            count = len(sections)
            while count > 0:
                noted = with_properties(frame, b"".join(sections[:count]))
                if noted and len(noted) <= max_packet:
                    batch[at] = noted if end == len(piece) else noted + piece[end:]
                    _told(ledger, count)
                    return
                count -= 1
        at += 1


def _told(ledger: Ledger, count: int) -> None:
    """Note that the client was told of the first `count` causes for which it had not been."""
    untold = ledger.untold
    assert untold is not None
    for cause, lost in enumerate(untold):
        if lost > 0 and count > 0:
            untold[cause] = 0
            count -= 1
    if not any(untold):
        ledger.untold = None


def property_of(cause: int, count: int) -> bytes:
    """Return the user property that tells of losses for one cause; empty where there are none."""
    return LOST_PROPERTY + string(f"{count};{DROP_CAUSES[cause]}".encode()) if count > 0 else b""


def with_properties(frame: bytes, section: bytes) -> bytes:
    """Return a whole 5.0 PUBLISH with more properties behind its own; empty where no packet can be so large."""
    body: i64 = frame_body(frame, 0)
    at: i64 = fields_end(frame, body, frame[0] & 0x06)
    reader = Reader(frame, at, len(frame))
    length: i64 = reader.varint()
    start: i64 = at
    at = reader.position
    size = varint(length + len(section))
    remaining: i64 = len(frame) - body + len(size) - (at - start) + len(section)
    if remaining > MAX_VARINT:
        return b""
    return b"".join(
        (frame[:1], varint(remaining), frame[body:start], size, frame[at : at + length], section, frame[at + length :])
    )
