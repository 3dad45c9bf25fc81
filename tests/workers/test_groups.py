"""Share groups over the workers of a broker: each message to one member, whichever workers these are at."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from itertools import count

import pytest

from canopy_mqtt.workers.placing import worker_of
from tests.e2e import wire
from tests.e2e.store.test_live import GONE, Receiver
from tests.e2e.wire import Peer
from tests.support.daemon import Daemon
from tests.support.waiting import until
from tests.workers.crew import HOUR, Crew

WORKERS = 3
_numbers = count()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    store = str(tmp_path_factory.mktemp("workers") / "store")
    with Daemon("--workers", str(WORKERS), "--store", store, "--set", "limits.connect_timeout=30") as daemon:
        yield daemon


@pytest.fixture
async def kept(stack: AsyncExitStack, stored: Daemon) -> Crew:
    """Three workers with stores, which the tests of this module share: each leaves all of them serving."""
    return Crew(stack, WORKERS, stored)


class Group:
    """A share group of a test's own, which lives at one worker, and what its members have received."""

    def __init__(self, crew: Crew, home: int) -> None:
        self.crew = crew
        self.topic = next(
            topic
            for topic in (f"jobs/{number}" for number in _numbers)
            if worker_of(f"$share/g/{topic}".encode(), WORKERS) == home
        )
        self.filter = f"$share/g/{self.topic}"
        self.takers: dict[str, Receiver] = {}
        self._ids = {worker: crew.names(worker, f"m-{self.topic}") for worker in range(WORKERS)}
        self._publishers = {worker: crew.names(worker, f"p-{self.topic}") for worker in range(WORKERS)}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        crew.stack.push_async_callback(self._end)

    async def _end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def name(self, worker: int) -> str:
        """A client identifier for a member at a worker."""
        return next(self._ids[worker])

    async def member(self, client_id: str, qos: int, present: bool = False) -> Peer:
        """A member whose session stays, connected; it takes nothing yet."""
        peer = await self.crew.stay(client_id, present=present)
        if not present:
            assert await peer.subscribe((self.filter, qos)) == (qos,)
        return peer

    def take(self, client_id: str, peer: Peer) -> None:
        """Let a member take what comes."""
        self.takers.setdefault(client_id, Receiver())
        self._tasks[client_id] = asyncio.ensure_future(self._run(client_id, peer))

    async def _run(self, client_id: str, peer: Peer) -> None:
        with suppress(*GONE, TimeoutError):
            await self.takers[client_id].run(peer)

    async def joins(self, worker: int, qos: int) -> str:
        """A new member that takes what comes."""
        client_id = self.name(worker)
        self.take(client_id, await self.member(client_id, qos))
        return client_id

    async def leaves(self, client_id: str, peer: Peer) -> None:
        """End a member's connection without a word."""
        peer.abort()
        await self._tasks.pop(client_id)

    async def publish(self, first: int, end: int, qos: int, workers: range = range(WORKERS)) -> None:
        """Publish numbers, each at the next worker."""
        peers = [await self.crew.join(next(self._publishers[worker])) for worker in workers]
        for number in range(first, end):
            await peers[number % len(peers)].publish(self.topic, b"%d" % number, qos=qos)
        for peer in peers:
            await peer.disconnect()

    def received(self) -> Counter[int]:
        """How often which number came, to all together."""
        return Counter(number for taker in self.takers.values() for number in taker.received)

    async def has(self, numbers: int) -> None:
        """Wait until so many different numbers have come."""
        await until(lambda: len(self.received()) >= numbers, f"{numbers} messages, {len(self.received())} are there")


@pytest.mark.parametrize("home", range(WORKERS))
@pytest.mark.parametrize("qos", [1, 2])
async def test_each_message_goes_to_one_member(crew: Crew, home: int, qos: int) -> None:
    """[MQTT-4.8.2-2] [MQTT-4.8.2-3] Each connected member has its part."""
    group = Group(crew, home)
    for worker in (0, 1, 2, 2):
        await group.joins(worker, qos)
    await group.publish(0, 40, qos)
    await group.has(40)
    assert set(group.received().values()) == {1}
    assert [len(taker.received) for taker in group.takers.values()] == [10, 10, 10, 10]


async def test_each_message_of_qos_0_as_well(crew: Crew) -> None:
    group = Group(crew, 0)
    peers = [await crew.join(group.name(worker), group.filter) for worker in range(WORKERS)]
    sender = await crew.join(next(crew.names(1, "sender")))
    for number in range(30):
        await sender.publish(group.topic, b"%d" % number)
    found = [int((await peer.message()).payload) for peer in peers for _ in range(10)]
    assert sorted(found) == list(range(30))


@pytest.mark.parametrize("home", range(2))
async def test_ordinary_subscribers_beside_a_group_get_each_message_once(crew: Crew, home: int) -> None:
    group = Group(crew, home)
    watchers = [await crew.join(next(crew.names(worker, "watcher")), (group.topic, 1)) for worker in range(WORKERS)]
    member = await crew.join(group.name(1), (group.filter, 1), (group.topic, 1))
    sender = await crew.join(next(crew.names(1, "sender")))
    for number in range(5):
        await sender.publish(group.topic, b"%d" % number, qos=1)
    for watcher in watchers:
        assert [int((await watcher.message()).payload) for _ in range(5)] == list(range(5))
        assert await watcher.fence() == []
    twice = [int((await member.message()).payload) for _ in range(10)]
    assert sorted(twice) == sorted([*range(5), *range(5)])
    assert await member.fence() == []


async def test_the_only_member_gets_all_in_order_with_its_options(crew: Crew) -> None:
    group = Group(crew, 0)
    member = await crew.join(group.name(1))
    packet = wire.subscribe(1, [(group.filter, 2 | wire.RETAIN_AS_PUBLISHED)], [(wire.SUBSCRIPTION_ID, 7)])
    await member.send(packet)
    await member.wait_for(wire.SUBACK)
    sender = await crew.join(next(crew.names(2, "sender")))
    for number in range(20):
        props = [(wire.USER_PROPERTY, ("n", str(number)))]
        await sender.publish(group.topic, b"%d" % number, qos=number % 3, retain=number == 4, props=props)
    for _ in range(20):
        found = await member.message()
        if found.qos == 0:
            continue
        got = (int(found.payload), found.qos, found.retain, found.all(wire.SUBSCRIPTION_ID))
        assert (got[1], got[2], got[3]) == (got[0] % 3, got[0] == 4, [7])
        assert found.all(wire.USER_PROPERTY) == [("n", str(got[0]))]


async def test_what_is_retained_does_not_come_with_a_shared_subscription(crew: Crew) -> None:
    group = Group(crew, 0)
    sender = await crew.join(next(crew.names(2, "sender")))
    await sender.publish(group.topic, b"retained", qos=1, retain=True)
    member = await crew.join(group.name(1), (group.filter, 1))
    await sender.publish(group.topic, b"new", qos=1)
    assert (await member.message()).payload == b"new"
    await sender.publish(group.topic, b"", qos=1, retain=True)


async def test_what_a_member_leaves_behind_others_get(crew: Crew) -> None:
    """QoS 1 that was not acknowledged goes to members at other workers."""
    group = Group(crew, 0)
    first = group.name(1)
    peer = await group.member(first, 1)
    await group.publish(0, 9, 1)
    for _ in range(9):
        await peer.expect(wire.PUBLISH)
    # It has all, and has acknowledged nothing.
    second = await group.joins(2, 1)
    peer.abort()
    await group.has(9)
    assert sorted(group.takers[second].received) == list(range(9))


async def test_qos_2_that_was_sent_stays_with_its_member(crew: Crew) -> None:
    """[MQTT-4.8.2-4]"""
    group = Group(crew, 0)
    first = group.name(1)
    peer = await group.member(first, 2)
    await group.publish(0, 3, 2)
    for _ in range(3):
        await peer.expect(wire.PUBLISH)
    second = await group.joins(2, 2)
    peer.abort()
    await group.publish(3, 6, 2)
    await group.has(3)
    group.take(first, await group.member(first, 2, present=True))
    await group.has(6)
    assert sorted(group.takers[first].received) == [0, 1, 2]
    assert sorted(group.takers[second].received) == [3, 4, 5]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_group_whose_members_are_away_keeps_what_comes(crew: Crew, qos: int) -> None:
    group = Group(crew, 0)
    names = [group.name(worker) for worker in range(WORKERS)]
    for name in names:
        await (await group.member(name, qos)).disconnect()
    await group.publish(0, 30, qos)
    # Whichever member connects first has what waits.
    group.take(names[2], await group.member(names[2], qos, present=True))
    await group.has(30)
    for publisher in range(WORKERS):
        found = [number for number in group.takers[names[2]].received if number % WORKERS == publisher]
        assert found == sorted(found)
    assert set(group.received().values()) == {1}


async def test_qos_0_for_a_group_whose_members_are_away_is_lost(crew: Crew) -> None:
    """Neither the home nor the worker of the member keeps it, nor do they send it to each other for ever."""
    group = Group(crew, 0)
    name = group.name(1)
    await (await group.member(name, 1)).disconnect()
    await group.publish(0, 3, 0)
    peer = await group.member(name, 1, present=True)
    await group.publish(3, 4, 0, range(1))
    assert (await peer.message()).payload == b"3"
    assert await peer.fence() == []


@pytest.mark.parametrize("qos", [1, 2])
async def test_members_come_and_go(crew: Crew, qos: int) -> None:
    """Nothing is lost; QoS 2 comes once to all of them together."""
    group = Group(crew, 1)
    names = [group.name(worker) for worker in (0, 1, 2, 0)]
    for name in names:
        await (await group.member(name, qos)).disconnect()
    publishing = asyncio.ensure_future(group.publish(0, 300, qos))
    try:
        for turn in range(12):
            name = names[turn % len(names)]
            peer = await group.member(name, qos, present=True)
            before = len(group.takers[name].received) if name in group.takers else 0
            group.take(name, peer)
            taker = group.takers[name]
            await until(lambda taker=taker, before=before: len(taker.received) > before or publishing.done(), name)  # type: ignore[misc]
            await group.leaves(name, peer)
    finally:
        await publishing
    for name in names:
        group.take(name, await group.member(name, qos, present=True))
    await group.has(300)
    if qos == 2:
        assert set(group.received().values()) == {1}


@pytest.mark.parametrize(("killed", "qos"), [(0, 1), (0, 2), (1, 1), (1, 2)])
async def test_nothing_is_lost_with_a_worker_that_has_a_store(kept: Crew, killed: int, qos: int) -> None:
    """A worker is killed, the home or another one, with members, publishers, and messages on their way."""
    group = Group(kept, 0)
    names = [group.name(worker) for worker in range(WORKERS)]
    for name in names:
        peer = await group.member(name, qos)
        if name != names[killed]:
            group.take(name, peer)
    live = [worker for worker in range(WORKERS) if worker != killed]
    publishing = asyncio.ensure_future(group.publish(0, 100, qos, range(live[0], live[-1] + 1, live[-1] - live[0])))
    await until(lambda: len(group.received()) > 10, "the first messages")
    await kept.restarted(killed)
    await publishing
    group.take(names[killed], await group.member(names[killed], qos, present=True))
    await group.has(100)
    if qos == 2:
        assert set(group.received().values()) == {1}


async def test_what_waits_is_there_after_a_kill_of_its_home(kept: Crew) -> None:
    group = Group(kept, 0)
    name = group.name(1)
    await (await group.member(name, 1)).disconnect()
    await group.publish(0, 20, 1, range(1, 3))
    await kept.restarted(0)
    group.take(name, await group.member(name, 1, present=True))
    await group.has(20)
    assert sorted(group.takers[name].received) == list(range(20))


async def test_what_waits_is_there_after_a_kill_of_its_only_members_worker(kept: Crew) -> None:
    """The member was connected when its worker ended, and is not when that is back."""
    group = Group(kept, 0)
    name = group.name(1)
    await group.member(name, 1)
    pid = kept.pids["w1"]
    await kept.kill(1)
    await group.publish(0, 50, 1, range(1))
    await until(lambda: kept.pids["w1"] != pid, "it serves again")
    group.take(name, await group.member(name, 1, present=True))
    await group.has(50)
    assert group.takers[name].received == list(range(50))


async def test_a_slow_member_leaves_the_rest_to_members_of_other_workers(crew: Crew) -> None:
    """What waits in the queue of a group goes to a worker as far as its members take it, and a little ahead."""
    group = Group(crew, 0)
    slow, quick = group.name(1), group.name(2)
    for name in (slow, quick):
        await (await group.member(name, 1)).disconnect()
    await group.publish(0, 300, 1)
    idle = await crew.join(slow, clean=False, props=((wire.SESSION_EXPIRY, HOUR), (wire.RECEIVE_MAXIMUM, 3)))
    for _ in range(3):
        await idle.expect(wire.PUBLISH)
    group.take(quick, await group.member(quick, 1, present=True))
    await group.has(200)
    # When it leaves, the others get what it had as well.
    idle.abort()
    await group.has(300)
