"""Opens files that an operator names: in settings, in arguments, in other files.

Promises: it opens no FIFO, whose reader waits for a writer, and no device, which may have no end. The null device is an
empty file. What the process got open (`/dev/stdin`, `/dev/fd/3`) may be a pipe: its writer is there.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

DESCRIPTORS: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""What the names of open descriptors begin with."""

KINDS: Final = {
    stat.S_IFIFO: "it is a FIFO (named pipe), and no file",
    stat.S_IFCHR: "it is a device, and no file",
    stat.S_IFBLK: "it is a device, and no file",
}


def open_file(path: str | Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for a FIFO or a device. Blocks: run it in a thread."""
    return open(path, "rb", opener=_open)


def read_file(path: str | Path) -> bytes:
    """Return what is in a file. Raises OSError, as `open_file` does."""
    with open_file(path) as file:
        return file.read()


def is_read_once(path: str | Path) -> bool:
    """Return True if reading a file anew would not begin at its beginning: it is a pipe, a terminal, or the like."""
    try:
        found = os.stat(path)
        return not stat.S_ISREG(found.st_mode) and not os.path.samestat(found, os.stat(os.devnull))
    except OSError:
        # Reading it says why.
        return False


def is_empty(path: str | Path) -> bool:
    """Return True if a file is there with nothing in it."""
    try:
        return os.path.getsize(path) == 0
    except OSError:
        # Reading it says why.
        return False


def check_files(*paths: str | Path) -> None:
    """Raise OSError, with the name, unless these files can be read: before OpenSSL opens them by itself. "" is none."""
    for path in paths:
        if path:
            open_file(path).close()


def _open(path: str, flags: int) -> int:
    if path.startswith(DESCRIPTORS):
        return os.open(path, flags)
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    why = KINDS.get(stat.S_IFMT(found.st_mode))
    if why is not None and not os.path.samestat(found, os.stat(os.devnull)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, why, path)
    return descriptor
