"""Bytes that change on the disk: each costs its row, or its page, and nothing is given out that differs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from canopy_mqtt.core.codec.packets import SubscriptionRequest, Will
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.group_commit.principals import Principals
from canopy_mqtt.store.sqlite import rebuilding
from canopy_mqtt.store.sqlite.opening import FILE, open_store
from canopy_mqtt.store.sqlite.reading import discard, discard_deliveries, read, read_on_disk
from canopy_mqtt.store.tools.verifying import verify
from tests.store.sqlite.place import Listener, opened
from tests.store.tools.test_commands import canopy
from tests.support.runs import FEWEST, LONG, for_each
from tests.support.sessions import any_session
from tests.support.waiting import until

SESSIONS = 12


class Content(NamedTuple):
    """The content of a store, as a broker finds it."""

    sessions: dict[str, str]
    wills: dict[str, bytes]
    subscriptions: set[tuple[str, str]]
    deliveries: dict[str, list[tuple[bytes, int, int]]]
    received: set[tuple[str, int]]
    retained: dict[bytes, bytes]


def payload(name: str, size: int = 0) -> bytes:
    """One that no other message has."""
    return name.encode() + bytes(range(1, 200)) * size


async def fill(directory: Path) -> None:
    store = await opened(directory, synchronous="off")
    journal = store.journal
    for at in range(SESSIONS):
        name = f"client-{at}"
        journal.session_kept(name, Principal(f"user-{at}"), 300, 0.0 if at % 2 else 1.0)
        if at % 3 == 0:
            journal.will_set(name, Will(f"will/{at}", payload(f"will {at}"), 1, False, 0, -1, b""), 0.0)
        for number in range(3):
            request = SubscriptionRequest(f"filter/{at}/{number}/+", 1, False, False, 0)
            one = Subscription(any_session(), request.topic_filter)
            one.agree(request, 0, 2)
            journal.subscribed(name, one, number == 0)
        for number in range(4):
            journal.queued(name, delivery(f"queued {at} {number}", 7 if number == 0 and at == 5 else 0))
        sent, released = delivery(f"sent {at}", qos=2), delivery(f"released {at}", qos=2)
        for number, each in enumerate((sent, released), 1):
            each.packet_id = number
            journal.in_flight(name, each)
        await store.flush()
        journal.released(name, released)
        for number in range(6):
            journal.paged(name, delivery(f"paged {at} {number}"))
        for number in range(3):
            journal.received(name, 100 + number)
    shared = Message(b"shared", payload("shared by all"), 1, False, b"", 0.0, "p")
    for at in range(SESSIONS):
        journal.queued(f"client-{at}", Delivery(shared, 1, False, (), None))
    for number in range(60):
        body = payload(f"retained {number}", 100 if number == 7 else 0)
        journal.retained_set(Message(b"retained/%d" % number, body, 1, True, b"", 0.0, "p"))
    await store.close()


def delivery(name: str, size: int = 0, qos: int = 1) -> Delivery:
    return Delivery(
        Message(b"t/" + name.encode(), payload(name, size), qos, False, b"", 0.0, "p"), qos, False, (), None
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "s"
    asyncio.run(fill(folder))
    return folder


def copy(whole: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    shutil.copyfile(whole / FILE, to / FILE)
    (to / FILE).chmod(0o600)
    return to


def look(directory: Path) -> tuple[Content, dict[str, int]]:
    """Return the content that a broker finds which sets damaged files aside, disk-only messages included, and the
    damage."""
    store = open_store(directory, "off", "set-aside")
    try:
        loaded = read(store.db, 0.0, Principals())
        discard(store.db, loaded)
        told = dict(loaded.damages.counts)
        if store.rebuilt is not None:
            told |= {"aside": 1, **store.rebuilt.lost}
        content = Content({}, {}, set(), {}, set(), {each.topic: each.payload for each in loaded.saved.retained})
        for number, session in loaded.sessions.items():
            name = session.client_id
            content.sessions[name] = str(session.principal.user_name)
            if session.will is not None:
                content.wills[name] = session.will.will.payload
            content.subscriptions.update((name, each.request.topic_filter) for each in session.subscriptions)
            content.received.update((name, each) for each in session.received)
            found = list(session.deliveries)
            for page in session.pages:
                records, damages = read_on_disk(store.db, number, page.first, page.last, 0.0)
                found += records
                discard_deliveries(store.db, damages.deliveries)
                for what, count in damages.counts.items():
                    told[what] = told.get(what, 0) + count
            content.deliveries[name] = [
                (b"" if each.message is None else each.message.payload, each.state, each.packet_id)
                for each in sorted(found, key=lambda each: each.number)
            ]
        return content, told
    finally:
        store.close()


def check(before: Content, after: Content, pages_are_whole: bool) -> None:
    """Nothing came, nothing changed, and what is lost was in one row, where SQLite can read all pages."""
    assert after.sessions.items() <= before.sessions.items()
    assert after.wills.items() <= before.wills.items()
    assert after.subscriptions <= before.subscriptions
    assert after.received <= before.received
    assert after.retained.items() <= before.retained.items()
    gone = before.sessions.keys() - after.sessions.keys()
    lost: list[object] = [*gone]
    lost += [name for name in before.wills.keys() - after.wills.keys() if name not in gone]
    lost += [each for each in before.subscriptions - after.subscriptions if each[0] not in gone]
    lost += [each for each in before.received - after.received if each[0] not in gone]
    lost += before.retained.keys() - after.retained.keys()
    payloads = set()
    for name, found in after.deliveries.items():
        there = iter(before.deliveries[name])
        # In their order, and each once.
        assert all(each in there for each in found), name
        payloads.update(set(before.deliveries[name]) - set(found))
    lost += payloads
    assert len(lost) <= 1 or not pages_are_whole, lost


@pytest.mark.parametrize("seed", range(4 if LONG else 1))
def test_any_byte_is_found_and_costs_one_row_of_a_page_that_can_be_read(whole: Path, tmp_path: Path, seed: int) -> None:
    """All over the file: rows, heads and pointers of pages, roots of trees, indexes, maps, schema, the first page."""
    before, _ = look(copy(whole, tmp_path / "s"))
    data = (whole / FILE).read_bytes()
    chosen = random.Random(seed)
    for _ in range(75 if LONG else FEWEST):  # each takes as long as hundreds of most examples
        at, bit = chosen.randrange(len(data)), chosen.choice([0x01, 0x02, 0x04, 0x10, 0x40, 0x80, 0xFF])
        copy(whole, tmp_path / "s")
        hurt(tmp_path / "s", at, bit)
        faults = faults_of(tmp_path / "s")
        after, told = look(tmp_path / "s")
        try:
            check(before, after, "aside" not in told)
            # A byte that nothing uses may be any.
            assert faults or after == before
            assert told or after == before
            assert not faults_of(tmp_path / "s")
        except AssertionError as error:
            raise AssertionError(
                f"byte {at} (page {at // 4096 + 1}, {at % 4096}) ^ {bit:#x}: {faults[:3]} {told}"
            ) from error


def hurt(directory: Path, at: int, bit: int) -> None:
    data = bytearray((directory / FILE).read_bytes())
    data[at] ^= bit
    (directory / FILE).write_bytes(data)


def faults_of(directory: Path) -> list[str]:
    try:
        return list(verify(directory))
    except StoreError as error:
        return [str(error)]


def of_first(content: Content) -> int:
    """The number of messages that wait for the first session."""
    return len(content.deliveries["client-0"])


def subscriptions(content: Content) -> int:
    return len(content.subscriptions)


def retained(content: Content) -> int:
    return len(content.retained)


THIRD = "UPDATE delivery SET {} WHERE number = 3"
ROWS = [
    ("UPDATE session SET principal = 'x' WHERE id = 2", "session", "client-1", lambda c: len(c.sessions), SESSIONS - 1),
    ("UPDATE session SET will_payload = x'00' WHERE id = 1", "will", "client-0", lambda c: len(c.wills), 3),
    ("UPDATE subscription SET qos = 2 WHERE session = 1 AND filter LIKE '%/2/+'", "subscription", "client-0",
     subscriptions, 35),
    ("UPDATE subscription SET streaming = 0 WHERE session = 1 AND streaming = 1", "subscription", "client-0",
     subscriptions, 35),
    (THIRD.format("payload = x'00'"), "delivery", "client-0", of_first, 12),
    (THIRD.format("session = 2"), "delivery", "client-1", of_first, 12),
    (THIRD.format("state = 5"), "delivery", "client-0", of_first, 12),
    (THIRD.format("attempts = -1"), "delivery", "client-0", of_first, 12),
    (THIRD.format("number = 9223372036854775807"), "delivery", "client-0", of_first, 12),
    ("UPDATE delivery SET packet_id = 9 WHERE state = 2 AND session = 1", "delivery", "client-0", of_first, 12),
    ("UPDATE message SET payload = x'00'", "message", "", of_first, 12),
    ("UPDATE received SET packet_id = 7 WHERE session = 1 AND packet_id = 100", "received", "client-0",
     lambda c: len(c.received), 35),
    ("UPDATE retained SET topic = 'a/b' WHERE topic = 'retained/5'", "retained", "", retained, 59),
    ("UPDATE retained SET topic = CAST(x'ff' AS TEXT) WHERE topic = 'retained/5'", "retained", "", retained, 59),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "what", "client_id", "count", "left"), ROWS)
async def test_a_damaged_row_is_named_and_goes(
    whole: Path, tmp_path: Path, statement: str, what: str, client_id: str, count: Callable[[Content], int], left: int
) -> None:
    """In a file whose pages are whole, also where a damaged file would be refused."""
    directory = await asyncio.to_thread(copy, whole, tmp_path / "s")
    await asyncio.to_thread(change, directory, statement)
    assert await asyncio.to_thread(faults_of, directory)
    store = await opened(directory, synchronous="off")
    await store.load()
    assert isinstance(store.listener, Listener)
    assert store.listener.counts[what] >= 1
    assert client_id in {each.client_id for each in store.listener.damages}
    # Whoever comes again finds nothing in the way.
    store.journal.session_kept("client-1" if what == "session" else "another", Principal("u"), 300, 0.0)
    await store.close()
    assert await asyncio.to_thread(faults_of, directory) == []
    content, told = await asyncio.to_thread(look, directory)
    content.sessions.pop("another", None)
    if what == "session":
        assert content.deliveries.pop("client-1") == []
        del content.sessions["client-1"]
    assert (count(content), told) == (left, {})


def change(directory: Path, statement: str) -> None:
    db = sqlite3.connect(directory / FILE)
    db.execute(statement)
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def ruin(directory: Path) -> None:
    """A page with retained messages is none any more."""
    data = bytearray((directory / FILE).read_bytes())
    page = data.index(payload("retained 30")) // 4096
    data[page * 4096 : (page + 1) * 4096] = bytes(4096)
    (directory / FILE).write_bytes(data)


async def test_a_damaged_file_is_refused(whole: Path, tmp_path: Path) -> None:
    directory = await asyncio.to_thread(copy, whole, tmp_path / "s")
    await asyncio.to_thread(ruin, directory)
    before = await asyncio.to_thread((directory / FILE).read_bytes)
    with pytest.raises(StoreError, match="it is damaged: restore it from a backup, or keep what is whole"):
        await opened(directory)
    assert await asyncio.to_thread((directory / FILE).read_bytes) == before


async def test_a_damaged_file_is_set_aside(whole: Path, tmp_path: Path) -> None:
    """With its bytes as they are; the store begins with what can be read, and says what it lost."""
    directory = await asyncio.to_thread(copy, whole, tmp_path / "s")
    await asyncio.to_thread(ruin, directory)
    before = await asyncio.to_thread((directory / FILE).read_bytes)
    store = await opened(directory, on_damage="set-aside")
    assert len((await store.load()).sessions) == SESSIONS
    assert isinstance(store.listener, Listener)
    [(where, lost, kept)] = store.listener.aside
    assert (lost, kept["session"]) == ({"retained (ranges of rows)": 1}, SESSIONS)
    assert 0 < kept["retained"] < 60
    assert await asyncio.to_thread(Path(where).read_bytes) == before
    assert Path(where).name.startswith("canopy.db.damaged-")
    await store.close()
    assert await asyncio.to_thread(faults_of, directory) == []
    again = await opened(directory, on_damage="set-aside")
    assert isinstance(again.listener, Listener)
    assert again.listener.aside == []
    await again.close()


@pytest.mark.parametrize("step", range(6))
def test_a_kill_while_a_file_is_set_aside(
    whole: Path, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two names that change: the next start has all of it, and the damaged file is kept."""
    directory = copy(whole, tmp_path / "s")
    ruin(directory)
    before, _ = look(copy(directory, tmp_path / "other"))
    # A log that belongs to the damaged file alone.
    (directory / "canopy.db-wal").write_bytes(b"")
    steps = iter(range(10))

    def dying(names: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            if next(steps) == step:
                raise KeyboardInterrupt
            return names(*given, **more)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr(rebuilding, "keep_names", dying(rebuilding.keep_names))
        with contextlib.suppress(KeyboardInterrupt):
            look(directory)
    content, _ = look(directory)
    assert content == before
    assert len(list(directory.glob("canopy.db.damaged-*Z"))) == 1
    assert not (directory / "canopy.db.salvaged").exists()


async def test_damage_that_is_met_while_the_broker_runs(whole: Path, tmp_path: Path) -> None:
    """It ends, so that its next start sets the file aside; nothing more was acknowledged."""
    directory = await asyncio.to_thread(copy, whole, tmp_path / "s")
    store = await opened(directory, on_damage="set-aside", synchronous="off")
    await store.load()
    assert isinstance(store.listener, Listener)
    opened_file = store._opened
    assert opened_file is not None

    def forget() -> None:
        # What the process has in memory of the file.
        opened_file.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        ruin(directory)
        opened_file.db.execute("PRAGMA shrink_memory")

    await store._call(forget)
    store.journal.retained_set(Message(b"retained/1", b"new", 1, True, b"", 0.0, "p"))
    await until(lambda: store.listener.ends)  # type: ignore[union-attr]
    commits = store.journal.commits
    assert commits is not None
    assert commits.committed < commits.journal_position
    with pytest.raises(StoreError):
        await store.close()
    again = await opened(directory, on_damage="set-aside")
    assert isinstance(again.listener, Listener)
    assert len(again.listener.aside) == 1
    assert 0 < len((await again.load()).retained) < 60
    await again.close()


class TestCommands:
    def test_salvage(self, whole: Path, tmp_path: Path) -> None:
        directory = copy(whole, tmp_path / "s")
        change(directory, "UPDATE retained SET payload = x'00' WHERE topic = 'retained/5'")
        ruin(directory)
        told = canopy("salvage", directory, tmp_path / "new", code=1)
        assert "lost: 1 of retained\nlost: 1 of retained (ranges of rows)\n" in told
        assert "12 of session" in told
        assert canopy("verify", tmp_path / "new").endswith(": whole\n")
        assert "is there already" in canopy("salvage", directory, tmp_path / "new", code=1)

    def test_salvage_of_a_whole_store_loses_nothing(self, whole: Path, tmp_path: Path) -> None:
        directory = copy(whole, tmp_path / "s")
        canopy("salvage", directory, tmp_path / "new")
        assert look(tmp_path / "new") == look(directory)

    @for_each("command", ["salvage", "export"])
    def test_one_that_is_killed_leaves_nothing_that_looks_complete(
        self, whole: Path, tmp_path: Path, command: str
    ) -> None:
        directory, new = copy(whole, tmp_path / "s"), tmp_path / "new"
        made = new / "canopy.db" if command == "salvage" else new
        end = "import os, signal; from canopy_mqtt.command import cli;"
        end += "os.fsync = lambda *_: os.kill(os.getpid(), signal.SIGKILL); cli.app()"
        killed = subprocess.run([sys.executable, "-c", end, "store", command, directory, new], timeout=60)
        assert killed.returncode == -signal.SIGKILL
        assert not made.exists()
        part = made.with_name(f"{made.name}.part")
        assert part.stat().st_mode & 0o777 == 0o600
        if command == "export":
            assert f"{part} is the beginning of an export" in canopy(command, directory, new, code=1)
            part.unlink()
        else:
            opened = open_store(new, "full")
            opened.close()
            assert any(f"{part} is what a killed" in line for line in opened.notices)
            made.unlink()
        canopy(command, directory, new)
        assert made.exists()
        assert not part.exists()

    def test_salvage_with_a_log(self, tmp_path: Path) -> None:
        """Committed changes are in the log, and the file has no more than at its beginning."""
        asyncio.run(killed(tmp_path / "s"))
        assert (tmp_path / "s" / "canopy.db-wal").stat().st_size > 0
        assert "lost" not in canopy("salvage", tmp_path / "s", tmp_path / "new")
        assert look(tmp_path / "new")[0].retained == {b"r": b"last"}


async def killed(directory: Path) -> None:
    """The files as a broker leaves them that is killed."""
    store = await opened(directory, synchronous="off")
    for body in (b"first", b"last"):
        store.journal.retained_set(Message(b"r", body, 1, True, b"", 0.0, "p"))
        await store.flush()
    files = await asyncio.to_thread(
        lambda: [(each, each.read_bytes()) for each in directory.glob("canopy.db*") if not each.name.endswith("-shm")]
    )
    await store.close()
    for path, data in files:
        await asyncio.to_thread(path.write_bytes, data)
