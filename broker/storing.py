"""The store of a broker, seen from outside: how the settings make it, and what is reported of it.

Owns what the start says is kept, and the log lines when the store fails and goes on: two in `LINES_APART` seconds at
most, however often a disk comes and goes. Whoever publishes the state is told of every change. It keeps nothing itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from broker.net.listening.listeners import StartupError
from broker.settings import Settings
from broker.store.base import Store, StoreListener
from broker.store.damage import Damages

if TYPE_CHECKING:
    from broker.net.server import Server
    from broker.store.groups.principals import RuleTexts

LINES_APART: Final = 10.0
"""Seconds between two lines about failures."""

WRITTEN: Final = "written"
"""The state of a store that works."""

MEMORY: Final = "memory"
"""What the start says where nothing outlives the process."""

KEPT: Final = {
    "full": "acknowledged when it is on disk",
    "normal": "kill -9 loses nothing that was acknowledged, a power cut the last of it",
    "off": "kill -9 loses nothing that was acknowledged, a power cut may damage it",
}
"""By `store.synchronous`."""

KEPT_IN_DATABASE: Final = {
    "full": "acknowledged when the database has committed it, and its synchronous standbys",
    "normal": "acknowledged when the database has committed it, whatever its standbys have",
    "off": "kill -9 of the broker loses nothing that was acknowledged, a crash of the database the last of it",
}


def make(settings: Settings, rules: RuleTexts | None = None) -> Store | None:
    """The store of the settings; None: everything is kept in memory. Touches no file.

    `rules` writes and reads what principals bring of their own.

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
        from broker.store.sqlite import SqliteStore

        return SqliteStore(wanted.path, rules=rules, on_damage=wanted.on_damage, **terms)
    if wanted.url:
        if why := _without_driver():
            raise StartupError(why)
        from broker.store.postgresql import PostgresStore

        terms |= {"name": wanted.name, "lease_timeout": wanted.lease_timeout}
        return PostgresStore(wanted.url, rules=rules, **terms)
    return None


def _without_driver() -> str:
    """Why no database can be used; empty: it can."""
    if find_spec("asyncpg") is not None:
        return ""
    return 'store.url needs the extra `postgresql`: in a clone of Canopy, pip install ".[postgresql]"'


def place(settings: Settings) -> str:
    """Where the data is: a folder as in the settings, a database without its user, or MEMORY."""
    wanted = settings.store
    return _database(settings) if wanted.url else wanted.path or MEMORY


def _database(settings: Settings) -> str:
    """Where in a database: without user, password and options."""
    parts = urlsplit(settings.store.url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}, schema {settings.store.name}"


def kept(settings: Settings) -> str:
    """The line for people that says what is kept, where, and how well."""
    wanted = settings.store
    if wanted.url:
        kept = f"kept in {_database(settings)}: sessions, queued and retained messages"
        return f"{kept}; {KEPT_IN_DATABASE[wanted.synchronous]}"
    if not wanted.path:
        return "kept in memory only: sessions, queued and retained messages; they end with this process"
    return f"kept in {Path(wanted.path)}: sessions, queued and retained messages; {KEPT[wanted.synchronous]}"


def unusable(settings: Settings) -> list[str]:
    """Why a broker that is started here cannot have its store, a line each. Changes nothing.

    It looks at the folder and at the first bytes of the file. Only a start finds damage further on, and whether a
    database can be reached.
    """
    if settings.store.url:
        why = _without_driver()
    elif settings.store.path:
        from broker.store.sqlite.opening import fault

        why = unwritable("store.path", settings.store.path) or fault(Path(settings.store.path))
    else:
        why = ""
    return [why] if why else []


def unwritable(name: str, path: str) -> str:
    """Why the folder that a setting names cannot be made or written to, as far as can be seen; empty: it can."""
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


class StoreWatch(StoreListener):
    """Hears from one server's store. `changed` is called when the state may be another."""

    def __init__(self, server: Server, ended: Callable[[str], None] | None = None) -> None:
        """`ended`: called with the reason when another broker has the store."""
        self._server = server
        self._ended = ended
        self.changed: Callable[[], None] | None = None
        self.failures = 0
        """How often it began to fail."""
        self.damaged_rows: dict[str, int] = {}
        """Rows that could not be used since the start, by table, or `will`."""
        self.aside = ""
        """Where a damaged file was put at the start."""
        self._next_damage_line = 0.0
        self._reason = ""
        self._since = 0.0
        # Whether the log knows of this failure; when the next line may be written, and the timer for that.
        self._told = False
        self._next_line = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """WRITTEN, or why it cannot be."""
        return self._reason or WRITTEN

    @property
    def failing(self) -> bool:
        """Whether it cannot be written."""
        return bool(self._reason)

    def failed(self, reason: str) -> None:
        """Tell of it, unless it is known."""
        if reason == self._reason:
            return
        if not self._reason:
            self.failures += 1
            self._since = self._server.loop.time()
        self._reason = reason
        self._tell()
        self._change()

    def recovered(self) -> None:
        """Tell of it where the failure was told of."""
        if not self._reason:
            return
        self._reason = ""
        self.stop()
        if self._told:
            self._told = False
            seconds = round(self._server.loop.time() - self._since, 3)
            self._server.log.warning("store is written again", seconds=seconds, failures=self.failures)
        self._change()

    def replaced(self) -> None:
        """Have the broker end: a supervisor starts it anew, with what is there."""
        if self._ended is not None:
            self._ended(f"the store: {self._reason}")

    def damaged(self, damages: Damages) -> None:
        """Tell of the first rows by name, and of all by number."""
        log, now = self._server.log, self._server.loop.time()
        for what, count in damages.counts.items():
            self.damaged_rows[what] = self.damaged_rows.get(what, 0) + count
        if now >= self._next_damage_line:
            self._next_damage_line = now + LINES_APART
            for each in damages.named:
                log.error(
                    "store row is damaged", row=each.what, client_id=each.client_id, topic=each.topic, reason=each.why
                )
            log.error("store has lost damaged rows", now=damages.told(), since_start=sum(self.damaged_rows.values()))

    def set_aside(self, where: str, lost: dict[str, int], kept: dict[str, int]) -> None:
        """Tell of it, and raise the alarm."""
        self.aside = where
        self._server.log.error("store was set aside", file=where, lost=lost, kept=kept)

    @property
    def damage(self) -> str:
        """What of the store was damaged since the start, in one line; empty: nothing."""
        told = [f"the damaged file is {self.aside}"] if self.aside else []
        rows = ", ".join(f"{count:,} of {what}" for what, count in sorted(self.damaged_rows.items()))
        return "; ".join([*told, *([f"lost rows: {rows}"] if rows else [])])

    def noticed(self, line: str) -> None:
        """Tell of it."""
        self._server.log.warning("store", detail=line)

    def figures(self) -> Iterator[tuple[str, object]]:
        """Topic below `$SYS/broker/store/` and value; nothing for a store of the process's own memory."""
        store = self._server.store
        if store is None:
            return
        found = list(store.figures())
        if found:
            yield "state", self.state
            yield "failures", self.failures
            yield "damaged", sum(self.damaged_rows.values())
            yield from found

    def stop(self) -> None:
        """Leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        if not self._reason:
            return
        now = self._server.loop.time()
        if now >= self._next_line:
            self._next_line = now + LINES_APART
            self._told = True
            self._server.log.error("store cannot be written", reason=self._reason, failures=self.failures)
        elif self._timer is None:
            self._timer = self._server.loop.call_at(self._next_line, self._tell)

    def _change(self) -> None:
        if self.changed is not None:
            self.changed()
