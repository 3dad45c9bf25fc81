"""Making the recorder's files and folders for the broker's user alone: they hold what everybody published.

Promises: files have 0600 and folders 0700 at most from the first moment on, whatever the umask of the process; no
symbolic link is followed that somebody else may have put in a file's place. What is there already keeps its mode.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing. Raises OSError."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=...)`. Raises OSError."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
