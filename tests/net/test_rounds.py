"""Rounds of the event loop: what all clients together have done in one, and who comes when. Counted, not timed."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.causes import CONNECTION_LOST
from canopy_mqtt.core.hooks import LATER
from canopy_mqtt.core.jobs import (
    HELD_WORK,
    ITEM_WORK,
    LIGHT_WORK,
    ROUND_WORK,
    ROUND_WRITES,
    SHARE_WORK,
    TURN_WORK,
    WRITE_WORK,
)
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.net.connections.ends import PEER_CLOSED
from canopy_mqtt.net.rounds import LITTLE, MUCH, NOTED, YOUNG, Rounds
from canopy_mqtt.net.timers import Endpoint
from canopy_mqtt.settings import Queue, Settings
from tests.e2e import wire
from tests.net.transports import Client, Embed, rounds
from tests.support.gate import Gate
from tests.support.waiting import until


def made() -> Rounds:
    """Return the rounds of the running loop, for a router to which nothing happens."""
    return Rounds(Router(Limits()), asyncio.get_running_loop(), lambda: None, lambda *_: None)


def spend(turns: Rounds, work: int) -> None:
    """Do so much work for a client."""
    turns.budget.used += work
    turns.charge()


class Heavy(Endpoint):
    """Has so much left to do, and to write."""

    def __init__(self, turns: Rounds, left: int, writes: int = 0) -> None:
        super().__init__()
        self.turns = turns
        self.left = left
        self.writes = writes
        self.shares: list[int] = []
        self.over = False

    def turn(self, work: int) -> None:
        done = min(work, self.left)
        self.left -= done
        self.shares.append(done)
        if self.left:
            self.turns.resume(self, False)
        self.turns.budget.used += done

    def write_turn(self) -> None:
        self.writes -= 1
        self.turns.written += WRITE_WORK + ITEM_WORK
        if self.turns.written >= NOTED:
            self.turns.note_writes()
        if self.writes:
            self.turns.write_later(self)

    def end_in_turn(self) -> None:
        self.over = True
        spend(self.turns, ROUND_WORK // 4)


async def test_what_was_due_before_a_stop_is_due_after_the_next_start() -> None:
    """The rounds of a broker that starts again find the times that those before them had looked at."""
    router = Router(Limits())
    loop = asyncio.get_running_loop()
    router.deadlines.set("expiry", loop.time() + 0.001)
    before = Rounds(router, loop, lambda: None, lambda *_: None)
    before.after_batch()
    before.close()
    due = asyncio.Event()
    after = Rounds(router, loop, due.set, lambda *_: None)
    after.after_batch()
    await due.wait()
    after.close()


async def test_one_who_is_alone_has_whole_rounds() -> None:
    turns = made()
    alone = Heavy(turns, 3 * TURN_WORK)
    assert turns.work == TURN_WORK
    turns.resume(alone, True)
    await rounds(5)
    assert alone.shares == [TURN_WORK] * 3
    assert turns.work == TURN_WORK


async def test_all_together_have_one_round() -> None:
    """However many wait: about as much is done in a round as for one, and everybody gets on."""
    turns = made()
    crowd = [Heavy(turns, 3 * SHARE_WORK) for _ in range(100)]
    for each in crowd:
        turns.resume(each, True)
    done = count = 0
    while turns.waiting:
        await rounds(1)
        count += 1
        now = sum(sum(each.shares) for each in crowd)
        assert now - done <= ROUND_WORK + SHARE_WORK
        done = now
        # A quarter of each round is for those who had turns.
        assert all(each.shares for each in crowd) or count <= 100 * SHARE_WORK * 4 // (ROUND_WORK * 3) + 1
    assert done == 100 * 3 * SHARE_WORK


async def test_who_comes_anew_comes_before_those_who_had_turns() -> None:
    turns = made()
    crowd = [Heavy(turns, 100 * SHARE_WORK) for _ in range(50)]
    for each in crowd:
        turns.resume(each, False)
    await rounds(2)
    late = Heavy(turns, SHARE_WORK)
    turns.resume(late, True)
    before = sum(len(each.shares) for each in crowd)
    await rounds(2)
    assert late.left == 0
    # And those who had some are not kept out by those who come anew.
    newcomers = [Heavy(turns, SHARE_WORK) for _ in range(50)]
    for each in newcomers:
        turns.resume(each, True)
    await rounds(2)
    assert sum(len(each.shares) for each in crowd) > before
    assert 0 < sum(len(each.shares) for each in newcomers) < 50


async def test_a_round_that_is_spent_has_room_for_little() -> None:
    turns = made()
    spend(turns, ROUND_WORK // 2)
    assert (turns.work, turns.spent) == (ROUND_WORK // 2, False)
    spend(turns, ROUND_WORK)
    assert (turns.work, turns.spent) == (LIGHT_WORK, True)
    await rounds(1)
    assert (turns.work, turns.spent) == (TURN_WORK, False)


async def test_nobody_goes_on_before_those_are_written_to_who_waited() -> None:
    """Those whom the last turns reached; but not again and again those who always have something to be written."""
    turns = made()
    publisher = Heavy(turns, 3 * TURN_WORK)
    endless = [Heavy(turns, 0, writes=1_000) for _ in range(700)]
    for each in endless:
        turns.write_later(each)
    turns.resume(publisher, True)
    await rounds(1)
    first = [each.writes for each in endless]
    assert 0 < sum(each == 999 for each in first) < 700
    while len(publisher.shares) == 0:
        await rounds(1)
    while len(publisher.shares) == 1:
        await rounds(1)
    assert max(each.writes for each in endless) <= 999
    assert min(each.writes for each in endless) >= 996


async def test_connections_end_in_turns() -> None:
    turns = made()
    gone = [Heavy(turns, 0) for _ in range(9)]
    for each in gone:
        turns.end(each)
    told = []
    while turns.waiting:
        await rounds(1)
        told.append(sum(each.over for each in gone))
    assert told == [2, 4, 6, 8, 9]


async def test_those_for_whom_much_waits_end_in_turns(embed: Embed) -> None:
    """Ten connections are lost at once: no two of them are forgotten in a round that has room for one."""
    broker = await embed()
    crowd = [Client(broker, f"c{number}") for number in range(10)]
    for client in crowd:
        client.connection.data_received(wire.subscribe(1, [("t", 1)]))
    source = Client(broker, "source")
    each = ROUND_WORK // 2 // HELD_WORK
    totals = broker.router.counters.totals
    while totals.messages < 10 * each:
        source.connection.data_received(wire.publish("t", b"x", qos=1, packet_id=1) * 100)
        await until(lambda: source.transport.reading and not broker.rounds.waiting)
    for client in crowd:
        client.connection.connection_lost(None)
    router = broker.router
    assert len(router.sessions) == 11
    lefts = []
    while len(router.sessions) > 1:
        before = router.budget.used
        await rounds(1)
        lefts.append(len(router.sessions))
        assert router.budget.used - before <= ROUND_WORK // 2 + 2 * HELD_WORK * each
    assert lefts == sorted(set(lefts), reverse=True)


async def test_those_who_stall_together_end_in_turns(embed: Embed) -> None:
    """One look of the wheel finds ten that read nothing: no two of them end in a round that has room for one."""
    broker = await embed()
    crowd = [Client(broker, f"c{number}") for number in range(10)]
    for client in crowd:
        client.connection.data_received(wire.subscribe(1, [("t", 1)]))
        client.connection.pause_writing()
    source = Client(broker, "source")
    each = ROUND_WORK // 2 // HELD_WORK
    router = broker.router
    while router.counters.totals.messages < 10 * each:
        source.connection.data_received(wire.publish("t", b"x", qos=1, packet_id=1) * 100)
        await until(lambda: source.transport.reading and not broker.rounds.waiting)
    now = broker.rounds.time()
    before = router.budget.used
    for later in (0.0, 31.0):
        for client in crowd:
            client.connection.check(now + later)
    assert router.budget.used == before
    assert not any(client.transport.aborted for client in crowd)
    crowd[0].connection.check(now + 32.0)  # it waits already
    crowd[9].connection.connection_lost(None)
    ended = [0]
    while ended[-1] < 10:
        before = router.budget.used
        await rounds(1)
        ended.append(10 - sum(1 for client in crowd if not client.connection.protocol.close_cause))
        assert router.budget.used - before <= ROUND_WORK // 2 + 2 * HELD_WORK * each
    assert ended == sorted(set(ended))
    assert [client.connection.protocol.close_cause for client in crowd] == ["stalled"] * 10
    assert all(client.transport.aborted for client in crowd[:9])
    assert set(router.sessions) == {"source"}
    assert crowd[9].connection not in broker.connections


async def test_those_who_close_their_websockets_end_in_turns(embed: Embed) -> None:
    """A close frame ends a connection in a later round if much waits for its client, which is sent no more."""
    broker = await embed()
    full, empty = Client(broker, "full"), Client(broker, "empty")
    full.connection.data_received(wire.subscribe(1, [("t", 1)]))
    await rounds()
    source = Client(broker, "source")
    full.connection.pause_writing()
    source.connection.data_received(wire.publish("t", b"x", qos=1, packet_id=1) * 2 * MUCH)
    await until(lambda: full.connection.send_buffer.messages >= MUCH)
    for client in (full, empty):
        client.take()
        client.connection.end(PEER_CLOSED, CONNECTION_LOST)
    assert set(broker.router.sessions) == {"full", "source"}
    await rounds()
    assert set(broker.router.sessions) == {"source"}
    assert full.take() == b""
    assert full.connection.protocol.close_cause == CONNECTION_LOST
    full.connection.connection_lost(None)
    assert broker.connections == {source.connection, empty.connection}


@pytest.mark.crowd
async def test_no_collection_looks_at_much_while_full_queues_go_on(embed: Embed) -> None:
    """Each message takes the place of an old one: Python's own count of young objects stays where it is."""
    broker = await embed(queue=Queue(policy="drop-oldest", session_messages=1_000))
    crowd = [Client(broker, f"c{number}") for number in range(10)]
    for client in crowd:
        client.connection.data_received(wire.subscribe(1, [("t", 1)]))
    source = Client(broker, "source")
    burst = wire.publish("t", b"x", qos=1, packet_id=1) * 100
    seen: list[int] = []

    def looked(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1_000_000)
    gc.callbacks.append(looked)
    try:
        for _ in range(100):
            source.connection.data_received(burst)
            await until(lambda: source.transport.reading and not broker.rounds.waiting)
    finally:
        gc.callbacks.remove(looked)
        gc.set_threshold(*thresholds)
    assert broker.router.counters.dropped_in_all() > 70_000
    # A message that waits for ten is eleven objects and about 500 units of work.
    assert 0 < max(seen) <= 20_000


async def test_a_program_that_collects_no_garbage_has_none_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", collected.append)
    turns = made()
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    counts = []
    try:
        for on, threshold in ((False, 700), (True, 0), (True, 700)):
            (gc.enable if on else gc.disable)()
            gc.set_threshold(threshold)
            spend(turns, YOUNG)
            await until(lambda: not turns.waiting and turns.work == TURN_WORK)
            counts.append(len(collected))
    finally:
        (gc.enable if enabled else gc.disable)()
        gc.set_threshold(*thresholds)
    assert counts == [0, 0, 1]


@pytest.mark.crowd
async def test_hostile_reads_in_one_round_share_it(embed: Embed) -> None:
    """50 clients send as much as each may have done in a turn; in the same round somebody PINGs."""
    broker = await embed()
    crowd = [Client(broker, f"c{number}") for number in range(50)]
    other = Client(broker, "other")
    await rounds(10)
    other.take()
    flood = b"".join(wire.publish(f"{number}", b"x", retain=True) for number in range(2_000))
    router = broker.router
    before = router.budget.used
    for client in crowd:
        client.connection.data_received(flood)
    assert router.budget.used - before <= TURN_WORK + 50 * 2 * LIGHT_WORK
    assert not crowd[-1].transport.reading
    other.connection.data_received(wire.PING)
    assert other.take() == b"\xd0\x00"
    while broker.rounds.waiting:
        before = router.budget.used
        await rounds(1)
        # Each turn may end with a packet more than it has room for.
        assert router.budget.used - before <= ROUND_WORK + 50 * LIGHT_WORK
    assert router.counters.messages_received == 50 * 2_000
    assert all(client.transport.reading for client in crowd)


@pytest.mark.crowd
async def test_clients_that_are_let_in_at_once_share_a_round(embed: Embed) -> None:
    """50 clients wait for access control and have sent very much behind their CONNECTs; all are let in together."""
    access_control = Gate(LATER)
    broker = await embed(access_control)
    flood = b"".join(wire.publish(f"{number}", b"x", retain=True) for number in range(2_000))
    crowd = [Client(broker, f"c{number}", says=wire.connect(f"c{number}") + flood) for number in range(50)]
    router = broker.router
    before = router.budget.used
    for client in crowd:
        client.connection.admitted(0)
    # What the coming of each takes is among it.
    assert router.budget.used - before <= TURN_WORK + 50 * 3 * LIGHT_WORK
    assert all(client.connection.protocol.accepted for client in crowd)
    while broker.rounds.waiting:
        before = router.budget.used
        await rounds(1)
        assert router.budget.used - before <= ROUND_WORK + 50 * LIGHT_WORK
    assert router.counters.messages_received == 50 * 2_000
    assert all(client.transport.reading for client in crowd)


async def test_what_waits_for_many_is_written_in_rounds(embed: Embed) -> None:
    """200 clients for each of whom much waits: so many in a round, in their order, and everything to everybody."""
    broker = await embed()
    router = broker.router
    source = Client(broker, "source")
    frames = [wire.publish(f"t/{number}", bytes(600), retain=True) for number in range(100)]
    source.connection.data_received(b"".join(frames))
    crowd = [Client(broker, f"c{number}") for number in range(200)]
    await until(lambda: not broker.rounds.waiting)
    for client in crowd:
        client.take()
    for client in crowd:
        client.connection.data_received(wire.subscribe(1, [("t/#", 0)]))
    most = 0
    sent = router.counters.bytes_sent
    done = 0
    while router.counters.messages_sent < 200 * 100 and done < 50_000:
        await rounds(1)
        done += 1
        most = max(most, router.counters.bytes_sent - sent)
        sent = router.counters.bytes_sent
    # A write of 100 things of 60 kB counts for about 1,900: no more than forty of them, and what is little.
    assert most <= 40 * 64_000
    assert all(client.take().count(bytes(600)) == 100 for client in crowd)


async def test_the_end_of_one_for_whom_much_waits_comes_in_a_round_with_room(embed: Embed) -> None:
    broker = await embed()
    full = Client(broker, "full")
    full.connection.data_received(wire.subscribe(1, [("t", 0)]))
    await rounds(5)
    full.connection.pause_writing()
    source = Client(broker, "source")
    source.connection.data_received(wire.publish("t", b"x") * 2 * MUCH)
    await until(lambda: full.connection.send_buffer.messages >= 2 * MUCH)
    spend(broker.rounds, ROUND_WORK)
    full.connection.data_received(wire.disconnect())
    assert full.connection.protocol.close_cause == ""
    source.connection.data_received(wire.disconnect())
    assert source.connection.protocol.close_cause != ""
    await rounds(3)
    assert full.connection.protocol.close_cause != ""


async def test_little_is_written_at_once(embed: Embed) -> None:
    broker = await embed()
    client = Client(broker, "c")
    client.connection.data_received(wire.subscribe(1, [("t", 0)]))
    await rounds(5)
    client.take()
    broker.rounds.written = ROUND_WRITES
    broker.rounds.note_writes()
    assert broker.rounds.full
    source = Client(broker, "source")
    source.connection.data_received(wire.publish("t", b"x"))
    assert client.take() == wire.publish("t", b"x")
    large = wire.publish("t", bytes(10_000)) * (LITTLE + 1)
    source.connection.data_received(large)
    assert client.take() == b""
    await rounds(3)
    assert client.take() == large


async def test_nobody_goes_on_in_a_round_that_was_asked_for_before() -> None:
    """The writers that its last turn has woken come after that round: it would fill the queues that they empty."""
    turns = made()
    spend(turns, ROUND_WORK)
    order: list[str] = []
    asyncio.get_running_loop().call_soon(order.append, "writer")
    turn = Heavy(turns, 1)
    turns.resume(turn, True)
    await rounds(1)
    assert (order, turn.shares) == (["writer"], [])
    await rounds(1)
    assert turn.shares == [1]


class Faulty(Endpoint):
    """Does what it must not: it raises."""

    def turn(self, work: int) -> None:
        raise RuntimeError(f"turn for {work}")

    def write_turn(self) -> None:
        raise RuntimeError("write")

    def end_in_turn(self) -> None:
        raise RuntimeError("leave")


async def test_one_that_raises_keeps_nobody_from_its_turn() -> None:
    loop = asyncio.get_running_loop()
    raised: list[str] = []
    loop.set_exception_handler(lambda _, context: raised.append(str(context["exception"])))
    turns = made()
    writing, reading, ending = Heavy(turns, 0, writes=1), Heavy(turns, 1), Heavy(turns, 0)
    turns.write_later(Faulty())
    turns.write_later(writing)
    turns.end(Faulty())
    turns.end(ending)
    turns.resume(Faulty(), True)
    turns.resume(reading, True)
    await rounds(10)
    assert raised == ["write", "leave", f"turn for {SHARE_WORK}"]
    assert (writing.writes, reading.left, ending.over, turns.waiting) == (0, 0, True, False)


async def test_a_broker_gives_its_turns_a_clock() -> None:
    """So that slow work, such as a plug-in's, has shorter turns (tests/core/test_jobs.py)."""
    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        assert broker.router.budget.clock is time.perf_counter
