"""Keeps a Delta Lake table over the recorder's folder up to date.

Owns the time of the updates: at the start, after each finished segment, and again after a failed commit; never while a
job merges or removes segments, which updates the table itself. Needs deltalake, the extra `canopy-mqtt[delta]`. Blocks;
it runs in the recorder's thread.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.delta import Table
from canopy_mqtt.record.files.current_files import current_files, replaced
from canopy_mqtt.record.files.folder import read_manifest, removed
from canopy_mqtt.record.files.private import opener
from canopy_mqtt.record.files.segment import MANIFESTS, manifest_path
from canopy_mqtt.record.schema import SCHEMA

LOCK: Final = f"{MANIFESTS}/.lock"
"""`canopy pipeline compact` and `retention` hold it while they change the folder."""


class DeltaFollower:
    """Updates the table after each segment of a recorder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._table = Table(root, SCHEMA)
        self.behind = True
        """True if the table may lack more than the next segment."""

    def follow(self, about: Mapping[str, Any] | None) -> None:
        """Update the table. `about`: the manifest of the finished segment, None at the start. The next call retries
        after an error.

        Raises:
            TableError: the table cannot be committed to.
            RecorderError, OSError, ValueError: the folder cannot be read.
        """
        behind, self.behind = self.behind, True
        if (about is None or behind) and self._settle():
            behind = False
        elif about is not None:
            self._table.add(about)
        self.behind = behind

    def _settle(self) -> bool:
        """Bring the table in line with the current files. Returns False if a job is changing the folder."""
        with _alone(self._root) as alone:
            if alone:
                gone = replaced(self._root)
                for entry in removed(self._root):
                    gone.update([str(entry.get("segment")), *map(str, entry.get("replaces") or ())])
                self._table.settle(current_files(self._root), gone, self._manifest, "record")
            return alone

    def _manifest(self, place: str) -> dict[str, Any]:
        return read_manifest(manifest_path(self._root, place))


@contextmanager
def _alone(root: Path) -> Iterator[bool]:
    """Yield True if no job is changing the folder, and keep jobs out while the context lasts."""
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
