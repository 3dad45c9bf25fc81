"""Nodes for the tests, and everything that a test leaves behind ended again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """What is on it is ended after the test, and leaves no task."""
    tasks = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        yield stack
    for _ in range(10):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() - tasks - {asyncio.current_task()} == set()


@pytest.fixture
def nodes(stack: AsyncExitStack, tmp_path: Path) -> Nodes:
    """Nodes with the usual settings."""
    return Nodes(stack, tmp_path)
