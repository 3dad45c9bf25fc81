"""The journal and the file of `SqliteStore`, in groups that end and are written when a test says so, in its thread.

What stands in the file at any time is what a broker finds that is started after this one was killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from broker.core.persistence.commits import Commits
from broker.core.persistence.journal import Fetch, Saved
from broker.store.groups.group import Batch
from broker.store.groups.journal import GroupJournal
from broker.store.groups.principals import Principals
from broker.store.groups.records import Loaded
from broker.store.groups.shell import Shell
from broker.store.sqlite.opening import begin
from broker.store.sqlite.reading import read
from broker.store.sqlite.writer import Writer
from broker.store.times import Times
from tests.store.places import rebooted


class _Ends(Shell):
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
        self._opened, highest, note = begin(directory, "off")
        self._times = Times(rebooted(clock))
        self._times.start(clock, note)
        self._principals = Principals(None)
        self._writer = Writer(self._opened, self._principals)
        self.journal = GroupJournal(self._times, _Ends(), 1 << 20)
        self.journal.begin_at(*highest)
        self._line: deque[Batch] = deque()
        self.rows = 0

    @property
    def gate(self) -> Commits:
        """The commits of its journal."""
        return self.journal.commits_kept()

    def load(self) -> Saved:
        """What a broker begins with."""
        loaded = self._read()
        loaded.tell(self.journal)
        return loaded.saved

    def saved(self) -> Saved:
        """What the next one would find."""
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
        told = self.gate.told
        while True:
            self.close_group()
            while self.commit():
                pass
            if self.gate.committed >= told:
                return

    def kill(self) -> None:
        """The broker is gone; what is in no transaction is lost."""
        self._opened.close()
