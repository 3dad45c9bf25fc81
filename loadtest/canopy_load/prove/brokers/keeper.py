"""A process that waits for the end of a proof and then leaves nothing of its brokers: `python -m … FOLDER`.

Owns: which processes belong to a proof: those whose environment names its folder, or that work in it; and what
libfaketime leaves of a process that was killed.

Promises: when its standard input ends, because the proof is over or its process was killed, every such process is
killed, what they had in shared memory and the folder are removed, and this process ends. It uses nothing of this
project.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "CANOPY_PROVE_FOLDER"
"""The variable of the environment that names the folder."""
SHARED: Final = Path("/dev/shm")
"""Where libfaketime keeps a clock for each process and the processes that it starts."""
CLOCKS: Final = ("faketime_shm_{}", "sem.faketime_sem_{}")
STEP: Final = 0.02
"""Seconds between two looks at those that were killed."""


def processes(folder: str) -> list[int]:
    """Return the processes of a proof, without this one."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            works = os.readlink(entry / "cwd")
            within = works == folder or works.startswith(f"{folder}/")
            if within or mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def forget(ended: Iterable[int]) -> None:
    """Remove what libfaketime has left of processes that have ended; one that was not killed leaves nothing."""
    for pid in ended:
        for each in CLOCKS:
            with suppress(OSError):
                (SHARED / each.format(pid)).unlink()


def main() -> None:
    """Wait for the end of standard input, and clear up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = sys.argv[1]
    with suppress(OSError):
        sys.stdin.buffer.read()
    seen: set[int] = set()
    while left := processes(folder):
        seen.update(left)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(STEP)
    forget(seen)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
