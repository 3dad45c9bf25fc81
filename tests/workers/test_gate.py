"""The limits on connections of all workers together, with workers that are only counted."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from canopy_mqtt.core.limits import Limits
from canopy_mqtt.net.connections.admission import UNACCEPTED_ROOM
from canopy_mqtt.net.connections.connection_table import ConnectionTable
from canopy_mqtt.net.connections.ends import CLOSING, OPEN
from canopy_mqtt.settings import Settings
from canopy_mqtt.workers.counted import Counted
from canopy_mqtt.workers.gate import Gate
from canopy_mqtt.workers.lines import Newcomer
from canopy_mqtt.workers.wire import Arrival

HERE, THERE = "192.0.2.1", "192.0.2.2"
BUSY, QUOTA, RATE = 0x89, 0x97, 0x9F


def gate(workers: int = 2, listener: dict[str, Any] | None = None, **limits: Any) -> Gate:
    table = {"url": "mqtt://127.0.0.1:0", **(listener or {})}
    settings = Settings(limits=limits, listener=(table,), workers={"count": workers})
    made = Gate(settings, structlog.get_logger(), lambda most: shorts.append(most))
    shorts.clear()
    return made


shorts: list[int] = []


def newcomer(host: str | None = HERE, origin: bytes = b"") -> Newcomer:
    return Newcomer(Arrival(0, 0, 5, False, origin, b"", until=1e9), cast(socket.socket, None), host)


def come(made: Gate, worker: int, host: str | None = HERE, origin: bytes = b"") -> Arrival:
    found = made.pass_on(worker, newcomer(host, origin))
    assert found is not None
    return found.arrival


async def test_places_are_those_of_all_workers() -> None:
    made = gate(max_connections=3)
    assert [come(made, worker).placed for worker in (0, 1, 1, 0, 1)] == [True, True, True, False, False]
    made.report(1, [2], [], 1)
    assert [come(made, 0).placed, come(made, 1).placed] == [True, False]


async def test_what_an_ended_worker_had_is_free() -> None:
    made = gate(max_connections=2, max_connections_per_address=2)
    for _ in range(2):
        come(made, 0)
    assert (come(made, 1).code, come(made, 1, THERE).placed) == (QUOTA, False)
    made.gone(0)
    again = [come(made, 1) for _ in range(3)]
    assert [(each.code, each.placed) for each in again] == [(0, True), (0, True), (QUOTA, False)]


async def test_an_address_has_its_connections_at_all_workers() -> None:
    made = gate(max_connections_per_address=2)
    first = [come(made, worker) for worker in (0, 1, 1)]
    assert [each.code for each in first] == [0, 0, QUOTA]
    assert [come(made, 0, THERE).code, come(made, 0, "").code] == [0, 0]
    made.report(0, [first[0].number], [], 0)
    assert [come(made, 1).code for _ in range(2)] == [0, QUOTA]


async def test_one_that_takes_the_place_of_another_of_its_address_counts() -> None:
    made = gate(max_connections_per_address=1)
    old, new = come(made, 0), come(made, 0)
    assert (old.code, new.code) == (0, QUOTA)
    made.report(0, [old.number], [new.number], 0)
    assert come(made, 1).code == QUOTA
    made.report(0, [new.number], [], 0)
    assert come(made, 1).code == 0


async def test_one_that_took_the_place_of_another_and_has_ended_gives_its_place_back() -> None:
    made = gate(max_connections=2, max_connections_per_address=1)
    old, new = come(made, 0), come(made, 0)
    last = come(made, 0)
    made.report(0, [old.number, new.number], [new.number, last.number], 1)
    assert come(made, 1).code == QUOTA
    made.report(0, [last.number], [], 0)
    assert [come(made, 1, host).placed for host in (HERE, THERE)] == [True, True]


async def test_a_rate_is_that_of_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    made = gate(max_connect_rate=3.0)
    monkeypatch.setattr(made, "_loop", SimpleNamespace(time=lambda: 100.0))
    assert [come(made, worker).code for worker in (0, 1, 0, 1, 0)] == [0, 0, 0, RATE, RATE]
    # It was counted when it came, and another worker has made its TLS handshake.
    assert come(made, 1, origin=b"{}").code == 0


async def test_limits_of_a_listener_hold_for_all_workers() -> None:
    made = gate(listener={"max_connections": 3, "max_connections_per_address": 2})
    assert [come(made, worker).code for worker in (0, 1, 0)] == [0, 0, QUOTA]
    assert [come(made, worker, THERE).code for worker in (0, 1)] == [0, QUOTA]


async def test_few_are_passed_on_to_be_refused() -> None:
    made = gate(max_connections_per_address=1)
    come(made, 0)
    refused = [come(made, 1) for _ in range(UNACCEPTED_ROOM)]
    assert {each.code for each in refused} == {QUOTA}
    assert made.pass_on(1, newcomer()) is None
    made.report(1, [refused[0].number], [], 0)
    assert come(made, 1).code == QUOTA


async def test_what_is_no_client_takes_no_place() -> None:
    made = gate(max_connections=1)
    assert come(made, 0, None).number == 0
    assert come(made, 0).placed


async def test_where_no_place_is_left_workers_are_told_now_and_then() -> None:
    made = gate(max_connections=400)
    for _ in range(400):
        come(made, 0)
    assert shorts == []
    for _ in range(3):
        come(made, 1)
    # A hundredth of the places, in equal parts.
    assert shorts == [2]


async def test_without_limits_nothing_is_counted() -> None:
    made = gate()
    found = newcomer()
    assert made.pass_on(0, found) is found
    assert not made.counts


async def test_other_limits_count_those_that_are_there() -> None:
    made = gate(max_connections=10, max_connections_per_address=9)
    first = [come(made, 0) for _ in range(4)]
    made.change(Settings(limits={"max_connections": 3, "max_connections_per_address": 5}))
    assert [(each.code, each.placed) for each in (come(made, 1), come(made, 1))] == [(0, False), (QUOTA, False)]
    made.report(0, [each.number for each in first], [], 4)
    assert come(made, 1).placed


class Connected:
    """A connection of a worker."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.number = self.answered = 0
        self.state, self.ended_at = OPEN, 0.0
        self.accepted = False


class FakeWorker:
    """A worker that accepts clients as the core does, and whose channels are as slow as chance has it."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.to_it: deque[Arrival] = deque()
        self.taken: deque[Arrival] = deque()
        self.from_it: deque[tuple[list[int], list[int], int]] = deque()
        self.connections: list[Connected] = []
        table = cast(ConnectionTable, SimpleNamespace(most=0, counter=None))
        self.counted = Counted(table, self.limits, lambda *said: self.from_it.append(said))

    @property
    def accepted(self) -> int:
        return sum(each.accepted for each in self.connections)

    def take(self) -> None:
        """Take all connections that have come."""
        while self.to_it:
            self.taken.append(self.to_it.popleft())
            self.counted.arrive(self.taken[-1])

    def begin(self, chance: random.Random) -> None:
        """Begin with one of them, which may be over by then."""
        found, made = self.taken.popleft(), Connected(HERE)
        if chance.random() < 0.9:
            self.counted.begin(found, cast(Any, made))
            assert not found.placed or not made.answered
            if chance.random() < 0.9:
                self.connections.append(made)
            else:
                made.state = CLOSING
        self.counted.begun(found)

    def accept(self, connection: Connected) -> bool:
        """Accept a client, if there is room."""
        if not connection.answered and self.accepted < self.limits.max_connections:
            connection.accepted = True
        return connection.accepted

    def end(self, connection: Connected) -> None:
        self.connections.remove(connection)
        self.counted.ended(cast(Any, connection))


@pytest.mark.parametrize("seed", range(20))
async def test_there_are_never_more_clients_than_places_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.choice([1, 4, 20])
    made = gate(3, max_connections=most)
    workers = [FakeWorker() for _ in range(3)]

    async def settle() -> None:
        await asyncio.sleep(0)
        for number, worker in enumerate(workers):
            while worker.from_it:
                made.report(number, *worker.from_it.popleft())

    for _ in range(600):
        number = chance.randrange(3)
        worker, what = workers[number], chance.random()
        if what < 0.3:
            worker.to_it.append(come(made, number))
        elif what < 0.4:
            worker.take()
        elif what < 0.55 and worker.taken:
            worker.begin(chance)
        elif what < 0.75 and worker.connections:
            worker.accept(chance.choice(worker.connections))
        elif what < 0.95 and worker.connections:
            worker.end(chance.choice(worker.connections))
        elif what > 0.99:
            made.gone(number)
            workers[number] = FakeWorker()
        elif worker.from_it:
            made.report(number, *worker.from_it.popleft())
        if chance.random() < 0.5:
            await asyncio.sleep(0)
        assert sum(each.accepted for each in workers) <= most
    for worker in workers:
        worker.take()
        while worker.taken:
            worker.begin(chance)
        for connection in list(worker.connections):
            worker.end(connection)
    await settle()
    # As many get in as may, wherever they come.
    for _ in range(most):
        number = chance.randrange(3)
        worker = workers[number]
        before = len(worker.connections)
        while len(worker.connections) == before:
            worker.to_it.append(come(made, number))
            worker.take()
            worker.begin(chance)
            await settle()
        assert worker.accept(worker.connections[-1])
    assert come(made, 0).placed is False


async def test_places_that_no_connection_needs_go_back() -> None:
    """One without a place keeps that of another one, which has ended."""
    made, worker = gate(2, max_connections=1), FakeWorker()
    worker.to_it += [come(made, 0), come(made, 0)]
    worker.take()
    while worker.taken:
        worker.begin(random.Random(1))
    first, second = worker.connections
    assert not come(made, 1).placed
    worker.end(first)
    await asyncio.sleep(0)
    made.report(0, *worker.from_it.popleft())
    assert not come(made, 1).placed
    assert worker.accept(second)
    worker.end(second)
    await asyncio.sleep(0)
    made.report(0, *worker.from_it.popleft())
    assert come(made, 1).placed


async def test_a_client_that_has_no_place_is_refused_where_there_is_none() -> None:
    made, worker = gate(2, max_connections=1), FakeWorker()
    come(made, 1)
    connection = Connected(HERE)
    found = come(made, 0)
    worker.counted.arrive(found)
    worker.counted.begin(found, cast(Any, connection))
    assert connection.answered == BUSY
