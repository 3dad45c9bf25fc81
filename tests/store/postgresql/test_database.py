"""A store survives the faults of its database, and takes little of the event loop's time."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store import StoreError
from canopy_mqtt.store.group_commit import committer
from canopy_mqtt.store.postgresql import database as database_module
from canopy_mqtt.store.postgresql import reading, schema, sweeping, writing
from canopy_mqtt.store.postgresql.database import NO_ANSWER, Database
from tests.store.postgresql.place import Proxy, ask, count, kill, make, opened
from tests.store.sqlite.place import Listener, Wanted, delivery, message, see
from tests.support import postgresql
from tests.support.sessions import any_session
from tests.support.waiting import until

SOON: Final = 0.3
"""Seconds after which no answer is none. Whoever waits for an answer that comes has `NO_ANSWER` of them."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(committer, "LAST_RETRY", 0.05)


async def test_a_connection_that_is_lost_within_a_transaction_is_not_replaced_there(name: str) -> None:
    """A COMMIT on a new connection would succeed, with nothing of the group in it."""
    store = await opened(name, lease_timeout=3_600.0)
    database = store._database
    assert await database.claim()
    (await database.connection()).terminate()
    with pytest.raises(ConnectionError):
        await database.commit()
    assert database.group == 0
    await store.close()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_whose_outcome_nobody_heard(name: str, proxy: Proxy, when: str) -> None:
    """The connection breaks with the COMMIT on its way, or with its answer: the group is there, and once."""
    # No renewal of the lease is a group of its own meanwhile.
    store = await opened(name, url=await proxy.start(), lease_timeout=3_600.0)
    listener, commits = store.listener, store.journal.commits
    assert isinstance(listener, Listener)
    assert commits is not None
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    # The background's transactions end with COMMIT, too.
    await until(lambda: not store._untidy)
    kept = [delivery(b"%d" % number) for number in range(50)]
    [[groups]] = await ask(name, "SELECT groups FROM owner")
    setattr(proxy, when, b"COMMIT")
    for one in kept:
        store.journal.queued("c", one)
    committed = commits.committed
    await until(lambda: commits.committed > committed)
    assert (proxy.lost, len(listener.reasons), listener.recoveries, commits.failed) == (1, 1, 1, False)
    [[after]] = await ask(name, "SELECT groups FROM owner")
    assert after == groups + 1
    assert await count(name, "delivery") == 50
    # It goes on as if nothing had been.
    store.journal.finished("c", kept[0])
    await store.flush()
    assert await count(name, "delivery") == 49
    await store.close()


async def test_connections_that_break_all_the_time(name: str, proxy: Proxy) -> None:
    """Whatever is told meanwhile is kept, in its order and once."""
    store = await opened(name, url=await proxy.start())
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    for number in range(200):
        store.journal.queued("c", delivery(b"%d" % number))
        await asyncio.sleep(0.001)
        if number % 20 == 10:
            proxy.cut()
        if number % 20 == 15:
            proxy.after = (b"COMMIT", b"BEGIN", b"COPY")[number // 20 % 3]
    commits = store.journal.commits
    assert commits is not None
    proxy.after = b""
    await until(lambda: commits.committed == commits.journal_position)
    assert proxy.connections > 5
    rows = await ask(name, "SELECT payload FROM delivery ORDER BY number")
    assert [int(payload) for (payload,) in rows] == list(range(200))
    await store.close()


async def test_a_database_that_stands_still(name: str, proxy: Proxy) -> None:
    """Nobody answers, as behind a firewall that forgot the connection: that is told, and another one is made."""
    # Neither a renewal of the lease nor the background has begun something with the patience of before.
    store = await opened(name, url=await proxy.start(), lease_timeout=3_600.0)
    listener, commits = store.listener, store.journal.commits
    assert isinstance(listener, Listener)
    assert commits is not None
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    await until(lambda: not store._untidy)
    store._database.timeout = SOON
    proxy.stand_still()
    store.journal.queued("c", delivery(b"1"))
    with pytest.raises(StoreError):
        await store.flush()
    assert commits.failed
    assert commits.refuses(True)
    assert listener.reasons
    assert all("postgresql://127.0.0.1" in reason and "canopy@" not in reason for reason in listener.reasons)
    store._database.timeout = NO_ANSWER
    proxy.go_on()
    await until(lambda: commits.committed == commits.journal_position)
    assert (commits.failed, await count(name, "delivery")) == (False, 1)
    await store.close()


async def test_a_start_does_not_wait_for_ever(name: str, proxy: Proxy) -> None:
    """Wherever it is when the database stops to answer."""
    url = await proxy.start()
    proxy.stand_still()
    with pytest.raises(StoreError, match="cannot be reached"):
        await make(name, url=url, stall_timeout=SOON).open(lambda: 0.0)
    proxy.go_on()
    store = await opened(name, url=url)
    store._database.timeout = SOON
    proxy.stand_still()
    with pytest.raises(StoreError, match="cannot be reached"):
        await store.load()
    store._database.timeout = NO_ANSWER
    proxy.go_on()
    await store.close()


async def test_an_outage_is_told_with_nothing_to_write(name: str, proxy: Proxy) -> None:
    store = await opened(name, url=await proxy.start())
    listener = store.listener
    assert isinstance(listener, Listener)
    proxy.open = False
    proxy.cut()
    await until(lambda: listener.reasons)
    assert "it cannot be reached: check that PostgreSQL runs, and store.url" in listener.reasons[0]
    proxy.open = True
    await until(lambda: listener.recoveries)
    await store.close()


async def test_a_store_that_is_closed_without_a_database_is_taken_up_again(name: str, proxy: Proxy) -> None:
    """A broker object that is stopped and started again has its sessions still: what it told is written then."""
    store = await opened(name, url=await proxy.start())
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    proxy.open = False
    proxy.cut()
    store.journal.queued("c", delivery(b"1"))
    with pytest.raises(StoreError, match="cannot be reached"):
        await store.close()
    proxy.open = True
    await store.open(asyncio.get_running_loop().time)
    await store.flush()
    assert await count(name, "delivery") == 1
    await store.close()


async def test_a_database_that_has_lost_groups_is_told_of(name: str) -> None:
    """As after a fail-over to a standby that was behind: nothing is acknowledged as if it had what it has not."""
    store = await opened(name)
    commits = store.journal.commits
    assert commits is not None
    for client_id in "abc":
        store.journal.session_kept(client_id, Principal("u"), 300, 0.0)
        await store.flush()
    await ask(name, "UPDATE owner SET groups = groups - 2")
    store.journal.queued("c", delivery(b"1"))
    with pytest.raises(StoreError, match="has lost what it had"):
        await store.flush()
    assert commits.full
    with pytest.raises(StoreError, match="has lost what it had"):
        await store.close()
    # The next one goes on from what is there.
    second = await opened(name)
    assert len((await second.load()).sessions) == 3
    await second.close()


async def _fill(store: Any, sessions: int, each: int) -> None:
    journal = store.journal
    shared = message(b"shared")
    for number in range(sessions):
        client_id = f"c{number:02}"
        journal.session_kept(client_id, Principal("u"), 300, 0.0)
        journal.received(client_id, 7)
        for filter_ in range(3):
            journal.subscribed(client_id, Subscription(any_session(), f"{filter_}/#", 1), False)
        journal.queued(client_id, Delivery(shared, 1, False, (), None))
        for at in range(each):
            if at % 3:
                journal.paged(client_id, delivery(b"%d" % at))
            else:
                journal.queued(client_id, delivery(b"%d" % at))
        journal.retained_set(message(b"r", f"r/{number}".encode()))
    many = journal.broadcast(message(b"to all"))
    for number in range(sessions):
        journal.passed(many, f"c{number:02}")
    await store.flush()


async def test_a_start_takes_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are, some at a time, and all of them; the lease is renewed meanwhile."""
    store = await opened(name)
    await _fill(store, 25, 9)
    whole = see(await store.load())
    pages = [(one.client_id, sum(page.messages for page in one.pages)) for one in (await store.load()).sessions]
    await store.close()
    assert {messages for _, messages in pages} == {6}
    monkeypatch.setattr(reading, "TURN", 10)
    monkeypatch.setattr(Database, "is_due", lambda _: True)
    sizes: list[int] = []
    renewals: list[bool] = []
    fetch, renew = Database.fetch, Database.renew

    async def watched(self: Database, statement: str, *values: object) -> Any:
        rows = await fetch(self, statement, *values)
        sizes.append(len(rows))
        return rows

    async def renewed(self: Database) -> bool:
        renewals.append(True)
        return await renew(self)

    second = await opened(name)
    monkeypatch.setattr(Database, "fetch", watched)
    monkeypatch.setattr(Database, "renew", renewed)
    assert see(await second.load()) == whole
    assert max(sizes) == 10
    assert len(sizes) > 40
    assert len(renewals) > 30
    monkeypatch.undo()
    await second.close()


async def test_a_group_is_written_in_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "TURN", 7)
    monkeypatch.setattr(writing, "NUMBERS", 5)
    store = await opened(name)
    await _fill(store, 12, 10)
    assert [await count(name, table) for table in ("session", "subscription", "retained", "passed")] == [12, 36, 12, 12]
    assert await count(name, "delivery") == 12 * 11
    for number in range(12):
        store.journal.session_gone(f"c{number:02}")
    await store.flush()
    assert (await count(name, "session"), await count(name, "gone_session") <= 12) == (0, True)
    await store.close()


async def test_what_ended_sessions_left_goes_in_the_background(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SEEN", 10)
    monkeypatch.setattr(sweeping, "REMOVED", 7)
    store = await opened(name)
    await _fill(store, 12, 10)
    for number in range(11):
        store.journal.session_gone(f"c{number:02}")
    await store.flush()
    await until(lambda: not store._untidy)
    tables = ("gone_session", "received", "subscription", "delivery")
    assert [await count(name, table) for table in tables] == [0, 1, 3, 11]
    # The message that they shared is the last one's alone.
    assert await ask(name, "SELECT refs FROM message") == [(1,)]
    await until(lambda: dict(store.figures())["bytes"])
    await store.close()


class Watched:
    """A connection, and how many rows it brings at a time."""

    def __init__(self, connection: Any, sizes: list[int]) -> None:
        self._connection = connection
        self._sizes = sizes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, statement: str, *values: object) -> Any:
        rows = await self._connection.fetch(statement, *values)
        self._sizes.append(len(rows))
        return rows


async def test_what_is_to_stay_is_not_brought_here_to_see_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 deliveries that are looked at took 100 ms of the event loop."""
    monkeypatch.setattr(sweeping, "SEEN", 10)
    store = await opened(name)
    await _fill(store, 12, 10)
    sizes: list[int] = []
    begun = Database.begun
    monkeypatch.setattr(Database, "begun", lambda self: Watched(begun(self), sizes))
    store.journal.session_gone("c03")
    await store.flush()
    await until(lambda: not store._untidy)
    assert await count(name, "delivery") == 11 * 11
    assert max(sizes, default=0) <= 1
    await store.close()


async def test_what_waits_there_alone_is_read_back(name: str) -> None:
    store = await opened(name)
    await _fill(store, 2, 9)
    await store.close()
    second = await opened(name)
    session = (await second.load()).sessions[1]
    [page] = session.pages
    fetch = Wanted(page.first, page.last, page.messages)
    second.journal.fetch("c01", fetch)
    await until(lambda: fetch.records)
    assert [each.message and each.message.payload for each in fetch.records] == [b"1", b"2", b"4", b"5", b"7", b"8"]
    # What is in memory again says so, and is read as such by the next broker.
    second.journal.read_back("c01", fetch.records[2].number)
    await second.flush()
    await kill(second)
    third = await opened(name)
    session = (await third.load()).sessions[1]
    assert sum(page.messages for page in session.pages) == 3
    found = [each.message.payload for each in session.deliveries if each.message is not None]
    assert found == [b"shared", b"0", b"1", b"2", b"3", b"4", b"6"]
    await third.close()


class TestOpening:
    @pytest.mark.parametrize("version", [schema.VERSION + 1, schema.VERSION - 1])
    async def test_another_version_is_left_alone(self, name: str, version: int) -> None:
        await (await opened(name)).close()
        await ask(name, f"UPDATE canopy SET version = {version}")
        with pytest.raises(
            StoreError, match=f"is of version {version}, and this broker's is {schema.VERSION}: run the"
        ):
            await opened(name)
        [[epoch]] = await ask(name, "SELECT epoch FROM owner")
        assert epoch == 1

    async def test_another_programs_schema_is_left_alone(self, name: str) -> None:
        await ask(name, f'CREATE SCHEMA "{name}" CREATE TABLE other (id int)')
        with pytest.raises(StoreError, match=f"schema {name} has another program's tables: name another schema"):
            await opened(name)

    async def test_two_that_make_the_tables_at_once(self, name: str) -> None:
        outcomes = await asyncio.gather(*(opened(name) for _ in range(3)), return_exceptions=True)
        [store] = [one for one in outcomes if not isinstance(one, BaseException)]
        assert all(isinstance(one, StoreError) and "in use" in str(one) for one in outcomes if one is not store)
        await store.close()

    async def test_a_database_that_is_not_there(self, name: str) -> None:
        url = postgresql.shared().url.replace("/postgres", f"/{name}")
        with pytest.raises(StoreError, match=r"there is no such database: create it \(createdb\)"):
            await make(name, url=url).open(lambda: 0.0)

    async def test_a_role_that_may_not(self, name: str) -> None:
        await ask("public", f"CREATE ROLE {name} LOGIN")
        url = postgresql.shared().url.replace("canopy@", f"{name}:secret@")
        with pytest.raises(StoreError, match="lacks a privilege: grant it CREATE on the database") as error:
            await make(name, url=url).open(lambda: 0.0)
        assert "secret" not in str(error.value)

    async def test_an_encoding_that_is_not_utf_8(self, name: str) -> None:
        await ask("public", f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
        url = postgresql.shared().url.replace("/postgres", f"/{name}")
        with pytest.raises(StoreError, match="is a database in SQL_ASCII: make one with ENCODING 'UTF8'"):
            await make(name, url=url).open(lambda: 0.0)

    async def test_numbers_that_no_broker_gave(self, name: str) -> None:
        await (await opened(name)).close()
        await ask(name, f"INSERT INTO gone_session VALUES ({2**62 + 1})")
        with pytest.raises(StoreError, match="is damaged: a number in it is above"):
            await opened(name)

    def test_what_it_is_called_has_no_password(self) -> None:
        found = database_module.place("postgresql://u:p%40ss@db1:5433,db2/canopy?sslmode=require")
        assert found == "postgresql://db1:5433,db2/canopy"
