"""What the core tells a store on disk, gathered into groups of net changes.

Owns `SqliteJournal`, which runs on the event loop for every QoS 1 or 2 delivery: it takes notes in dictionaries, and
`take` makes a `Batch` of them for the writer's thread. Promises: a delivery that is queued and finished in one group
leaves no trace; a group is bounded by what the broker keeps anyway and by what stands in the file, however long the
disk takes. It writes nothing itself, and knows no files, threads or event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.core.codec.packets import Will
from broker.core.persistence.commits import Commits
from broker.core.persistence.journal import Fetch, Journal
from broker.core.persistence.pages import Page, Pages
from broker.core.principal import Principal
from broker.core.queues.delivery import RELEASED, SENT, Delivery
from broker.core.queues.message import Message
from broker.core.topics.subscription import Subscription
from broker.store.base import Times
from broker.store.sqlite.group import (
    UNSET,
    Batch,
    Change,
    Kept,
    Row,
    SubscriptionRow,
    lasting,
    of_deliveries,
    of_session,
)

ROW_BYTES: Final = 100
"""What a row of a session or a subscription counts for in a group, or one of a session that has had a message."""

ENDED_ROWS: Final = 1_024
"""Deliveries of ended sessions that stay in the open group; more of them go when they are half of all."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Shell(ABC):
    """Who gives the groups their time: the store, which knows the event loop."""

    @abstractmethod
    def begun(self) -> None:
        """A group got its first note."""

    @abstractmethod
    def fetch(self, session: int, fetch: Fetch) -> None:
        """Something of the session with that number is to be read."""

    @abstractmethod
    def due(self) -> None:
        """The group has its size, or once more of it, or nothing is left of it: it need not wait for its window. Not
        to be ended in here, in the middle of a call of the core, but in a turn of the event loop of its own."""


class SqliteJournal(Journal):
    """Takes notes until `take`. Before the first one, `begin_at` is to be called."""

    def __init__(self, times: Times, shell: Shell, size: int, pages: Pages | None = None) -> None:
        """`size`: bytes from which on a group does not wait for its window; `pages`: what waits on disk alone."""
        super().__init__()
        self._commits = Commits()
        self.commits = self._commits
        self.pages = pages
        self.kept: dict[str, Kept] = {}
        self._times = times
        self._shell = shell
        self._most: i64 = size
        # The last numbers that were given. No number is ever given twice.
        self._session: i64 = 0
        self._number: i64 = 0
        self._message: i64 = 0
        # The open group: what comes after these numbers was never written.
        self.noted = False
        self._size: i64 = 0
        self._next: i64 = size
        self._before: i64 = 0
        self._sessions_before: i64 = 0
        self._rows: dict[int, Row] = {}
        self._ended_rows: i64 = 0
        self._changed: dict[int, Change] = {}
        self._released: dict[int, None] = {}
        self._finished: list[int] = []
        self._unpaged: list[tuple[int, int, int]] = []
        self._read_back: dict[int, int] = {}
        self._touched: dict[int, Kept] = {}
        self._streamed: list[tuple[int, str]] = []
        self._gone: list[int] = []
        self._retained: dict[str, Message | None] = {}
        self._broadcasts: dict[int, Message] = {}
        self._passed: list[tuple[int, int]] = []
        self._broadcasts_over: list[int] = []
        # The numbers of all that are under way.
        self.under_way: dict[int, None] = {}

    def begin_at(self, session: int, number: int, message: int) -> None:
        """The highest numbers that stand in the file."""
        self._session = self._sessions_before = max(self._session, session)
        self._number = self._before = max(self._number, number)
        # Objects of the broker may have higher ones, whose rows are gone.
        self._message = max(self._message, message)

    def commits_kept(self) -> Commits:
        """The commits, which a journal on disk always has."""
        return self._commits

    def _note(self, size: i64) -> None:
        self._commits.told += 1
        self._size += size
        if not self.noted:
            self.noted = True
            self._shell.begun()
        if self._size >= self._next:
            self._next += self._most
            self._shell.due()

    def _touch(self, kept: Kept) -> None:
        if not kept.touched:
            kept.touched = True
            self._touched[kept.id] = kept

    # -- sessions ------------------------------------------------------------------------------------------------------

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        kept = self.kept.get(client_id)
        if kept is None:
            self._session += 1
            kept = Kept(self._session, client_id, principal)
            self.kept[client_id] = kept
            for number in self.under_way:
                self._passed.append((number, self._session))
        kept.principal = principal
        kept.expiry_interval = expiry_interval
        kept.disconnected_at = self._times.lasting(disconnected_at) if disconnected_at != 0.0 else UNSET
        self._changed_session(kept)

    def _changed_session(self, kept: Kept) -> None:
        size: i64 = 0 if kept.changed else ROW_BYTES
        kept.changed = True
        self._touch(kept)
        self._note(size)

    def session_gone(self, client_id: str) -> None:
        kept = self.kept.pop(client_id)
        kept.gone = True
        if kept.id <= self._sessions_before:
            self._gone.append(kept.id)
        self._read_back.pop(kept.id, None)
        # Sessions that come and go while the disk fails leave nothing here.
        self._touched.pop(kept.id, None)
        if kept.changed:
            self._size -= ROW_BYTES
        if kept.subscriptions is not None:
            for topic_filter, row in kept.subscriptions.items():
                if row is not None:
                    self._size -= ROW_BYTES + len(topic_filter)
        kept.will = None
        kept.subscriptions = None
        kept.received = None
        self._ended_rows += kept.rows
        if self._ended_rows > ENDED_ROWS and self._ended_rows * 2 > len(self._rows):
            self._forget_ended()
        self._note(0)

    def _forget_ended(self) -> None:
        """Deliveries of ended sessions go; each has been looked at twice by then, at most."""
        rows: dict[int, Row] = {}
        for number, row in self._rows.items():
            if not row.kept.gone:
                rows[number] = row
            elif row.message is not None:
                self._size -= row.message.size()
        self._rows = rows
        self._ended_rows = 0

    def will_set(self, client_id: str, will: Will, due: float) -> None:
        kept = self.kept[client_id]
        kept.will = will
        kept.will_due = self._times.lasting(due) if due != 0.0 else UNSET
        self._changed_session(kept)

    def will_cleared(self, client_id: str) -> None:
        kept = self.kept[client_id]
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
        changed = kept.subscriptions
        if changed is None:
            changed = kept.subscriptions = {}
        return changed

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
        self._number += 1
        delivery.record = self._number
        kept = self.kept[client_id]
        kept.rows += 1
        row = Row(kept, delivery)
        self._rows[self._number] = row
        self._note(delivery.message.size())
        return row

    def paged(self, client_id: str, delivery: Delivery) -> None:
        self._add(client_id, delivery).size = delivery.message.size()

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
        self._shell.fetch(self.kept[client_id].id, fetch)

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
        if earlier is None:
            kept.rows += 1
        elif earlier.message is not None:
            self._size -= earlier.message.size()
        self._rows[record] = Row(kept, delivery)
        self._note(delivery.message.size())

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
        self._note(0)

    def released(self, client_id: str, delivery: Delivery) -> None:  # noqa: ARG002 (the interface)
        record = delivery.record
        row = self._rows.get(record)
        if row is not None:
            row.state = RELEASED
            if row.message is not None:
                self._size -= row.message.size()
            row.message = None
        else:
            self._released[record] = None
        self._note(0)

    def finished(self, client_id: str, delivery: Delivery) -> None:  # noqa: ARG002 (the interface)
        record = delivery.record
        # It may come back, as another delivery.
        delivery.record = 0
        row = self._rows.pop(record, None)
        if row is not None:
            row.kept.rows -= 1
            if row.message is not None:
                self._size -= row.message.size()
        if record <= self._before:
            self._changed.pop(record, None)
            self._released.pop(record, None)
            self._finished.append(record)
        self._note(0)
        if not self._rows and not self._finished and not self._touched and not self._retained and not self._changed:
            self._shell.due()

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:  # noqa: ARG002 (the interface)
        delivery.record = number

    # -- publishes of the client ---------------------------------------------------------------------------------------

    def received(self, client_id: str, packet_id: int) -> None:
        changed = self._received(client_id)
        if packet_id in changed:
            # It stands in the file, and was to go.
            del changed[packet_id]
        else:
            changed[packet_id] = True
        self._note(0)

    def completed(self, client_id: str, packet_id: int) -> None:
        changed = self._received(client_id)
        if packet_id in changed:
            del changed[packet_id]
        else:
            changed[packet_id] = False
        self._note(0)

    def _received(self, client_id: str) -> dict[int, bool]:
        kept = self.kept[client_id]
        self._touch(kept)
        changed = kept.received
        if changed is None:
            changed = kept.received = {}
        return changed

    # -- messages for very many ----------------------------------------------------------------------------------------

    def broadcast(self, message: Message) -> int:
        self._number += 1
        number: i64 = self._number
        self._broadcasts[number] = message
        self.under_way[number] = None
        self._note(message.size())
        return number

    def passed(self, number: int, client_id: str) -> None:
        self._passed.append((number, self.kept[client_id].id))
        self._note(ROW_BYTES)

    def broadcast_over(self, number: int) -> None:
        self.under_way.pop(number, None)
        self._broadcasts_over.append(number)
        self._note(0)

    # -- retained messages ---------------------------------------------------------------------------------------------

    def retained_set(self, message: Message) -> None:
        topic = message.topic.decode()
        self._not_retained(topic)
        self._retained[topic] = message
        self._note(message.size())

    def retained_cleared(self, topic: str) -> None:
        self._not_retained(topic)
        self._retained[topic] = None
        self._note(0)

    def _not_retained(self, topic: str) -> None:
        """What the open group has for a topic goes, and counts no more."""
        earlier = self._retained.get(topic)
        if earlier is not None:
            self._size -= earlier.size()

    # -- the group -----------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """Bytes of the open group, about."""
        return self._size

    def take(self) -> Batch:
        """End the open group, and begin another with the next note. Between two calls of the core."""
        batch = Batch(self._commits.told)
        batch.size = self._size
        batch.last = self._number
        # What is to be added to a time of the broker's clock to make it last.
        offset = self._times.lasting(0.0)
        batch.gone = self._gone
        for kept in self._touched.values():
            kept.touched = False
            of_session(batch, kept)
        batch.streamed = self._streamed
        batch.finished = self._finished
        batch.unpaged = self._unpaged
        batch.read_back = list(self._read_back.items())
        self._message = of_deliveries(batch, self._rows, self._message, offset)
        for number, change in self._changed.items():
            batch.changed.append((number, SENT, change.packet_id, change.attempts))
        batch.released = list(self._released)
        for topic, message in self._retained.items():
            if message is None:
                batch.retained_cleared.append(topic)
            else:
                batch.retained += (
                    topic, message.payload(), message.qos, message.properties or None, message.publisher or None,
                    lasting(message, offset),
                )  # fmt: skip
        for number, message in self._broadcasts.items():
            batch.broadcasts += (
                number, message.topic.decode(), message.payload(), message.qos, message.retain,
                message.properties or None, message.publisher or None, lasting(message, offset),
            )  # fmt: skip
        batch.passed = self._passed
        batch.broadcasts_over = self._broadcasts_over
        self._clear()
        return batch

    def _clear(self) -> None:
        self.noted = False
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
        self._touched = {}
        self._streamed = []
        self._gone = []
        self._retained = {}
        self._broadcasts = {}
        self._passed = []
        self._broadcasts_over = []
