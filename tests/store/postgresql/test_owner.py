"""Whose a schema is: one broker's at a time, and what becomes of one that was replaced."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.store import StoreError
from canopy_mqtt.store.postgresql.database import TAKEN, Replaced
from tests.store.postgresql.place import ask, count, kill, make, opened
from tests.store.sqlite.place import Listener, delivery
from tests.support.waiting import until


async def _expire(name: str) -> None:
    """The lease is over, as where its broker was cut off from the database."""
    await ask(name, "UPDATE owner SET lease_until = '-infinity'")


async def test_a_killed_brokers_lease_is_waited_for(name: str) -> None:
    first = await opened(name)
    first.journal.session_kept("c", Principal("u"), 300, 0.0)
    first.journal.queued("c", delivery(b"1"))
    await first.flush()
    await kill(first)
    [[end]] = await ask(name, "SELECT lease_until::text FROM owner")
    second = await opened(name)
    assert await ask(name, f"SELECT clock_timestamp() > '{end}'") == [(True,)]
    [[epoch, over]] = await ask(name, "SELECT epoch, lease_until > clock_timestamp() FROM owner")
    assert (epoch, over) == (2, True)
    [session] = (await second.load()).sessions
    assert [each.message and each.message.payload for each in session.deliveries] == [b"1"]
    await second.close()


async def test_a_broker_that_stops_in_order_keeps_nobody_waiting(name: str) -> None:
    await (await opened(name, lease_timeout=3600.0)).close()
    async with asyncio.timeout(30):
        await (await opened(name, lease_timeout=3600.0)).close()


async def test_a_lease_that_is_given_up_meanwhile_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it has seen it once, and asks who has it when it has just ended."""
    first, second = await opened(name, lease_timeout=3600.0), make(name)
    fetchrow, asked = asyncpg.Connection.fetchrow, 0

    async def answered(connection: object, query: str, *values: object, **options: object) -> object:
        nonlocal asked
        asked += query == TAKEN
        if asked == 2:
            await first.close()
        return await fetchrow(connection, query, *values, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetchrow", answered)
    await second._database.take()
    assert (asked, second._database.epoch) == (2, 2)
    await second._database.disconnect()


async def test_a_start_that_is_given_up_keeps_nobody_waiting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that is cancelled while it looks at the tables, which are its own by then."""
    from canopy_mqtt.store.postgresql import opening
    from canopy_mqtt.store.postgresql.database import Database

    there, never = asyncio.Event(), asyncio.Event()

    fetch = Database.fetch

    async def slow(database: Database, statement: str, *values: object) -> Any:
        if statement == opening.NUMBERS:
            there.set()
            await never.wait()
        return await fetch(database, statement, *values)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "fetch", slow)
        start = asyncio.ensure_future(opened(name, lease_timeout=3600.0))
        await there.wait()
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
    await (await opened(name)).close()


async def test_a_broker_that_was_replaced_keeps_nothing_more(name: str) -> None:
    first = await opened(name, lease_timeout=3600.0)
    journal, commits, listener = first.journal, first.journal.commits, first.listener
    assert commits is not None
    assert isinstance(listener, Listener)
    journal.session_kept("c", Principal("u"), 300, 0.0)
    await first.flush()
    await _expire(name)
    second = await opened(name, node="second")
    await second.load()
    journal.queued("c", delivery(b"late"))
    committed = commits.committed
    with pytest.raises(StoreError, match="was taken over by second: nothing is kept here any more, this broker stops"):
        await first.flush()
    # Publishers are told, whatever `store.on_failure` says.
    assert (commits.failed, commits.full, commits.committed) == (True, True, committed)
    assert commits.refuses(False)
    assert "taken over by second" in listener.reasons[0]
    with pytest.raises(StoreError, match="taken over"):
        await first.close()
    assert await count(name, "delivery") == 0
    # And what it gave up was not its own.
    second.journal.queued("c", delivery(b"kept"))
    await second.flush()
    assert await count(name, "delivery") == 1
    [[epoch, holds]] = await ask(name, "SELECT epoch, lease_until > clock_timestamp() FROM owner")
    assert (epoch, holds) == (2, True)
    await second.close()


async def test_a_broker_that_was_replaced_hears_of_it_with_nothing_to_write(name: str) -> None:
    first = await opened(name)
    listener = first.listener
    assert isinstance(listener, Listener)
    # As the second one does, in a statement: between two, the first one may renew its lease.
    await ask(name, "UPDATE owner SET epoch = epoch + 1, node = 'second', lease_until = 'infinity'")
    await until(lambda: listener.reasons)
    assert "taken over by second" in listener.reasons[0]
    await first.close()


async def test_the_lease_goes_on_while_nothing_is_written(name: str) -> None:
    store = await opened(name)
    [[before]] = await ask(name, "SELECT lease_until FROM owner")
    groups = store._committer.count
    renewed = store._database.renewed
    await until(lambda: store._database.renewed > renewed)
    [[after]] = await ask(name, "SELECT lease_until FROM owner")
    assert after > before
    assert store._committer.count == groups
    await store.close()


async def test_who_waits_for_a_group_that_is_being_written_does_not_take_over(name: str) -> None:
    """The group renews the lease, in the row that both are about."""
    first, second = await opened(name), make(name)
    await kill(first)
    database = first._database
    await _expire(name)
    assert await database.claim()
    waiting = asyncio.ensure_future(second._database.take())
    # It waits for the lock of the row.
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE owner%'"
    for _ in range(1_000):
        if await ask(name, blocked) == [(1,)]:
            break
    await database.commit()
    for _ in range(1_000):
        if waiting.done():
            break
        assert await database.renew()
    with pytest.raises(StoreError, match="is in use by"):
        await waiting
    second._database.drop()
    await database.disconnect()


async def test_the_background_is_the_owners_too(name: str) -> None:
    first = await opened(name)
    await kill(first)
    await _expire(name)
    second = await opened(name)
    with pytest.raises(Replaced):
        await first._sweep.piece()
    first._database.drop()
    await second.close()
