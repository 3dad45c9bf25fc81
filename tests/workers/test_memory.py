"""The memory of idle workers: what they have in common is there once."""

from __future__ import annotations

import re

from tests.support.daemon import COMMAND, Daemon

MOST = 1.8
"""Times the memory of a broker of one process, that of two workers with all that belongs to them."""


def processes(pid: int) -> list[int]:
    """A process, and all that it has started."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [pid, *(found for each in file.read().split() for found in processes(int(each)))]


def memory(pid: int) -> int:
    """The kB of these processes, where no other has the same files open: of what is from files, as much as one of them
    has, and of all else each page once, which counts in parts at those that have it."""
    own, files = 0, 0
    for each in processes(pid):
        with open(f"/proc/{each}/smaps_rollup", encoding="ascii") as file:
            size = {name: int(kb) for name, kb in re.findall(r"^(\w+): +(\d+) kB$", file.read(), re.MULTILINE)}
        own += size["Pss_Anon"]
        files = max(files, size["Rss"] - size["Anonymous"])
    return own + files


def idle(*arguments: str) -> int:
    """The memory of a broker that nobody uses. Python itself is started: a forked one shares memory with the tests."""
    with Daemon(*arguments, command=COMMAND) as daemon:
        found = memory(daemon.process.pid)
        daemon.end()
        return found


def test_two_workers_take_less_than_two_brokers() -> None:
    assert idle("--workers", "2") < MOST * idle()
