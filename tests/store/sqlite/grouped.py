"""The journal and the file of `SqliteStore`, in groups that end and are written when a test says so, in its thread.

What stands in the file at any time is what a broker finds that is started after this one was killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from canopy_mqtt.core.persistence.commits import Commits
from canopy_mqtt.core.persistence.journal import Saved
from canopy_mqtt.core.queues.disk_queue import Fetch
from canopy_mqtt.store.group_commit.batch import Batch
from canopy_mqtt.store.group_commit.journal import GroupJournal
from canopy_mqtt.store.group_commit.journal_listener import JournalListener
from canopy_mqtt.store.group_commit.principals import Principals
from canopy_mqtt.store.group_commit.records import Loaded
from canopy_mqtt.store.sqlite.opening import open_for_broker
from canopy_mqtt.store.sqlite.reading import read
from canopy_mqtt.store.sqlite.writer import Writer
from canopy_mqtt.store.times import Times
from tests.store.places import rebooted


class _EndsByHand(JournalListener):
    """Groups end when the test says so."""

    def begun(self) -> None:
        pass

    def eased(self) -> None:
        pass

    def due(self) -> None:
        pass

    def fetch(self, session: int, fetch: Fetch) -> None:
        raise AssertionError(f"nothing of {session} waits on disk alone: {fetch}")


class FileStore:
    """One broker's. It does what `SqliteStore` does with groups, without threads and timers."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._opened, highest, note = open_for_broker(directory, "off")
        self._times = Times(rebooted(clock))
        self._times.start(clock, note)
        self._principals = Principals(None)
        self._writer = Writer(self._opened, self._principals)
        self.journal = GroupJournal(self._times, _EndsByHand(), 1 << 20)
        self.journal.begin_at(*highest)
        self._line: deque[Batch] = deque()
        self.rows = 0

    @property
    def gate(self) -> Commits:
        """The commits of its journal."""
        return self.journal.commits_kept()

    def load(self) -> Saved:
        """Load the state for a broker that begins."""
        loaded = self._read()
        loaded.tell(self.journal)
        return loaded.saved

    def saved(self) -> Saved:
        """Return the state that the next broker would find."""
        return self._read().saved

    def _read(self) -> Loaded:
        return read(self._opened.db, self._times.now(), self._principals)

    def close_group(self) -> None:
        """The open group ends."""
        self._line.append(self.journal.take())

    def ease(self) -> None:
        """A turn in which those go on who wait for what nothing is left to keep of."""
        number = self.journal.safe()
        if not any(batch.awaited for batch in self._line):
            self.gate.advance(number)

    def commit(self) -> bool:
        """The group that was closed first is in the file. False: there was none."""
        if not self._line:
            return False
        batch = self._line.popleft()
        if not batch.empty():
            written = self._writer.write(batch)
            assert written.error is None, written.error
            self.rows += len(batch.plain) + len(batch.deliveries)
        self.gate.advance(batch.number)
        self.ease()
        return True

    def commit_all(self) -> None:
        """Everything that was told so far is safe."""
        told = self.gate.journal_position
        while True:
            self.close_group()
            while self.commit():
                pass
            if self.gate.committed >= told:
                return

    def kill(self) -> None:
        """The broker is gone; what is in no transaction is lost."""
        self._opened.close()
