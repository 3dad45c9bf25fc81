"""Rows of a database that no broker wrote: each costs itself alone, and is named."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.store.group_commit import checksums
from canopy_mqtt.store.tools.verifying import DISAGREE
from tests.store.postgresql.place import ask, opened
from tests.store.sqlite.place import Listener, Wanted, delivery
from tests.store.tools.filled import fill_in
from tests.support.waiting import until


async def faults(name: str) -> list[str]:
    """Rows with another checksum, and tables that do not agree."""
    found: list[str] = []
    for table in checksums.OF:
        for row in await ask(name, f"SELECT * FROM {table}"):
            why = checksums.fault(table, row) or (table == "session" and checksums.will_fault(row))
            found += [f"{table} {row[0]!r}: {why}"] if why else []
    for statement, line in DISAGREE:
        found += [line.format(*values) for values in await ask(name, statement)]
    return found


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE session SET expiry_interval = 1 WHERE client_id = 'away'", "session"),
        ("UPDATE session SET will_payload = 'x' WHERE client_id = 'away'", "will"),
        pytest.param("UPDATE subscription SET qos = 0 WHERE filter = 'a/+'", "subscription", marks=pytest.mark.long),
        ("UPDATE delivery SET payload = 'x' WHERE topic IS NOT NULL AND number = 3", "delivery"),
        pytest.param("UPDATE delivery SET packet_id = 9 WHERE state = 2", "delivery", marks=pytest.mark.long),
        pytest.param("UPDATE message SET payload = 'x'", "message", marks=pytest.mark.long),
        pytest.param("UPDATE received SET packet_id = 7", "received", marks=pytest.mark.long),
        ("UPDATE retained SET payload = 'x' WHERE topic = 'r/1'", "retained"),
        pytest.param("UPDATE broadcast SET payload = 'x'", "broadcast", marks=pytest.mark.long),
        pytest.param("UPDATE passed SET session = 2", "passed", marks=pytest.mark.long),
    ],
)
async def test_a_damaged_row_costs_itself_alone(name: str, statement: str, what: str) -> None:
    store = await opened(name)
    await fill_in(store)
    await store.close()
    assert await faults(name) == []
    await ask(name, statement)
    assert await faults(name)
    again = await opened(name)
    saved = await again.load()
    assert isinstance(again.listener, Listener)
    assert again.listener.counts[what] == 1
    assert {each.client_id for each in saved.sessions} >= (
        {"da 'n\" é"} if what == "session" else {"away", "da 'n\" é"}
    )
    assert len(saved.retained) == (1 if what == "retained" else 2)
    # Whoever comes again finds nothing in the way.
    again.journal.session_kept("away", Principal("u"), 300, 0.0)
    await again.close()
    assert await faults(name) == []


async def test_what_was_damaged_in_the_database_alone(name: str) -> None:
    store = await opened(name)
    await fill_in(store)
    for number in range(3):
        store.journal.paged("away", delivery(b"%d" % number))
    await store.flush()
    [[first], *_] = await ask(name, "SELECT number FROM delivery WHERE size IS NOT NULL ORDER BY number")
    await ask(name, f"UPDATE delivery SET payload = 'x' WHERE number = {first}")
    fetch = Wanted(first, first + 2, 3)
    store.journal.fetch("away", fetch)
    await until(lambda: fetch.records)
    assert [each.message and each.message.payload for each in fetch.records] == [b"1", b"2"]
    assert isinstance(store.listener, Listener)
    assert [(each.what, each.client_id) for each in store.listener.damages] == [("delivery", "away")]
    await store.close()
    # The row is gone from the tables, and it alone.
    assert await faults(name) == []
    [[left]] = await ask(name, "SELECT count(*) FROM delivery WHERE size IS NOT NULL")
    assert left == 2
