"""Rows of ended sessions leave the file in pieces that are bounded in rows and in bytes."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from canopy_mqtt.store.sqlite import schema, sweeping
from canopy_mqtt.store.sqlite.opening import open_store
from canopy_mqtt.store.sqlite.reading import NUMBERS
from canopy_mqtt.store.sqlite.sweeping import Sweep


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A store whose sessions 1 and 3 have ended, and 2 has not."""
    opened = open_store(tmp_path, "off")
    opened.db.execute("INSERT INTO gone_session VALUES (1, 0), (3, 0)")
    yield opened.db
    opened.close()


def count(db: sqlite3.Connection, table: str, session: int) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table} WHERE session = ?", (session,)).fetchone()[0])


def pieces(db: sqlite3.Connection) -> list[int]:
    """Rows that each piece removed."""
    sweep, removed, before = Sweep(db), [], db.total_changes
    while sweep.piece():
        removed.append(db.total_changes - before)
        before = db.total_changes
    return removed


def fill(db: sqlite3.Connection, rows: int, size: int = 10) -> None:
    for at in range(rows):
        session = at % 3 + 1
        db.execute(
            "INSERT INTO subscription VALUES (?, ?, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0)", (session, f"f/{at}")
        )
        db.execute("INSERT INTO received VALUES (?, ?, 0)", (session, at))
        values = (at + 1, session, "t", bytes(size))
        text = (
            "INSERT INTO delivery VALUES (?, ?, NULL, 0, 0, 0, 1, 0, NULL, NULL, ?, ?, 1, 0, NULL, NULL, NULL, NULL, 0,"
            " 0)"
        )
        db.execute(text, values)


def test_what_is_left_goes_and_what_lives_stays(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "REMOVED", 7)
    monkeypatch.setattr(sweeping, "SEEN", 50)
    fill(db, 300)
    removed = pieces(db)
    for table in ("subscription", "received", "delivery"):
        assert [count(db, table, session) for session in (1, 2, 3)] == [0, 100, 0]
    assert db.execute("SELECT count(*) FROM gone_session").fetchone() == (0,)
    # A subscription is marked and removed, and the last piece forgets the sessions.
    assert max(removed) <= 2 * 7 + 2
    assert len(removed) >= 3 * 200 // 7


def test_a_piece_is_bounded_in_bytes(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "REMOVED_BYTES", 20_000)
    fill(db, 30, 9_000)
    sweep, left = Sweep(db), []
    while sweep.piece():
        left.append(count(db, "delivery", 1) + count(db, "delivery", 3))
    assert {before - after for before, after in itertools.pairwise(left)} <= {0, 2, 3}
    assert left[-1] == 0


@pytest.mark.parametrize("table", ["subscription", "received", "delivery", "gone_session"])
def test_after_an_error_nothing_is_passed_over(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(sweeping, "REMOVED", 7)
    monkeypatch.setattr(sweeping, "SEEN", 50)
    fill(db, 90)

    def refuse(action: int, name: str | None, *_: str | None) -> int:
        return sqlite3.SQLITE_DENY if (action, name) == (sqlite3.SQLITE_DELETE, table) else sqlite3.SQLITE_OK

    sweep = Sweep(db)
    db.set_authorizer(refuse)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        all_of(sweep)
    db.execute("ROLLBACK")
    db.set_authorizer(None)
    all_of(sweep)
    for each in ("subscription", "received", "delivery"):
        assert [count(db, each, session) for session in (1, 2, 3)] == [0, 30, 0]


def all_of(sweep: Sweep) -> None:
    while sweep.piece():
        pass


def test_sessions_that_end_meanwhile_are_for_the_next_round(db: sqlite3.Connection) -> None:
    fill(db, 30)
    sweep = Sweep(db)
    assert sweep.piece()
    db.execute("INSERT INTO gone_session VALUES (4, 0)")
    db.execute("INSERT INTO subscription VALUES (4, 'f', 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0)")
    all_of(sweep)
    assert count(db, "subscription", 4) == 0
    assert count(db, "subscription", 2) == 10


@pytest.mark.parametrize("after", [1, 2, 3])
def test_also_those_with_lower_numbers(db: sqlite3.Connection, after: int) -> None:
    """Whatever the round is at: subscriptions, packet identifiers, deliveries."""
    fill(db, 30)
    sweep = Sweep(db)
    for _ in range(after):
        assert sweep.piece()
    db.execute("INSERT INTO gone_session VALUES (2, 0)")
    sweep.ended([2])
    all_of(sweep)
    assert [count(db, table, 2) for table in ("subscription", "received", "delivery")] == [0, 0, 0]


def test_a_session_does_not_get_the_number_of_what_is_left(db: sqlite3.Connection) -> None:
    """It would inherit it."""
    db.execute("INSERT INTO subscription VALUES (7, 'f', 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0)")
    assert db.execute(NUMBERS).fetchone()[0] == 7
    db.execute("INSERT INTO received VALUES (8, 1, 0)")
    assert db.execute(NUMBERS).fetchone()[0] == 8


@pytest.mark.parametrize(
    "statement",
    [
        *(schema.STREAMED, schema.MARK_UNSUBSCRIBED, schema.FORGET_MARKED, schema.CHANGED, schema.RELEASED),
        *(schema.FINISHED, schema.COMPLETED, schema.RETAINED_CLEARED, schema.SESSION_GONE, schema.MARK_LEFT),
        *(schema.LAST_MARKED, schema.FORGET_RECEIVED, schema.LEFT_DELIVERIES, schema.ALL_DELIVERIES),
    ],
)
def test_no_statement_looks_at_all_rows_of_a_table_or_a_session(db: sqlite3.Connection, statement: str) -> None:
    """However much the file holds: one client's many filters must not make the groups of all others slow."""
    plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + statement, (1,) * statement.count("?"))]
    tables = ("session", "subscription", "delivery", "message", "received", "retained")
    scans = [step for step in plan if step.split()[0] == "SCAN" and step.split()[1] in tables]
    # Those that are marked are all in this index, and no others.
    assert [step for step in scans if "subscription_over" not in step] == []
    assert "SEARCH subscription USING PRIMARY KEY (session=?)" not in plan
