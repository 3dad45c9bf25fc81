"""Publishers and receivers at different places of one broker, or cluster, of which one place after another is killed.

Owns the rounds: traffic both ways until a place is killed, what its clients had heard, and a last round in which all is
seen through.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from tests.e2e.store.test_live import Publisher, Receiver, hold
from tests.e2e.test_links_killed import OverTheLink
from tests.e2e.wire import Peer
from tests.support.waiting import until


class Way:
    """A publisher at one place, and a receiver at another one; places have numbers."""

    def __init__(self, origin: int, to: int, qos: int) -> None:
        self.origin, self.to = origin, to
        self.name = f"{origin}-{to}-{qos}"
        self.sender: Publisher = OverTheLink(qos, f"from/{origin}/{to}")
        self.receiver = Receiver()

    def complete(self) -> bool:
        return self.sender.count == len(set(self.receiver.received))


Ends: TypeAlias = Callable[[Way, bool], Awaitable[tuple[Peer, Peer]]]


async def kill_again_and_again(
    ways: Sequence[Way],
    kills: int,
    chance: random.Random,
    ends: Ends,
    kill: Callable[[], int],
    back: Callable[[int], Awaitable[None]],
) -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-4.4.0-1] What is acknowledged arrives, QoS 2 once, and in order.

    `ends` connects publisher and receiver of a way, also where their places are away at first; True: for the first
    time. `kill` kills a place, and returns its number; `back` has it serve again, once its publishers have ended, and
    those of all others have come to the end of their work: they wait for no place that is away.
    """
    for round_ in range(kills + 1):
        last = round_ == kills
        peers = [await ends(way, round_ == 0) for way in ways]
        taking = [asyncio.ensure_future(way.receiver.run(peer)) for way, (_, peer) in zip(ways, peers, strict=True)]
        few = [1 << 30 if last else chance.randrange(50, 300) for _ in ways]
        most = [way.sender.count if last else 1 << 30 for way in ways]
        working = [
            asyncio.ensure_future(way.sender.run(peer, count, limit))
            for way, (peer, _), count, limit in zip(ways, peers, few, most, strict=True)
        ]
        killed = -1
        if not last:
            await asyncio.wait([chance.choice(working)])
            killed = kill()
        await asyncio.gather(*working)
        for way, (peer, _) in zip(ways, peers, strict=True):
            if last:
                await until(way.complete, way.name)
            elif way.origin == killed:
                await way.sender.drain(peer)
            else:
                await _finished(way.sender, peer)
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        for _, taker in peers:
            taker.abort()
        if not last:
            await back(killed)
    for way in ways:
        hold(way.sender, (way.receiver,))


async def _finished(sender: Publisher, peer: Peer) -> None:
    """Take the rest of the acknowledgements of a place that lives."""
    while sender._open:
        await sender._take(peer)
    await peer.disconnect()
