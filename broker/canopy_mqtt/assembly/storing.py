"""Makes the store of the settings, opens it at the start of a broker, and closes it at the end.

Owns `StoredState`, the open store with the guard of its journal, and the report at the start of what is kept and where.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from canopy_mqtt.core.persistence.journal import SessionRecord
from canopy_mqtt.core.persistence.restore import restore
from canopy_mqtt.guards.hook_guards import JOURNAL
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.net.server import Server
from canopy_mqtt.settings import Settings
from canopy_mqtt.store.base import Store, StoreError
from canopy_mqtt.store.journal_guard import GuardedJournal

if TYPE_CHECKING:
    from canopy_mqtt.store.group_commit.principals import RuleTexts

MEMORY: Final = "memory"
"""The report if no state outlives the process."""

KEPT: Final = {
    "full": "acknowledged when it is on disk",
    "normal": "kill -9 loses nothing that was acknowledged, a power cut the last of it",
    "off": "kill -9 loses nothing that was acknowledged, a power cut may damage it",
}
"""The guarantee of each `store.synchronous`."""

KEPT_IN_DATABASE: Final = {
    "full": "acknowledged when the database has committed it, and its synchronous standbys",
    "normal": "acknowledged when the database has committed it, whatever its standbys have",
    "off": "kill -9 of the broker loses nothing that was acknowledged, a crash of the database the last of it",
}


def make(settings: Settings, rules: RuleTexts | None = None) -> Store | None:
    """Make the store of the settings; None: all state is in memory. Touches no file.

    `rules` writes and reads the own rules of principals.

    Raises:
        StartupError: a package is missing.
    """
    wanted = settings.store
    names = (
        *("synchronous", "commit_window", "commit_bytes", "stall_timeout"),
        *("memory_bytes", "memory_total_bytes", "disk_bytes"),
    )
    terms: dict[str, Any] = {name: getattr(wanted, name) for name in names}
    # 0: everything is in memory.
    terms["memory_messages"] = wanted.memory_messages if wanted.memory_bytes else 0
    # Who keeps nothing need not load what keeps.
    if wanted.path:
        from canopy_mqtt.store.sqlite import SqliteStore

        return SqliteStore(wanted.path, rules=rules, on_damage=wanted.on_damage, **terms)
    if wanted.url:
        if why := _without_driver():
            raise StartupError(why)
        if settings.shares_sessions:
            from canopy_mqtt.assembly import sharing

            return sharing.make(settings, rules)
        from canopy_mqtt.store.postgresql import PostgresStore

        terms |= {"name": wanted.name, "lease_timeout": wanted.lease_timeout}
        return PostgresStore(wanted.url, rules=rules, **terms)
    return None


def _without_driver() -> str:
    """Return the reason why no database can be used; empty: it can."""
    if find_spec("asyncpg") is not None:
        return ""
    return 'store.url needs the extra `postgresql`: in a clone of Canopy, pip install ".[postgresql]"'


def place(settings: Settings) -> str:
    """Return the place of the data: a folder as in the settings, a database without its user, or MEMORY."""
    wanted = settings.store
    return _database(settings) if wanted.url else wanted.path or MEMORY


def _database(settings: Settings) -> str:
    """Return the place in a database, without user, password and options."""
    parts = urlsplit(settings.store.url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}, schema {settings.store.name}"


def kept(settings: Settings) -> str:
    """Return the line for people with the kept state, its place, and its guarantee."""
    wanted = settings.store
    if settings.shares_sessions:
        kept = f"kept in {_database(settings)}: durable sessions of all nodes, with their queues; all else in memory"
        return f"{kept}; {KEPT_IN_DATABASE[wanted.synchronous]}"
    if wanted.url:
        kept = f"kept in {_database(settings)}: sessions, queued and retained messages"
        return f"{kept}; {KEPT_IN_DATABASE[wanted.synchronous]}"
    if not wanted.path:
        return "kept in memory only: sessions, queued and retained messages; they end with this process"
    return f"kept in {Path(wanted.path)}: sessions, queued and retained messages; {KEPT[wanted.synchronous]}"


def unusable(settings: Settings) -> list[str]:
    """Return the reasons why a broker that is started here cannot have its store, a line each. Changes nothing.

    It checks the folder and the first bytes of the file. Only a start finds damage further on, and unreachable
    databases.
    """
    if settings.store.url:
        why = _without_driver()
    elif settings.store.path:
        from canopy_mqtt.store.sqlite.opening import fault

        why = unwritable("store.path", settings.store.path) or fault(Path(settings.store.path))
    else:
        why = ""
    return [why] if why else []


def unwritable(name: str, path: str) -> str:
    """Return the reason why the folder of a setting cannot be made or written to; empty: no reason can be seen."""
    folder = Path(path)
    try:
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    except OSError as error:
        return f"{name}: {folder}: {error.strerror}"
    if not there.is_dir():
        return f"{name}: {there} is not a directory: name another one"
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return f"{name}: {there} cannot be written to: let the broker's user write there, or name another one"
    return ""


class StoredState:
    """A store in use by one broker, which may start again after it has stopped."""

    def __init__(self, server: Server, store: Store) -> None:
        self._server = server
        self._store = store
        self._open = False
        self._restored = False
        server.router.journal = GuardedJournal(store.journal, self._failed, self._mended)
        server.faults.watch(JOURNAL)

    def _failed(self, error: Exception) -> None:
        self._server.faults.failed(JOURNAL, error)
        if self._store.listener is not None:
            self._store.listener.failed(f"a change cannot be noted: {type(error).__name__}: {error}")

    def _mended(self) -> None:
        """Report that the journal has got all changes. If the disk fails too, its own recovery is reported later."""
        commits = self._server.router.commits
        if self._store.listener is not None and (commits is None or not commits.failed):
            self._store.listener.recovered()

    async def open(self) -> list[SessionRecord]:
        """Open the store, and the first time restore everything in it. Returns what it has of links.

        Raises:
            StartupError: the store cannot be used.
        """
        server, kept_links = self._server, list[SessionRecord]()
        try:
            await self._store.open(server.loop.time)
            self._open = True
            if not self._restored:
                saved = await self._store.load()
                await in_turns(restore(server.router, saved, server.loop.time(), kept_links))
                self._restored = True
        except asyncio.CancelledError:
            # `in_turns` has done the rest.
            self._restored = len(server.router.sessions) > 0
            raise
        except StoreError as error:
            raise StartupError(str(error)) from error
        except Exception as error:
            server.faults.broke("store", error)
            raise StartupError(f"the store cannot be used: {type(error).__name__}: {error}") from error
        return kept_links

    async def close(self) -> None:
        """Pass the last changes on and close the store, if it is open. What this raises is only logged: everything else
        has ended, and no other part could do better."""
        if not self._open:
            return
        self._open = False
        if self._server.router.journal is not None:
            self._server.router.journal.retry()
        try:
            await self._store.close()
        except StoreError as error:
            # The disk, and no fault of ours.
            self._server.log.error("store is closed without its last changes", reason=str(error))
        except Exception as error:
            self._server.faults.broke("store", error)


PIECE: Final = 1_000
"""Steps of a turn, in each of which a store's session, subscription or message is put back: some milliseconds."""


async def in_turns(steps: Iterator[None]) -> None:
    """Do all steps of a long work, in turns of the event loop.

    If it is cancelled, the remaining steps are done at once before it ends: half of the work could neither be used nor
    begun again.
    """
    try:
        for number, _ in enumerate(steps, 1):
            if number % PIECE == 0:
                await asyncio.sleep(0)
    except asyncio.CancelledError:
        deque(steps, 0)
        raise
