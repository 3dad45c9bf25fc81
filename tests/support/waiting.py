"""Waiting for something of a broker in this process for which there is no event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

PATIENCE: Final = 30.0
"""Seconds after which something did not come about. No test waits so long unless it fails."""


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Give the event loop its turns until something holds.

    Raises:
        AssertionError: it did not within `PATIENCE` seconds; names `what`.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 (there is nobody to set an event)
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE:g} s: {what or condition}") from None


@asynccontextmanager
async def counted_turns() -> AsyncIterator[list[None]]:
    """Collects an entry for each turn that the event loop has while something else goes on."""
    turns: list[None] = []

    async def count() -> None:
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    yield turns
    counting.cancel()


async def reachable(port: int, process: asyncio.subprocess.Process) -> None:
    """Wait until a server that was started accepts connections at a port of 127.0.0.1.

    Raises:
        AssertionError: it has ended, with what it wrote.
        TimeoutError: it did not within 20 seconds.
    """
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert process.returncode is None, await process.communicate()
                await asyncio.sleep(0.02)
            else:
                writer.transport.abort()
                return
