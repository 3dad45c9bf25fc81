"""Long work of a start, between the other work of the event loop."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Millions of objects are made, and hardly one of them is garbage: to look for it each time there is a quarter more
    of them takes two thirds of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


async def in_turns(steps: Iterator[None]) -> None:
    """Do all steps, each in a turn of the event loop of its own.

    If it is cancelled, what is left is done at once, and then it ends so: half of it would be neither done nor to be
    begun again.
    """
    try:
        for _ in steps:
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        deque(steps, 0)
        raise
