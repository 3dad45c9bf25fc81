"""Broker processes: started, metered, and ended whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from canopy_load.brokers.process import BrokerFailed, BrokerProcess, Cores, free_port
from canopy_load.brokers.registry import PEERS


def relay(tmp_path: Path) -> BrokerProcess:
    port = free_port()
    return BrokerProcess(PEERS["relay"].command(port, tmp_path), port, Cores.choose().broker)


def test_a_broker_is_metered_and_ended(tmp_path: Path) -> None:
    with relay(tmp_path) as broker:
        pid = broker.pid
        assert broker.cpu() > 0
        assert broker.resident() > 1_000_000
        core = Cores.choose().broker
        if core is not None:
            assert os.sched_getaffinity(pid) == {core}
        broker.settle()
    assert not Path("/proc", str(pid)).exists()
    with pytest.raises(BrokerFailed, match="not running"):
        broker.cpu()


def test_a_broker_is_ended_when_the_block_fails(tmp_path: Path) -> None:
    seen: list[int] = []

    def fail() -> None:
        with relay(tmp_path) as broker:
            seen.append(broker.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not Path("/proc", str(seen[0])).exists()


def test_a_broker_that_ends_says_why() -> None:
    command = [sys.executable, "-c", "import sys; print('no such thing'); sys.exit(3)"]
    with pytest.raises(BrokerFailed, match=r"code 3: no such thing"), BrokerProcess(command, free_port(), None):
        pytest.fail("it did not start")


def test_no_two_processes_are_given_one_port() -> None:
    """Whoever else asks, also before a broker listens."""
    asks = (
        "import sys; from canopy_load.brokers.process import free_port; "
        "print(*(free_port() for _ in range(60)), flush=True); sys.stdin.read()"
    )
    with ExitStack() as stack:
        others = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", asks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        ]
        given = [free_port() for _ in range(60)]
        for other in others:
            assert other.stdout is not None
            given += map(int, other.stdout.readline().split())
    assert len(set(given)) == len(given) == 180


def test_a_broker_that_never_answers_is_given_up_and_ended(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(mark)!r}).write_text(str(os.getpid())); time.sleep(600)"
    with (
        pytest.raises(BrokerFailed, match="no CONNACK"),
        BrokerProcess([sys.executable, "-c", code], free_port(), None, patience=0.0),
    ):
        pytest.fail("it did not start")
    if mark.exists():  # else it was ended before it could write
        assert not Path("/proc", mark.read_text()).exists()
