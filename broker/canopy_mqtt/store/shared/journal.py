"""What the core tells of sessions that are here, as changes for a node of a shared store.

Owns which deliveries of a session are rows of the store, and the positions of the changes that are noted. Promises: a
change is committed when the group is written that it came in; a session that is not here any more notes nothing.

Deliveries are rows before they are here: what is queued or renewed is noted by nobody. What does not come from the
store (retained messages for a new subscription, share groups) is in memory alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

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
    Noted,
    Owner,
    Reap,
    Release,
    Subscribe,
)
from canopy_mqtt.store.shared.records import subscribe


class Kept:
    """A session that is here."""

    def __init__(self, owner: Owner, sent: Callable[[], None]) -> None:
        """`sent` is called when a delivery has left the queue."""
        self.owner = owner
        self.sent = sent
        self.slots: dict[int, int] = {}
        """The slots of the deliveries that are here, by their numbers."""


class SharedJournal(Journal):
    """Notes changes of sessions whose client identifiers are in `kept`."""

    def __init__(self, note: Callable[[Noted], None]) -> None:
        super().__init__()
        self.commits_kept = Commits()
        self.commits = self.commits_kept
        self.kept: dict[str, Kept] = {}
        self._note = note
        self._positions: deque[int] = deque()
        """Of the changes that are not written yet, in their order."""

    def note(self, what: Noted) -> None:
        """Note a change, which has a position of its own."""
        self.commits_kept.journal_position += 1
        self._positions.append(self.commits_kept.journal_position)
        self._note(what)

    @staticmethod
    def has_position(what: Noted) -> bool:
        """Return whether a change was noted here, and not by the node itself."""
        return not isinstance(what, End | Release | Reap | Empty)

    def written(self, count: int) -> None:
        """The first `count` changes that were noted are written, or count no more."""
        position = 0
        for _ in range(count):
            position = self._positions.popleft()
        if position:
            self.commits_kept.advance(position)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        del streaming
        kept = self.kept.get(client_id)
        if kept is not None:
            self.note(subscribe(kept.owner, subscription))

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        kept = self.kept.get(client_id)
        if kept is not None:
            self.note(Subscribe(*kept.owner, topic_filter, None))
            # Nobody waits for this: the node ends filters by itself, too.
            self._note(End(topic_filter))

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
            kept.slots.pop(delivery.record, None)
            delivery.record = 0
            kept.sent()

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:
        del client_id
        delivery.record = number

    def _change(self, kept: Kept, delivery: Delivery, state: int) -> None:
        slot = kept.slots.get(delivery.record)
        if slot is not None:
            session, epoch = kept.owner
            # What was acknowledged is over, whoever has the session.
            fence = None if state == ACKNOWLEDGED else epoch
            packet_id = delivery.packet_id if state == SENT else 0
            self.note(Change(session, fence, 0, delivery.record, slot, state, packet_id))

    # -- publishes of the client ---------------------------------------------------------------------------------------

    def completed(self, client_id: str, packet_id: int) -> None:
        kept = self.kept.get(client_id)
        if kept is not None:
            self.note(Completion(*kept.owner, packet_id))
