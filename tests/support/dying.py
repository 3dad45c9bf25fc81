"""`canopy`, killed by itself at a named point of the store's commit path: KILLED_AT is `POINT NUMBER`.

The point is that of the NUMBERth group that has deliveries. The process says so (`told`), and sends SIGKILL to itself.
What is replaced here is interpreted whether the core is compiled or not.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final, NoReturn

from canopy_mqtt.command.cli import main as canopy
from canopy_mqtt.core.persistence.commits import Waiter
from canopy_mqtt.store.group_commit.batch import Batch
from canopy_mqtt.store.sqlite.store import SqliteStore
from canopy_mqtt.store.sqlite.writer import Writer, Written

MODULE: Final = __name__
"""What `tests.support.forked` runs the `main` of."""

BEFORE_BEGIN: Final = "before-begin"
AFTER_STATEMENTS: Final = "after-statements"
"""COMMIT is what comes next."""

AFTER_COMMIT: Final = "after-commit"
"""The group is in the file, and the event loop has not heard of it."""

BEFORE_ADVANCE: Final = "before-advance"
"""The event loop hears of it."""

IN_RELEASE: Final = "in-release"
"""Some of those who wait for the group are released, others are not."""

AFTER_RELEASE: Final = "after-release"
"""One to three turns of the event loop later: some acknowledgements have left, others have not."""

POINTS: Final = (BEFORE_BEGIN, AFTER_STATEMENTS, AFTER_COMMIT, BEFORE_ADVANCE, IN_RELEASE, AFTER_RELEASE)


def told(point: str) -> str:
    """The line that is written to standard error at a point."""
    return f"killed: {point}"


class _Doom:
    """Which group it is, and at what point of its writing the process is killed."""

    def __init__(self, point: str, number: int) -> None:
        self.point = point
        self.number = number
        self._left = number
        self.batch: Batch | None = None

    def count(self, batch: Batch) -> bool:
        """A group is given to the writer. True: it is the one."""
        if batch.plain or batch.deliveries:
            self._left -= 1
            if self._left == 0:
                self.batch = batch
                return True
        return False

    def at(self, point: str, batch: Batch) -> None:
        if point == self.point and batch is self.batch:
            self.die()

    def die(self) -> NoReturn:
        os.write(2, f"{told(self.point)}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed, and still there")


class _Last(Waiter):
    """Stands in the line of those who wait for the group."""

    def __init__(self, doom: _Doom) -> None:
        super().__init__()
        self._doom = doom

    def committed(self, number: int) -> int:  # noqa: ARG002 (the interface)
        self._doom.die()


def arm(doom: _Doom) -> None:
    """Put the points in place."""
    write_to_file, statements = Writer.write, Writer._statements
    give, written = SqliteStore.write, SqliteStore._written

    def write(store: SqliteStore, batch: Batch) -> None:
        if doom.count(batch) and doom.point == IN_RELEASE:
            # Who waits by now is before it in the line; who comes while the group is written is behind it.
            commits = store.journal.commits
            assert commits is not None
            commits.wait_for(_Last(doom), batch.number)
        give(store, batch)

    def write_group(writer: Writer, batch: Batch) -> Written:
        doom.at(BEFORE_BEGIN, batch)
        found = write_to_file(writer, batch)
        doom.at(AFTER_COMMIT, batch)
        return found

    def _statements(writer: Writer, batch: Batch) -> None:
        statements(writer, batch)
        doom.at(AFTER_STATEMENTS, batch)

    def _written(store: SqliteStore, found: Written) -> None:
        doom.at(BEFORE_ADVANCE, found.batch)
        written(store, found)
        if doom.point == AFTER_RELEASE and found.batch is doom.batch:
            later(doom.number % 3)

    def later(turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns == 0:
            loop.call_soon(doom.die)
        else:
            loop.call_soon(later, turns - 1)

    for owner, replaced in ((Writer, _statements), (SqliteStore, write), (SqliteStore, _written)):
        setattr(owner, replaced.__name__, replaced)
    setattr(Writer, "write", write_group)  # noqa: B010 (a method, which mypy would not have assigned to)


def main() -> None:
    """Be a `canopy` that is killed at KILLED_AT."""
    point, number = os.environ["KILLED_AT"].split()
    assert point in POINTS
    arm(_Doom(point, int(number)))
    canopy()
