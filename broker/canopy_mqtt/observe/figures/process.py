"""The system's figures of this process: processor time, memory, open files.

It reads a few small files of /proc, which are in memory and do not block. It does not list the open files, because with
100,000 connections that would take long. Without /proc only the values of `getrusage` are known.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

STATM: Final = "/proc/self/statm"
STAT: Final = "/proc/self/stat"
BOOT: Final = "/proc/stat"
FILES: Final = "/proc/self/fd"

PAGE: Final = resource.getpagesize()

RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1_024
"""Bytes in a unit of `ru_maxrss`."""


class Process:
    def __init__(self) -> None:
        self.started = _started()
        """The start of the process, in seconds since 1970; 0.0: unknown."""

    def cpu(self) -> float:
        """Return the used processor time in seconds."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def memory(self) -> tuple[int, int]:
        """Return the resident and the virtual memory in bytes; (0, 0): unknown."""
        try:
            pages = _text(STATM).split()
            return int(pages[1]) * PAGE, int(pages[0]) * PAGE
        except (OSError, ValueError, IndexError):
            return 0, 0

    def most_memory(self) -> int:
        """Return the largest resident memory so far, in bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT

    def files(self) -> int:
        """Return the number of open files and sockets; 0: the system does not tell cheaply (Linux before 6.2)."""
        try:
            opened = os.open(FILES, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return 0
        try:
            # But for the one that was opened here.
            return max(0, os.fstat(opened).st_size - 1)
        finally:
            os.close(opened)

    def most_files(self) -> int:
        """Return the limit on open files."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _started() -> float:
    try:
        # The name of the program, in parentheses, may hold anything.
        ticks = int(_text(STAT).rpartition(")")[2].split()[19])
        boot = next(line for line in _text(BOOT, 1 << 20).splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0


def _text(path: str, max_bytes: int = 4_096) -> str:
    opened = os.open(path, os.O_RDONLY)
    try:
        return os.pread(opened, max_bytes, 0).decode()
    finally:
        os.close(opened)
