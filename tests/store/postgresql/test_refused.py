"""A database that refuses statements over a connection that stays: the store goes on by itself, and loses nothing.

The server itself refuses them, with the error that it gives for a full disk, a lock that is not to be had, a standby,
or a time-out, at each kind of statement. A store that kept the connection would keep an aborted transaction for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.store.postgresql import PostgresStore
from canopy_mqtt.store.postgresql.database import remedy
from tests.store.postgresql.place import ask, kill, opened, standbys
from tests.store.sqlite.place import Listener, Wanted, delivery
from tests.support import postgresql
from tests.support.postgresql import Server
from tests.support.waiting import until

CODES = {
    "53100": "its disk is full",
    "XX000": "it has a fault of its own: look into its log, and whether its disk is full",
    "53200": "it refuses the request",
    "25006": "it cannot be written",
    "55P03": "it refuses the request",
    "57014": "it refuses the request",
    "40001": "it refuses the request",
}
"""Disk full, a file that cannot be written, out of memory, a standby that only reads, a lock time-out,
`statement_timeout`, serialization failure."""

REFUSING = """
CREATE TABLE refusing (code text);
CREATE FUNCTION refuse() RETURNS boolean LANGUAGE plpgsql AS $$ DECLARE found text; BEGIN
    SELECT code INTO found FROM refusing;
    IF found IS NOT NULL THEN RAISE EXCEPTION 'refused' USING ERRCODE = found; END IF;
    RETURN true;
END $$;
CREATE FUNCTION refuse_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM refuse();
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    RETURN NEW;
END $$;
"""

STATEMENTS = {
    "copy": "CREATE TRIGGER refused BEFORE INSERT ON delivery FOR EACH ROW EXECUTE FUNCTION refuse_row()",
    "insert": "CREATE TRIGGER refused BEFORE INSERT ON session FOR EACH ROW EXECUTE FUNCTION refuse_row()",
    "commit": "CREATE CONSTRAINT TRIGGER refused AFTER INSERT ON delivery DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION refuse_row()",
    "lease": "CREATE TRIGGER refused BEFORE UPDATE ON owner FOR EACH ROW EXECUTE FUNCTION refuse_row()",
}


async def change(name: str, statement: str) -> None:
    await postgresql.ask(postgresql.shared().url, f'SET search_path = "{name}"; {statement}', then="SELECT 1")


async def over_its_connection(store: PostgresStore, statement: str) -> None:
    async def execute() -> None:
        connection = await store._database.connection()
        await connection.execute(statement)

    await store._ask(execute)


def told(store: PostgresStore) -> Listener:
    assert isinstance(store.listener, Listener)
    return store.listener


async def load(name: str) -> dict[str, list[bytes]]:
    """The payloads that wait for each session, as the next broker finds them."""
    store = await opened(name)
    try:
        saved = await store.load()
        return {
            each.client_id: [one.message.payload for one in each.deliveries if one.message] for each in saved.sessions
        }
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        pytest.param(kind, code, marks=[] if kind == "commit" or code == "53100" else pytest.mark.long)
        for kind in STATEMENTS
        for code in CODES
    ],
)
async def test_what_is_refused_is_written_later(name: str, kind: str, code: str) -> None:
    store = await opened(name, lease_timeout=30.0 if kind != "lease" else 1.0)
    listener, commits = told(store), store.journal.commits
    assert commits is not None
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    store.journal.queued("c", delivery(b"before"))
    await store.flush()
    [[epoch]] = await ask(name, "SELECT epoch FROM owner")
    await change(name, f"{REFUSING} {STATEMENTS[kind]}; INSERT INTO refusing VALUES ('{code}')")
    committed = commits.committed
    if kind == "insert":
        store.journal.session_kept("d", Principal("u"), 300, 0.0)
    elif kind != "lease":  # which the store renews by itself
        store.journal.queued("c", delivery(b"meanwhile"))
    await until(lambda: listener.reasons, "the store says that it cannot write")
    # Nothing is acknowledged; a publisher is held, or refused where the settings say so.
    assert commits.committed == committed
    assert (commits.refuses(False), commits.refuses(True)) == (False, True)
    assert CODES[code] in listener.reasons[0]
    await change(name, "DELETE FROM refusing")
    store.journal.queued("c", delivery(b"after"))
    await until(lambda: listener.recoveries, "the store writes again, by itself")
    await store.flush()
    assert (commits.committed, commits.failed, listener.ends) == (commits.journal_position, False, 0)
    assert await ask(name, "SELECT epoch FROM owner") == [(epoch,)]
    await kill(store)
    await change(name, "UPDATE owner SET lease_until = '-infinity'")
    found = await load(name)
    between = [b"meanwhile"] if kind in ("copy", "commit") else []
    assert found == {"c": [b"before", *between, b"after"], **({"d": []} if kind == "insert" else {})}


@pytest.mark.parametrize("code", ["53100", "57014"])
async def test_a_page_that_is_refused_is_read_later(name: str, code: str) -> None:
    store = await opened(name)
    listener, commits = told(store), store.journal.commits
    assert commits is not None
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    for number in range(3):
        store.journal.paged("c", delivery(b"%d" % number))
    await store.flush()
    view = "CREATE VIEW delivery AS SELECT * FROM there WHERE refuse()"
    await change(
        name, f"{REFUSING} ALTER TABLE delivery RENAME TO there; {view}; INSERT INTO refusing VALUES ('{code}')"
    )
    fetch = Wanted(1, 3, 3)
    store.journal.fetch("c", fetch)
    await until(lambda: listener.notices, "the store says that it cannot read")
    assert CODES[code] in listener.notices[0]
    assert not fetch.records
    await change(name, "DROP VIEW delivery; ALTER TABLE there RENAME TO delivery; DELETE FROM refusing")
    # With the next group it is tried again.
    store.journal.session_kept("d", Principal("u"), 300, 0.0)
    await until(lambda: fetch.records, "it is read")
    assert [each.message and each.message.payload for each in fetch.records] == [b"0", b"1", b"2"]
    assert not listener.reasons
    await store.close()


@pytest.mark.parametrize("code", ["53100", "57014"])
async def test_what_is_refused_in_the_background_disturbs_nobody(name: str, code: str) -> None:
    """Rows of ended sessions are removed later; the next group is written at once."""
    store = await opened(name)
    listener = told(store)
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    store.journal.queued("c", delivery(b"left"))
    await store.flush()
    await change(
        name,
        f"{REFUSING} CREATE TABLE asked (); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pg_notify('refused', ''); PERFORM refuse(); RETURN OLD; END $$;"
        " CREATE TRIGGER refused BEFORE DELETE ON delivery FOR EACH ROW EXECUTE FUNCTION note();"
        f" INSERT INTO refusing VALUES ('{code}')",
    )
    database = store._database
    before = await database.connection()
    store.journal.session_gone("c")
    await store.flush()
    await until(lambda: database._connection is not before, "the connection of what was refused goes")
    await change(name, "DELETE FROM refusing")
    store.journal.session_kept("d", Principal("u"), 300, 0.0)
    store.journal.queued("d", delivery(b"new"))
    await store.flush()
    assert not listener.reasons
    store.journal.session_gone("d")  # the background begins again
    await store.flush()
    deadline = asyncio.get_running_loop().time() + 30.0
    while await ask(name, "SELECT 1 FROM delivery LIMIT 1"):
        assert asyncio.get_running_loop().time() < deadline, "it is removed in the end"
        await asyncio.sleep(0.05)
    await store.close()


@pytest.mark.parametrize("option", ["lock_timeout", "statement_timeout"])
async def test_a_lock_that_another_program_holds(name: str, option: str) -> None:
    """As while somebody changes a table by hand: the server ends the statement."""
    import asyncpg

    store = await opened(name)
    listener = told(store)
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    await over_its_connection(store, f"SET {option} = '100ms'")
    other = await asyncpg.connect(postgresql.shared().url)
    async with other.transaction():
        await other.execute(f'LOCK TABLE "{name}".delivery IN ACCESS EXCLUSIVE MODE')
        store.journal.queued("c", delivery(b"x"))
        await until(lambda: listener.reasons, "the store says that it cannot write")
        assert ("LockNotAvailable" if option == "lock_timeout" else "QueryCanceled") in listener.reasons[0]
    await other.close()
    await until(lambda: listener.recoveries, "the store writes again, by itself")
    await store.close()
    assert await load(name) == {"c": [b"x"]}


async def test_a_primary_that_has_become_a_standby(name: str) -> None:
    """The connection stays, and every transaction over it only reads."""
    store = await opened(name)
    listener = told(store)
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    await over_its_connection(store, "SET default_transaction_read_only = on")
    store.journal.queued("c", delivery(b"x"))
    await until(lambda: listener.recoveries, "the store writes again, over another connection")
    assert "it cannot be written: name the primary in store.url" in listener.reasons[0]
    await store.close()
    assert await load(name) == {"c": [b"x"]}


@pytest.fixture
def alone() -> Iterator[Server]:
    """A server of the test's own."""
    yield from postgresql.server()


async def test_a_commit_that_is_on_no_standby_is_not_acknowledged(alone: Server) -> None:
    """Somebody ends the wait for the standby: PostgreSQL answers as if nothing had happened, with a warning."""
    store = await opened("canopy", url=alone.url, synchronous="full", lease_timeout=3_600.0)
    listener, commits = told(store), store.journal.commits
    assert commits is not None
    await until(lambda: not store._untidy)
    await standbys(alone, "SET synchronous_standby_names = 'nobody'")
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    while not await postgresql.ask(alone.url, cancel):
        assert commits.committed < commits.journal_position
    await until(lambda: listener.reasons)
    assert "canceling wait for synchronous replication" in listener.reasons[0]
    assert commits.committed < commits.journal_position
    await standbys(alone, "RESET synchronous_standby_names")
    await store.flush()
    assert dict(store.figures())["groups"] == 1
    await store.close()


async def test_a_database_that_only_reads_is_named_so() -> None:
    """It takes the connection, and is none that is asked for."""
    url = postgresql.shared().url
    with pytest.raises(asyncpg.TargetServerAttributeNotMatched) as found:
        await asyncpg.connect(
            url, target_session_attrs="read-write", server_settings={"default_transaction_read_only": "on"}
        )
    assert remedy(found.value) == "it cannot be written: name the primary in store.url, or all hosts"
