"""Stores that cannot be opened: one line each, and nothing is written to a file that is not understood."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.store import StoreError
from canopy_mqtt.store.sqlite import SqliteStore, opening
from canopy_mqtt.store.sqlite.schema import VERSION
from tests.store.sqlite.place import ask, delivery, message, opened
from tests.support.runs import for_each

NOBODY = 65534


async def refusal(directory: Path) -> str:
    """Why a store is not opened, nor loaded; its file is as it was."""
    file = directory / "canopy.db"
    before = file.read_bytes() if file.is_file() else None
    store = SqliteStore(directory)
    with pytest.raises(StoreError) as found:
        await use(store)
    assert (file.read_bytes() if file.is_file() else None) == before
    assert "\n" not in str(found.value)
    return str(found.value)


async def use(store: SqliteStore) -> None:
    try:
        await store.open(lambda: 0.0)
        await store.load()
    finally:
        await store.close()


async def made(directory: Path) -> Path:
    """The file of a store with something in it."""
    store = await opened(directory)
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    for number in range(200):
        store.journal.queued("c", delivery(b"%d" % number + bytes(300)))
        store.journal.retained_set(message(b"1", b"r/%d" % number))
    await store.close()
    return directory / "canopy.db"


async def test_a_directory_is_made_for_the_broker_alone(tmp_path: Path) -> None:
    store = await opened(tmp_path / "new" / "store")
    await store.close()
    assert (tmp_path / "new" / "store").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "store" / "canopy.db").stat().st_mode & 0o777 == 0o600


async def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    assert "is not a directory: name another one" in await refusal(tmp_path / "store")


async def test_a_file_that_is_no_sqlite_file(tmp_path: Path) -> None:
    (tmp_path / "canopy.db").write_bytes(b"retained messages: none\n" * 100)
    assert "is not an SQLite file" in await refusal(tmp_path)


async def test_a_file_of_another_program(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "canopy.db")
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    assert "another program's SQLite file" in await refusal(tmp_path)


@for_each("version", [VERSION + 1, VERSION - 1])
async def test_a_file_of_another_version(tmp_path: Path, version: int) -> None:
    set_version(await made(tmp_path), version)
    told = f"is of version {version}, and this broker's is {VERSION}: run the Canopy that wrote it, or export it"
    assert told in await refusal(tmp_path)
    assert told in await asyncio.to_thread(opening.fault, tmp_path)


def set_version(file: Path, version: int) -> None:
    db = sqlite3.connect(file)
    db.execute(f"PRAGMA user_version = {version}")
    db.execute("UPDATE canopy SET version = ?", (version,))
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


async def test_a_log_without_its_file(tmp_path: Path) -> None:
    """SQLite would throw it away, with whatever was committed to it."""
    (tmp_path / "canopy.db-wal").write_bytes(b"something")
    assert "is missing, and its log" in await refusal(tmp_path)
    assert (tmp_path / "canopy.db-wal").read_bytes() == b"something"


async def test_a_damaged_first_page(tmp_path: Path) -> None:
    file = await made(tmp_path)
    data = bytearray(file.read_bytes())
    data[100:4096] = b"\xa5" * 3996
    file.write_bytes(data)
    assert "it is damaged" in await refusal(tmp_path)


def hold(directory: str, test: Connection) -> None:
    opened = opening.open_store(Path(directory), "full")
    test.send("open")
    test.poll(30)
    opened.close()


async def test_another_process_has_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(str(tmp_path), there))
    store = SqliteStore(tmp_path)
    with here, there:
        process.start()
        assert here.poll(30)
        with pytest.raises(StoreError, match=f"in use by process {process.pid}: stop that one"):
            await store.open(lambda: 0.0)
        here.send("over")
        process.join()
    process.close()
    await store.open(lambda: 0.0)
    await store.close()


def refuse_as_nobody(directory: str, result: Connection) -> None:
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        opening.open_store(Path(directory), "full").close()
        result.send("")
    except StoreError as error:
        result.send(str(error))


@pytest.mark.parametrize("what", ["directory", "parent", "file", "log"])
async def test_no_permission(tmp_path: Path, what: str) -> None:
    directory = tmp_path / "parent" / "store"
    file = await made(directory)
    # The user of the test may be the one to whom nothing is forbidden.
    for each in (*tmp_path.parents, tmp_path, tmp_path / "parent", directory):
        if each.is_relative_to(tmp_path.parent.parent):
            each.chmod(0o755)
    for each in (file, directory / "canopy.lock"):
        each.chmod(0o644)
    if what == "parent":
        directory = tmp_path / "parent" / "other"
        (tmp_path / "parent").chmod(0o555)
    if what in ("file", "log"):
        (directory / "canopy.lock").chmod(0o666)
    if what == "log":
        file.chmod(0o666)
        directory.chmod(0o555)
    if what == "file":
        directory.chmod(0o777)
        file.chmod(0o444)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=refuse_as_nobody, args=(str(directory), sender))
    with receiver, sender:
        process.start()
        assert receiver.poll(30)
        told = receiver.recv()
        process.join()
    process.close()
    for each in (tmp_path / "parent", tmp_path / "parent" / "store"):
        each.chmod(0o755)
    assert "let the broker's user" in told or "owned by the broker's user" in told
    assert "\n" not in told


async def test_the_file_of_a_process_that_died_making_it(tmp_path: Path) -> None:
    (tmp_path / "canopy.db").touch()
    store = await opened(tmp_path)
    await store.close()
    assert ask(tmp_path, "PRAGMA auto_vacuum") == [(2,)]


async def test_a_library_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 32, 3))
    assert "is too old for a store: give this Python 3.33.0 or newer" in await refusal(tmp_path)
    assert os.listdir(tmp_path) == []


async def test_a_file_that_two_directories_lead_to_has_one_broker(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "canopy.db").symlink_to(tmp_path / "a" / "canopy.db")
    first = await opened(tmp_path / "b")
    with pytest.raises(StoreError, match="is in use by process"):
        await SqliteStore(tmp_path / "a").open(lambda: 0.0)
    await first.close()
    assert (tmp_path / "b" / "canopy.db").is_symlink()
    second = await opened(tmp_path / "a")
    with pytest.raises(StoreError, match="is in use by process"):
        await SqliteStore(tmp_path / "b").open(lambda: 0.0)
    await second.close()


async def test_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    (tmp_path / "canopy.db").symlink_to(tmp_path / "canopy.db")
    with pytest.raises(StoreError, match=f"{tmp_path}/canopy.db"):
        await SqliteStore(tmp_path).open(lambda: 0.0)


async def test_the_file_is_the_brokers_alone_from_the_first_moment_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a directory that others may look into: who has it open once may read it for ever."""
    seen: list[int] = []
    connect = sqlite3.connect

    def watched(*given: Any, **options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*given, **options)
        db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        seen.append((tmp_path / "canopy.db").stat().st_mode & 0o777)
        return db

    monkeypatch.setattr(sqlite3, "connect", watched)
    earlier = os.umask(0)
    try:
        store = await opened(tmp_path)
    finally:
        os.umask(earlier)
    await store.close()
    assert set(seen) == {0o600}


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write the folder would have the broker cut down any file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store" / opening.LOCK).symlink_to(victim)
    with pytest.raises(StoreError, match="cannot be written"):
        opening.open_store(tmp_path / "store", "full")
    assert victim.read_text() == "precious"


@for_each(("mode", "told"), [(0o700, False), (0o750, False), (0o777, True), (0o1777, False)])
def test_a_folder_that_others_may_write_is_told_of(tmp_path: Path, mode: int, told: bool) -> None:
    """They can put another file in the store's place."""
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(mode)
    store = opening.open_store(folder, "full")
    store.close()
    expected = [f"{folder} may be written by others ({mode:04o}): chmod 700 it"] if told else []
    assert store.notices == expected
    assert folder.stat().st_mode & 0o7777 == mode


def test_a_file_that_others_may_read_is_tightened(tmp_path: Path) -> None:
    """As after a restore with the usual permissions. One that a group may read, as for a backup, stays so."""
    file = asyncio.run(made(tmp_path))
    log = file.with_name("canopy.db-wal")
    for mode, after in ((0o644, 0o600), (0o640, 0o640)):
        file.chmod(mode)
        store = opening.open_store(tmp_path, "full")
        told = [] if mode == after else [f"{file} was open to others ({mode:04o}): it is {after:04o} now"]
        assert store.notices == told
        assert [each.stat().st_mode & 0o777 for each in (file, log)] == [after, after]
        store.close()


def test_a_file_that_is_not_ours_to_tighten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = asyncio.run(made(tmp_path))
    file.chmod(0o666)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path), mode)

    monkeypatch.setattr(Path, "chmod", refuse)
    store = opening.open_store(tmp_path, "full")
    store.close()
    assert store.notices == [
        f"{file} is open to others (0666), and stays so (Operation not permitted): chmod 600 it as its owner"
    ]
