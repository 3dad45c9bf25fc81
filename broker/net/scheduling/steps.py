"""Long work of a start, between the other work of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator


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
