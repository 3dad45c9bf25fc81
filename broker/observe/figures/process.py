"""What the system says of this process: its time on the processor, memory, and files.

It reads a few small files of /proc, which are in memory and keep nobody waiting, and does not list the open files: with
100,000 connections that would take long.
Where the system has no /proc, only what `getrusage` says is known.
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
    """This process."""

    def __init__(self) -> None:
        self.started = _started()
        """When it began, in seconds since 1970; 0.0: unknown."""

    def cpu(self) -> float:
        """Seconds on the processor."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def memory(self) -> tuple[int, int]:
        """Bytes: resident, and of addresses; (0, 0): unknown."""
        try:
            pages = _text(STATM).split()
            return int(pages[1]) * PAGE, int(pages[0]) * PAGE
        except (OSError, ValueError, IndexError):
            return 0, 0

    def most_memory(self) -> int:
        """Resident bytes, the most there have been."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT

    def files(self) -> int:
        """Open files and sockets; 0: the system does not say so at once (Linux before 6.2)."""
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
        """How many may be open."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _started() -> float:
    try:
        # The name of the program, in parentheses, may hold anything.
        ticks = int(_text(STAT).rpartition(")")[2].split()[19])
        boot = next(line for line in _text(BOOT, 1 << 20).splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0


def _text(path: str, most: int = 4_096) -> str:
    opened = os.open(path, os.O_RDONLY)
    try:
        return os.pread(opened, most, 0).decode()
    finally:
        os.close(opened)
