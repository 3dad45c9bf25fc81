"""The recorder's side of a record that is a table of Delta Lake, too.

Owns when the table is brought up to date: at the start, with each finished segment, and again after a commit that
failed; never while a job merges or removes segments, which does it itself. Needs deltalake, the extra
`canopy-mqtt[delta]`. Blocks; the recorder's thread is where it runs.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from broker.record.files.folder import read_manifest, removed
from broker.record.files.in_force import in_force, replaced
from broker.record.files.private import opener
from broker.record.files.segment import MANIFESTS, manifest_path
from broker.record.schema import SCHEMA
from canopy_delta import Table

LOCK: Final = f"{MANIFESTS}/.lock"
"""Held by `canopy pipeline compact` and `retention` while they change the folder."""


class Follower:
    """The table that follows a recorder's folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._table = Table(root, SCHEMA)
        self.behind = True
        """Whether the table may lack more than the next segment."""

    def follow(self, about: Mapping[str, Any] | None) -> None:
        """Bring the table up to date; `about` is the manifest of the segment that was finished, None at the start. What
        it lacks after an error, the next call tries again.

        Raises:
            TableError: it cannot be committed to.
            RecorderError, OSError, ValueError: the folder cannot be read.
        """
        behind, self.behind = self.behind, True
        if (about is None or behind) and self._settle():
            behind = False
        elif about is not None:
            self._table.add(about)
        self.behind = behind

    def _settle(self) -> bool:
        """Have the table hold what counts. False: a job is at work in the folder."""
        with _alone(self._root) as alone:
            if alone:
                gone = replaced(self._root)
                for entry in removed(self._root):
                    gone.update([str(entry.get("segment")), *map(str, entry.get("replaces") or ())])
                self._table.settle(in_force(self._root), gone, self._manifest, "record")
            return alone

    def _manifest(self, place: str) -> dict[str, Any]:
        return read_manifest(manifest_path(self._root, place))


@contextmanager
def _alone(root: Path) -> Iterator[bool]:
    """Whether no job is at work in the folder; none begins as long as that."""
    number = opener(str(root / LOCK), os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(number)
