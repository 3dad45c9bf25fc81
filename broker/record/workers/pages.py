"""What each worker has numbered, and what of it was recorded: a page for each, which both processes have mapped.

Owns the files `.recorder-w0` … of a folder that is recorded for several workers. Promises: they outlive both processes,
so that the next start knows how many events are missing. Blocks.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Final

PAGE_BYTES: Final = 4_096

# The last number that the worker gave, and the last that was taken from it; segments, events and bytes of all.
_PAGE: Final = Struct("<qqqqq")
_TAKEN: Final = Struct("<q")
_TAKEN_AT: Final = 8
_TOTALS: Final = Struct("<qqq")
_TOTALS_AT: Final = 16


class Page:
    """The page of one worker, mapped."""

    def __init__(self, path: Path) -> None:
        """Map one that is there. Raises OSError or ValueError."""
        self.path = path
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.memo: mmap.mmap = mmap.mmap(number, PAGE_BYTES)
        finally:
            os.close(number)

    @classmethod
    def make(cls, root: Path, worker: int) -> Page:
        """A new one, in place of that of an earlier process. Raises OSError."""
        path = root / f".recorder-w{worker}"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            # Not a hole: see `Folder.open`.
            os.posix_fallocate(number, 0, PAGE_BYTES)
        finally:
            os.close(number)
        return cls(path)

    @property
    def given(self) -> int:
        """The last number that the worker gave."""
        return int(_PAGE.unpack_from(self.memo)[0])

    def take(self, number: int) -> None:
        """All up to this number of the worker's has been recorded, or named as missing."""
        _TAKEN.pack_into(self.memo, _TAKEN_AT, number)

    @property
    def totals(self) -> tuple[int, int, int]:
        """Finished segments, events in them, their bytes."""
        segments, events, size = _TOTALS.unpack_from(self.memo, _TOTALS_AT)
        return segments, events, size

    def tell(self, segments: int, events: int, size: int) -> None:
        """Say how much is in finished segments."""
        _TOTALS.pack_into(self.memo, _TOTALS_AT, segments, events, size)

    def close(self) -> None:
        """Let go of it; the file stays."""
        self.memo.close()

    def remove(self) -> None:
        """Nothing is owed any more."""
        self.close()
        self.path.unlink(missing_ok=True)


def owed(root: Path) -> int:
    """How many events workers numbered that nobody recorded. Raises OSError."""
    return sum(max(given - taken, 0) for given, taken, *_ in map(_read, _pages(root)))


def discard_pages(root: Path) -> None:
    """What is owed is noted elsewhere."""
    for path in _pages(root):
        path.unlink(missing_ok=True)


def _pages(root: Path) -> list[Path]:
    return sorted(root.glob(".recorder-w*"))


def _read(path: Path) -> tuple[Any, ...]:
    try:
        return _PAGE.unpack_from(path.read_bytes())
    except (FileNotFoundError, StructError):
        # It is settled, or its maker did not come to write it.
        return (0, 0)
