"""The waits of processes for a core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from canopy_load.prove.lateness import Lateness, run_delays

BUSY = "while True: pass"


def test_the_run_delay_of_each_thread_of_a_process_is_read() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel keeps no schedstat")
    found = dict(run_delays(os.getpid()))
    assert len(found) >= 1
    assert all(each >= 0 for each in found.values())


def test_a_process_that_is_not_there_waits_for_nothing() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert run_delays(done.pid) == []


def test_the_thread_that_waited_most_counts() -> None:
    second = 10**9
    delays = [{7: second, 8: 0}, {7: 2 * second, 8: 2 * second}, {8: 2 * second, 9: 9 * second}]
    lateness = Lateness(lambda: [1], lambda _: list(delays.pop(0).items()))
    for at in (1.0, 2.0, 3.0):
        lateness.look(at)
    assert lateness.waited(1.0, 3.0) == 2.0, "a thread that is new has waited before it was seen"
