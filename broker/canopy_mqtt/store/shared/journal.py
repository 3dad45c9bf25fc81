"""What the core tells of sessions that are here, as changes for a node of a shared store.

Owns which deliveries of a session are rows of the store, and the positions of the changes that are noted. Promises: a
change is committed when the group is written that it came in; a session that is not here any more notes nothing.

Deliveries are rows before they are here: what is queued or renewed is noted by nobody. What does not come from the
store (retained messages for a new subscription) is in memory alone. Of a session that ends with its connection only
the memberships in share groups, and what comes through these, are in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX
from canopy_mqtt.core.persistence.commits import Commits
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store.shared.calls import (
    ACKNOWLEDGED,
    RELEASED,
    SENT,
    Change,
    Completion,
    Empty,
    End,
    EndedWill,
    Look,
    NewWill,
    Noted,
    Owner,
    Publish,
    Reap,
    Release,
    Subscribe,
    Waiting,
    Written,
)
from canopy_mqtt.store.shared.records import subscribe

FULL: Final = 64 * 1024 * 1024
"""Bytes that may wait to be written while the database is away; then publishes of QoS 1 and 2 are refused."""
OF_THE_NODE: Final = (End, Release, Reap, Empty, Look, NewWill, EndedWill)
"""Changes that the node notes by itself."""
NOTED: Final = 256
"""Bytes that a change takes in memory, about, without those of a message."""


class Row(NamedTuple):
    """Where a delivery is in the store."""

    slot: int
    source: int
    id: int


class Kept:
    """A session that is here."""

    def __init__(self, owner: Owner, lasts: bool, sent: Callable[[], None]) -> None:
        """`lasts`: longer than its connection, or it did; `sent` is called when a delivery has left the queue."""
        self.owner = owner
        self.lasts = lasts
        self.sent = sent
        self.rows: dict[int, Row] = {}
        """The deliveries that are here, by their numbers: that of the message, or below 0 through a share group."""
        self.shared = 0
        """How many came through share groups."""
        self._last = 0

    def number(self, waiting: Waiting) -> int:
        """Give a delivery that has been read its number here."""
        number = waiting.id
        if waiting.source:
            # The same message may come to the session itself, and through several groups.
            self._last -= 1
            number = self._last
            self.shared += 1
        self.rows[number] = Row(waiting.slot, waiting.source, waiting.id)
        return number

    def find(self, source: int, number: int) -> int | None:
        """Return the number here of a delivery of the store; None: it is not here."""
        if not source:
            return number if number in self.rows else None
        return next((n for n, row in self.rows.items() if row[1:] == (source, number)), None)

    def forget(self, number: int) -> None:
        """A delivery is not here any more."""
        row = self.rows.pop(number, None)
        if row is not None and row.source:
            self.shared -= 1


class SharedJournal(Journal):
    """Notes changes of sessions whose client identifiers are in `kept`."""

    def __init__(self, note: Callable[[Noted, Callable[[Written], None] | None], None]) -> None:
        super().__init__()
        self.commits_kept = Commits()
        self.commits = self.commits_kept
        self.kept: dict[str, Kept] = {}
        self._note = note
        self._unwritten: deque[tuple[int, int]] = deque()
        """Position and bytes of the changes that are not written yet, in their order."""
        self._bytes = 0

    def note(self, what: Noted, then: Callable[[Written], None] | None = None) -> None:
        """Note a change, which has a position of its own; `then`: see `Node.note`."""
        commits = self.commits_kept
        commits.journal_position += 1
        size = NOTED + (what.size if isinstance(what, Publish) else 0)
        self._unwritten.append((commits.journal_position, size))
        self._bytes += size
        if commits.failed and self._bytes >= FULL:
            commits.full = True
        self._note(what, then)

    @staticmethod
    def has_position(what: Noted) -> bool:
        """Return whether a change was noted here, and not by the node itself."""
        return not isinstance(what, OF_THE_NODE)

    def written(self, count: int) -> None:
        """The first `count` changes that were noted are written, or count no more."""
        position = 0
        for _ in range(count):
            position, size = self._unwritten.popleft()
            self._bytes -= size
        if position:
            self.commits_kept.advance(position)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        del streaming
        kept = self.kept.get(client_id)
        if kept is not None and (kept.lasts or subscription.group is not None):
            self.note(subscribe(kept.owner, subscription))

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        kept = self.kept.get(client_id)
        if kept is not None and (kept.lasts or topic_filter.startswith(SHARE_PREFIX)):
            self.note(Subscribe(*kept.owner, topic_filter, None))
            # Nobody waits for this: the node ends filters by itself, too.
            self._note(End(topic_filter), None)

    # -- deliveries to the client --------------------------------------------------------------------------------------

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        kept = self.kept.get(client_id)
        if kept is None:
            return
        if delivery.qos == 2:
            self._change(kept, delivery, SENT)
        kept.sent()

    def released(self, client_id: str, delivery: Delivery) -> None:
        kept = self.kept.get(client_id)
        if kept is not None:
            self._change(kept, delivery, RELEASED)

    def finished(self, client_id: str, delivery: Delivery) -> None:
        kept = self.kept.get(client_id)
        if kept is not None:
            self._change(kept, delivery, ACKNOWLEDGED)
            kept.forget(delivery.record)
            delivery.record = 0
            kept.sent()

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:
        del client_id
        delivery.record = number

    def _change(self, kept: Kept, delivery: Delivery, state: int) -> None:
        row = kept.rows.get(delivery.record)
        if row is not None:
            session, epoch = kept.owner
            # What was acknowledged is over, whoever has the session.
            fence = None if state == ACKNOWLEDGED else epoch
            packet_id = delivery.packet_id if state == SENT else 0
            self.note(Change(session, fence, row.source, row.id, row.slot, state, packet_id))

    # -- publishes of the client ---------------------------------------------------------------------------------------

    def completed(self, client_id: str, packet_id: int) -> None:
        kept = self.kept.get(client_id)
        if kept is not None and kept.lasts:
            self.note(Completion(*kept.owner, packet_id))
