"""One worker after another is killed by SIGKILL under load: what was acknowledged arrives, QoS 2 once, in order.

The others go on meanwhile: their clients notice nothing, and no publisher waits for a worker that is away.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.e2e.store.test_live import Publisher, Receiver, hold
from tests.e2e.test_links_killed import OverTheLink
from tests.e2e.wire import Peer
from tests.support.runs import seeds, times
from tests.support.waiting import until
from tests.workers.crew import Crew

WORKERS = 3


class Way:
    """A publisher at one worker, and a receiver at another one."""

    def __init__(self, crew: Crew, origin: int, to: int, qos: int) -> None:
        self.origin, self.to = origin, to
        self.name = f"{origin}-{to}-{qos}"
        self.sender: Publisher = OverTheLink(qos, f"from/{origin}/{to}")
        self.receiver = Receiver()
        self.sender_id = next(crew.names(origin, f"from-{self.name}"))
        self.receiver_id = next(crew.names(to, f"to-{self.name}"))

    async def ends(self, crew: Crew, first: bool) -> tuple[Peer, Peer]:
        """The two clients, connected, also where their workers are away at first."""
        taker = await crew.stay(self.receiver_id, present=True)
        return await crew.stay(self.sender_id, present=not first), taker


@pytest.mark.parametrize("seed", seeds(10))
async def test_killed_again_and_again(stack: AsyncExitStack, tmp_path: Path, seed: int) -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-4.4.0-1]"""
    chance = random.Random(seed)
    crew = Crew(stack, WORKERS)
    await crew.start("--store", str(tmp_path / "store"))
    pairs = [(origin, (origin + 1) % WORKERS) for origin in range(WORKERS)]
    ways = [Way(crew, origin, to, qos) for origin, to in pairs for qos in (1, 2)]
    for way in ways:
        peer = await crew.stay(way.receiver_id, (way.sender.topic, way.sender.qos))
        await peer.disconnect()
    kills = times(6, 3)
    for round_ in range(kills + 1):
        last = round_ == kills
        peers = [await way.ends(crew, round_ == 0) for way in ways]
        taking = [asyncio.ensure_future(way.receiver.run(peer)) for way, (_, peer) in zip(ways, peers, strict=True)]
        few = [1 << 30 if last else chance.randrange(50, 300) for _ in ways]
        most = [way.sender.count if last else 1 << 30 for way in ways]
        working = [
            asyncio.ensure_future(way.sender.run(peer, count, limit))
            for way, (peer, _), count, limit in zip(ways, peers, few, most, strict=True)
        ]
        if last:
            await asyncio.gather(*working)
            for way in ways:
                await until(lambda way=way: way.sender.count == len(set(way.receiver.received)), way.name)  # type: ignore[misc]
        else:
            await asyncio.wait([chance.choice(working)])
            killed = chance.randrange(WORKERS)
            os.kill(crew.pids[f"w{killed}"], signal.SIGKILL)
            # Those of other workers go on to the end of their work; those of the killed one end by it.
            await asyncio.gather(*working)
            for way, (peer, _) in zip(ways, peers, strict=True):
                if way.origin == killed:
                    await way.sender.drain(peer)
                else:
                    await finished(way.sender, peer)
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        for _, taker in peers:
            taker.abort()
    for way in ways:
        hold(way.sender, (way.receiver,))
    assert len(crew.told("worker ended")) == kills


async def finished(sender: Publisher, peer: Peer) -> None:
    """Take the rest of the acknowledgements of a worker that lives."""
    while sender._open:
        await sender._take(peer)
    await peer.disconnect()
