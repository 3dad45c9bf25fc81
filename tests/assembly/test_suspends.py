"""An event loop counts the time in which the machine was suspended: both loops that a broker may use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop

from canopy_mqtt.assembly.daemon import MIN_SUSPENSION, Suspends, slept
from tests.support.runs import for_each


@for_each("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_clock_moves_on(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        # What it was suspended before is nothing of this loop's.
        asleep = 500.0
        suspends = Suspends(loop, lambda: asleep)
        before = loop.time()
        assert suspends.look() == 0.0
        asleep += MIN_SUSPENSION / 2
        assert suspends.look() == 0.0
        assert loop.time() < before + MIN_SUSPENSION / 2
        # Short ones add up.
        asleep += 3_600.0
        assert suspends.look() == 3_600.0 + MIN_SUSPENSION / 2
        assert suspends.look() == 0.0
        asleep += 60.0
        assert suspends.look() == 60.0
        assert before + 3_660.0 <= loop.time() < before + 3_700.0
        # Timers go by it.
        fired = loop.create_future()
        loop.call_at(loop.time() + 0.01, fired.set_result, None)
        await fired

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(check())


def test_the_kernel_says_how_long() -> None:
    assert slept() >= -0.001
