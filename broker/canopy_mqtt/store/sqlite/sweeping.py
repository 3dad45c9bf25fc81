"""Removes what ended sessions left in the file, a piece at a time, between groups.

Owns the progress. A session ends with its own row; its subscriptions, packet identifiers and deliveries then belong to
no session, and are skipped when the file is read. Promises: a piece is one transaction, bounded in rows and in bytes; a
round visits each delivery once, for any number of sessions.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Final

from canopy_mqtt.store.sqlite import schema

SEEN: Final = 20_000
"""Deliveries that a piece looks at; some 10 ms."""

REMOVED: Final = 2_000
"""Rows that a piece removes; some 10 ms."""

REMOVED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of payloads after which a piece ends: their pages are what the time goes to."""

SUBSCRIPTIONS: Final = 0
RECEIVED: Final = 1
DELIVERIES: Final = 2
"""The table that a round is at."""


class Sweep:
    """Removes the rows of ended sessions piece by piece, as long as there are any."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        # The last session that this round is about; None: there is no round.
        self._last: int | None = None
        self._phase = SUBSCRIPTIONS
        # Before this session there are no subscriptions left, up to this delivery there is nothing left.
        self._session = 0
        self._number = 0
        self._last_number = 0
        # Of the sessions that this round is about by their numbers: those that ended after it had begun.
        self._late: set[int] = set()

    def ended(self, sessions: Iterable[int]) -> None:
        """Note sessions that end with the group that is written: this round may have passed over their rows."""
        last = self._last
        if last is not None:
            self._late.update(session for session in sessions if session <= last)

    def piece(self) -> bool:
        """Remove some rows; False: there is nothing left. Raises what SQLite raises; then the round begins again."""
        if self._last is None and not self._begin():
            return False
        try:
            self._transaction()
        except BaseException:
            # What it has passed over may be there still.
            self._last = None
            raise
        return True

    def _transaction(self) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        if self._phase == SUBSCRIPTIONS:
            over = self._subscriptions()
        elif self._phase == RECEIVED:
            over = self._received()
        else:
            over = self._deliveries()
            if over:
                db.execute(schema.FORGET_GONE, (self._last, json.dumps(list(self._late))))
        db.execute("COMMIT")
        if over:
            self._phase += 1
            if self._phase > DELIVERIES:
                self._last = None

    def _begin(self) -> bool:
        self._last = self._db.execute("SELECT max(id) FROM gone_session").fetchone()[0]
        if self._last is None:
            return False
        self._phase = SUBSCRIPTIONS
        self._session = 0
        self._late.clear()
        first, last = self._db.execute(schema.ALL_DELIVERIES).fetchone()
        self._number, self._last_number = (0, 0) if first is None else (first - 1, last)
        return True

    def _subscriptions(self) -> bool:
        db = self._db
        marked = db.execute(schema.MARK_LEFT, (self._session, self._last, REMOVED)).rowcount
        if marked:
            self._session = db.execute(schema.LAST_MARKED).fetchone()[0]
            db.execute(schema.FORGET_MARKED)
        return marked < REMOVED

    def _received(self) -> bool:
        return self._db.execute(schema.FORGET_RECEIVED, (self._last, REMOVED)).rowcount < REMOVED

    def _deliveries(self) -> bool:
        until = min(self._number + SEEN, self._last_number)
        numbers, sizes = map(
            json.loads, self._db.execute(schema.LEFT_DELIVERIES, (self._number, until, self._last, REMOVED)).fetchone()
        )
        total, count = 0, 0
        while count < len(numbers) and total < REMOVED_BYTES:
            total += sizes[count]
            count += 1
        if count:
            self._db.execute(schema.FINISHED, (json.dumps(numbers[:count]),))
        self._number = numbers[count - 1] if count < len(numbers) or count == REMOVED else until
        return self._number == self._last_number
