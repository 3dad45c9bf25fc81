"""The members of a share group that may have the messages of one topic, and whose turn it is among them.

Owns `Permitted`. Promises: a member that may not have the topic's messages is asked about once, however many messages
follow, until the rules or the member's principal change; a message asks about `EXPLORED` members that were not asked
about yet, and about more only while no member is known that may have it. So the cost of a message does not grow with
the members that may not have it, and none of these keeps it from one that may. Members are known by their slots
(`Turns`): a member that has left leaves nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup, Subscription, Turns

if TYPE_CHECKING:
    from broker.core.routing.receivers.reach import Reach

EXPLORED: Final = 16
"""Members that one message asks about beside those that are known."""


class Permitted:
    """Those of the connected members of a group, or of the others, for one topic and one version of the rules."""

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
