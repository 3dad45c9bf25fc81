"""Nothing is left of a proof, also where its process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from canopy_load.brokers.registry import python_module
from canopy_load.prove.brokers import keeper

CRASHING = """
import asyncio, os, sys
from canopy_load.prove.brokers.driver import find
from canopy_load.prove.brokers.started import started
async def main():
    async with started(find("canopy")) as broker:
        print(broker.folder, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def test_processes_their_clocks_and_the_folder_go_when_the_input_ends(tmp_path: Path) -> None:
    folder = tmp_path / "proof"
    folder.mkdir()
    waiting = [sys.executable, "-c", "print('there', flush=True); import signal; signal.pause()"]
    environment = os.environ | {keeper.MARK: str(folder)}
    left = [
        subprocess.Popen(waiting, env=environment, stdout=subprocess.PIPE),
        subprocess.Popen(waiting, cwd=folder, stdout=subprocess.PIPE),
    ]
    other = subprocess.Popen(waiting, stdout=subprocess.PIPE)
    for each in (*left, other):
        assert each.stdout is not None
        assert each.stdout.readline() == b"there\n"
    # As libfaketime does.
    clocks = [keeper.SHARED / name.format(each.pid) for each in (*left, other) for name in keeper.CLOCKS]
    for clock in clocks:
        clock.touch()
    kept = subprocess.Popen([*python_module(keeper.__name__), str(folder)], stdin=subprocess.PIPE)
    assert kept.stdin is not None
    kept.stdin.close()
    assert [each.wait() for each in left] == [-signal.SIGKILL, -signal.SIGKILL]
    assert kept.wait() == 0
    assert not folder.exists()
    assert [each.exists() for each in clocks] == [False] * 4 + [True] * 2
    keeper.forget([other.pid])
    assert other.poll() is None
    other.kill()
    for each in (*left, other):
        each.communicate()


def test_a_tool_that_is_killed_leaves_neither_broker_nor_folder() -> None:
    tool = subprocess.Popen([sys.executable, "-P", "-c", CRASHING], stdout=subprocess.PIPE)
    assert tool.stdout is not None
    folder = tool.stdout.readline().decode().strip()
    assert len(keeper.processes(folder)) >= 1
    tool.kill()
    tool.wait()
    # The keeper has this pipe, too: it ends with the keeper.
    assert tool.stdout.read() == b""
    tool.stdout.close()
    assert keeper.processes(folder) == []
    assert not Path(folder).exists()
