"""Gives the unfinished messages of a leaving member of shared subscriptions to other members (section 4.8.2).

Owns the messages that were taken from a member and are not given to another yet: a few are given at once, the rest in
turns, while they count as waiting. With a store, all are given at once, so that each message always has an owner.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.counters import QueueTotals
from canopy_mqtt.core.jobs import OBJECT_WORK, REASSIGNING, Budget, Job, Scheduler
from canopy_mqtt.core.ledger import NOT_AUTHORIZED, SESSION_ENDED
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.routing.fanout import Fanout, share_qos
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.route import subscription_identifiers
from canopy_mqtt.core.topics.subscription import SharedGroup

if TYPE_CHECKING:
    from mypy_extensions import i64

AT_ONCE: Final = 512
"""Messages that other members get in the call in which one leaves: half a millisecond."""


class Unfinished(Job):
    """The unfinished messages of one broker's former members."""

    def __init__(self, fanout: Fanout, totals: QueueTotals, jobs: Scheduler) -> None:
        """`fanout` knows which member is next."""
        self._fanout = fanout
        self._totals = totals
        self._jobs = jobs
        # What waits for another member, and whose it was.
        self._line: deque[tuple[Session, Delivery]] = deque()
        self.at_once: i64 = AT_ONCE

    def share_out(self, session: Session) -> None:
        """Give what a leaving member of shared subscriptions did not finish to another member that is connected.

        Where there is none it stays: the client may come back for it.
        """
        groups: set[SharedGroup] = set()
        for group in _groups(session):
            if self._present(group).has_connected():
                groups.add(group)
        self._take(session, groups)

    def end(self, session: Session) -> None:
        """Give the unfinished messages of a session that is over to other members, connected or not."""
        groups: set[SharedGroup] = set()
        for group in _groups(session):
            if self._present(group).has_member():
                groups.add(group)
        self._take(session, groups)

    def _take(self, session: Session, groups: set[SharedGroup]) -> None:
        if not groups:
            return
        totals = self._totals
        deliveries = session.take_shared(groups)
        most: i64 = len(deliveries)
        if most > self.at_once and self._fanout.journal is None:
            most = self.at_once
        for delivery in deliveries[:most]:
            self._hand_on(delivery, session)
        for delivery in deliveries[most:]:
            totals.messages += 1
            totals.bytes += delivery.message.size
            self._line.append((session, delivery))
        if self._line:
            self._jobs.submit(REASSIGNING, self)

    def step(self, budget: Budget) -> bool:
        """Hand on messages, those of the members that left first before others."""
        line = self._line
        totals = self._totals
        while line and not budget.spent():
            session, delivery = line.popleft()
            totals.messages -= 1
            totals.bytes -= delivery.message.size
            self._hand_on(delivery, session)
        return not line

    def _hand_on(self, delivery: Delivery, session: Session) -> None:
        """Give one message to a member; if there is none who may have it, back to whose it was, or count it as lost."""
        fanout = self._fanout
        fanout.budget.used += OBJECT_WORK
        message = delivery.message
        assert delivery.group is not None
        group = self._present(delivery.group)
        verdicts = fanout.verdicts(message.topic)
        chosen = fanout.choose(group, message, verdicts)
        if chosen is not None:
            other = chosen.session
            # As this member's subscription has it, and not as that of the member who left it behind [MQTT-3.3.1-12].
            retain = message.retain and chosen.retain_as_published
            other.deliver(
                message,
                share_qos(message, chosen, verdicts),
                retain,
                subscription_identifiers(chosen),
                group,
                chosen.message_terms,
            )
        elif session.ended:
            session.offered += 1
            session.drop(NOT_AUTHORIZED if group.has_member() else SESSION_ENDED)
        elif verdicts is not None and not verdicts.may(session):
            session.offered += 1
            session.drop(NOT_AUTHORIZED)
        else:
            qos = delivery.qos if verdicts is None else verdicts.lowered_qos(session, delivery.qos)
            session.deliver(message, qos, delivery.retain, delivery.identifiers, group, delivery.message_terms)

    def _present(self, group: SharedGroup) -> SharedGroup:
        """The group of that name at that filter now: it may have lost all its members and come back since."""
        if group.size > 0:
            return group
        entry = self._fanout.table.trie.find(group.topic_filter)
        found = None if entry is None else entry.groups.get(group.name)
        return group if found is None else found


def _groups(session: Session) -> list[SharedGroup]:
    """The share groups of which a message is not finished in a session, also those that it has left since."""
    unfinished = session.inflight.values() + session.queue.waiting()
    return list({each.group: None for each in unfinished if each.group is not None})
