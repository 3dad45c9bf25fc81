"""Two nodes with stores, killed by SIGKILL under load, one at a time: what was acknowledged arrives, QoS 2 once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cluster.killing import Way, kill_again_and_again
from tests.e2e.store.test_live import House
from tests.e2e.wire import Packet, Peer
from tests.support.runs import LONG, seeds, times
from tests.support.waiting import until


class Node(House):
    """One daemon after another, with one store, as a node of a cluster of two."""

    def __init__(self, folder: Path, stack: AsyncExitStack, name: str, other: str) -> None:
        super().__init__(folder / name, stack)
        self.name, self.other = name, other
        address = f'name = "{other}", address = "mqtt+unix://{folder}/{other}.sock"'
        self.environ = {
            "CANOPY_CLUSTER__NAME": "plant",
            "CANOPY_CLUSTER__NODE": name,
            "CANOPY_CLUSTER__LISTEN": f"mqtt+unix://{folder}/{name}.sock",
            "CANOPY_CLUSTER__NODES": f"[{{{address}}}]",
            "CANOPY_CLUSTER__LINK_TIMEOUT": "1",
        }

    async def linked(self) -> None:
        """Wait until its link to the other node is up."""
        await until(lambda: self.ups > 0, f"{self.name} is linked")

    @property
    def ups(self) -> int:
        """How often its link to the other node came up."""
        return sum('"link up"' in line for line in self.daemon.lines)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    async with AsyncExitStack() as stack:
        nodes = Node(tmp_path, stack, "a", "b"), Node(tmp_path, stack, "b", "a")
        for node in nodes:
            await node.start()
        for node in nodes:
            await node.linked()
        yield nodes


@pytest.mark.parametrize("seed", seeds(10))
async def test_killed_again_and_again(pair: tuple[Node, Node], seed: int) -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-4.4.0-1]"""
    chance = random.Random(seed)
    ways = [Way(origin, 1 - origin, qos) for origin in (0, 1) for qos in (1, 2)]
    for way in ways:
        await pair[way.to].away(f"to-{way.name}", (way.sender.topic, way.sender.qos))

    async def ends(way: Way, _: bool) -> tuple[Peer, Peer]:
        taker = await pair[way.to].peer(f"to-{way.name}", present=True)
        return await pair[way.origin].peer(f"from-{way.name}", present=None), taker

    def kill() -> int:
        killed = chance.randrange(2)
        pair[killed].kill()
        return killed

    async def back(killed: int) -> None:
        await pair[killed].again()
        for peer in pair[1 - killed]._peers:
            peer.abort()
        pair[1 - killed]._peers.clear()
        await pair[killed].linked()

    await kill_again_and_again(ways, times(6, 4), chance, ends, kill, back)


@pytest.mark.parametrize("seconds", [0.5, 1.5, 3.0])
async def test_a_node_that_stands_still_is_linked_again(pair: tuple[Node, Node], seconds: float) -> None:
    """For less and for more than `link_timeout`, 1 second: nothing is lost or doubled, and the other one goes on."""
    a, b = pair
    takers = [await node.peer("taker") for node in pair]
    for taker in takers:
        await taker.subscribe(("t", 2))
    giver = await a.peer("giver")
    loop = asyncio.get_running_loop()
    numbers: list[bytes] = []
    found: list[bytes] = []
    for _ in range(20 if LONG else 1):
        ups = [node.ups for node in pair]
        b.daemon.process.send_signal(signal.SIGSTOP)
        try:
            over = loop.time() + seconds
            while loop.time() < over:
                numbers.append(b"%d" % len(numbers))
                await giver.publish("t", numbers[-1], qos=1 + len(numbers) % 2)
                assert (await takers[0].message()).payload == numbers[-1]
                await asyncio.sleep(0.05)  # it stands still for that time
        finally:
            b.daemon.process.send_signal(signal.SIGCONT)
        numbers.append(b"%d" % len(numbers))
        await giver.publish("t", numbers[-1], qos=2)
        found += [each.payload for each in await until_payload(takers[1], numbers[-1])]
        assert found == numbers
        for node, before in zip(pair, ups, strict=True):
            assert node.ups - before <= 1
        assert (await takers[0].message()).payload == numbers[-1]


async def test_qos_1_of_another_node_goes_to_a_session_that_is_kept_once_that_is_committed(
    pair: tuple[Node, Node],
) -> None:
    """It comes again to a node that is killed before the commit: a client that had it could not tell [MQTT-3.3.1-3]."""
    a, b = pair
    b.environ["CANOPY_STORE__COMMIT_WINDOW"] = "1.0"
    await b.again()
    await b.linked()
    taker = await b.peer("taker")
    await taker.subscribe(("t", 1))
    giver = await a.peer("giver")
    await giver.publish("t", b"x", qos=1)
    # With QoS 0 it goes by the same way, and waits for nothing.
    await giver.publish("t", b"y")
    found = await until_payload(taker, b"y")
    await b.again()
    await b.linked()
    taker = await b.peer("taker", present=True)
    await giver.publish("t", b"z", qos=1)
    found += await until_payload(taker, b"z")
    came = [each.dup for each in found if each.payload == b"x"]
    # One more is right only as the same delivery, with DUP.
    assert came
    assert came.count(False) <= 1


async def until_payload(peer: Peer, last: bytes) -> list[Packet]:
    """The messages up to the one with a payload."""
    found = [await peer.message()]
    while found[-1].payload != last:
        found.append(await peer.message())
    return found
