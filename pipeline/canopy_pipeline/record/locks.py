"""Locks: files of this machine that one process at a time holds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from canopy_pipeline.errors import PipelineError


@contextmanager
def alone_with(file: Path, busy: str) -> Iterator[None]:
    """Lock a file within the block; the file is made if it is missing, its folder is not.

    Raises:
        PipelineError: `busy`, where another process has it; or it cannot be made.
    """
    try:
        file.parent.mkdir(exist_ok=True)
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PipelineError(f"{file}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise PipelineError(busy) from error
    finally:
        os.close(lock)
