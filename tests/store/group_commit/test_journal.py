"""A group holds the net changes of its notes, and nothing of what is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import DONE, QUEUED, SENT, Delivery
from canopy_mqtt.core.queues.disk_queue import Fetch
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store.group_commit.journal import ENDED_ROWS, GroupJournal
from canopy_mqtt.store.group_commit.journal_listener import JournalListener
from canopy_mqtt.store.sqlite.schema import DELIVERIES, Insert
from canopy_mqtt.store.times import Times
from tests.store.places import rebooted
from tests.store.sqlite.place import delivery, message
from tests.support.runs import for_each
from tests.support.sessions import any_session


class Ends(JournalListener):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.groups = 0
        self.ends = 0
        self.eases = 0

    def begun(self) -> None:
        self.groups += 1

    def fetch(self, session: int, fetch: Fetch) -> None:
        del session, fetch

    def due(self) -> None:
        self.ends += 1

    def eased(self) -> None:
        self.eases += 1


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def journal(ends: Ends) -> GroupJournal:
    """A journal whose session c is written."""
    times = Times(rebooted(lambda: 1_000.0))
    times.start(lambda: 50.0)
    made = GroupJournal(times, ends, 10_000)
    made.session_kept("c", Principal("u"), 300, 0.0)
    made.take()
    ends.groups = 0
    return made


def test_identifiers_that_come_and_go_within_a_group_are_never_written(journal: GroupJournal) -> None:
    journal.received("c", 5)
    journal.completed("c", 5)
    journal.received("c", 6)
    first = journal.take()
    assert ([one[1] for one in first.received], first.completed) == ([6], [])
    journal.completed("c", 6)
    journal.received("c", 6)
    assert journal.take().empty()


def test_a_group_says_when_it_has_its_size(journal: GroupJournal, ends: Ends) -> None:
    journal.queued("c", delivery(bytes(5_000)))
    assert ends.ends == 0
    journal.queued("c", delivery(bytes(5_000)))
    assert ends.ends == 1
    journal.queued("c", delivery(bytes(15_000)))
    assert (ends.groups, ends.ends) == (1, 2)


def test_what_an_outage_adds_up_to_is_bounded_by_what_is_kept(journal: GroupJournal) -> None:
    """However often a retained message is replaced and messages come and go, the group has the last alone."""
    for number in range(1_000):
        journal.retained_set(message(b"%d" % number))
        one = delivery()
        journal.queued("c", one)
        journal.finished("c", one)
        journal.session_kept("c", Principal("u"), number + 1, 0.0)
    batch = journal.take()
    assert (batch.retained[1], batch.sessions[3]) == (b"999", 1_000)
    assert (len(batch.retained), len(batch.sessions), batch.deliveries, batch.finished) == (8, 15, [], [])


@for_each("count", [1, 2, 7, 8, 9, 2_048, 2_049, 5_000])
def test_rows_stand_in_few_statements_of_few_lengths(count: int) -> None:
    rows = Insert("t", 2)
    values: list[object] = [number for row in range(count) for number in (row, -row)]
    statements = list(rows.statements(list(values)))
    assert len(statements) == -(-count // 2_048)
    found = [value for _, part in statements for value in part]
    assert found[: len(values)] == values
    assert set(found[len(values) :]) <= {None}
    assert all(len(part) == 2 * text.count("(?,?)") for text, part in statements)


def test_sessions_that_come_and_go_in_an_outage_leave_nothing(journal: GroupJournal) -> None:
    """Nor do wills, subscriptions and queues of theirs, and nothing of it counts."""
    journal.queued("c", delivery(b"stays"))
    before = journal.size()
    for _ in range(ENDED_ROWS):
        journal.session_kept("d", Principal("u"), 300, 0.0)
        journal.will_set("d", Will("w", bytes(1_000)), 0.0)
        journal.subscribed("d", Subscription(any_session(), "a"), False)
        journal.subscribed("d", Subscription(any_session(), "a"), False)
        journal.received("d", 5)
        for _ in range(3):
            journal.queued("d", delivery())
        journal.session_gone("d")
    assert len(journal._touched) == 0
    assert len(journal._rows) <= 2 * ENDED_ROWS
    assert journal.size() <= before + ENDED_ROWS * 2 * delivery().message.size
    batch = journal.take()
    assert (len(batch.deliveries), batch.sessions, batch.gone) == (DELIVERIES.columns, [], [])


def test_what_takes_the_place_of_an_earlier_note_counts_once(journal: GroupJournal) -> None:
    waits = delivery(bytes(100))
    journal.queued("c", waits)
    released = delivery(bytes(100), 2)
    journal.in_flight("c", released)
    one = waits.message.size

    def size_after(note: Callable[[], None]) -> int:
        note()
        return journal.size()

    assert journal.size() == 2 * one
    assert {size_after(lambda: journal.renewed("c", waits)) for _ in range(10)} == {2 * one}
    assert size_after(lambda: journal.released("c", released)) == one
    kept = message(bytes(50))
    assert {size_after(lambda: journal.retained_set(kept)) for _ in range(10)} == {one + kept.size}
    assert size_after(lambda: journal.retained_cleared("a")) == one
    once = size_after(lambda: journal.subscribed("c", Subscription(any_session(), "a"), False))
    assert size_after(lambda: journal.subscribed("c", Subscription(any_session(), "a"), False)) == once
    assert size_after(lambda: journal.unsubscribed("c", "a")) == one
    once = size_after(lambda: journal.session_kept("c", Principal("u"), 300, 0.0))
    assert size_after(lambda: journal.session_kept("c", Principal("u"), 200, 0.0)) == once


# -- what is acknowledged before it is written ----------------------------------------------------------------------


def sent(journal: GroupJournal, payload: bytes = b"1") -> Delivery:
    """A publish came, and its delivery to the connected session c is in flight."""
    journal.commits_kept().begin()
    one = delivery(payload)
    one.packet_id, one.state = 1, SENT
    journal.in_flight("c", one)
    return one


def acknowledged(journal: GroupJournal, one: Delivery) -> None:
    one.state = DONE
    journal.finished("c", one)


def test_what_is_acknowledged_young_is_never_written(journal: GroupJournal, ends: Ends) -> None:
    one = sent(journal)
    journal.take()
    acknowledged(journal, one)
    assert ends.eases == 1
    assert journal.take().empty()
    assert journal.safe() == journal.commits_kept().journal_position


def test_what_goes_to_another_client_is_written_and_waited_for(journal: GroupJournal) -> None:
    """A member of a shared subscription left: its delivery is over, and its message is not [MQTT-4.8.2-6]."""
    told = journal.commits_kept().journal_position
    one = sent(journal)
    one.state = QUEUED
    journal.finished("c", one)
    other = delivery()
    journal.queued("c", other)
    assert journal.safe() == told
    batch = journal.take()
    assert (batch.deliveries[0], batch.number) == (other.record, journal.commits_kept().journal_position)


def test_a_group_of_full_size_leaves_nothing_out(journal: GroupJournal) -> None:
    """So that what is left out, and then counts for the next, stays below that size."""
    for _ in range(3):
        sent(journal, bytes(4_000))
    assert len(journal.take().deliveries) == 3 * DELIVERIES.columns
    assert not journal.noted
