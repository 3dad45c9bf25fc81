"""Gives the unfinished messages of a leaving member of shared subscriptions to other members (section 4.8.2).

Owns the messages that were taken from a member and are not given to another yet: a few are given at once, the rest in
turns, while they count as waiting. With a store, all are given at once, so that each message always has an owner.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, cast

from broker.core.counters import NOT_AUTHORIZED, SESSION_ENDED
from broker.core.queues.delivery import Delivery
from broker.core.queues.queue_totals import QueueTotals
from broker.core.routing.deadlines import Deadlines
from broker.core.routing.receivers.fanout import SLOW, Fanout
from broker.core.routing.receivers.reach import share_qos
from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup, identifiers

if TYPE_CHECKING:
    from mypy_extensions import i64

AT_ONCE: Final = 512
"""Messages that other members get in the call in which one leaves: half a millisecond."""


class Left:
    """The unfinished messages of one session."""

    def __init__(self, session: Session, deliveries: list[Delivery]) -> None:
        self.session = session
        self.deliveries = deque(deliveries)


class Unfinished:
    """The unfinished messages of one broker's former members."""

    def __init__(self, fanout: Fanout, totals: QueueTotals, deadlines: Deadlines) -> None:
        """`fanout` knows who is next, and keeps account of the work."""
        self._fanout = fanout
        self._totals = totals
        self._deadlines = deadlines
        self._line: deque[Left] = deque()
        self.at_once: i64 = AT_ONCE

    @property
    def waiting(self) -> bool:
        """Whether `work_off` has something to do."""
        return len(self._line) > 0

    def share_out(self, session: Session) -> None:
        """Give what a leaving member did not finish to another member that is connected.

        Where there is none it stays: the client may come back for it.
        """
        groups: set[SharedGroup] = set()
        for group in _groups(session):
            if self._present(group).has_connected():
                groups.add(group)
        self._take(session, groups)

    def end(self, session: Session) -> None:
        """Give what is left of a session that is over to other members, connected or not."""
        groups: set[SharedGroup] = set()
        for group in _groups(session):
            if self._present(group).has_member():
                groups.add(group)
        self._take(session, groups)

    def _take(self, session: Session, groups: set[SharedGroup]) -> None:
        if not groups:
            return
        left = Left(session, session.take_shared(groups))
        totals = self._totals
        most: i64 = len(left.deliveries)
        if most > self.at_once and self._fanout.journal is None:
            most = self.at_once
        while most > 0:
            most -= 1
            self._hand_on(left.deliveries.popleft(), session)
        if left.deliveries:
            for delivery in left.deliveries:
                totals.messages += 1
                totals.bytes += delivery.message.size()
            self._line.append(left)
            self._deadlines.set(self, totals.now)

    def work_off(self, until: i64) -> None:
        """Hand on until the fanout's `work` has come to `until`, those who left first before others."""
        line = self._line
        totals = self._totals
        while line and self._fanout.work < until:
            left = line[0]
            delivery = left.deliveries.popleft()
            if not left.deliveries:
                line.popleft()
            totals.messages -= 1
            totals.bytes -= delivery.message.size()
            self._hand_on(delivery, left.session)
        if line:
            self._deadlines.set(self, totals.now)

    def _hand_on(self, delivery: Delivery, session: Session) -> None:
        """Give one message to a member; if there is none who may have it, back to whose it was, or count it as lost."""
        fanout = self._fanout
        fanout.work += SLOW
        message = delivery.message
        assert delivery.group is not None
        group = self._present(delivery.group)
        reach = fanout.reach(message.topic)
        chosen = fanout.choose(group, message, reach)
        if chosen is not None:
            other = cast(Session, chosen.session)
            # As this member's subscription has it, and not as that of the member who left it behind [MQTT-3.3.1-12].
            retain = message.retain and chosen.retain_as_published
            other.deliver(
                message, share_qos(message, chosen, reach), retain, identifiers(chosen), group, chosen.sub_queue
            )
        elif session.ended:
            session.offered += 1
            session.drop(NOT_AUTHORIZED if group.has_member() else SESSION_ENDED)
        elif reach is not None and not reach.may(session):
            session.offered += 1
            session.drop(NOT_AUTHORIZED)
        else:
            qos = delivery.qos if reach is None else reach.qos(session, delivery.qos)
            session.deliver(message, qos, delivery.retain, delivery.identifiers, group, delivery.sub_queue)

    def _present(self, group: SharedGroup) -> SharedGroup:
        """The group of that name at that filter now: it may have lost all its members and come back since."""
        if group.size > 0:
            return group
        entry = self._fanout.table.trie.find(group.topic_filter)
        found = None if entry is None else entry.groups.get(group.name)
        return group if found is None else found


def _groups(session: Session) -> list[SharedGroup]:
    """The share groups of which a message is not finished in a session, also those that it has left since."""
    if session.memberships is None:
        return []
    unfinished = session.inflight.values() + session.queue.waiting()
    return list({each.group: None for each in unfinished if each.group is not None})
