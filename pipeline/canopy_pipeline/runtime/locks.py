"""Locks: files of this machine that one process at a time holds."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from canopy_pipeline.errors import PipelineError

RETRY: Final = 0.05
"""Seconds between two attempts: the kernel has no flock with a time limit."""


def held(file: Path, busy: str, wait: float = 0.0) -> int:
    """Lock a file until the returned descriptor is closed, or the process ends; the file is made if it is missing, its
    folder is not. `wait`: seconds that another process has to let it go.

    Raises:
        PipelineError: `busy`, where another process has it; or it cannot be made.
    """
    deadline = time.monotonic() + wait
    try:
        file.parent.mkdir(exist_ok=True)
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PipelineError(f"{file}: {error.strerror}") from error
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise PipelineError(busy) from None
                time.sleep(RETRY)
            else:
                return lock
    except BaseException:
        os.close(lock)
        raise


@contextmanager
def alone_with(file: Path, busy: str) -> Iterator[None]:
    """Lock a file within the block. Raises PipelineError: see `held`."""
    lock = held(file, busy)
    try:
        yield
    finally:
        os.close(lock)
