"""Which receivers of a topic may have it, and with which QoS: computed once for a route, and again if something
changes.

Owns `Reach`, and `Permitted` for the members of a share group. Promises: access control is asked once about each
receiver while its decisions stay valid, however often subscribers come and go; its size is that of the route's
receivers. Members of share groups are asked about when it is their turn: those that may not have the topic's messages
cost those that may nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from broker.core.codec import reasons
from broker.core.counters import Counters
from broker.core.permissions import NEVER_MADE, Permissions
from broker.core.principal import Principal
from broker.core.queues.message import Message
from broker.core.refusals import RECEIVE
from broker.core.routing.receivers.plans import FanoutPlan, Recipient
from broker.core.session.session import Session
from broker.core.topics.subscription import FilterEntry, SharedGroup, Subscription, Turns

if TYPE_CHECKING:
    from mypy_extensions import i64

EXPLORED: Final = 16
"""Members that one message asks about beside those that are known."""


class Permitted:
    """Those of the connected members of a share group, or of the others, that may have the messages of one topic.

    A member that may not is asked about once, however many messages follow, until the rules or the principal of the
    member change. A message asks about `EXPLORED` members that were not asked about yet, and about more only while no
    permitted member is known. Members are known by their slots (`Turns`): a member that has left leaves nothing here.
    """

    def __init__(self, group: SharedGroup, turns: Turns) -> None:
        self.group = group
        self._turns = turns
        self._generation: int = -1
        # Slots whose members were asked about: from `_start` up to `_high`, and below `_low`. New members come behind.
        self._start: int = 0
        self._high: int = 0
        self._low: int = 0
        # Slots whose members may have the messages, as of when they were asked about; the next turn's place among them.
        self._slots: list[int] = []
        self._at: int = 0

    @property
    def holds(self) -> bool:
        """Whether the members still have the slots by which they are known."""
        return self._generation == self._turns.generation

    def __len__(self) -> int:
        """How many are known to be permitted."""
        return len(self._slots)

    def copy(self) -> Permitted:
        """One that goes on from here by itself."""
        made = Permitted(self.group, self._turns)
        made._generation = self._generation
        made._start, made._high, made._low = self._start, self._high, self._low
        made._slots, made._at = list(self._slots), self._at
        return made

    def next_member(self, reach: Reach) -> Subscription | None:
        """Whose turn it is of those that may have a message; None: no member may."""
        turns = self._turns
        while turns.count > 0:
            generation = turns.generation
            if self._generation != generation:
                self._restart(generation)
            # Members that were not asked about come first: they have had none of these messages yet.
            member = self._explore(reach, EXPLORED)
            if member is None:
                member = self._rotate(reach)
            if member is None:
                member = self._taker(reach)
            if member is None:
                member = self._explore(reach, len(turns.slots))
            # Without one, and with other slots than before: members have left, and all is to be looked at anew.
            if member is not None or turns.generation == generation:
                return member
        return None

    def _restart(self, generation: int) -> None:
        self._generation = generation
        self._start = self._high = min(self._turns.cursor, len(self._turns.slots))
        self._low = 0
        self._slots = []
        self._at = 0

    def _explore(self, reach: Reach, most: int) -> Subscription | None:
        """Ask about up to `most` members, until one may have the message."""
        turns = self._turns
        while most > 0 and turns.generation == self._generation:
            if self._high < len(turns.slots):
                slot = self._high
                self._high += 1
            elif self._low < self._start:
                slot = self._low
                self._low += 1
            else:
                return None
            # The next topic begins where this one has come to.
            turns.cursor = slot + 1
            member = turns.slots[slot]
            if member is None or not self.group.in_place(member):
                continue
            most -= 1
            if reach.may(cast(Session, member.session)):
                self._slots.append(slot)
                turns.took(member)
                return member
        return None

    def _rotate(self, reach: Reach) -> Subscription | None:
        """The next of those that are known."""
        turns, slots = self._turns, self._slots
        while slots and turns.generation == self._generation:
            if self._at >= len(slots):
                self._at = 0
            member = turns.slots[slots[self._at]]
            # A permission may be lost while the rules stay: the session may have come to belong to another user.
            if member is not None and self.group.in_place(member) and reach.may(cast(Session, member.session)):
                self._at += 1
                return member
            if turns.generation == self._generation:
                slots[self._at] = slots[-1]
                slots.pop()
        return None

    def _taker(self, reach: Reach) -> Subscription | None:
        """One that may have had another topic's message lately, and may have this one's."""
        turns = self._turns
        for _ in range(len(turns.takers)):
            if not turns.takers:
                break
            member = turns.takers.pop(0)
            turns.takers.append(member)
            if self.group.in_place(member) and reach.may(cast(Session, member.session)):
                return member
        return None


class Reach:
    """The receivers of a route that may have its messages, for one version of its filters and one stamp."""

    def __init__(self, topic: bytes, permissions: Permissions) -> None:
        self.topic = topic.decode()
        self._permissions = permissions
        self._epochs: i64 = permissions.epochs
        self.ask_work: i64 = permissions.source.ask_work
        self._stamp: int = NEVER_MADE
        self._version: int = -1
        # The highest QoS for each; below 0: nothing.
        self._verdicts: dict[Principal, int] = {}
        # Everybody is among them, with the QoS that was granted, and there is no share group.
        self.everybody = True
        # Some with less: then `targets` has all, also where there is one filter.
        self.lowered = False
        # With one filter, and with several. Read them; never change them.
        self.subscriptions: list[Subscription] = []
        self.targets: list[Recipient] = []
        # Those of ordinary subscriptions that may not have it; messages since `BarredList` took the number, and whether
        # it lists this.
        self.barred: list[Principal] = []
        self.messages: i64 = 0
        self.listed = False
        # How many were asked about; and how many references are held.
        self.asked: i64 = 0
        self.references: i64 = 0
        # Of share groups: those of whose members some have been asked about.
        self._permitted: dict[Turns, Permitted] = {}

    def made_for(self, stamp: int, version: int) -> None:
        """Remember when this was worked out."""
        self._stamp = stamp
        self._version = version

    def holds(self, stamp: int, version: int) -> bool:
        """Whether nothing has changed since."""
        return self._stamp == stamp and self._version == version

    def look(self, entry: FilterEntry | None, plan: FanoutPlan | None, before: Reach | None) -> None:
        """Work it out for the receivers there are: those of one filter, or of the plan for several.

        `before`: what was worked out last, whose verdicts are kept while they hold.
        """
        known: dict[Principal, int] = {}
        permissions = self._permissions
        if before is not None and permissions.steady and before._epochs == permissions.epochs:
            known = before._verdicts
            self._permitted = before._alive()
        if self._verdicts:
            known = {**known, **self._verdicts}
        self.barred = []
        if entry is not None:
            for subscription in entry.subscriptions:
                most = self._find(cast(Session, subscription.session), known)
                if most < 0:
                    self.barred.append(cast(Session, subscription.session).principal)
                else:
                    self.subscriptions.append(subscription)
                    if most < subscription.qos:
                        self.lowered = True
                        self.subscriptions = []
                        return
            self.everybody = len(self.subscriptions) == entry.ordinary_count and not entry.groups
            if self.everybody:
                self.subscriptions = []
            self.references = len(self.subscriptions) + len(self._verdicts) + len(self.barred)
        elif plan is not None:
            for target in plan.targets:
                most = self._find(target.session, known)
                if most < 0:
                    self.barred.append(target.session.principal)
                else:
                    if most < target.qos:
                        self.lowered = True
                        target = target.capped(most)
                    self.targets.append(target)
            self.everybody = len(self.targets) == len(plan.targets) and not plan.groups and not self.lowered
            if self.everybody:
                self.targets = []
            self.references = plan.references + len(self.targets) + len(self._verdicts) + len(self.barred)
        for each in self._permitted.values():
            self.references += len(each)

    def _find(self, session: Session, known: dict[Principal, int]) -> int:
        if session.own:
            return 2
        principal = session.principal
        verdict = known.get(principal)
        if verdict is None:
            self.asked += 1
            verdict = self._permissions.receive_qos(principal, self.topic)
        self._verdicts[principal] = verdict
        return verdict

    def may(self, session: Session) -> bool:
        """Whether one more, a member of a share group, may have it; remembered where it may."""
        if session.own:
            return True
        principal = session.principal
        verdict = self._verdicts.get(principal)
        if verdict is None:
            self.asked += 1
            verdict = self._permissions.receive_qos(principal, self.topic)
            if verdict >= 0:
                self._verdicts[principal] = verdict
                # The verdict, and the place among those that may.
                self.references += 2
        return verdict >= 0

    def permitted(self, group: SharedGroup, turns: Turns) -> Permitted:
        """The members of a share group that may have it: of those that are connected, or of the others (`turns`)."""
        found = self._permitted.get(turns)
        if found is None:
            found = Permitted(group, turns)
            self._permitted[turns] = found
        return found

    def follow(self, other: Reach) -> None:
        """Know of share groups what another one for the topic knows, and change nothing there."""
        if self._permissions.steady and other._epochs == self._permissions.epochs:
            self._permitted = {turns: each.copy() for turns, each in other._permitted.items()}

    def _alive(self) -> dict[Turns, Permitted]:
        """What is known of share groups, as far as it still holds."""
        return {turns: each for turns, each in self._permitted.items() if each.holds}

    def qos(self, session: Session, qos: int) -> int:
        """The QoS with which one that may have it is sent it, of the QoS that it would be."""
        return min(qos, self._find(session, self._verdicts))


def share_qos(message: Message, member: Subscription, reach: Reach | None) -> int:
    """With which QoS a member of a share group is sent a message; `reach` None: as it was granted."""
    qos = message.qos if message.qos < member.qos else member.qos
    return qos if reach is None else reach.qos(cast(Session, member.session), qos)


MOST_ROUTES: Final = 1_024
MOST_BARRED: Final = 65_536
"""Routes, and subscribers who may not receive on them, that are remembered until they are told of: a megabyte."""

AT_ONCE: Final = 4_096
"""Subscribers that one call of `tell` looks at: some milliseconds."""


class BarredList:
    """The routes on which messages did not go to somebody, since the last time."""

    def __init__(self) -> None:
        self._reaches: list[Reach] = []
        self._subscribers: i64 = 0
        # Deliveries of routes that found no place.
        self._unlisted: i64 = 0
        # The route that is told of, how many messages it had, and where in its subscribers `tell` is.
        self._present: Reach | None = None
        self._messages: i64 = 0
        self._at: i64 = 0

    def count(self, reach: Reach) -> None:
        """A message goes out that `reach.barred` do not get."""
        if not reach.listed:
            barred: i64 = len(reach.barred)
            if len(self._reaches) >= MOST_ROUTES or self._subscribers + barred > MOST_BARRED:
                self._unlisted += barred
                return
            self._subscribers += barred
            reach.listed = True
            self._reaches.append(reach)
        reach.messages += 1

    def tell(self, sessions: dict[str, Session], counters: Counters) -> bool:
        """Note what was not delivered, for each subscriber who is still here. True: there is more, for another call."""
        counters.denied_deliveries += self._unlisted
        counters.refusals.unlisted += self._unlisted
        self._unlisted = 0
        left: i64 = AT_ONCE
        while left > 0:
            reach = self._present
            if reach is None:
                if not self._reaches:
                    return False
                reach = self._reaches.pop()
                self._subscribers -= len(reach.barred)
                self._present = reach
                self._messages, self._at = reach.messages, 0
                reach.messages = 0
                reach.listed = False
            if self._at >= len(reach.barred):
                self._present = None
                continue
            principal = reach.barred[self._at]
            self._at += 1
            left -= 1
            counters.denied_deliveries += self._messages
            session = sessions.get(principal.client_id)
            if session is not None and session.principal is principal:
                counters.refusals.note(
                    session.ledger,
                    principal,
                    RECEIVE,
                    reach.topic,
                    reasons.NOT_AUTHORIZED,
                    counters.load.now,
                    count=self._messages,
                )
        return True
