"""Limits on what all workers keep together: parts that follow what is used, and are never more than there is."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest

from canopy_mqtt import Broker
from canopy_mqtt.core.accounts import MAX_TIMES_FREE
from canopy_mqtt.settings import Settings
from canopy_mqtt.workers.parts import TOTALS, UNLIMITED, Parts, equal_part
from canopy_mqtt.workers.totals import KEPT_ROUNDS, Totals
from tests.e2e.wire import SESSION_EXPIRY, Peer

SESSIONS = TOTALS.index(("session", "max_sessions"))


class Workers:
    """Workers that use something, as far as their parts allow, and whose channels are as slow as chance has it.

    `user`: the limit is that on one user, and not that on sessions.
    """

    def __init__(self, count: int, limit: int, store: str = "", user: bool = False) -> None:
        self.settings = Settings(
            workers={"count": count},
            limits={"max_user_bytes": limit if user else 0},
            session={"max_sessions": 0 if user else limit},
            store={"path": store},
        )
        self.limit = limit
        # Of a user: what a worker has that was told nothing.
        self.equal = equal_part(limit, count) if user else 0
        self.used = [0] * count
        # It was refused more than its part.
        self.wants = [False] * count
        self.parts = [self.equal or limit] * count
        self.to_them: list[deque[tuple[list[int], dict[str, int]]]] = [deque() for _ in range(count)]
        self.kept = Parts(self.settings, lambda worker, _, *parts: self.to_them[worker].append(parts))
        for worker in range(count):
            self.round(worker)
            self.answer(worker)

    def answer(self, worker: int) -> None:
        parts, accounts = self.to_them[worker].popleft()
        if self.equal:
            self.parts[worker] = accounts.get("user u", self.equal)
        elif parts:
            self.parts[worker] = parts[SESSIONS]
        used = self.used[worker]
        named = accounts or self.wants[worker] or used * 2 > self.equal > 0
        self.kept.uses(
            worker, [(used, self.wants[worker])] * len(TOTALS), {"user u": (used, self.wants[worker])} if named else {}
        )

    def round(self, worker: int) -> None:
        self.kept.tell(worker)
        if self.to_them[worker]:
            self.answer(worker)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            for worker in range(len(self.used)):
                self.round(worker)

    def take(self, worker: int, wanted: int) -> int:
        """Use more, as far as there is room. Returns how much."""
        found = max(0, min(wanted, self.parts[worker] - self.used[worker]))
        self.wants[worker] = self.equal > 0 and found < wanted
        self.used[worker] += found
        return found

    def take_fairly(self, worker: int) -> None:
        """Use as much more for one account as it may have, which is 16 times what is free, and be refused more."""
        part, used = self.parts[worker], self.used[worker]
        self.used[worker] += max(0, (MAX_TIMES_FREE * (part - used) - used) // (MAX_TIMES_FREE + 1))
        self.wants[worker] = True


@pytest.mark.parametrize(
    ("limit", "rounds", "user"),
    [(1, 20, False), (10, 30, False), (1_000, 12, False), (1 << 30, 12, False), (1_000, 12, True), (1 << 30, 12, True)],
)
def test_one_worker_can_have_all(limit: int, rounds: int, user: bool) -> None:
    """To one per cent, within twelve rounds, which are three seconds. Of a small limit the last pieces take longer."""
    workers = Workers(4, limit, user=user)
    for _ in range(rounds):
        workers.rounds(1)
        workers.take(2, limit)
    assert workers.used[2] >= limit * 0.99
    workers.rounds(4)
    workers.used[2], workers.wants[2] = 0, False
    for _ in range(rounds):
        workers.rounds(1)
        workers.take(0, limit)
    assert limit * 0.99 <= workers.used[0] <= limit


@pytest.mark.parametrize("count", [2, 4, 64])
def test_one_account_comes_as_far_at_one_worker_as_in_one_process(count: int) -> None:
    """To one per cent: by what was refused a worker gets most of what is free, though half of its part is left."""
    workers = Workers(count, 100_000)
    for _ in range(40):
        workers.rounds(1)
        workers.take_fairly(1)
    assert workers.used[1] >= 100_000 * (MAX_TIMES_FREE / (MAX_TIMES_FREE + 1) - 0.01)


def test_the_last_piece_is_found_by_whoever_needs_it() -> None:
    workers = Workers(3, 7)
    for worker in (0, 1, 2, 0, 1, 2, 1):
        for _ in range(12):
            if workers.take(worker, 1):
                break
            workers.rounds(1)
        else:
            pytest.fail("there was room")
    workers.rounds(3)
    assert [workers.take(worker, 1) for worker in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("offset", range(6))
@pytest.mark.parametrize("worker", range(3))
def test_the_last_piece_is_found_whoever_was_told_first(offset: int, worker: int) -> None:
    """Answers come when all have been told, and workers do not begin in one round."""
    workers = Workers(3, 7)
    for _ in range(offset):
        workers.round(0)
    for _ in range(40):
        for each in range(3):
            workers.kept.tell(each)
        for each in range(3):
            workers.answer(each)
        workers.take(worker, 7)
    assert workers.used[worker] == 7


@pytest.mark.parametrize("user", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_all_together_never_have_more_than_there_is(seed: int, user: bool) -> None:
    """A worker that stands still keeps its part; one that ended has none."""
    chance = random.Random(seed)
    workers = Workers(3, chance.choice([3, 100, 10_000]), user=user)
    workers.rounds(3)
    for _ in range(2_000):
        worker, what = chance.randrange(3), chance.random()
        if what < 0.3:
            workers.kept.tell(worker)
        elif what < 0.5 and workers.to_them[worker]:
            workers.answer(worker)
        elif what < 0.8:
            workers.take(worker, chance.randrange(1, workers.limit))
        elif what < 0.98:
            workers.used[worker] -= chance.randrange(0, workers.used[worker] + 1)
        else:
            workers.to_them[worker].clear()
            workers.used[worker] = 0
            workers.kept.gone(worker)
            # It comes back with the settings' limit, and has its parts before a client.
            workers.parts[worker] = workers.equal or workers.limit
            workers.round(worker)
            workers.answer(worker)
        assert sum(workers.used) <= workers.limit


def test_what_a_store_has_kept_comes_back_with_its_worker() -> None:
    workers = Workers(2, 100, "store")
    workers.rounds(3)
    assert workers.take(0, 40) == 40
    workers.rounds(2)
    workers.kept.gone(0)
    for _ in range(20):
        workers.round(1)
        workers.take(1, 100)
    assert workers.used[1] <= 60


def test_a_worker_that_starts_again_finds_room_for_what_it_has() -> None:
    workers = Workers(2, 100)
    workers.rounds(3)
    workers.take(0, 40)
    workers.kept.gone(0)
    workers.rounds(2)
    assert workers.parts[0] > workers.used[0]


def test_another_limit_holds() -> None:
    workers = Workers(2, 100)
    workers.kept.change(Settings(workers={"count": 2}, session={"max_sessions": 10}))
    workers.rounds(3)
    assert sum(workers.parts) <= 10
    workers.kept.change(Settings(workers={"count": 2}, session={"max_sessions": 0}))
    workers.rounds(3)
    assert workers.parts == [UNLIMITED, UNLIMITED]


def test_a_user_that_was_refused_more_than_an_equal_part_gets_it() -> None:
    workers = Workers(4, 1_000, user=True)
    assert workers.take(1, 600) == 250
    workers.used[1] = 0
    workers.rounds(3)
    assert workers.take(1, 600) == 600


def test_a_user_that_needs_little_again_has_equal_parts() -> None:
    """Also one that is over a smaller limit; without one none has a part."""
    workers = Workers(2, 100, user=True)
    workers.rounds(1)
    assert workers.take(0, 40) == 40
    workers.rounds(12)
    assert workers.parts[0] > 50 > workers.parts[1] >= 0
    workers.used[0] = 10
    workers.rounds(3)
    assert workers.parts == [50, 50]
    workers.rounds(1)
    workers.kept.tell(0)
    assert workers.to_them[0].pop()[1] == {}


async def test_a_broker_keeps_to_its_parts() -> None:
    """Also after a reload."""
    settings = Settings(listen=("mqtt://127.0.0.1:0",), session={"max_sessions": 100})
    async with Broker(settings) as broker:
        totals = Totals(broker)
        parts = dict.fromkeys(TOTALS, 1 << 20) | {TOTALS[SESSIONS]: 2}
        before, refused = totals.take(list(parts.values()), {})[0][SESSIONS]
        assert not refused
        broker.apply_limits(settings)
        totals.limit()
        for number in range(2 - before):
            peer = await Peer.join(broker.ports[0], f"c{number}", ("q", 1), clean=False, props=((SESSION_EXPIRY, 100),))
            peer.abort()
        with pytest.raises(AssertionError, match="151"):
            await Peer.join(broker.ports[0], "more")
        used, _ = totals.take(list(parts.values()), {})
        assert used[SESSIONS] == (2, True)
        assert used[TOTALS.index(("session", "max_bytes"))] > (0, False)
        for _ in range(KEPT_ROUNDS):
            used, _ = totals.take(list(parts.values()), {})
        assert used[SESSIONS] == (2, False)


async def test_what_is_used_is_counted() -> None:
    settings = Settings(listen=("mqtt://127.0.0.1:0",))
    async with Broker(settings) as broker:
        totals = Totals(broker)
        peer = await Peer.join(broker.ports[0], "away", ("q", 1), clean=False, props=((SESSION_EXPIRY, 100),))
        await peer.disconnect()
        sender = await Peer.join(broker.ports[0], "sender")
        await sender.publish("q", b"x" * 1_000, qos=1)
        used = dict(zip(TOTALS, totals.take([], {})[0], strict=True))
        sender.abort()
    assert used[("queue", "total_messages")] == (1, False)
    assert used[("queue", "total_bytes")] > (1_000, False)


async def test_a_broker_keeps_to_its_part_of_the_disk(tmp_path: Path) -> None:
    store = {"path": str(tmp_path / "store"), "memory_messages": 1, "memory_total_bytes": 1 << 20}
    settings = Settings(listen=("mqtt://127.0.0.1:0",), store=store, workers={"count": 4})
    disk = TOTALS.index(("store", "disk_bytes"))
    async with Broker(settings) as broker:
        totals = Totals(broker)
        peer = await Peer.join(broker.ports[0], "away", ("q", 1), clean=False, props=((SESSION_EXPIRY, 100),))
        await peer.disconnect()
        sender = await Peer.join(broker.ports[0], "sender")
        for _ in range(4):
            await sender.publish("q", b"x" * 1_000, qos=1)
        used, _ = totals.take([], {})[0][disk]
        assert used > 3_000
        totals.take([1 << 20] * disk + [used + 1_500], {})
        for _ in range(4):
            await sender.publish("q", b"x" * 1_000, qos=1)
        assert used < totals.take([], {})[0][disk][0] <= used + 1_500
        assert broker.router.journal is not None
        assert broker.router.journal.pages is not None
        assert broker.router.journal.pages.total_bytes == 1 << 18
        sender.abort()


async def test_a_broker_keeps_to_the_parts_of_a_user() -> None:
    """It names an account once that has used up half of its part; what has none has an equal part."""
    settings = Settings(listen=("mqtt://127.0.0.1:0",), limits={"max_user_bytes": 100_000})
    name = "address 127.0.0.1"
    async with Broker(settings) as broker:
        totals = Totals(broker)
        assert totals.take([], {})[1] == {}
        peer = await Peer.join(broker.ports[0], "c")
        assert await peer.subscribe("a") == (0,)
        assert totals.take([], {})[1] == {}
        used, wants = totals.take([], {name: 100})[1][name]
        assert not wants
        assert used > 100
        assert await peer.subscribe("b") == (0x97,)
        assert totals.take([], {name: 2 * used})[1] == {name: (used, True)}
        assert await peer.subscribe("b") == (0,)
        peer.abort()


async def test_a_piece_that_is_larger_than_an_equal_part_fits_at_another_attempt() -> None:
    settings = Settings(listen=("mqtt://127.0.0.1:0",), limits={"max_user_bytes": 100_000}, workers={"count": 4})
    name = "address 127.0.0.1"
    async with Broker(settings) as broker:
        totals = Totals(broker)
        totals.take([], {})
        peer = await Peer.join(broker.ports[0], "c")

        async def fits(size: int) -> bool:
            await peer.publish("large", bytes(size), qos=1, retain=True)
            return broker.router.retained.get("large") is not None

        # What does not fit anywhere is not wanted.
        assert not await fits(120_000)
        assert not totals.take([], {})[1][name][1]
        assert not await fits(40_000)
        for _ in range(2):
            assert totals.take([], {})[1][name][1]
        totals.take([], {name: 50_000})
        assert await fits(40_000)
        peer.abort()
