"""Makes the recorder's files and folders readable for the broker's user alone: they contain all messages.

Promises: files have at most mode 0600 and folders 0700 from the start, whatever the umask of the process; no symbolic
link is followed in place of a file. Existing files keep their mode.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_folder(folder: Path) -> None:
    """Make a folder, and its missing parents. Raises OSError."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Open a file; for `open(..., opener=...)`. Raises OSError."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
