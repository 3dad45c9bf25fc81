"""One worker after another is killed by SIGKILL under load: what was acknowledged arrives, QoS 2 once, in order.

The others go on meanwhile: their clients notice nothing, and no publisher waits for a worker that is away.
"""

from __future__ import annotations

import os
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cluster.killing import Way, kill_again_and_again
from tests.e2e.wire import Peer
from tests.support.runs import seeds, times
from tests.workers.crew import Crew

WORKERS = 3


@pytest.mark.parametrize("seed", seeds(10))
async def test_killed_again_and_again(stack: AsyncExitStack, tmp_path: Path, seed: int) -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-4.4.0-1]"""
    chance = random.Random(seed)
    crew = await Crew.started(stack, WORKERS, "--store", str(tmp_path / "store"))
    pairs = [(origin, (origin + 1) % WORKERS) for origin in range(WORKERS)]
    ways = [Way(origin, to, qos) for origin, to in pairs for qos in (1, 2)]
    senders = {way: next(crew.names(way.origin, f"from-{way.name}")) for way in ways}
    receivers = {way: next(crew.names(way.to, f"to-{way.name}")) for way in ways}
    for way in ways:
        peer = await crew.stay(receivers[way], (way.sender.topic, way.sender.qos))
        await peer.disconnect()

    async def ends(way: Way, first: bool) -> tuple[Peer, Peer]:
        taker = await crew.stay(receivers[way], present=True)
        return await crew.stay(senders[way], present=not first), taker

    def kill() -> int:
        killed = chance.randrange(WORKERS)
        os.kill(crew.pids[f"w{killed}"], signal.SIGKILL)
        return killed

    async def back(_: int) -> None:
        """Nothing has to be done for that."""

    kills = times(6, 3)
    await kill_again_and_again(ways, kills, chance, ends, kill, back)
    assert len(crew.told("worker ended")) == kills
