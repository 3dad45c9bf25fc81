"""The turns of the rooms, on both event loops that a broker may be embedded in."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.e2e import wire
from tests.mesh.brokers import Start
from tests.support.waiting import until

COUNT = 1_000
"""Retained messages: several turns' worth for one node."""


async def test_a_turn_that_is_due_at_once_raises_nothing(start: Start) -> None:
    """uvloop's timers for less than half a millisecond do not know when they are due."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    nodes = await start("a", "b")
    says = await nodes.join("a", "says")
    await says.send(*(wire.publish(f"x/{number}", b"kept", retain=True) for number in range(COUNT)))
    await until(lambda: len(nodes.brokers["b"].router.retained) >= COUNT)
    assert raised == []
