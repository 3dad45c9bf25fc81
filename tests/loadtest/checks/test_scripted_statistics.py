"""What a server says that it dropped, beside what was seen missing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.loadtest.account import Account
from tests.loadtest.playing import agrees, play, reader, sender, stated
from tests.loadtest.script import DELIVER, DROP, Delivery, Fate, Script
from tests.loadtest.scripted import ScriptedServer

DROPPED = "$SYS/broker/publish/messages/dropped"


@contextlib.asynccontextmanager
async def publishing(server: ScriptedServer) -> AsyncIterator[None]:
    """The server's version, and its uptime again and again."""

    async def tell() -> None:
        for seconds in range(1_000_000):
            server.announce("$SYS/broker/uptime", f"{seconds} seconds")
            await asyncio.sleep(0.05)

    server.announce("$SYS/broker/version", "Scripted 1.0")
    server.announce(DROPPED, "1000")
    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(("kept_back", "says"), [(0, True), (2, False)], ids=["all", "fewer"])
async def test_reported_and_seen(kept_back: int, says: bool) -> None:
    """What was dropped before the run is nobody's loss in it."""
    dropped = [0]

    def fate(delivery: Delivery) -> Fate:
        if delivery.message.number not in (3, 9, 27, 28, 29):
            return DELIVER
        dropped[0] += 1
        if dropped[0] > kept_back:
            server.announce(DROPPED, str(1000 + dropped[0] - kept_back))
        return DROP

    async with ScriptedServer(Script(fate=fate)) as server, publishing(server):
        result = await play(server, sender(), reader())
        agrees(server, result)
    assert stated(result.deliveries) == Account(30, 25, 5)
    assert result.broker == "Scripted 1.0"
    found = result.reconciled
    assert found is not None
    assert (found.seen, found.reported, found.agrees) == (5, 5 - kept_back, says)
    assert ("not" in found.why) != says
