"""The daemon with a store, killed while messages go to a share group, or while clients are taken over, or at a point.

The points are those of the store's commit path that have a name (`tests/support/dying.py`).
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from tests.e2e.store.test_live import GONE, House, Publisher, Receiver, hold
from tests.e2e.wire import Peer
from tests.support import dying
from tests.support.daemon import Daemon
from tests.support.runs import CRASH, seeds, times

END = 1 << 30
"""More than a publisher publishes before the broker is killed."""


class Doomed(House):
    """Daemons that are killed at these points of the commit path, one after another; the last one is as any other."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        super().__init__(folder, stack)
        self._points: list[tuple[str, int]] = []
        self.point: str | None = None

    async def doom(self, points: Sequence[tuple[str, int]]) -> None:
        """Begin: the points, and of which group with deliveries each is."""
        self._points = list(points)
        await self.start()

    async def start(self, *arguments: str) -> None:
        flags = ("--store", str(self.folder), *arguments)
        if self._points:
            self.point, number = self._points.pop(0)
            environ = {"KILLED_AT": f"{self.point} {number}"}
            self.daemon = await asyncio.to_thread(lambda: Daemon(*flags, environ=environ, module=dying.MODULE))
        else:
            self.point = None
            self.daemon = await asyncio.to_thread(Daemon, *flags)
        self._stack.callback(self.daemon.close)

    async def killed(self) -> None:
        """Return when the daemon has ended: at its point, and by SIGKILL."""
        assert self.point is not None
        await asyncio.to_thread(self.daemon.process.wait, self.daemon.patience)
        await asyncio.to_thread(self.daemon.close)
        assert dying.told(self.point) in self.daemon.lines
        assert self.daemon.process.returncode == -signal.SIGKILL


class Member(Receiver):
    """A receiver that takes some messages and leaves, again and again."""

    async def some(self, peer: Peer, count: int) -> None:
        """Take so many packets."""
        for _ in range(count):
            await self._take(peer, await peer.recv())

    async def come_and_go(self, house: House, client_id: str, chance: random.Random, *, over: bool) -> None:
        """Until the broker is gone; `over`: the next connection takes over while the last one is still open."""
        try:
            while True:
                peer = await house.peer(client_id, present=True)
                await self.some(peer, chance.randrange(1, 100))
                if not over:
                    peer.abort()
        except GONE:
            return

    async def until(self, peer: Peer, found: set[int], count: int) -> None:
        """Until all numbers have come to somebody, which ends the connections of all."""
        try:
            while len(found) < count:
                await self.some(peer, 1)
                found.update(self.received[-1:])
        except GONE:
            return


class Group:
    """Two members of a share group with sessions that stay: one is there, one comes and goes.

    At least once over both of them. With QoS 2 exactly once over both of them: what was sent to a member stays that
    member's while its session lives [MQTT-4.8.2-4], and what was not sent yet moves in one transaction. A session that
    ends takes what it has in flight with it [MQTT-4.8.2-5]: none does here.
    """

    NAMES = ("member", "guest")

    def __init__(self) -> None:
        self.members = {name: Member() for name in self.NAMES}

    async def join(self, house: House, qos: int) -> None:
        for name in self.NAMES:
            await house.away(name, ("$share/g/t", qos))

    async def take(self, house: House, chance: random.Random) -> None:
        """Until the broker is gone."""
        try:
            member = await house.peer("member", present=True)
        except GONE:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.members["member"].run(member))
            tasks.create_task(self.members["guest"].come_and_go(house, "guest", chance, over=False))

    async def see_through(self, house: House, count: int) -> None:
        """Until so many numbers have come, and what comes behind them."""
        found = set(self.received())
        peers = {name: await house.peer(name, present=True) for name in self.NAMES}
        async with asyncio.TaskGroup() as tasks:
            for name, peer in peers.items():
                tasks.create_task(self._take_rest(name, peer, peers, found, count))
        for name in self.NAMES:
            peer = await house.peer(name, present=True)
            for packet in await peer.fence():
                await self.members[name]._take(peer, packet)

    async def _take_rest(self, name: str, peer: Peer, peers: dict[str, Peer], found: set[int], count: int) -> None:
        await self.members[name].until(peer, found, count)
        for each in peers.values():
            each.abort()

    def received(self) -> list[int]:
        """The messages of both members."""
        return [number for member in self.members.values() for number in member.received]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        made = House(tmp_path / "store", stack)
        await made.start()
        yield made


@pytest.fixture
async def doomed(tmp_path: Path) -> AsyncIterator[Doomed]:
    async with AsyncExitStack() as stack:
        yield Doomed(tmp_path / "store", stack)


async def share(house: House, qos: int, kills: int, seed: int) -> None:
    """A publisher in full flight to a share group; the broker is killed anywhere."""
    chance = random.Random(seed)
    publisher, group = Publisher(qos), Group()
    await group.join(house, qos)
    for round_ in range(kills):
        sender = await house.peer("p", present=round_ > 0)
        taking = asyncio.ensure_future(group.take(house, chance))
        await publisher.run(sender, chance.randrange(100, 400), END)
        house.kill()
        await publisher.drain(sender)
        await taking
        await house.again()
    await see_through(house, publisher)
    await group.see_through(house, publisher.count)
    hold(publisher, (), tuple(group.members.values()))


async def waits(house: House, qos: int, kills: int, seed: int) -> None:
    """A publisher while no member is there; then one of them takes some, and the broker is killed anywhere."""
    chance = random.Random(seed)
    publisher, group = Publisher(qos), Group()
    await group.join(house, qos)
    for round_ in range(kills):
        sender = await house.peer("p", present=round_ > 0)
        await publisher.run(sender, chance.randrange(50, 200), END)
        name = chance.choice(group.NAMES)
        member = await house.peer(name, present=True)
        with suppress(*GONE):
            await group.members[name].some(member, chance.randrange(1, 60))
        house.kill()
        await publisher.drain(sender)
        await house.again()
    await see_through(house, publisher)
    await group.see_through(house, publisher.count)
    hold(publisher, (), tuple(group.members.values()))


async def taken_over(house: House, qos: int, kills: int, seed: int) -> None:
    """Publisher and subscriber are taken over in full flight, by themselves; the broker is killed anywhere."""
    chance = random.Random(seed)
    publisher, here, gone = Publisher(qos), Member(), Receiver()
    for client_id in ("here", "away"):
        await house.away(client_id, ("t", qos))
    for round_ in range(kills):
        sender = await house.peer("p", present=round_ > 0)
        taking = asyncio.ensure_future(here.come_and_go(house, "here", chance, over=True))
        for _ in range(chance.randrange(2, 6)):
            await publisher.run(sender, chance.randrange(1, 100), END)
            sender = await house.peer("p", present=True)
        await publisher.run(sender, chance.randrange(1, 100), END)
        house.kill()
        await publisher.drain(sender)
        await taking
        await house.again()
    await see_through(house, publisher)
    await here.run(await house.peer("here", present=True), publisher.count)
    await gone.run(await house.peer("away", present=True), publisher.count)
    hold(publisher, (here, gone))


async def killed_at(house: Doomed, qos: int, points: Sequence[tuple[str, int]], seed: int) -> None:
    """A subscriber that is there, one that is away, a share group; killed at each point, in turn."""
    chance = random.Random(seed)
    publisher, here, gone, group = Publisher(qos), Receiver(), Receiver(), Group()
    await house.doom(points)
    await group.join(house, qos)
    for client_id in ("here", "away"):
        await house.away(client_id, ("t", qos))
    for round_ in range(len(points)):
        sender = await house.peer("p", present=round_ > 0)
        receiver = await house.peer("here", present=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(here.run(receiver))
            tasks.create_task(group.take(house, chance))
            tasks.create_task(publisher.run(sender, END, END))
        await house.killed()
        await publisher.drain(sender)
        await house.again()
        await publisher.hold_against_retained(await house.peer("watcher", clean=True))
    await see_through(house, publisher)
    await here.run(await house.peer("here", present=True), publisher.count)
    await gone.run(await house.peer("away", present=True), publisher.count)
    await group.see_through(house, publisher.count)
    hold(publisher, (here, gone), tuple(group.members.values()))


async def see_through(house: House, publisher: Publisher) -> None:
    """All that is open is acknowledged."""
    await publisher.run(await house.peer("p", present=True), END, publisher.count)


@pytest.mark.parametrize("seed", seeds(10))
async def test_a_share_group_has_what_was_acknowledged(house: House, seed: int) -> None:
    """A QoS 1 message in flight to a member that leaves goes to the other one, and is not lost on the way."""
    await share(house, 1 + seed % 2, kills=times(10, 1), seed=seed)


@pytest.mark.parametrize("seed", seeds(10))
async def test_what_waits_for_a_share_group_is_kept(house: House, seed: int) -> None:
    """It moves from the queue of the group to a member in one transaction, wherever the broker is killed."""
    await waits(house, 2 - seed % 2, kills=times(10), seed=seed)


@pytest.mark.parametrize("seed", seeds(10))
async def test_taken_over_in_flight(house: House, seed: int) -> None:
    """Nothing acknowledged is lost, QoS 2 comes exactly once, no order is broken [MQTT-3.1.4-3] [MQTT-4.4.0-1]."""
    await taken_over(house, 2 - seed % 2, kills=times(10, 1), seed=seed)


@pytest.mark.parametrize("seed", seeds(20))
async def test_killed_at_each_point_of_the_commit_path(doomed: Doomed, seed: int) -> None:
    """The same, and over a share group exactly once, wherever in the writing and acknowledging of a group it is killed.

    [MQTT-4.3.3-1] [MQTT-4.8.2-4]
    """
    chance = random.Random(seed)
    points = [(point, chance.randrange(1, 40 if CRASH else 9)) for point in dying.POINTS]
    await killed_at(doomed, 2 - seed % 2, points, seed)
