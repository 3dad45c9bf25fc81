"""Another number of workers at a restart: each session is found again, with all that waits in it."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Settings
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import Division, division, note, part
from canopy_mqtt.store.sqlite.opening import lock_folder
from canopy_mqtt.store.tools import dividing
from canopy_mqtt.store.tools.dividing import Stopped
from canopy_mqtt.store.tools.exporting import rows_of
from canopy_mqtt.store.tools.read_only import ReadOnlyStore
from canopy_mqtt.store.tools.verifying import verify
from canopy_mqtt.workers import moving
from canopy_mqtt.workers.parts import TOTALS
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.worker import Worker
from tests.support.daemon import environment
from tests.support.forked import CANOPY, Forked
from tests.workers import dying, stuck
from tests.workers.crew import Crew
from tests.workers.stores import EXPECTED, NAMES, content, fill, made, places

ONE_QOS = NAMES[::2]
"""Those whose subscriptions are of QoS 1, so that all messages are."""

WATCHERS = [f"watcher-{number}" for number in range(4)]
"""They have subscribed to what is retained, too."""


async def waiting(crew: Crew, expected: list[bytes]) -> None:
    """Each client finds its session and these messages, each once, and the retained one. Order holds for one QoS."""
    for name in NAMES:
        peer = await crew.stay(name, present=True)
        found = [(await peer.message()).payload for _ in expected]
        assert (found if name in ONE_QOS else sorted(found)) == expected
        assert await peer.fence() == []
        await peer.disconnect()
    looker = await crew.join("looker", ("kept", 0))
    assert (await looker.message()).payload == expected[-1]
    await looker.disconnect()
    for name in WATCHERS:
        # What is retained comes once, as it was published: not anew after a move.
        watcher = await crew.stay(name, present=True)
        assert [(await watcher.message()).payload for _ in expected] == expected
        assert await watcher.fence() == []
        await watcher.disconnect()


async def test_one_three_two_one(stack: AsyncExitStack, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    crew = await Crew.started(stack, 1, "--store", store)
    for number, name in enumerate(NAMES):
        await (await crew.stay(name, ("q/#", 1 + number % 2))).disconnect()
    for name in WATCHERS:
        await (await crew.stay(name, ("kept", 1))).disconnect()
    for step, workers in enumerate((3, 2, 1)):
        sender = await crew.join("sender")
        payloads = [b"%d-%d" % (step, number) for number in range(4)]
        for number, payload in enumerate(payloads):
            await sender.publish("q/1", payload, qos=1 + number % 2)
            await sender.publish("kept", payload, qos=1, retain=True)
        if step == 1:
            # What waits for other workers is passed on at the next start.
            crew.daemon.process.kill()
            await crew.gone()
        else:
            assert await crew.stop() == 0
        crew = await Crew.started(stack, workers, "--store", store)
        assert {line["after"] for line in crew.told("sessions are moved")} == {workers}
        await waiting(crew, payloads)
    # Nor is what forked workers left.
    assert crew.children == []
    assert await crew.stop() == 0
    assert sorted(each.name for each in (tmp_path / "store").iterdir()) == ["canopy.db", "canopy.lock"]


def test_what_workers_have_for_each_other_finds_room_whatever_the_limits() -> None:
    """Each is full; what would be refused, or dropped, is in no store afterwards."""
    settings = Settings(session={"max_sessions": 5}, queue={"total_messages": 7, "total_bytes": 9_000_000})
    former = moving._former(settings, 3)
    assert former.workers.count == 3
    assert {getattr(getattr(former, section), name) for section, name in TOTALS} == {0}


@contextmanager
def killed_at(folder: Path, before: int, after: int, step: int) -> Iterator[int]:
    """The exit code of a move that is killed at a step."""
    words = [str(folder), str(before), str(after)]
    process = Forked(dying.MODULE, words, environment(KILLED_AT=str(step)))
    try:
        yield process.wait(60)
    finally:
        process.kill()
        _, errors = process.read()
        assert not errors


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 2)])
def test_whatever_step_a_kill_interrupts_the_next_one_goes_on(tmp_path: Path, before: int, after: int) -> None:
    first = made(tmp_path / "first", before)
    step, code = 0, -signal.SIGKILL
    while code:
        folder = tmp_path / "store"
        shutil.copytree(first, folder)
        with killed_at(folder, before, after, step) as code:
            assert code in (0, -signal.SIGKILL)
        goes_on(folder, before, after)
        shutil.rmtree(folder)
        step += 1
    assert step > 25


def goes_on(folder: Path, before: int, after: int) -> None:
    """What the next start makes of a folder is all that there was."""
    there = moving._finish(folder)
    assert there in (before, after)
    assert content(folder) == EXPECTED
    if there == before:
        moving.rebuild(folder, before, after)
    assert division(folder) == Division(after)
    assert content(folder) == EXPECTED
    assert [list(verify(place)) for place in places(folder)] == [[]] * after
    left = {each.name for each in folder.iterdir()} - {"canopy.lock", "canopy.db-wal", "canopy.db-shm"}
    assert left == ({"canopy.db"} if after == 1 else {"workers", *(each.name for each in places(folder))})


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 2)])
def test_a_kill_within_a_write_costs_nothing(tmp_path: Path, before: int, after: int) -> None:
    # The system kills who makes a file longer than that: in the middle of a commit, or of writing it back.
    first = made(tmp_path / "first", before)
    longest, killed, code = 0, 0, -signal.SIGXFSZ
    while code:
        folder = tmp_path / "store"
        shutil.copytree(first, folder)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (longest, longest))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            try:
                moving.rebuild(folder, before, after)
            finally:
                os._exit(0 if division(folder) == Division(after) else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGXFSZ)
        killed += code != 0
        goes_on(folder, before, after)
        shutil.rmtree(folder)
        longest += 6_000
    assert killed > 10


def test_new_names_are_on_the_disk_before_they_count_and_old_ones_are_not_needed_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "store", 2)
    # The folders of which names have changed since they were synced.
    unsynced: set[str] = set()
    fsync, mkdir, rename = os.fsync, Path.mkdir, Path.rename
    counted: list[str] = []

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        unsynced.discard(os.readlink(f"/proc/self/fd/{descriptor}"))

    def made_folder(path: Path, *arguments: Any, **named: Any) -> None:
        new = not path.exists()
        mkdir(path, *arguments, **named)
        if new:
            unsynced.add(str(path.parent))

    def renamed(path: Path, target: Path) -> Path:
        if target.name == "workers":
            assert not unsynced
            counted.append(path.read_text())
        unsynced.add(str(target.parent))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "mkdir", made_folder)
    monkeypatch.setattr(Path, "rename", renamed)
    moving.rebuild(folder, 2, 4)
    assert counted == ["4 moved 2\n", "4 placed 2\n", "4\n"]
    assert not unsynced


@pytest.mark.parametrize("after", [3, 1])
def test_sigterm_ends_a_move_in_order(tmp_path: Path, after: int) -> None:
    store = made(tmp_path / "store", 2)
    flags = ("serve", "--listen", "mqtt://127.0.0.1:0", "--workers", str(after), "--store", str(store))
    process = Forked(CANOPY, flags, environment())
    try:
        assert process.stderr is not None
        while "sessions are moved to another number" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        _, rest = process.read()
    assert '"workers serve"' not in rest
    assert '"started"' not in rest
    os.close(lock_folder(store))
    assert content(store) == EXPECTED


def test_a_second_signal_ends_the_thread_before_the_lock_is_free(tmp_path: Path) -> None:
    folder = made(tmp_path / "store", 2)
    process = Forked(stuck.MODULE, (str(folder),), environment())
    try:
        assert process.stdout is not None
        for line in ("begun", "stopping"):
            while process.stdout.readline() != f"{line}\n":
                assert process.poll() is None
            # The store is in use until the thread has ended, also where the start is cancelled already.
            with pytest.raises(StoreError, match="in use"):
                lock_folder(folder)
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.read()
    assert moving._finish(folder) == 2
    assert content(folder) == EXPECTED


def test_what_is_to_stop_changes_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path / "store", 3)
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(Stopped):
        moving.rebuild(folder, 3, 5, "", stopping)
    assert moving._finish(folder) == 3
    assert content(folder) == EXPECTED
    assert sorted(each.name for each in folder.iterdir()) == ["w0", "w1", "w2", "workers"]


async def test_a_worker_whose_messages_do_not_go_says_how_many_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canopy_mqtt.workers.worker.TELL", 0.0)
    monkeypatch.setattr("canopy_mqtt.workers.worker.STUCK", 0.0)
    worker, said, lines = _stuck(7)
    await worker._drain()
    [(word, why)] = said
    assert word == "failed"
    assert why.startswith("worker w1 has 7 messages for other workers, and none has gone")
    assert worker._stopping.is_set()
    assert lines[0] == {"messages": 7}


@pytest.mark.parametrize(
    "words",
    [
        "0",
        "0 moved",
        "1",
        "65",
        "1000000000",
        "3 moved",
        "3 moved 65",
        "3 moving 4",
        "2 3",
        "2 moved 3 4",
        "-3",
        "",
        "three",
    ],
)
def test_a_number_that_no_broker_wrote_loses_nothing(tmp_path: Path, words: str) -> None:
    folder = made(tmp_path / "store", 3)
    file = folder / "workers"
    file.write_text(words)
    with pytest.raises(StoreError, match="should have the number of workers whose stores are beside it"):
        moving._finish(folder)
    file.write_text("3")
    assert content(folder) == EXPECTED


def test_a_folder_of_a_worker_may_be_a_link(tmp_path: Path) -> None:
    folder, disk = tmp_path / "store", tmp_path / "disk"
    made(folder, 3)
    part(folder, 1).rename(disk)
    part(folder, 1).symlink_to(disk)
    for before, after in ((3, 2), (2, 4), (4, 1), (1, 2)):
        moving.rebuild(folder, before, after)
        assert content(folder) == EXPECTED
        assert part(folder, 1).is_symlink()
        assert (disk / "canopy.db").exists() is (after > 1)


def test_a_disk_that_is_not_mounted_keeps_its_place(tmp_path: Path) -> None:
    folder = made(tmp_path / "store", 2)
    part(folder, 2).mkdir()
    assert moving._finish(folder) == 2
    assert part(folder, 2).is_dir()


def test_a_file_of_a_store_may_be_a_link(tmp_path: Path) -> None:
    folder, file = tmp_path / "store", tmp_path / "real.db"
    made(folder, 1)
    (folder / "canopy.db").rename(file)
    (folder / "canopy.db").symlink_to(file)
    moving.rebuild(folder, 1, 2)
    assert content(folder) == EXPECTED
    assert not file.exists()


def test_what_an_operator_has_beside_a_store_stays(tmp_path: Path) -> None:
    folder = made(tmp_path / "store", 3)
    aside = part(folder, 2) / "canopy.db.damaged-20261130T000000Z"
    aside.write_text("it may be salvaged")
    moving.rebuild(folder, 3, 2)
    assert [each.name for each in part(folder, 2).iterdir()] == [aside.name]
    moving.rebuild(folder, 2, 3)
    assert content(folder) == EXPECTED
    assert aside.exists()


@pytest.mark.parametrize("after", [3, 2, 1])
def test_a_store_that_is_missing_is_an_error_at_each_start(tmp_path: Path, after: int) -> None:
    folder = made(tmp_path / "store", 3)
    away = tmp_path / "away"
    part(folder, 1).rename(away)
    for _ in range(2):
        with pytest.raises(StartupError, match=r"w1/canopy.db is missing, .* put it back .*make an empty file"):
            asyncio.run(take(folder, after))
        # Nor an empty folder, where its disk is not mounted.
        part(folder, 1).mkdir(exist_ok=True)
    part(folder, 1).rmdir()
    away.rename(part(folder, 1))
    os.close(asyncio.run(take(folder, 3)))
    assert content(folder) == EXPECTED


def test_a_store_that_is_lost_is_let_go_by_an_empty_file(tmp_path: Path) -> None:
    folder = made(tmp_path / "store", 3)
    (part(folder, 1) / "canopy.db").write_bytes(b"")
    os.close(asyncio.run(take(folder, 3)))
    moving.rebuild(folder, 3, 1)
    assert content(folder) == {name: EXPECTED[name] for name in NAMES if worker_of(name.encode(), 3) != 1}


@pytest.mark.parametrize("after", [3, 2, 1])
def test_a_first_start_that_failed_keeps_no_other_number_out(tmp_path: Path, after: int) -> None:
    folder = tmp_path / "store"
    os.close(asyncio.run(take(folder, 4)))
    # It ends here, before a worker has a store; each has a file that can be missed.
    assert division(folder) == Division(4)
    assert [(place / "canopy.db").stat().st_size for place in places(folder)] == [0] * 4
    os.close(asyncio.run(take(folder, after)))
    assert division(folder) == Division(after)
    assert {each.name for each in folder.iterdir()} - {"canopy.lock"} == (
        set() if after == 1 else {"workers", *(each.name for each in places(folder))}
    )


@pytest.mark.parametrize("number", ["2", None])
@pytest.mark.parametrize("after", [4, 3, 2, 1])
def test_stores_that_do_not_count_are_kept_and_end_the_start(tmp_path: Path, number: str | None, after: int) -> None:
    """The file `workers` is another one, or lost: as restored from a backup."""
    folder = made(tmp_path / "store", 4)
    if number is None:
        (folder / "workers").unlink()
    else:
        (folder / "workers").write_text(number)
    with pytest.raises(StartupError, match=r"w[02]/canopy.db is there, and .* should have the store"):
        asyncio.run(take(folder, after))
    (folder / "workers").write_text("4")
    os.close(asyncio.run(take(folder, 4)))
    assert content(folder) == EXPECTED


def test_an_old_store_is_not_taken_for_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new store that is complete is removed before it has its place, as by somebody who makes room."""
    folder = made(tmp_path / "store", 3)
    unlink = Path.unlink

    def busy(path: Path, missing_ok: bool = False) -> None:
        if path.name == "canopy.db":
            raise OSError(16, "Device or resource busy", str(path))
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", busy)
        with pytest.raises(OSError, match="busy"):
            moving.rebuild(folder, 3, 2)
    new, aside = part(folder, 1) / "next", tmp_path / "aside"
    new.rename(aside)
    for _ in range(2):
        with pytest.raises(StartupError, match=r"w1/next/canopy.db is missing, a new store that was complete: put it"):
            asyncio.run(take(folder, 2))
    assert all((part(folder, worker) / "canopy.db").exists() for worker in range(3))
    aside.rename(new)
    os.close(asyncio.run(take(folder, 2)))
    assert content(folder) == EXPECTED


def test_a_store_that_was_not_read_is_not_removed_while_a_move_ends(tmp_path: Path) -> None:
    folder = made(tmp_path / "store", 3)
    look = moving._look_for
    other = part(folder, 5)

    def looked(file: Path) -> None:
        # Its disk is mounted meanwhile.
        if not other.exists():
            fill(other, ["of-another"])
        look(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving, "_look_for", looked)
        moving.rebuild(folder, 3, 2)
    assert (other / "canopy.db").exists()
    with pytest.raises(StartupError, match=r"w5/canopy.db is there"):
        asyncio.run(take(folder, 2))


def test_an_error_of_the_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "store", 1)
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if target.name == "canopy.db":
            raise OSError(16, "Device or resource busy", str(target))
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", renamed)
        with pytest.raises(StartupError, match=r"w0/canopy.db: Device or resource busy: let the broker's user"):
            asyncio.run(take(folder, 2))
    os.close(asyncio.run(take(folder, 2)))
    assert content(folder) == EXPECTED


def test_each_former_store_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made(tmp_path / "store", 3)
    read: list[tuple[Path, str]] = []

    def counted(store: ReadOnlyStore, table: str) -> Iterator[dict[str, Any]]:
        read.append((store.path, table))
        return rows_of(store, table)

    monkeypatch.setattr(dividing, "rows_of", counted)
    moving.rebuild(folder, 3, 8)
    assert len(read) == len(set(read))
    assert len({path for path, _ in read}) == 3


def test_messages_do_not_get_higher_numbers_with_each_move(tmp_path: Path) -> None:
    folder = made(tmp_path / "store", 1)
    for _ in range(12):
        moving.rebuild(folder, 1, 3)
        moving.rebuild(folder, 3, 1)
    assert content(folder) == EXPECTED
    db = sqlite3.connect(folder / "canopy.db")
    assert db.execute("SELECT max(id) FROM message").fetchone()[0] <= 3
    db.close()


def test_what_is_damaged_gets_no_right_checksum(tmp_path: Path) -> None:
    folder = made(tmp_path / "store", 1)
    db = sqlite3.connect(folder / "canopy.db", isolation_level=None)
    db.execute("UPDATE delivery SET payload = 'wrong' || payload WHERE topic = 'of/client-3'")
    db.execute("UPDATE delivery SET payload = CAST(payload AS BLOB) WHERE topic = 'of/client-3'")
    db.close()
    with pytest.raises(StoreError, match=r"canopy.db is damaged \(delivery .*\): start it with workers.count = 1"):
        moving.rebuild(folder, 1, 3)
    assert division(folder) == Division(1)


def test_messages_for_another_worker_are_not_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    fill(part(folder, 0), ["$node/w1"])
    fill(part(folder, 1), [])
    note(folder, Division(2))
    with pytest.raises(StoreError, match="has messages for another worker"):
        moving.rebuild(folder, 2, 3)
    assert division(folder) == Division(2)


def test_messages_for_another_node_are_not_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    fill(folder, ["$node/n2"])
    with pytest.raises(StoreError, match="start it as a node of its cluster until they have gone"):
        moving.rebuild(folder, 1, 3)
    assert division(folder) == Division(1)


async def take(folder: Path, workers: int) -> int:
    """Take a store for so many workers, and return its lock."""
    settings = Settings(store={"path": str(folder)}, workers={"count": workers})
    return await moving.take_store(settings, structlog.get_logger(), False, lambda _: None)


def _stuck(messages: int) -> tuple[Any, list[tuple[str, str]], list[dict[str, Any]]]:
    """A worker, without its process, that has messages for another one; what it says, and logs."""
    worker = Worker.__new__(Worker)
    said: list[tuple[str, str]] = []
    lines: list[dict[str, Any]] = []
    node = SimpleNamespace(waiting_messages=lambda: messages, inflight={}, backlog=True)
    log = SimpleNamespace(warning=lambda _, **fields: lines.append(fields))
    vars(worker).update(
        _broker=SimpleNamespace(
            router=SimpleNamespace(sessions={"$node/w0": node}, fanout=SimpleNamespace(broadcasting=False)),
            log=log,
            settings=SimpleNamespace(cluster=SimpleNamespace(node="w1")),
        ),
        _channel=SimpleNamespace(send=lambda *what: said.append(what)),
        _stopping=asyncio.Event(),
        _others_there=asyncio.Event(),
    )
    return worker, said, lines
