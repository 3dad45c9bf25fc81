"""The memory of idle workers: what they have in common is there once."""

from __future__ import annotations

import re

from canopy_mqtt.buildinfo import COMPILED, build_info
from tests.support.daemon import COMMAND, Daemon

MOST = 1.8 if build_info().core == COMPILED else 2.15
"""Times the memory of a broker of one process, that of two workers with all that belongs to them. Python writes to the
functions that it calls, and not to compiled ones."""


def memory(pid: int) -> int:
    """The kB of a process and all that it has started, of which none is from a file. A page that several have counts
    a part at each of them."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        found = re.search(r"^Pss_Anon: +(\d+) kB$", file.read(), re.MULTILINE)
    assert found
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return int(found[1]) + sum(memory(int(each)) for each in file.read().split())


def idle(*arguments: str) -> int:
    """The memory of a broker that nobody uses. Python itself is started: a forked one shares memory with the tests."""
    with Daemon(*arguments, command=COMMAND) as daemon:
        found = memory(daemon.process.pid)
        daemon.end()
        return found


def test_two_workers_take_less_than_two_brokers() -> None:
    assert idle("--workers", "2") < MOST * idle()
