"""A store for tests that commits when it is told: in groups, of which one may wait to be written while the next fills.

What it has committed at any time is what a broker finds that is started after this one was killed.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from typing import Any

from canopy_mqtt.core.persistence.commits import Commits
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.store import MemoryStore
from canopy_mqtt.store.memory import _Broadcast, _MemoryJournal, _Message, _Session
from canopy_mqtt.store.times import Times
from tests.store.places import rebooted

NO_CHANGES = ("restored", "retry", "place", "placed")

CALLS = tuple(
    name
    for name in vars(Journal)
    if not name.startswith("_") and callable(getattr(Journal, name)) and name not in NO_CHANGES
)


class GroupJournal(_MemoryJournal):
    """Counts what it is told."""

    def __init__(self, times: Times) -> None:
        super().__init__(times)
        self.gate = Commits()
        self.commits = self.gate


def _counting(name: str) -> Callable[..., Any]:
    take_down = getattr(_MemoryJournal, name)

    def told(self: GroupJournal, *what: Any) -> Any:
        self.gate.journal_position += 1
        return take_down(self, *what)

    return told


for _name in CALLS:
    setattr(GroupJournal, _name, _counting(_name))


class State:
    """The state of a journal at some time, as records of its own."""

    def __init__(self, journal: GroupJournal) -> None:
        self.told = journal.gate.journal_position
        self.retained: dict[str, _Message] = dict(journal.retained)
        self.wills = dict(journal.wills)
        self.broadcasts: dict[int, _Broadcast] = {}
        for number, broadcast in journal.broadcasts.items():
            self.broadcasts[number] = _Broadcast(broadcast.message)
            self.broadcasts[number].passed = dict(broadcast.passed)
        self.sessions: dict[str, _Session] = {}
        for client_id, session in journal.sessions.items():
            kept = copy.copy(session)
            kept.subscriptions = {name: copy.copy(one) for name, one in session.subscriptions.items()}
            kept.deliveries = {number: copy.copy(one) for number, one in session.deliveries.items()}
            kept.received = set(session.received)
            kept.numbers = {}
            self.sessions[client_id] = kept


class GroupStore(MemoryStore):
    """`MemoryStore`, of which a crash leaves what was committed."""

    def __init__(self, lasting: Callable[[], float], before: GroupStore | None = None) -> None:
        """`before`: the store of the broker that was killed."""
        super().__init__(rebooted(lasting))
        self.journal: GroupJournal = GroupJournal(self._times)
        self._journal = self.journal
        if before is not None:
            state: State = before.state
            self.journal.sessions = state.sessions
            self.journal.retained = state.retained
            self.journal.wills = state.wills
            self.journal.broadcasts = state.broadcasts
            self.journal._number = before.journal._number
        self.state: State = State(self.journal)
        self._closed: deque[State] = deque()

    @property
    def gate(self) -> Commits:
        """The commits of its journal."""
        return self.journal.gate

    def close_group(self) -> None:
        """End the group: the changes so far are on their way to the disk."""
        self._closed.append(State(self.journal))

    def commit(self) -> bool:
        """The group that was closed first is safe. False: there was none."""
        if not self._closed:
            return False
        self.state = self._closed.popleft()
        self.gate.advance(self.state.told)
        return True

    def commit_all(self) -> None:
        """Everything that was told so far is safe."""
        self.close_group()
        while self.commit():
            pass
