"""A mesh under load whose nodes are killed and stopped, and whose links are cut, delayed, slow, and silent: what all
clients saw is what docs/cluster.md promises.

CANOPY_MESH_SECONDS (default 10): for how long something is done to each mesh. CANOPY_MESH_SEEDS: these and no others,
as in "3 17 4"; a run that fails says its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.mesh.checker import Verdict, check
from tests.e2e.mesh.clients import Contender, Places, Reader, Writer, retained_at
from tests.e2e.mesh.cluster import LINK_FAULTS, NODE_FAULTS, Cluster
from tests.e2e.mesh.history import Retained
from tests.support.waiting import until

SECONDS: Final = float(os.environ.get("CANOPY_MESH_SECONDS", "10"))
SEEDS: Final = [int(each) for each in os.environ.get("CANOPY_MESH_SEEDS", "").split()]

pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS + 240)]

ARRIVES: Final = 40.0
"""Seconds for everything to arrive when all is healed."""


def seeds(*more: int) -> pytest.MarkDecorator:
    """For each of the seeds that were asked for, or of these."""
    return pytest.mark.parametrize("seed", SEEDS or more)


class Scene:
    """A mesh and its clients."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        names = list(cluster.nodes)

        def places(roams: bool) -> Places:
            return Places(cluster, chance.choice(names), roams, random.Random(chance.random()))

        self.cluster = cluster
        self.chance = chance
        self.readers = [
            Reader(cluster, f"{'roaming' if roams else 'staying'} reader {number}", topic_filter, places(roams))
            for roams in (False, True)
            for number, topic_filter in enumerate(("#", "t/#"))
        ]
        self.writers = [
            Writer(cluster, f"{'roaming' if roams else 'staying'} writer {number}", qos, retain, places(roams))
            for roams in (False, True)
            for number, (qos, retain) in enumerate(((1, False), (2, False), (1, True)))
        ]
        self.contender = Contender(cluster, "contender", random.Random(chance.random()))

    async def play(self, kinds: tuple[str, ...], seconds: float) -> None:
        """Do things of these kinds for so long, and have all come to rest."""
        clients: list[Writer | Contender] = [*self.writers, self.contender]
        tasks = [asyncio.create_task(reader.run()) for reader in self.readers]
        try:
            for reader in self.readers:
                await asyncio.wait_for(reader.subscribed.wait(), ARRIVES)
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(client.run())
                await self._disturb(kinds, seconds)
                for client in clients:
                    client.stop()
            await self._rest()
        finally:
            for task in tasks:
                task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(error, Exception):
                    raise error

    async def _disturb(self, kinds: tuple[str, ...], seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            await asyncio.sleep(self.chance.uniform(0.1, 2.0))
            together = self.chance.choice((1, 1, 2))
            chosen = {self.chance.choice(kinds) for _ in range(together)}
            await asyncio.gather(*(self.cluster.disturb(kind) for kind in chosen))
            if self.chance.random() < 0.5:
                await self.cluster.whole()
        await self.cluster.whole()

    async def _rest(self) -> None:
        """All that is on its way arrives, or does not in time; all nodes are asked for what they retain."""
        for reader in self.readers:
            reader.stay()
        ends = time.monotonic() + ARRIVES
        while _missing(check(self.cluster.history)) and time.monotonic() < ends:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.5)
        for _ in range(2):
            for reader in self.readers:
                await asyncio.wait_for(reader.fence(), ARRIVES)
        found: list[Retained] = []
        ends = time.monotonic() + ARRIVES
        while time.monotonic() < ends:
            found = [await retained_at(node, "r/#") for node in self.cluster.nodes.values()]
            if len({each.messages for each in found}) == 1:
                break
        for each in found:
            self.cluster.history.add(each)


def _missing(verdict: Verdict) -> bool:
    excused = verdict.excused["at least once"] > 0
    return excused or any(violation.promise == "at least once" for violation in verdict.violations)


async def proven(folder: Path, nodes: int, kinds: tuple[str, ...], seconds: float, seed: int) -> Verdict:
    """Run it; the verdict has no violation."""
    chance = random.Random(seed)
    async with Cluster(folder, nodes, chance) as cluster:
        scene = Scene(cluster, chance)
        try:
            await scene.play(kinds, seconds)
        finally:
            cluster.close_history()
            (folder / "history.jsonl").write_text(cluster.history.dumps())
            for node in cluster.nodes.values():
                for number, lines in enumerate(node.logs):
                    (folder / f"{node.name}.{number}.log").write_text("\n".join(lines))
    verdict = check(cluster.history)
    told = "\n".join(str(violation) for violation in verdict.violations[:20])
    print(f"seed {seed}: checked {dict(verdict.checked)}, excused {dict(verdict.excused)}")
    assert not verdict.violations, f"{len(verdict.violations)}, seed {seed}, all in {folder}:\n{told}"
    return verdict


PROMISES: Final = {"at least once", "exactly once", "order", "retained, the last", "one connection", "told 0x8E"}


@seeds(1)
async def test_nothing_fails(tmp_path: Path, seed: int) -> None:
    """Clients roam and compete, and links are late for a while; nothing needs an excuse."""
    verdict = await proven(tmp_path, 3, ("late",), 5.0, seed)
    assert set(verdict.checked) >= PROMISES
    assert not verdict.excused


@seeds(1)
async def test_the_node_of_publishers_is_killed(tmp_path: Path, seed: int) -> None:
    """Again and again, with messages of QoS 2 on their way to other nodes, which get them once.

    Excused is only what was published at a process that had begun without the others, and for no longer than that.
    """
    chance = random.Random(seed)
    async with Cluster(tmp_path, 3, chance) as cluster:

        def at(name: str) -> Places:
            return Places(cluster, name, False, random.Random(chance.random()))

        readers = [Reader(cluster, f"reader at {name}", "t/#", at(name)) for name in cluster.nodes]
        writers = [Writer(cluster, f"writer {number}", 2, False, at("n0")) for number in range(4)]
        reading = [asyncio.create_task(reader.run()) for reader in readers]
        for reader in readers:
            await asyncio.wait_for(reader.subscribed.wait(), ARRIVES)
        writing = [asyncio.create_task(writer.run()) for writer in writers]
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            stalls = chance.random() < 0.5
            if stalls:
                cluster.stall("n0")
            # Of QoS 2 a client gets what the store has.
            got = readers[0].count
            await until(lambda: readers[0].count > got and any(writer.waits for writer in writers))  # noqa: B023
            await cluster.kill("n0")
        for writer in writers:
            writer.stop()
        await asyncio.wait_for(asyncio.gather(*writing), ARRIVES)
        for _ in range(2):
            for reader in readers:
                await asyncio.wait_for(reader.fence(), ARRIVES)
        for task in reading:
            task.cancel()
        for error in await asyncio.gather(*reading, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
        cluster.close_history()
    verdict = check(cluster.history, settles=0.0)
    again = sum(writer.again for writer in writers)
    print(f"seed {seed}: {again} sent again, checked {dict(verdict.checked)}, excused {dict(verdict.excused)}")
    assert not verdict.violations, "\n".join(map(str, verdict.violations[:20]))
    assert again


@pytest.mark.parametrize("nodes", [3, 5, 8])
@seeds(1)
async def test_nodes_are_killed(tmp_path: Path, nodes: int, seed: int) -> None:
    """kill -9, and started again."""
    verdict = await proven(tmp_path, nodes, ("kill",), SECONDS, seed)
    assert set(verdict.checked) >= PROMISES


@pytest.mark.parametrize("nodes", [3, 5, 8])
@seeds(1)
async def test_links_fail(tmp_path: Path, nodes: int, seed: int) -> None:
    """Cut, silent one way or both, slow, late; nodes that stand still."""
    verdict = await proven(tmp_path, nodes, (*LINK_FAULTS, "stop"), SECONDS, seed)
    assert set(verdict.checked) >= PROMISES


@pytest.mark.parametrize("nodes", [3, 5, 8])
@seeds(1)
async def test_everything_fails(tmp_path: Path, nodes: int, seed: int) -> None:
    """All of it, two at a time."""
    verdict = await proven(tmp_path, nodes, (*LINK_FAULTS, *NODE_FAULTS, *NODE_FAULTS), SECONDS, seed)
    assert set(verdict.checked) >= PROMISES
