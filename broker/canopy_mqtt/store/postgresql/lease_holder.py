"""Which process has the lease of a schema, so that the next one on the same machine need not wait for its end.

Owns the text in `owner.holder`, and the proof that the process in it is dead. Only this kernel can prove that: the same
machine, boot and namespaces, and no process with that number and start time. A process that is stopped (SIGSTOP), or
whose connection is lost, is alive. Where anything differs or cannot be read, the lease is waited for.

What the database knows proves nothing: a session that is gone (`pg_stat_activity`, an advisory lock that is free) tells
of a connection, and a broker that has lost its connection is alive and makes another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")

MACHINE: Final = ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")
"""The files that identify the machine and its present boot. Containers may share both."""

NAMESPACES: Final = ("pid", "time")
"""In these a process has its number and its start time; a kernel may know the first alone."""

START: Final = 19
"""The field of the start time in `/proc/PID/stat`, behind the name of the program; the state is the first."""


def this_process() -> str:
    """Return the text that identifies this process; empty: this system does not tell. It blocks for some
    microseconds."""
    try:
        return f"{_place()} {os.getpid()} {_stat(os.getpid())[START]}"
    except (OSError, IndexError):
        return ""


def has_ended(holder: str) -> bool:
    """Return whether the process of such a text is certainly dead. It blocks for some microseconds."""
    try:
        place, pid, started = holder.rsplit(" ", 2)
        number = int(pid)
        if place != _place():
            return False
    except (OSError, ValueError):
        return False
    try:
        os.kill(number, 0)
        stat = _stat(number)
        # A process that nobody has waited for yet does nothing any more, unless a thread of it is left.
        ended = stat[0] in ("Z", "X") and len(os.listdir(PROC / pid / "task")) == 1
        return ended or stat[START] != started
    except ProcessLookupError:
        return True
    except (OSError, IndexError):
        # It is another user's, or it went while it was looked at: the next look tells.
        return False


def _place() -> str:
    """Return the machine, its boot, and the namespaces. Raises OSError."""
    names = [Path(each).read_text().strip() for each in MACHINE]
    spaces = [os.readlink(PROC / "self" / "ns" / NAMESPACES[0])]
    if (PROC / "self" / "ns" / NAMESPACES[1]).is_symlink():
        spaces.append(os.readlink(PROC / "self" / "ns" / NAMESPACES[1]))
    return " ".join([*names, *spaces])


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` behind the name of the program, which may have any characters. Raises
    OSError."""
    return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
