"""The losses of one client, by cause, for the lifetime of its session.

Owns `Ledger`. The session and each of its connections' outboxes write to the same one; the client is told from it
(`canopy-lost`), and so are the log and `$SYS`.

Promises: a loss costs a few additions, whoever is told: nothing is logged or encoded here. Each loss is reported to the
client once, except expired messages, and is in one log line. Causes are those of `counters.DROP_CAUSES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.core.codec import reasons
from broker.core.counters import DISCONNECTED, DROP_CAUSES, EXPIRED, Counters, add_loss
from broker.core.principal import Principal
from broker.core.refusals import RECEIVE, Record

if TYPE_CHECKING:
    from mypy_extensions import i64


class Ledger(Record):
    """The losses of one client. `dropped`: all of them, by cause; None if there are none."""

    def __init__(self, client_id: str, counters: Counters) -> None:
        super().__init__(client_id)
        # Whose its session was, once that has ended; until then the session tells.
        self.principal: Principal | None = None
        self._counters = counters
        self._load = counters.load
        self.dropped: list[int] | None = None
        # What had been lost when somebody last compared subscribers (`sampling.subscribers`).
        self.compared: i64 = 0
        # What the client has not been told of, and the log; None: nothing.
        self.untold: list[int] | None = None
        self.unreported: list[int] | None = None

    def lost(self, cause: int, count: int) -> None:
        """`count` messages for this client were dropped for `cause`.

        Those that expired are no news to it: their publisher did not want them to come so late.
        """
        self._count(cause, count)
        if self.unreported is None:
            self._load.unreported.append(self)
        self.unreported = add_loss(self.unreported, cause, count)
        if cause != EXPIRED:
            self.untold = add_loss(self.untold, cause, count)

    def away(self) -> None:
        """A QoS 0 message came while the client was away: counted, and no news to a client that knows it was."""
        self._count(DISCONNECTED, 1)

    def barred(self, principal: Principal, topic: bytes, retain: bool) -> None:
        """A message was not sent, since access control does not let the client receive it: a retained one, or one for
        its share group, of which no member may have it."""
        self._counters.denied_deliveries += 1
        self._counters.refusals.note(
            self, principal, RECEIVE, topic.decode(), reasons.NOT_AUTHORIZED, self._load.now, "", 0, retain
        )

    def _count(self, cause: int, count: int) -> None:
        self.dropped = add_loss(self.dropped, cause, count)
        self._counters.dropped[cause] += count
        tap = self._load.tap
        if tap is not None:
            tap.lost_messages(self.client_id, cause, count)

    def in_all(self) -> int:
        """Messages dropped, over all causes."""
        return 0 if self.dropped is None else sum(self.dropped)

    def take_report(self) -> list[int]:
        """The losses that no log line has told of, by cause; from now on they count as told.

        The caller takes the ledger out of `QueueTotals.unreported`.
        """
        taken = self.unreported
        self.unreported = None
        return [0] * len(DROP_CAUSES) if taken is None else taken
