"""The unfinished messages of a member of share groups that leaves: others get them (section 4.8.2).

Owns `Unfinished`, which gives them to other members, or back to the queues of the groups, in turns of bounded work.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.jobs import OBJECT_WORK, REASSIGNING, Budget, Job, Scheduler
from canopy_mqtt.core.ledger import FULL_MESSAGES, NOT_AUTHORIZED, SESSION_ENDED
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.queues.delivery import SENT, Delivery
from canopy_mqtt.core.queues.message_queue import MERGE_SHIFT
from canopy_mqtt.core.routing.fanout import Fanout
from canopy_mqtt.core.routing.share_queues import ShareQueue, ShareQueues, give
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import SharedGroup

AT_ONCE: Final = 512
"""Unfinished messages that other members, or the queue of the group, get in the call in which one leaves, and in each
piece of a later turn: half a millisecond."""


class Unfinished(Job):
    """Gives the unfinished messages of a leaving member of shared subscriptions to others (section 4.8.2).

    To members that are connected, or else to the queue of the group; a few at once, the rest in turns. What is for the
    queue stays with the session meanwhile, and the newest go first, so that each piece comes before the last one. What
    is for members counts as waiting; with a store all of it is given at once: each message always has an owner. So is
    all that a session has that ends.
    """

    def __init__(self, fanout: Fanout, queues: ShareQueues, totals: QueueTotals, jobs: Scheduler) -> None:
        """`fanout` knows which member is next."""
        self._fanout = fanout
        self._queues = queues
        self._totals = totals
        self._jobs = jobs
        # What waits for another member, and whose it was.
        self._line: deque[tuple[Session, Delivery]] = deque()
        # Members that give back more, and the queues that wait for it; and those whose connections ended with the last
        # broker.
        self._giving: deque[tuple[Session, list[ShareQueue]]] = deque()
        self.at_once: i64 = AT_ONCE

    def share_out(self, session: Session) -> None:
        """Give away what a leaving member of shared subscriptions did not finish.

        What the queue of the group has no room for stays: the client may come back for it.
        """
        session.stop_source()
        incomplete = self._take(session, _groups(session), False)
        if incomplete:
            self._giving.append((session, incomplete))
            self._jobs.submit(REASSIGNING, self)

    def restored(self, sessions: list[Session]) -> None:
        """Give away in the next turns what these members, all of whom are away, did not finish."""
        for session in sessions:
            self._giving.append((session, []))
        if sessions:
            self._jobs.submit(REASSIGNING, self)

    def end(self, session: Session) -> None:
        """Give away the unfinished messages of a session that is over."""
        self._take(session, _groups(session), False)

    def unsubscribed(self, session: Session, group: SharedGroup) -> None:
        """Give away what waits in a session for a group that it has left. What is in flight is completed
        [MQTT-3.10.4-3]."""
        queue = session.made_queue
        if queue is None or queue.pending is None:
            return
        if session.internal and session.memberships and any(each.group is group for each in session.memberships):
            # A worker that has told of another number of members.
            return
        self._fanout.budget.used += int(queue.in_memory) >> MERGE_SHIFT
        for each in queue.waiting():
            if each.group is group:
                self._take(session, [group], True)
                return

    def _take(self, session: Session, left: list[SharedGroup], waiting_only: bool) -> list[ShareQueue]:
        """Take from a session the messages of these groups, and give them to other members or to the queues.

        Messages of a group that has no other member stay. Return the queues that are to get more in a later turn.
        """
        groups: set[SharedGroup] = set()
        queues: dict[SharedGroup, ShareQueue] = {}
        for group in left:
            present = self._present(group)
            if present.home is not None and not present.has_connected():
                # Members elsewhere, or the queue, get it.
                groups.add(group)
                continue
            member = present.any_member()
            if member is None:
                continue
            queue: ShareQueue | None = None
            if present.queue is not None or not present.has_connected():
                queue = self._queues.of(present, member.session)
            if queue is not None:
                queues[group] = queue
            elif not session.ended and not present.has_connected():
                continue
            groups.add(group)
        incomplete: list[ShareQueue] = []
        if not groups:
            return incomplete
        others: list[Delivery] = []
        parts: dict[SharedGroup, list[Delivery]] = {group: [] for group in queues}
        found = session.shareable(groups, waiting_only)
        self._fanout.budget.used += len(found) >> MERGE_SHIFT
        for delivery in found:
            assert delivery.group is not None
            parts.get(delivery.group, others).append(delivery)
        most: i64 = len(found) if session.ended or waiting_only else self.at_once
        for group, queue in queues.items():
            # What the queue has no room for stays where it is, also in flight.
            part = parts[group][: self._queues.room(queue, parts[group], session)]
            if len(part) > most:
                queue.givers += 1
                incomplete.append(queue)
                part = part[len(part) - most :]
            most = max(1, most - len(part))
            session.take_shared(part)
            self._queues.take_back(queue, part)
        session.take_shared(others)
        self._hand_on_all(others, session)
        return incomplete

    def _hand_on_all(self, deliveries: list[Delivery], session: Session) -> None:
        totals = self._totals
        most: i64 = len(deliveries)
        if most > self.at_once and totals.journal is None:
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
        giving = self._giving
        totals = self._totals
        self._queues.end_emptied()
        while giving and not budget.spent():
            member, queues = giving.popleft()
            for queue in queues:
                queue.givers -= 1
            if member.send_buffer is None and not member.ended:
                self.share_out(member)
        self._queues.attach_held()
        while line and not budget.spent():
            session, delivery = line.popleft()
            totals.messages -= 1
            totals.bytes -= delivery.message.size
            self._hand_on(delivery, session)
        return not (line or giving)

    def _hand_on(self, delivery: Delivery, session: Session) -> None:
        """Give one message to a member; if there is none who may have it, back to whose it was, or count it as lost."""
        fanout = self._fanout
        fanout.budget.used += OBJECT_WORK
        message = delivery.message
        assert delivery.group is not None
        group = self._present(delivery.group)
        if group.home is not None and not group.has_connected():
            self._queues.send_home(message, group.full_name, group.home.node)
            return
        verdicts = fanout.verdicts(message.topic)
        chosen = fanout.choose(group, message, verdicts)
        if chosen is None:
            self._return(delivery, session, SESSION_ENDED if group.any_member() is None else NOT_AUTHORIZED)
            return
        if group.queue is not None or not (chosen.present or group.has_connected()):
            queue = self._queues.of(group, chosen.session)
            if queue is not None:
                if self._queues.room(queue, [delivery], session) == 1:
                    self._queues.take_back(queue, [delivery])
                else:
                    self._queues.settle(queue)
                    self._return(delivery, session, FULL_MESSAGES)
                return
        give(self._totals, delivery, chosen, group, verdicts)

    def _return(self, delivery: Delivery, session: Session, cause: int) -> None:
        """Give a message back to whose it was, if it may have it; it is lost for `cause` if that session is over."""
        message = delivery.message
        verdicts = self._fanout.verdicts(message.topic)
        if session.ended:
            session.offered += 1
            session.ledger.lost(cause, 1)
        elif verdicts is not None and not verdicts.may(session):
            session.offered += 1
            session.ledger.lost(NOT_AUTHORIZED, 1)
        else:
            qos = delivery.qos if verdicts is None else min(int(delivery.qos), verdicts.find(session))
            self._totals.kept_place = delivery.order
            group = delivery.group
            session.deliver(message, qos, delivery.retain, delivery.identifiers, group, delivery.message_terms)
            self._totals.kept_place = 0

    def _present(self, group: SharedGroup) -> SharedGroup:
        """The group of that name at that filter now: it may have lost all its members and come back since."""
        if group.size > 0:
            return group
        entry = self._fanout.table.trie.find(group.topic_filter)
        found = None if entry is None else entry.groups.get(group.name)
        return group if found is None else found


def _groups(session: Session) -> list[SharedGroup]:
    """The share groups of which a message can be given to others, also those that the session has left since."""
    found: dict[SharedGroup, None] = {}
    if session.made_window is not None:
        for each in session.inflight.values():
            if each.group is not None and each.state == SENT and (each.qos == 1 or each.attempts == 0):
                found[each.group] = None
    if session.made_queue is not None:
        for each in session.queue.waiting():
            if each.group is not None:
                found[each.group] = None
    return list(found)
