"""A store on disk while a broker runs: what is committed when, what comes back, and what happens if the disk fails."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.persistence.commits import Waiter
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import DONE, SENT, Delivery
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store import MemoryStore, Store, StoreError
from canopy_mqtt.store.group_commit import committer as module
from canopy_mqtt.store.group_commit.batch import Batch
from canopy_mqtt.store.sqlite import RuleTexts, SqliteStore, opening
from canopy_mqtt.store.sqlite.opening import Opened, open_store
from canopy_mqtt.store.sqlite.schema import DELIVERIES
from canopy_mqtt.store.sqlite.writer import Written
from tests.store.sqlite.place import Listener, ask, count, delivery, message, opened
from tests.support.sessions import any_session
from tests.support.waiting import until


async def test_a_group_without_net_changes_needs_no_disk(tmp_path: Path) -> None:
    store = await opened(tmp_path, commit_window=60.0)
    commits = store.journal.commits
    assert commits is not None
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    groups = dict(store.figures())["groups"]
    one = delivery()
    one.packet_id, one.state = 1, SENT
    store.journal.in_flight("c", one)
    store.journal.finished("c", one)
    # Nor does it wait for its window.
    await until(lambda: commits.committed == commits.journal_position)
    assert dict(store.figures())["groups"] == groups
    await store.close()


async def test_one_group_is_written_and_the_next_gathers_meanwhile(tmp_path: Path) -> None:
    store = await opened(tmp_path, commit_window=0.0)
    journal, commits = store.journal, store.journal.commits
    assert commits is not None
    journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    groups = int(str(dict(store.figures())["groups"]))
    # Another program holds the file, so that the first group is not written.
    other = sqlite3.connect(tmp_path / "canopy.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(50):
        journal.queued("c", delivery(b"%d" % number))
        await asyncio.sleep(0)
    assert commits.committed < commits.journal_position
    other.execute("COMMIT")
    other.close()
    await store.flush()
    assert count(tmp_path, "delivery") == 50
    assert int(str(dict(store.figures())["groups"])) == groups + 2
    await store.close()


class Shouted:
    """Rules that are words."""

    def write(self, rules: tuple[object, ...]) -> list[Any]:
        return [str(rule).upper() for rule in rules]

    def read(self, values: list[Any]) -> tuple[object, ...]:
        return tuple(value.lower() for value in values)


@pytest.mark.parametrize(("rules", "found"), [(Shouted(), ("deny",)), (None, ())])
async def test_the_rules_of_a_client_are_kept_by_who_knows_them(
    tmp_path: Path, rules: RuleTexts | None, found: tuple[object, ...]
) -> None:
    store = await opened(tmp_path, rules=rules)
    store.journal.session_kept("c", Principal("u", rules=("deny",)), 300, 0.0)
    [session] = (await store.load()).sessions
    assert session.principal.rules == found
    await store.close()


class Fault:
    """A disk that cannot be written, until it is mended."""

    reason = ""

    async def begin(self, store: SqliteStore) -> None:
        raise NotImplementedError

    async def mend(self, store: SqliteStore) -> None:
        raise NotImplementedError


class Full(Fault):
    reason = "the disk is full: make room"
    pages = 0

    async def begin(self, store: SqliteStore) -> None:
        self.pages = await limit(store, 0)

    async def mend(self, store: SqliteStore) -> None:
        await limit(store, self.pages * 1_000)


class ReadOnly(Fault):
    reason = "it cannot be written: let the broker's user write it"

    async def begin(self, store: SqliteStore) -> None:
        await execute(store, "PRAGMA query_only = ON")

    async def mend(self, store: SqliteStore) -> None:
        await execute(store, "PRAGMA query_only = OFF")


class Broken(Fault):
    """Writes beyond some size are refused by the system."""

    reason = "the disk has an error: look at the system's log"
    limits = (0, 0)

    async def begin(self, store: SqliteStore) -> None:  # noqa: ARG002 (as the others)
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, self.limits[1]))

    async def mend(self, store: SqliteStore) -> None:  # noqa: ARG002 (as the others)
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)


@pytest.mark.parametrize("kind", [Full, ReadOnly, Broken])
async def test_a_disk_that_fails_and_goes_on(
    kind: type[Fault], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is committed until it can be; then everything goes on by itself, and nothing is missing."""
    monkeypatch.setattr(module, "FIRST_RETRY", 0.01)
    store, fault = await opened(tmp_path), kind()
    journal, commits, listener = store.journal, store.journal.commits, store.listener
    assert commits is not None
    assert isinstance(listener, Listener)
    journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    await fault.begin(store)
    try:
        journal.queued("c", delivery(bytes(200_000)))
        committed = commits.committed
        await until(lambda: len(listener.reasons) >= 2)
        assert (commits.failed, commits.committed) == (True, committed)
        assert listener.reasons[0].startswith(f"{tmp_path}/canopy.db: {fault.reason}")
        with pytest.raises(StoreError, match=fault.reason):
            await store.flush()
        # The broker goes on meanwhile.
        journal.queued("c", delivery(b"later"))
        assert count(tmp_path, "delivery") == 0
    finally:
        await fault.mend(store)
    await until(lambda: commits.committed == commits.journal_position)
    assert (commits.failed, listener.recoveries) == (False, 1)
    assert ask(tmp_path, "SELECT length(payload) FROM delivery ORDER BY number") == [(200_000,), (5,)]
    await store.close()


async def execute(store: SqliteStore, statement: str) -> None:
    """In the store's own thread."""
    opened = store._opened
    assert opened is not None
    db = opened.db
    await store._call(lambda: db.execute(statement).fetchall())


async def limit(store: SqliteStore, pages: int) -> int:
    """Let the file have so many pages at most, or no more than it has; returns how many it has."""
    opened = store._opened
    assert opened is not None
    db = opened.db

    def work() -> int:
        has = int(db.execute("PRAGMA page_count").fetchone()[0])
        db.execute(f"PRAGMA max_page_count = {pages or has}").fetchone()
        return has

    return await store._call(work)


async def test_no_group_gets_large_while_another_is_written(tmp_path: Path) -> None:
    """To put one together is one call of the event loop: 100,000 rows, for 100 sessions that are away, took 50 ms."""
    store = await opened(tmp_path, commit_bytes=10_000)
    journal, commits = store.journal, store.journal.commits
    assert commits is not None
    journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    writer = store._writer
    assert writer is not None
    write, may_go_on, rows = writer.write, threading.Event(), []

    def slow(batch: Batch) -> Written:
        rows.append(len(batch.deliveries) // DELIVERIES.columns)
        assert may_go_on.wait(20.0)
        return write(batch)

    writer.write = slow  # type: ignore[method-assign]
    kept = [delivery(b"%d" % number) for number in range(1_000)]
    each = 10_000 // kept[0].message.size + 1
    for one in kept[:900]:
        journal.queued("c", one)
        await asyncio.sleep(0)
    # What another group has, though it is not written yet, is written, and goes by its number.
    journal.finished("c", kept[300])
    may_go_on.set()
    await store.flush()
    for one in kept[900:]:
        journal.queued("c", one)
    await store.flush()
    assert len(rows) > 900 // (each + 1)
    assert max(rows[:-1]) <= each + 1
    assert count(tmp_path, "delivery") == 999
    assert commits.committed == commits.journal_position
    await store.close()


async def test_what_gathers_while_the_disk_fails_is_bounded(tmp_path: Path) -> None:
    store = await opened(tmp_path, commit_bytes=1_000)
    journal, commits, listener = store.journal, store.journal.commits, store.listener
    assert commits is not None
    assert isinstance(listener, Listener)
    journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    pages = await limit(store, 0)
    journal.queued("c", delivery(bytes(200_000)))
    await until(lambda: listener.reasons)
    for _ in range(module.FULL - 1):
        journal.queued("c", delivery(bytes(500)))
    assert not commits.refuses(False)
    for _ in range(5):
        journal.queued("c", delivery(bytes(500)))
    assert commits.refuses(False)
    await limit(store, pages * 1_000)
    await store.flush()
    assert not commits.refuses(True)
    await store.close()


async def test_a_store_that_fails_at_its_end_says_so_and_lets_go(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    await limit(store, 0)
    store.journal.queued("c", delivery(bytes(200_000)))
    with pytest.raises(StoreError, match="disk is full"):
        await store.close()
    # The broker that comes back has it still, and there is room now.
    await store.open(asyncio.get_running_loop().time)
    [session] = (await store.load()).sessions
    assert len(session.deliveries) == 1
    await store.close()


async def test_what_ended_sessions_left_goes_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canopy_mqtt.store.sqlite.sweeping.SEEN", 10)
    monkeypatch.setattr("canopy_mqtt.store.sqlite.sweeping.REMOVED", 7)
    store = await opened(tmp_path)
    journal = store.journal
    for client_id in ("a", "b"):
        journal.session_kept(client_id, Principal("u"), 300, 0.0)
    for number in range(50):
        for client_id in ("a", "b"):
            journal.queued(client_id, delivery())
            journal.subscribed(client_id, Subscription(any_session(), f"f/{number}"), False)
            journal.received(client_id, number + 1)
    await store.flush()
    journal.session_gone("a")
    await store.flush()
    # It is over at once, whatever stands there still.
    assert [one.client_id for one in (await store.load()).sessions] == ["b"]
    await until(lambda: count(tmp_path, "gone_session") == 0)
    assert [count(tmp_path, table) for table in ("delivery", "subscription", "received")] == [50, 50, 50]
    await store.close()


async def test_a_few_pages_of_the_log_are_not_worth_the_disks_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message now and then must not cost a rewriting of the file each."""
    store = await opened(tmp_path)
    writer = store._writer
    assert writer is not None
    written: list[str] = []
    monkeypatch.setattr(writer, "_write_back", written.append)
    for number in range(5):
        store.journal.session_kept(f"c{number}", Principal("u"), 300, 0.0)
        await store.flush()
        await store._call(lambda: writer._tidy(True))
    assert written == []
    store.journal.retained_set(message(bytes(3_000_000)))
    await store.flush()
    await store._call(lambda: writer._tidy(True))
    assert written[0] == "TRUNCATE"
    await store.close()


async def test_the_log_is_bounded_while_the_disk_is_never_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written back between two groups, and begins anew: it takes some groups more than its bound at most."""
    bound = 200
    monkeypatch.setattr("canopy_mqtt.store.sqlite.writer.LOG_PAGES", bound)
    monkeypatch.setattr("canopy_mqtt.store.sqlite.writer.IDLE", 3_600.0)
    store = await opened(tmp_path)
    largest = 0
    for _ in range(30):
        store.journal.retained_set(message(os.urandom(bound * 1_000)))
        await store.flush()
        largest = max(largest, (tmp_path / "canopy.db-wal").stat().st_size)
    page = ask(tmp_path, "PRAGMA page_size")[0][0]
    assert largest < 4 * bound * page
    await store.close()


async def test_the_file_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canopy_mqtt.store.sqlite.writer.IDLE_LOG_PAGES", 10)
    monkeypatch.setattr("canopy_mqtt.store.sqlite.writer.VACUUM_ABOVE", 10)
    monkeypatch.setattr("canopy_mqtt.store.sqlite.writer.VACUUM_PAGES", 50)
    store = await opened(tmp_path)
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    many = [delivery(bytes(3_000)) for _ in range(300)]
    for one in many:
        store.journal.queued("c", one)
    await store.flush()
    await until(lambda: (tmp_path / "canopy.db-wal").stat().st_size == 0)
    large = (tmp_path / "canopy.db").stat().st_size
    for one in many:
        store.journal.finished("c", one)
    await store.flush()
    await until(lambda: (tmp_path / "canopy.db").stat().st_size < large / 4)
    await store.close()


STEP_NAMES = (
    *("kept", "gone", "queued", "queued", "shared", "sent", "unsent", "released", "finished", "finished", "renewed"),
    *("received", "completed", "will", "no-will", "subscribed", "streamed", "unsubscribed", "retained", "cleared"),
    *("broadcast", "passed", "over", "flush"),
)


class Both:
    """Tells both of what a core would tell: only what can come next."""

    def __init__(self, store: Store, model: MemoryStore) -> None:
        self.journals = [store.journal, model.journal]
        self.count = 0
        self.deliveries: dict[str, list[Delivery]] = {}
        self.received: dict[str, set[int]] = {}
        self.filters: dict[str, set[str]] = {}
        self.wills: set[str] = set()
        self.retained: set[str] = set()
        # The number of a message for very many, as each of both has it.
        self.broadcasts: list[tuple[int, int]] = []

    def each(self, name: str, *arguments: Any) -> None:
        for journal in self.journals:
            # The model keeps deliveries by object, and both set nothing but `record` on them.
            getattr(journal, name)(*arguments)

    def tell(self, what: str, client_id: str, number: int) -> None:
        self.count += 1
        if what == "retained":
            self.retained.add(f"r/{number}")
            self.each("retained_set", message(b"%d" % self.count, b"r/%d" % number))
        elif what == "cleared":
            if f"r/{number}" in self.retained:
                self.retained.discard(f"r/{number}")
                self.each("retained_cleared", f"r/{number}")
        elif what == "broadcast":
            one, other = (journal.broadcast(message(b"%d" % self.count)) for journal in self.journals)
            self.broadcasts.append((one, other))
        elif what == "over":
            if number < len(self.broadcasts):
                for journal, its in zip(self.journals, self.broadcasts.pop(number), strict=True):
                    journal.broadcast_over(its)
        elif what == "kept":
            self.deliveries.setdefault(client_id, [])
            self.received.setdefault(client_id, set())
            self.filters.setdefault(client_id, set())
            self.each("session_kept", client_id, Principal("u"), 100 + number, 0.0 if number % 2 else 1.0)
        elif client_id in self.deliveries:
            self.of_session(what, client_id, number)

    def of_session(self, what: str, client_id: str, number: int) -> None:
        if what == "passed":
            if number < len(self.broadcasts):
                for journal, its in zip(self.journals, self.broadcasts[number], strict=True):
                    journal.passed(its, client_id)
        elif what == "gone":
            del self.deliveries[client_id], self.received[client_id], self.filters[client_id]
            self.wills.discard(client_id)
            self.each("session_gone", client_id)
        elif what == "will":
            self.wills.add(client_id)
            self.each("will_set", client_id, Will("w", b"%d" % self.count), 0.0 if number % 2 else 7.0)
        elif what == "no-will" and client_id in self.wills:
            self.wills.discard(client_id)
            self.each("will_cleared", client_id)
        elif what == "received" and number not in self.received[client_id]:
            self.received[client_id].add(number)
            self.each("received", client_id, number)
        elif what == "completed" and number in self.received[client_id]:
            self.received[client_id].discard(number)
            self.each("completed", client_id, number)
        elif what == "subscribed":
            self.filters[client_id].add(f"f/{number}")
            subscription = Subscription(any_session(), f"f/{number}", self.count % 3, identifier=self.count)
            self.each("subscribed", client_id, subscription, bool(self.count % 2))
        elif what == "streamed" and f"f/{number}" in self.filters[client_id]:
            self.each("streamed", client_id, f"f/{number}")
        elif what == "unsubscribed" and f"f/{number}" in self.filters[client_id]:
            self.filters[client_id].discard(f"f/{number}")
            self.each("unsubscribed", client_id, f"f/{number}")
        else:
            self.of_deliveries(what, client_id, number)

    def of_deliveries(self, what: str, client_id: str, number: int) -> None:
        those = self.deliveries[client_id]
        if what == "queued":
            plain = Delivery(message(b"%d" % self.count), 2, False, (), None)
            those.append(plain if number % 2 else delivery(b"%d" % self.count, 2))
            self.each("queued", client_id, those[-1])
        elif what == "shared":
            one = message(b"%d" % self.count)
            for name, others in self.deliveries.items():
                others.append(Delivery(one, 2, False, (), None))
                self.each("queued", name, others[-1])
        elif number < len(those):
            one_of = those[number]
            if what == "sent" and one_of.state == 0:
                one_of.packet_id, one_of.state = self.count, SENT
                self.each("in_flight", client_id, one_of)
            elif what == "unsent" and one_of.state == SENT:
                self.each("unsent", client_id, one_of)
            elif what == "released" and one_of.state == SENT:
                one_of.state = 2
                self.each("released", client_id, one_of)
            elif what == "renewed" and one_of.state == 0:
                one_of.message = message(b"%d" % self.count)
                self.each("renewed", client_id, one_of)
            elif what == "finished":
                del those[number]
                # The journal forgets its name for it, so that the model is told first.
                for journal in reversed(self.journals):
                    journal.finished(client_id, one_of)


async def test_a_start_that_is_given_up_lets_go_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one of a program that does not wait so long."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Opened:
        begun.set()
        assert go_on.wait(10)
        return open_store(*arguments)

    monkeypatch.setattr(opening, "open_store", slow)
    start = asyncio.ensure_future(opened(tmp_path))
    assert await asyncio.to_thread(begun.wait, 10)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    # Whoever starts next finds the lock free.
    descriptor = os.open(tmp_path / "canopy.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


async def test_a_principal_that_no_hook_should_give_is_written(tmp_path: Path) -> None:
    """Whatever stands in its rules: the group has others' messages."""
    store = await opened(tmp_path, rules=Shouted())
    store.journal.session_kept("c", Principal("u", rules=("a\udc00",)), 300, 0.0)
    [session] = (await store.load()).sessions
    assert session.principal.rules == ("a\udc00",)
    await store.close()


async def test_what_is_acknowledged_in_time_costs_no_group(tmp_path: Path) -> None:
    """Whoever waits for it goes on then, and not when the window is over."""
    store = await opened(tmp_path, commit_window=60.0)
    journal, commits = store.journal, store.journal.commits
    assert commits is not None
    journal.session_kept("c", Principal("u"), 300, 0.0)
    await store.flush()
    written = dict(store.figures())
    commits.begin()
    one = delivery()
    one.packet_id, one.state = 1, SENT
    journal.in_flight("c", one)
    one.state = DONE
    journal.finished("c", one)
    waiter = Released(asyncio.get_running_loop().create_future())
    commits.wait(waiter)
    await waiter.gone
    assert not commits.pending()
    await store.close()
    assert {name: dict(store.figures())[name] for name in ("groups", "rows")} == {
        name: written[name] for name in ("groups", "rows")
    }


async def test_what_was_acknowledged_is_not_in_the_file_of_a_broker_that_stopped(tmp_path: Path) -> None:
    """Nobody waits for its end, which is written all the same."""
    store = await opened(tmp_path, commit_window=60.0)
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    one = delivery()
    store.journal.queued("c", one)
    await store.flush()
    one.packet_id, one.state = 1, SENT
    store.journal.in_flight("c", one)
    await store.flush()
    one.state = DONE
    store.journal.finished("c", one)
    commits = store.journal.commits
    assert commits is not None
    waiter = Released(asyncio.get_running_loop().create_future())
    commits.wait(waiter)
    await waiter.gone
    await store.close()
    store = await opened(tmp_path)
    assert (await store.load()).sessions[0].deliveries == []
    await store.close()


class Released(Waiter):
    """Says when it may go on."""

    def __init__(self, gone: asyncio.Future[None]) -> None:
        super().__init__()
        self.gone = gone

    def committed(self, number: i64) -> i64:
        del number
        self.gone.set_result(None)
        return 1
