"""Remembers what access control said about those who subscribe to a topic, and counts what they may not have.

It is asked once about each receiver while its decisions stay valid (`Verdicts`), and about members of share groups when
it is their turn (`Permitted`). Who is barred learns of it later, from `BarredList`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.hooks import Permissions
from canopy_mqtt.core.jobs import ASK_RECEIVER_WORK
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.refusals import RECEIVE
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import SharedGroup, Subscription, Turns

if TYPE_CHECKING:
    from mypy_extensions import i64


class Verdicts:
    """Remembers what access control said about the receivers of one topic."""

    def __init__(self, topic: bytes, permissions: Permissions, before: Verdicts | None = None) -> None:
        """`before`: what was said last, which is not asked again while it holds."""
        self.topic = topic.decode()
        self.asked: i64 = 0  # questions
        self._permissions = permissions
        self._epochs: i64 = permissions.epochs
        # The highest QoS for each; below 0: nothing.
        self._known: dict[Principal, int] = {}
        self._known_before: dict[Principal, int] | None = None
        # Of share groups: those of whose members some have been asked about.
        self._permitted: dict[Turns, Permitted] = {}
        if before is not None and permissions.steady and before._epochs == permissions.epochs:
            self._known_before = before._known
            for turns, each in before._permitted.items():
                if each.holds:
                    self._permitted[turns] = each

    def __len__(self) -> int:
        """Return how many principals are remembered."""
        return len(self._known)

    def find(self, session: Session) -> int:
        """Return the highest QoS with which a session is sent the messages; below 0: it is sent none."""
        if session.internal:
            return 2
        principal = session.principal
        verdict = self._known.get(principal)
        if verdict is None:
            if self._known_before is not None:
                verdict = self._known_before.get(principal)
            if verdict is None:
                verdict = self._ask(principal)
            self._known[principal] = verdict
        return verdict

    def may(self, session: Session) -> bool:
        """Return whether a member of a share group may have the messages; that it may is remembered."""
        if session.internal:
            return True
        principal = session.principal
        verdict = self._known.get(principal)
        if verdict is None:
            verdict = self._ask(principal)
            if verdict >= 0:
                self._known[principal] = verdict
        return verdict >= 0

    def permitted(self, group: SharedGroup, turns: Turns) -> Permitted:
        """Return the members of a share group that may have it: of the connected ones, or of the others (`turns`)."""
        found = self._permitted.get(turns)
        if found is None:
            found = Permitted(group, turns)
            self._permitted[turns] = found
        return found

    def follow(self, other: Verdicts) -> None:
        """Know of share groups what another one for the topic knows, and change nothing there; for
        `observe.explain`."""
        if self._permissions.steady and other._epochs == self._permissions.epochs:
            self._permitted = {turns: each.copy() for turns, each in other._permitted.items()}

    def forget_others(self) -> None:
        """Forget what was said before of principals that are neither receivers nor permitted members now."""
        before = self._known_before
        self._known_before = None
        if before is not None:
            for each in self._permitted.values():
                for principal in each.principals():
                    verdict = before.get(principal)
                    if verdict is not None:
                        self._known[principal] = verdict

    def references(self) -> i64:
        """Return how many references are held."""
        references: i64 = len(self._known)
        for each in self._permitted.values():
            references += len(each)
        return references

    def work(self) -> i64:
        """Return what all questions count for, in deliveries."""
        return self.asked * (ASK_RECEIVER_WORK + self._permissions.source.ask_work)

    def _ask(self, principal: Principal) -> int:
        self.asked += 1
        return self._permissions.asked.receive_qos(principal, self.topic)


MAX_EXPLORED: Final = 16
"""Members that one message asks about beside those that are known."""


class Permitted:
    """Those of the connected members of a share group, or of the others, that may have the messages of one topic.

    A member that may not is asked about once, however many messages follow, until the rules or the principal of the
    member change. A message asks about `MAX_EXPLORED` members that were not asked about yet, and about more only while
    no permitted member is known. They are known by their slots (`Turns`): a member that has left leaves nothing here.
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
        """Return whether the members still have the slots by which they are known."""
        return self._generation == self._turns.generation

    def __len__(self) -> int:
        """Return how many are known to be permitted."""
        return len(self._slots)

    def principals(self) -> list[Principal]:
        """Return the principals of those that are known to be permitted."""
        found: list[Principal] = []
        for slot in self._slots:
            member = self._turns.slots[slot]
            if member is not None:
                found.append(member.session.principal)
        return found

    def copy(self) -> Permitted:
        """One that goes on from here by itself."""
        made = Permitted(self.group, self._turns)
        made._generation = self._generation
        made._start, made._high, made._low = self._start, self._high, self._low
        made._slots, made._at = list(self._slots), self._at
        return made

    def next_member(self, verdicts: Verdicts) -> Subscription | None:
        """Whose turn it is of those that may have a message; None: no member may."""
        turns = self._turns
        while turns.count > 0:
            generation = turns.generation
            if self._generation != generation:
                self._restart(generation)
            # Members that were not asked about come first: they have had none of these messages yet.
            member = self._explore(verdicts, MAX_EXPLORED)
            if member is None:
                member = self._rotate(verdicts)
            if member is None:
                member = self._taker(verdicts)
            if member is None:
                member = self._explore(verdicts, len(turns.slots))
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

    def _explore(self, verdicts: Verdicts, most: int) -> Subscription | None:
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
            turns.cursor, turns.served = slot + 1, 0
            member = turns.slots[slot]
            if member is None or not self.group.in_place(member):
                continue
            most -= 1
            if verdicts.may(member.session):
                self._slots.append(slot)
                turns.took(member)
                return member
        return None

    def _rotate(self, verdicts: Verdicts) -> Subscription | None:
        """The next of those that are known."""
        turns, slots = self._turns, self._slots
        while slots and turns.generation == self._generation:
            if self._at >= len(slots):
                self._at = 0
            member = turns.slots[slots[self._at]]
            # A permission may be lost while the rules stay: the session may have come to belong to another user.
            if member is not None and self.group.in_place(member) and verdicts.may(member.session):
                self._at += 1
                return member
            if turns.generation == self._generation:
                slots[self._at] = slots[-1]
                slots.pop()
        return None

    def _taker(self, verdicts: Verdicts) -> Subscription | None:
        """One that may have had another topic's message lately, and may have this one's."""
        turns = self._turns
        for _ in range(len(turns.takers)):
            if not turns.takers:
                break
            member = turns.takers.pop(0)
            turns.takers.append(member)
            if self.group.in_place(member) and verdicts.may(member.session):
                return member
        return None


MAX_BARRED_ROUTES: Final = 1_024
MAX_BARRED_SUBSCRIBERS: Final = 65_536
"""Routes, and subscribers who may not receive on them, that are remembered until they are told of: a megabyte."""

MAX_TOLD_SUBSCRIBERS: Final = 4_096
"""Subscribers that one call of `tell` looks at: some milliseconds."""


class Barred:
    """The subscribers of a topic that may not have its messages, and how many messages they have missed."""

    def __init__(self, topic: bytes, principals: list[Principal]) -> None:
        self.topic = topic
        self.principals = principals
        # Messages since `BarredList` took the number, and whether it lists this.
        self.messages: i64 = 0
        self.listed = False


class BarredList:
    """The routes on which messages did not go to a subscriber, since the last time."""

    def __init__(self) -> None:
        self._listed: list[Barred] = []
        self._subscribers: i64 = 0
        # Deliveries of routes that found no place.
        self._unlisted: i64 = 0
        # The route that is told of, how many messages it had, and where in its subscribers `tell` is.
        self._present: Barred | None = None
        self._messages: i64 = 0
        self._at: i64 = 0

    def count(self, barred: Barred) -> None:
        """Count a message that goes out and that these subscribers do not get."""
        if not barred.listed:
            subscribers: i64 = len(barred.principals)
            if len(self._listed) >= MAX_BARRED_ROUTES or self._subscribers + subscribers > MAX_BARRED_SUBSCRIBERS:
                self._unlisted += subscribers
                return
            self._subscribers += subscribers
            barred.listed = True
            self._listed.append(barred)
        barred.messages += 1

    def tell(self, sessions: dict[str, Session], counters: Counters) -> bool:
        """Note what was not delivered, for each subscriber that is still here. True: another call has more to do."""
        counters.denied_deliveries += self._unlisted
        counters.refusals.unlisted += self._unlisted
        self._unlisted = 0
        left: i64 = MAX_TOLD_SUBSCRIBERS
        while left > 0:
            barred = self._present
            if barred is None:
                if not self._listed:
                    return False
                barred = self._listed.pop()
                self._subscribers -= len(barred.principals)
                self._present = barred
                self._messages, self._at = barred.messages, 0
                barred.messages = 0
                barred.listed = False
            if self._at >= len(barred.principals):
                self._present = None
                continue
            principal = barred.principals[self._at]
            self._at += 1
            left -= 1
            counters.denied_deliveries += self._messages
            session = sessions.get(principal.client_id)
            if session is not None and session.principal is principal:
                session.refused(RECEIVE, barred.topic.decode(), reason_codes.NOT_AUTHORIZED, count=self._messages)
        return True
