"""How all workers end at the same time, so that nothing is lost that one has for another.

First the clients go, everywhere. Then each worker waits until all has come that the others had for it. Then all end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from broker.workers.process import WorkerProcess

STAGES: Final = ("emptied", "settled")
"""What each worker says when it has got so far; it goes on when it is told that all have."""


async def end_together(processes: Sequence[WorkerProcess], patience: float) -> None:
    """Have them all end; they have so many seconds for all stages. They may run still when this returns."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience
    for process in processes:
        process.stop(together=len(processes) > 1)
    for stage in STAGES:
        waits = [loop.create_task(process.has_come_to(stage)) for process in processes]
        if waits:
            _, late = await asyncio.wait(waits, timeout=max(until - loop.time(), 0.0))
            for each in late:
                each.cancel()
        for process in processes:
            process.go(stage)
