"""Files of this machine that one process at a time holds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import PipelineError


@contextmanager
def alone_with(file: Path, busy: str) -> Iterator[None]:
    """Hold a file, which is made if it is not there, in a folder that is.

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
