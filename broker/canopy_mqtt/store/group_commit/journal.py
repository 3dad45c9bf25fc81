"""Collects the core's changes into groups of net changes.

Owns `GroupJournal`, which runs on the event loop for every QoS 1 or 2 delivery: it notes changes in dictionaries, and
`take` makes a `Batch` of them for the writer. Promises: a delivery that is queued and finished in one group leaves no
trace; a group is bounded by what the broker keeps anyway and by what was written, however long writing takes. After
each group the store has everything up to some point between two calls of the core, and what was acknowledged later may
be missing: see `take` and `safe`. It writes nothing itself, and knows no files, connections or threads.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.persistence.commits import Commits
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import DONE, RELEASED, SENT, Delivery
from canopy_mqtt.core.queues.disk_queue import Fetch, Page, Pages
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store.group_commit.batch import (
    ROW_BYTES,
    UNSET,
    Batch,
    Change,
    Kept,
    Row,
    SubscriptionRow,
    of_deliveries,
    of_session,
    split,
    without_ended,
)
from canopy_mqtt.store.group_commit.journal_listener import JournalListener
from canopy_mqtt.store.group_commit.notes import BroadcastNotes, RetainedNotes
from canopy_mqtt.store.times import Times

ENDED_ROWS: Final = 1_024
"""Deliveries of ended sessions that stay in the open group; more of them go when they are half of all."""


class GroupJournal(Journal):
    """Takes notes of all changes until `take`. `begin_at` has to be called before the first one."""

    def __init__(self, times: Times, listener: JournalListener, size: int, pages: Pages | None = None) -> None:
        """`size`: bytes from which on a group does not wait for its window; `pages`: what waits on disk alone."""
        super().__init__()
        self._commits = Commits()
        self.commits = self._commits
        self.pages = pages
        self.kept: dict[str, Kept] = {}
        self._times = times
        self._listener = listener
        self._most: i64 = size
        # The last numbers that were given. No number is ever given twice.
        self._session: i64 = 0
        self._number: i64 = 0
        self._message: i64 = 0
        # The number of the next delivery or broadcast, if it was set aside; 0: a new one.
        self._placed: i64 = 0
        # The open group: what comes after these numbers was never written.
        self.noted = False
        self._size: i64 = 0
        self._next: i64 = size
        self._before: i64 = 0
        # The first note that has to be written whatever becomes of it, 0: none; how much had been told when the last
        # group was taken; whether the listener knows that deliveries are over.
        self._binding: i64 = 0
        self._taken: i64 = 0
        self._eased = False
        self._sessions_before: i64 = 0
        self._rows: dict[int, Row] = {}
        self._ended_rows: i64 = 0
        self._changed: dict[int, Change] = {}
        self._released: dict[int, int] = {}
        self._finished: list[int] = []
        self._unpaged: list[tuple[int, int, int]] = []
        self._read_back: dict[int, int] = {}
        self._touched: dict[int, Kept] = {}
        self._streamed: list[tuple[int, str]] = []
        self._gone: list[int] = []
        self._wills_gone: list[int] = []
        self._retained = RetainedNotes()
        self.broadcasts = BroadcastNotes()

    def begin_at(self, session: int, number: int, message: int) -> None:
        self._session = self._sessions_before = max(self._session, session)
        self._number = self._before = max(self._number, number)
        # Objects of the broker may have higher ones, whose rows are gone.
        self._message = max(self._message, message)

    def commits_kept(self) -> Commits:
        return self._commits

    def _note(self, size: i64) -> None:
        """Count a note that has to be written: it is in the file with all that was told before it."""
        self._bind(self._commits.journal_position + 1)
        self._count(size)

    def _bind(self, note: i64) -> None:
        self._commits.cut = -1
        if self._binding == 0 or note < self._binding:
            self._binding = note

    def _count(self, size: i64) -> None:
        self._commits.journal_position += 1
        self._size += size
        if not self.noted:
            self.noted = True
            self._listener.begun()
        if self._size >= self._next:
            self._next += self._most
            self._listener.due()

    def _touch(self, kept: Kept) -> None:
        if not kept.touched:
            kept.touched = True
            self._touched[kept.id] = kept

    # -- sessions ------------------------------------------------------------------------------------------------------

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        kept = self.kept.get(client_id)
        if kept is None:
            kept = self._new(client_id, principal)
            self.broadcasts.came_later(kept.id)
        kept.principal = principal
        kept.expiry_interval = expiry_interval
        kept.disconnected_at = self._times.lasting(disconnected_at) if disconnected_at != 0.0 else UNSET
        self._changed_session(kept)

    def _new(self, client_id: str, principal: Principal) -> Kept:
        self._session += 1
        kept = Kept(self._session, client_id, principal)
        self.kept[client_id] = kept
        return kept

    def _changed_session(self, kept: Kept) -> None:
        size: i64 = kept.row_bytes()
        more: i64 = size - kept.size
        kept.size = size
        kept.changed = True
        self._touch(kept)
        self._note(more)

    def session_gone(self, client_id: str) -> None:
        self._end(client_id, self._gone)

    def _end(self, client_id: str, gone: list[int]) -> None:
        kept = self.kept.pop(client_id)
        if kept.id <= self._sessions_before:
            gone.append(kept.id)
        self._read_back.pop(kept.id, None)
        # Sessions that come and go while the disk fails leave nothing here.
        self._touched.pop(kept.id, None)
        self._size -= kept.end()
        self._ended_rows += kept.rows
        if self._ended_rows > ENDED_ROWS and self._ended_rows * 2 > len(self._rows):
            self._forget_ended()
        self._note(0)

    def _forget_ended(self) -> None:
        """Drop the deliveries of ended sessions; each has been looked at twice by then, at most."""
        self._rows, note, size = without_ended(self._rows)
        if note > 0:
            self._bind(note)
        self._size -= size
        self._ended_rows = 0

    def will_set(self, client_id: str, will: Will, due: float) -> None:
        kept = self.kept[client_id]
        kept.will = will
        kept.will_due = self._times.lasting(due) if due != 0.0 else UNSET
        self._changed_session(kept)

    def will_alone(self, name: str, principal: Principal, will: Will, due: float) -> None:
        kept = self.kept.get(name)
        if kept is None:
            kept = self._new(name, principal)
        kept.principal = principal
        self.will_set(name, will, due)

    def will_cleared(self, client_id: str) -> None:
        kept = self.kept[client_id]
        if kept.expiry_interval == 0:
            self._end(client_id, self._wills_gone)
            return
        kept.will = None
        self._changed_session(kept)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        topic_filter = subscription.topic_filter
        subscriptions = self._subscriptions(client_id)
        size: i64 = ROW_BYTES + len(topic_filter)
        if subscriptions.get(topic_filter) is not None:
            size = 0
        subscriptions[topic_filter] = SubscriptionRow(subscription, streaming)
        self._note(size)

    def _subscriptions(self, client_id: str) -> dict[str, SubscriptionRow | None]:
        kept = self.kept[client_id]
        self._touch(kept)
        if kept.subscriptions is None:
            kept.subscriptions = {}
        return kept.subscriptions

    def streamed(self, client_id: str, topic_filter: str) -> None:
        kept = self.kept[client_id]
        row = None if kept.subscriptions is None else kept.subscriptions.get(topic_filter)
        if row is not None:
            row.streaming = False
        else:
            self._streamed.append((kept.id, topic_filter))
        self._note(0)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        subscriptions = self._subscriptions(client_id)
        if subscriptions.get(topic_filter) is not None:
            self._size -= ROW_BYTES + len(topic_filter)
        subscriptions[topic_filter] = None
        self._note(0)

    # -- deliveries to the client --------------------------------------------------------------------------------------

    def queued(self, client_id: str, delivery: Delivery) -> None:
        self._add(client_id, delivery)

    def _add(self, client_id: str, delivery: Delivery) -> Row:
        kept = self.kept[client_id]
        number = self._next_number()
        delivery.record = number
        kept.rows += 1
        row = Row(kept, delivery, self._commits.journal_position + 1)
        self._rows[number] = row
        if delivery.qos == 1 and kept.disconnected_at == UNSET:
            # Its client may acknowledge it before it is written.
            self._count(delivery.message.size)
        else:
            self._note(delivery.message.size)
        return row

    def _next_number(self) -> i64:
        number: i64 = self._placed
        self._placed = 0
        return number if number > 0 else self.place()

    def place(self) -> int:
        self._number += 1
        return self._number

    def placed(self, number: int) -> None:
        self._placed = number

    def paged(self, client_id: str, delivery: Delivery) -> None:
        row = self._add(client_id, delivery)
        row.size = delivery.message.size
        self._bind(row.note)

    def unpaged(self, client_id: str, page: Page) -> None:
        kept = self.kept[client_id]
        number: i64 = page.last
        while number >= page.first and number > self._before:
            row = self._rows.get(number)
            if row is not None and row.kept is kept and row.size is not None:
                del self._rows[number]
                kept.rows -= 1
                self._size -= row.size
            number -= 1
        if page.first <= self._before:
            self._unpaged.append((kept.id, page.first, page.last))
        self._note(0)

    def fetch(self, client_id: str, fetch: Fetch) -> None:
        self._listener.fetch(self.kept[client_id].id, fetch)

    def read_back(self, client_id: str, number: int) -> None:
        self._read_back[self.kept[client_id].id] = number
        self._note(0)

    def renewed(self, client_id: str, delivery: Delivery) -> None:
        record = delivery.record
        if record <= self._before and record not in self._rows:
            # The row is written anew, with the number that is its place in the order.
            self._finished.append(record)
            self._changed.pop(record, None)
        earlier = self._rows.get(record)
        kept = self.kept[client_id]
        # It takes the earlier one's place among the rows, which stand in the order of their notes.
        note: i64 = self._commits.journal_position + 1
        if earlier is None:
            kept.rows += 1
        else:
            note = earlier.note
            if earlier.message is not None:
                self._size -= earlier.message.size
        self._rows[record] = Row(kept, delivery, note)
        self._note(delivery.message.size)

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        record = delivery.record
        if record == 0:
            row = self._add(client_id, delivery)
            row.state = SENT
            row.attempts = 1
            return
        self._sent(record, delivery, 1)

    def unsent(self, client_id: str, delivery: Delivery) -> None:  # noqa: ARG002 (the interface)
        self._sent(delivery.record, delivery, 0)

    def _sent(self, record: i64, delivery: Delivery, attempts: i64) -> None:
        row = self._rows.get(record)
        if row is not None:
            row.state = SENT
            row.packet_id = i64(delivery.packet_id)
            row.attempts = attempts
        else:
            self._changed[record] = Change(i64(delivery.packet_id), attempts)
        if delivery.qos == 2:
            self._note(0)
        else:
            self._count(0)

    def released(self, client_id: str, delivery: Delivery) -> None:
        record = delivery.record
        row = self._rows.get(record)
        if row is not None:
            row.state = RELEASED
            if row.message is not None:
                self._size -= row.message.size
            row.message = None
        else:
            self._released[record] = self.kept[client_id].id
        self._note(0)

    def finished(self, client_id: str, delivery: Delivery) -> None:  # noqa: ARG002 (the interface)
        record = delivery.record
        # It may come back, as another delivery.
        delivery.record = 0
        row = self._rows.pop(record, None)
        if row is not None:
            row.kept.rows -= 1
            if row.message is not None:
                self._size -= row.message.size
        elif record <= self._before:
            # It stands in the file; one with a row does not, or goes from there already (`renewed`).
            self._changed.pop(record, None)
            self._released.pop(record, None)
            self._finished.append(record)
        if delivery.qos == 1 and delivery.state == DONE:
            self._count(0)
            if not self._eased:
                self._eased = True
                self._listener.eased()
            return
        # The message may be another client's now, or the answer to an acknowledgement may wait for this.
        if row is not None:
            self._bind(row.note)
        self._note(0)
        if not (self._rows or self._finished or self._touched or self._changed or self._retained.any()):
            self._listener.due()

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:  # noqa: ARG002 (the interface)
        delivery.record = number

    # -- publishes of the client ---------------------------------------------------------------------------------------

    def received(self, client_id: str, packet_id: int) -> None:
        self._publisher(client_id).begin(packet_id)
        self._note(0)

    def completed(self, client_id: str, packet_id: int) -> None:
        self._publisher(client_id).complete(packet_id)
        self._note(0)

    def _publisher(self, client_id: str) -> Kept:
        kept = self.kept[client_id]
        self._touch(kept)
        return kept

    # -- messages for very many ----------------------------------------------------------------------------------------

    def broadcast(self, message: Message) -> int:
        number = self._next_number()
        self.broadcasts.begin(number, message)
        self._note(message.size)
        return number

    def passed(self, number: int, client_id: str) -> None:
        self.broadcasts.passed(number, self.kept[client_id].id)
        self._note(ROW_BYTES)

    def broadcast_over(self, number: int) -> None:
        self.broadcasts.over(number)
        self._note(0)

    # -- retained messages ---------------------------------------------------------------------------------------------

    def retained_set(self, message: Message) -> None:
        self._size -= self._retained.put(message.topic.decode(), message)
        self._note(message.size)

    def retained_cleared(self, topic: str) -> None:
        self._size -= self._retained.put(topic, None)
        self._note(0)

    # -- the group -----------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """The bytes of the open group, about."""
        return self._size

    def safe(self) -> int:
        """Return the number of the last note up to which the open group needs no write, since all of its deliveries are
        acknowledged.

        Acknowledgements that wait for one of these notes may leave once the groups before are committed: there is
        nothing to lose.
        """
        self._eased = False
        first: i64 = self._binding
        for row in self._rows.values():
            # They stand in the order of their notes.
            if first == 0 or row.note < first:
                first = row.note
            break
        return self._commits.journal_position if first == 0 else first - 1

    def _limit(self) -> i64:
        """Return the note up to which the group has to be written."""
        commits = self._commits
        if commits.cut < 0 or self._size >= self._most:
            return commits.journal_position
        return max(commits.cut, self._taken)

    def take(self) -> Batch:
        """End the open group, and begin another. Between two calls of the core.

        Young deliveries stay out of it, and are the next one's if they are not acknowledged by then: those that were
        told of since the last group was taken, after a publish came (`Commits.cut`) behind which nothing but such
        deliveries was told. So the file has everything up to a point between two calls, and beyond it only the end of
        deliveries that were acknowledged, and what was handed out of those that it has: after a crash the store has a
        state that existed, but fewer messages come again. Acknowledgements that wait for a young delivery keep waiting
        (`Batch.number`).

        Raises what making the rows raises: the open group is then as it was, and can be taken later.
        """
        rows, young = split(self._rows, self._limit(), self._commits.journal_position)
        try:
            batch = self._batch(rows)
        except Exception:
            # Messages have numbers of this attempt, which no other one may take for its own.
            self._message += len(rows)
            raise
        for row in rows.values():
            row.kept.rows -= 1
        self._clear()
        self._keep(young)
        return batch

    def _batch(self, rows: dict[int, Row]) -> Batch:
        """Make a batch of the open group with these of its deliveries. It changes nothing but the numbers of
        messages."""
        batch = Batch(self._limit())
        batch.awaited = self._binding > 0 or len(rows) > 0
        batch.size = self._size
        batch.last = self._number
        offset = self._times.lasting(0.0)
        batch.gone = self._gone
        batch.wills_gone = self._wills_gone
        for kept in self._touched.values():
            of_session(batch, kept)
        batch.streamed = self._streamed
        batch.finished = self._finished
        batch.unpaged = self._unpaged
        batch.read_back = list(self._read_back.items())
        message = of_deliveries(batch, rows, self._message, offset)
        for number, change in self._changed.items():
            batch.changed.append((number, SENT, change.packet_id, change.attempts))
        batch.released = list(self._released.items())
        self._retained.add_to(batch, offset)
        self.broadcasts.add_to(batch, offset)
        self._message = message
        return batch

    def _keep(self, young: dict[int, Row]) -> None:
        self._rows = young
        for row in young.values():
            self.noted = True
            if row.message is not None:
                self._size += row.message.size

    def _clear(self) -> None:
        self.noted = False
        self._binding = 0
        self._taken = self._commits.journal_position
        self._size = 0
        self._next = self._most
        self._before = self._number
        self._sessions_before = self._session
        self._rows = {}
        self._ended_rows = 0
        self._changed = {}
        self._released = {}
        self._finished = []
        self._unpaged = []
        self._read_back = {}
        for kept in self._touched.values():
            kept.written()
        self._touched = {}
        self._streamed = []
        self._gone = []
        self._wills_gone = []
        self._retained.clear()
        self.broadcasts.clear()
