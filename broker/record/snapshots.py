"""Who is subscribed to what, told again while the broker is at work.

Owns the walk over all subscriptions: some in each turn of the recorder, never beyond half of its queue, so that 100,000
sessions hold nobody up and make no gap. What changes meanwhile is told as it happens: whoever reads all events from the
walk's first number to its `snapshot` event knows who is subscribed to what then.
"""

from __future__ import annotations

from typing import Final

from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.core.tap import Tap
from broker.core.topics.subscription import Subscription

STEP: Final = 512
"""Subscriptions, and sessions looked at, in one turn: a millisecond."""


class Snapshot:
    """One walk."""

    def __init__(self, router: Router, tap: Tap) -> None:
        self._router = router
        self._tap = tap
        self._first = tap.seq + 1
        self._told = 0
        # Whom the walk has still to come to, the next one last; of one session, what of it is left.
        self._sessions: list[Session] = list(router.sessions.values())
        self._left: list[Subscription] = []
        self._of: Session | None = None

    def turn(self, most: int = STEP) -> bool:
        """Tell up to `most` subscriptions, of up to `most` sessions. True when that was the last one."""
        looked = told = 0
        while told < most:
            if self._left:
                subscription = self._left.pop()
                # Taken back or replaced meanwhile: that was told when it happened.
                if self._of is not None and self._of.subscriptions.get(subscription.topic_filter) is subscription:
                    self._router.table.tell(subscription, True)
                    told += 1
                continue
            if looked == most:
                break
            if not self._sessions:
                self._told += told
                self._tap.snapshot(self._first, self._told)
                return True
            looked += 1
            self._of = session = self._sessions.pop()
            # Of one that is over, the ends of its subscriptions are being told.
            if self._router.sessions.get(session.client_id) is session:
                self._left = list(session.subscriptions.values())
        self._told += told
        return False
