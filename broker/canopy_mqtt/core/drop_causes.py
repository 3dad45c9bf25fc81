"""The answers to an offer: the message was accepted, or is dropped for a cause.

Owns the drop causes, which are indexes of `Counters.dropped`, their names, and the few answers that are no loss (below
0). A queue, a session and the fan-out answer with these.
"""

from __future__ import annotations

from typing import Final

ACCEPTED: Final = -1
"""The message was queued, put in flight, or put in the place of an older one."""

GO_ON: Final = -2
"""Answer of `make_room_in` while nothing is decided: the terms of the subscription leave room."""

EXCLUDED: Final = -3
"""Answer of a session that the message is not for: a link that does not forward it, or a session that has ended."""

NO_ROOM: Final = -5
"""Answer of `RetainedStreams.send`: the retained message waits for room, and is not lost."""

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
