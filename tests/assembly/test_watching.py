"""Files that change are told of: written in place, replaced, behind links as Kubernetes has them, gone and back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.assembly import watching
from canopy_mqtt.assembly.watching import FileWatcher
from canopy_mqtt.security.passwords.hashes import make
from canopy_mqtt.security.passwords.password_file import edit
from canopy_mqtt.settings import PasswordFileTable, Shutdown
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.waiting import until


class Watched:
    """A watcher of some files, and what it told."""

    def __init__(self, *files: Path) -> None:
        self.files = list(files)
        self.told: list[set[Path]] = []
        self.faults: list[tuple[str, Exception]] = []
        self.failure: Exception | None = None
        self.watcher = FileWatcher(lambda: self.files, self.changed, lambda *fault: self.faults.append(fault))

    async def changed(self, paths: list[Path]) -> None:
        self.told.append(set(paths))
        if self.failure is not None:
            raise self.failure

    async def after(self, change: Callable[[], Any]) -> set[Path]:
        """What is told of a change, once."""
        before = len(self.told)
        await asyncio.to_thread(change)
        await until(lambda: len(self.told) > before, "the change was told of")
        assert len(self.told) == before + 1
        return self.told[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    return tmp_path


@pytest.fixture
async def watched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(watching, "QUIET", 0.02)
    monkeypatch.setattr(watching, "LOOK", 500)
    made = Watched(folder / "one", folder / "two")
    await made.watcher.start()
    await until(lambda: made.watcher.looks, "it watches")
    yield made
    await made.watcher.stop()
    await made.watcher.stop()


def replace(path: Path, text: str) -> None:
    """As editors and `canopy passwd` do it."""
    other = path.with_name("other")
    other.write_text(text)
    other.replace(path)


async def test_a_file_that_is_written_in_place(watched: Watched, folder: Path) -> None:
    """It may be told of more than once: whoever writes it first makes it empty."""
    await asyncio.to_thread((folder / "one").write_text, "11")
    await until(lambda: watched.told, "the change was told of")
    assert watched.told[0] == {folder / "one"}


async def test_a_file_that_is_replaced_or_gone(watched: Watched, folder: Path) -> None:
    assert await watched.after(lambda: replace(folder / "one", "11")) == {folder / "one"}
    assert await watched.after(lambda: replace(folder / "two", "2")) == {folder / "two"}
    assert await watched.after(lambda: (folder / "one").unlink()) == {folder / "one"}
    assert await watched.after(lambda: replace(folder / "one", "back")) == {folder / "one"}
    assert watched.faults == []


async def test_other_files_of_the_folder_are_nobodys(watched: Watched, folder: Path) -> None:
    looks = watched.watcher.looks
    await asyncio.to_thread((folder / "three").write_text, "3")
    await until(lambda: watched.watcher.looks > looks, "it has looked")
    assert watched.told == []


async def test_as_kubernetes_exchanges_a_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is a link into a folder that is a link, and that one is replaced."""
    monkeypatch.setattr(watching, "QUIET", 0.02)
    monkeypatch.setattr(watching, "LOOK", 500)

    def version(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "passwd").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(name)
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")

    await asyncio.to_thread(version, "..1", "1")
    path = tmp_path / "passwd"
    await asyncio.to_thread(path.symlink_to, "..data/passwd")
    watched = Watched(path)
    await watched.watcher.start()
    await until(lambda: watched.watcher.looks)
    # Twice: the folder that is watched after the first is another.
    assert await watched.after(lambda: version("..2", "2")) == {path}
    assert await watched.after(lambda: version("..3", "3")) == {path}
    await watched.watcher.stop()


async def test_what_raises_does_not_end_it(watched: Watched, folder: Path) -> None:
    watched.failure = RuntimeError("a fault")
    await watched.after(lambda: replace(folder / "one", "11"))
    watched.failure = None
    assert await watched.after(lambda: replace(folder / "one", "111")) == {folder / "one"}
    assert [place for place, _ in watched.faults] == ["watching"]


async def test_a_list_of_files_that_changes(watched: Watched, folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    await asyncio.to_thread(elsewhere.mkdir)
    new = elsewhere / "new"
    await asyncio.to_thread(new.write_text, "1")
    watched.files.append(new)
    # What is new in the list was read by whoever put it there.
    assert await watched.after(lambda: replace(folder / "one", "11")) == {folder / "one"}
    looks = watched.watcher.looks
    await until(lambda: watched.watcher.looks > looks, "it watches the other folder too")
    assert await watched.after(lambda: replace(new, "11")) == {new}


async def test_no_folder_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK", 20)
    monkeypatch.setattr(watching, "QUIET", 0.02)
    path = tmp_path / "later" / "passwd"
    watched = Watched(path)
    await watched.watcher.start()

    def appear() -> None:
        path.parent.mkdir()
        path.write_text("1")

    assert await watched.after(appear) == {path}
    await watched.watcher.stop()


class TestBroker:
    async def test_a_changed_password_file_is_read_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watching, "QUIET", 0.02)
        file = tmp_path / "passwd"
        await asyncio.to_thread(edit, file, "alice", make(b"1", "sha512"), create=True)
        table = PasswordFileTable(type="password-file", path=str(file))
        settings = Settings(listen=["mqtt://127.0.0.1:0"], authenticator=[table], shutdown=Shutdown(flush_timeout=0.0))
        async with Broker(settings) as broker:

            async def enters() -> Peer:
                peer = await Peer.open("127.0.0.1", broker.ports[0], 5)
                await peer.send(wire.connect("c", user="alice", password=b"1", keep_alive=0))
                assert (await peer.expect(wire.CONNACK)).code == 0
                return peer

            peer = await enters()
            await asyncio.to_thread(edit, file, "alice", None)
            (packet,) = await peer.closed()
            assert (packet.kind, packet.code) == (wire.DISCONNECT, 0x87)
            peer.abort()
            # A file that cannot be read changes nothing.
            await asyncio.to_thread(edit, file, "alice", make(b"1", "sha512"))
            users = broker.securing
            assert users is not None
            await until(lambda: users.access.epoch == 3)
            looks = broker._watcher.looks if broker._watcher is not None else -1
            await asyncio.to_thread(replace, file, "nonsense\n")
            await until(lambda: broker._watcher is not None and broker._watcher.looks > looks)
            peer = await enters()
            assert users.access.epoch == 3
            peer.abort()
            # It can be switched off.
            await asyncio.to_thread(replace, file, "")
            off = settings.model_copy(update={"security": settings.security.model_copy(update={"watch_files": False})})
            await broker.reload(off)
            assert broker._watcher is None

    async def test_without_files_nothing_is_watched(self) -> None:
        async with Broker(Settings(listen=["mqtt://127.0.0.1:0"])) as broker:
            assert broker._watcher is None
