"""Brokers that are linked to each other, and everything that a test leaves behind ended again."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import OUTSIDE
from tests.e2e.links.network import KINDS, Net, Place, aedes_command


@pytest.fixture(scope="session")
def aedes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], int]]:
    """A process in which each call starts one more aedes; the port."""
    started: list[subprocess.Popen[str]] = []

    def begin() -> int:
        if not started:
            command = aedes_command(tmp_path_factory.mktemp("aedes"))
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert started[0].stdout is not None
            assert started[0].stdout.readline() == "ready\n"
        process = started[0]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("0\n")
        process.stdin.flush()
        return int(process.stdout.readline().rsplit(":", 1)[1])

    yield begin
    for process in started:
        with process:
            process.kill()


@pytest.fixture
async def net(tmp_path: Path, aedes: Callable[[], int]) -> AsyncIterator[Net]:
    """Starts brokers and clients; ends all of it after the test, and leaves no task."""
    if OUTSIDE:
        pytest.skip("the settings of an outside broker cannot be changed")
    tasks = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        yield Net(stack, tmp_path, aedes)
    for _ in range(10):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - tasks - {asyncio.current_task()}
    assert left == set()


@pytest.fixture(params=KINDS)
async def upstream(request: pytest.FixtureRequest, net: Net) -> Place:
    """An upstream broker of each kind."""
    return await net.upstream(request.param)
