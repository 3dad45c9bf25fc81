"""Room when all queues of the broker together hold too much: the fullest ones give first.

`GlobalLimiter` has the fullest queues, live and offline alike, drop what has waited longest (cause `global`). No queue
gives anything while a fuller one has more to give; a live queue of a single piece gives nothing, and what is in flight
is not touched. A look costs in proportion to the sessions. It makes room for a `PART` of the bound, so that it seldom
comes, and comes once in `RETRY` seconds at most where less can be dropped. Where not even what arrives would have room,
nothing is dropped for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.counters import GLOBAL
from broker.core.queues.queue_totals import UNLIMITED, QueueTotals, Reliever
from broker.core.session.session import Session

if TYPE_CHECKING:
    from mypy_extensions import i64

PART: Final = 16
"""A look makes room for at least this part of the bound."""

RETRY: Final = 0.1
"""Seconds after a look that found too little before the next one."""


class Share:
    """One queue: how much it holds, in messages or bytes, and whose it is."""

    def __init__(self, size: i64, session: Session, live: bool) -> None:
        self.size = size
        self.session = session
        self.live = live


def _size(share: Share) -> i64:
    return share.size


class GlobalLimiter(Reliever):
    """Sheds from the sessions of one broker."""

    def __init__(self, sessions: dict[str, Session], load: QueueTotals) -> None:
        self._sessions = sessions
        self._load = load
        # Nobody looks before that for as much as this or more.
        self._again_at: float = 0.0
        self._failed: i64 = 0
        self._failed_bytes: i64 = 0
        # What is asked for now.
        self._messages: i64 = 0
        self._bytes: i64 = 0

    def relieve(self, messages: i64, size: i64) -> bool:
        """Make room for so many messages and bytes more. False when it cannot be had; nothing is shed then."""
        load = self._load
        if messages > load.max_messages or size > load.max_bytes:
            # It would not fit if all else were dropped.
            return False
        if load.now < self._again_at and messages >= self._failed and size >= self._failed_bytes:
            return False
        self._messages = messages
        self._bytes = size
        over: i64 = load.messages + messages - load.max_messages
        if over > 0 and not self._level(over, _extra(load.max_messages), True):
            return False
        over = load.bytes + size - load.max_bytes
        return over <= 0 or self._level(over, _extra(load.max_bytes), False)

    def _level(self, over: i64, extra: i64, by_messages: bool) -> bool:
        """Shed `over` messages or bytes, and `extra` more, from the fullest queues, so that these end up level.

        False, and nothing is shed, where there is less than `over`.
        """
        shares = self._shares(by_messages)
        there: i64 = 0
        for share in shares:
            there += share.size
        wanted: i64 = over + extra
        if there < wanted:
            # Not worth another look for a while.
            self._again_at = self._load.now + RETRY
            self._failed = self._messages
            self._failed_bytes = self._bytes
        if there < over:
            return False
        shares.sort(key=_size, reverse=True)
        # How many of the fullest have to give, and down to what.
        above: i64 = 0
        count: i64 = 0
        level: i64 = 0
        for share in shares:
            if count > 0 and above - count * share.size >= wanted:
                break
            above += share.size
            count += 1
        if above > wanted:
            level = (above - wanted) // count
        at: i64 = 0
        while at < count:
            share = shares[at]
            at += 1
            give: i64 = share.size - level
            if give <= 0:
                continue
            outbox = share.session.outbox
            if not share.live:
                share.session.shed(give if by_messages else 0, 0 if by_messages else give, GLOBAL)
            elif outbox is not None:
                outbox.queue.shed(give if by_messages else 0, 0 if by_messages else give, GLOBAL)
        return True

    def _shares(self, by_messages: bool) -> list[Share]:
        found: list[Share] = []
        for session in self._sessions.values():
            outbox = session.outbox
            # The one thing in a queue that was empty is on its way, as a rule, and not waiting.
            if outbox is not None and outbox.messages > outbox.qos12_messages and not outbox.single:
                if by_messages:
                    found.append(Share(outbox.messages - outbox.qos12_messages, session, True))
                else:
                    found.append(Share(outbox.bytes - outbox.queue.qos12_bytes, session, True))
            if session.queue.messages > 0:
                found.append(Share(session.queue.messages if by_messages else session.queue.bytes, session, False))
        return found


def _extra(bound: i64) -> i64:
    if bound >= UNLIMITED:
        return 0
    return bound // PART if bound > PART else 1
