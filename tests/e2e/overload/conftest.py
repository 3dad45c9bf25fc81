"""Fixtures of the overload tests: `scene` starts embedded brokers, `daemon` starts the `canopy` command."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.e2e.clients.frozen import Frozen
from tests.e2e.overload.scene import Scene, close_all, serve
from tests.support.daemon import Daemon

SetScene = Callable[..., Awaitable[Scene]]
StartDaemon = Callable[..., Daemon]


@pytest.fixture
async def scene() -> AsyncIterator[SetScene]:
    """Brokers of this process, sections of settings as keywords; afterwards no task is left, and no complaint."""
    tasks = asyncio.all_tasks()
    trouble: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(str(context)))
    async with AsyncExitStack() as stack:

        async def start(**sections: Any) -> Scene:
            return await Scene.start(stack, **sections)

        try:
            yield start
        finally:
            await close_all()
            Frozen.close_all()
    gc.collect()
    for _ in range(10):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() - tasks - {asyncio.current_task()} == set()
    assert not trouble


@pytest.fixture
async def daemon() -> AsyncIterator[StartDaemon]:
    """Brokers in processes of their own: `daemon({"queue.live_bytes": 65_536})`."""
    started: list[Daemon] = []

    def start(settings: dict[str, object] | None = None) -> Daemon:
        made = serve(settings or {})
        started.append(made)
        return made

    try:
        yield start
    finally:
        await close_all()
        for made in started:
            made.close()


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Write down a measured value: into the report of the run, and to where `pytest -s` and `-rP` show it."""

    def note(name: str, value: object) -> None:
        request.node.user_properties.append((name, value))
        print(f"{request.node.name}: {name} = {value}")

    return note


@pytest.fixture
def files() -> Iterator[None]:
    """The limit of open files is after the test what it was before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
