"""Sessions of which more waits than memory holds, and that go to another node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.core.counters import SESSION_ENDED
from broker.core.persistence.journal import DeliveryRecord, SessionRecord
from broker.core.persistence.pages import FETCHED
from broker.core.queues.message import Message
from broker.mesh.ownership.moves.giving import Giving
from broker.mesh.status import status
from tests.e2e import wire
from tests.mesh.brokers import Nodes, Start
from tests.support.waiting import until

KEPT = ((wire.SESSION_EXPIRY, 1_000),)
AT_ONCE = 512
MANY = 6 * AT_ONCE


async def filled(start: Start, folder: Path) -> Nodes:
    """The session of a client of `a` that has gone, most of it on disk alone."""
    nodes = await start("a", "b", folder=folder, store={"memory_messages": 64})
    gone = await nodes.join("a", "moves", ("x", 1), props=KEPT)
    gone.abort()
    says = await nodes.join("a", "says")
    for first in range(0, MANY, AT_ONCE):
        await says.send(*[wire.publish("x", b"%d" % (first + at), qos=1, packet_id=1 + at) for at in range(AT_ONCE)])
        for _ in range(AT_ONCE):
            await says.expect(wire.PUBACK)
    session = nodes.brokers["a"].router.sessions["moves"]
    await until(lambda: session.queue.disk is not None and session.queue.disk.messages > FETCHED)
    return nodes


async def test_all_that_waits_on_disk_goes_along(start: Start, tmp_path: Path) -> None:
    nodes = await filled(start, tmp_path)
    moved = await nodes.join("b", "moves", clean=False, props=KEPT)
    assert [(await moved.message()).payload for _ in range(MANY)] == [b"%d" % number for number in range(MANY)]
    assert status(nodes.meshes["a"]).messages_left_behind == 0


async def test_what_is_more_than_goes_along_is_counted_and_named(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = await filled(start, tmp_path)
    nodes.meshes["a"].ownership.giver._most_bytes = 1
    moved = await nodes.join("b", "moves", clean=False, props=KEPT)
    await until(lambda: nodes.meshes["a"].ownership.giver.moved)
    behind = status(nodes.meshes["a"]).messages_left_behind
    assert 0 < behind < MANY
    assert len([await moved.message() for _ in range(MANY - behind)]) == MANY - behind
    assert nodes.brokers["a"].router.counters.dropped[SESSION_ENDED] == behind
    said = f"messages stayed behind client_id='moves' node='b' messages={behind}"
    assert said in [record.getMessage() for record in caplog.records]


async def test_a_message_that_is_too_large_for_the_bus_is_counted_and_named(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In flight, in memory, or on disk: it would end the membership of the other node, each time its client comes."""
    nodes = await start("a", "b", folder=tmp_path, store={"memory_messages": 64})
    slow = await nodes.join("a", "moves", ("x", 1), props=(*KEPT, (wire.RECEIVE_MAXIMUM, 1)))
    says = await nodes.join("a", "says")
    sizes = {0: 100, 10: 100, 90: 100}
    for number in range(100):
        assert await says.publish("x", b"%d " % number + bytes(sizes.get(number, 1)), qos=1) == 0
    await slow.expect(wire.PUBLISH)
    slow.abort()
    nodes.meshes["a"].ownership.giver.largest = 100
    moved = await nodes.join("b", "moves", clean=False, props=KEPT)
    comes = [number for number in range(100) if number not in sizes]
    assert [int((await moved.message()).payload.split()[0]) for _ in comes] == comes
    assert status(nodes.meshes["a"]).messages_left_behind == 3
    assert "messages stayed behind client_id='moves' node='b' messages=3" in [
        record.getMessage() for record in caplog.records
    ]


async def test_it_is_read_while_it_is_sent(start: Start, tmp_path: Path) -> None:
    """The node that gives it has no more of it in memory than is read at a time."""
    nodes = await filled(start, tmp_path)
    giver = nodes.meshes["a"].ownership.giver
    reads: list[int] = []
    was_read = giver._was_read

    def look(giving: Giving, records: list[DeliveryRecord]) -> None:
        assert giving.writer is not None
        assert giving.writer.empty
        reads.append(len(records))
        was_read(giving, records)

    giver._was_read = look  # type: ignore[method-assign]
    moved = await nodes.join("b", "moves", clean=False, props=KEPT)
    assert [(await moved.message()).payload for _ in range(MANY)] == [b"%d" % number for number in range(MANY)]
    assert sum(reads) > 2 * FETCHED
    assert max(reads) <= FETCHED


async def test_what_cannot_wait_on_disk_alone_keeps_its_place(start: Start, tmp_path: Path) -> None:
    """[MQTT-4.6.0-6] Messages for a share group wait in memory, behind what is on disk, and before what came later."""
    nodes = await start("a", "b", folder=tmp_path, store={"memory_messages": 64})
    gone = await nodes.join("a", "moves", ("x", 1), ("$share/g/y", 1), props=KEPT)
    gone.abort()
    says = await nodes.join("a", "says")
    sent: list[bytes] = []
    for topic, count in (("x", 300), ("y", 10), ("x", 300)):
        for _ in range(count):
            sent.append(b"%d" % len(sent))
            assert await says.publish(topic, sent[-1], qos=1) == 0
    disk = nodes.brokers["a"].router.sessions["moves"].queue.disk
    assert disk is not None
    assert 0 < disk.messages < 300
    moved = await nodes.join("b", "moves", clean=False, props=KEPT)
    assert [(await moved.message()).payload for _ in sent] == sent


def publish_before(nodes: Nodes, then: Callable[..., None], messages: list[bytes]) -> Callable[..., None]:
    """Have messages come to node `a` just before something."""

    def first(*given: object) -> None:
        broker = nodes.brokers["a"]
        for payload in messages:
            broker.router.publish(Message(b"x", payload, 1, False, b"", 0.0, "says"), None)
        broker.after_batch()
        then(*given)

    return first


async def test_what_comes_while_it_goes_comes_behind_it(start: Start, tmp_path: Path) -> None:
    nodes = await filled(start, tmp_path)
    giver = nodes.meshes["a"].ownership.giver
    rest = [b"rest %d" % number for number in range(2 * FETCHED)]
    begin = giver._begin
    giver.turns._begin = publish_before(nodes, begin, rest[:FETCHED])
    writes = giver._write
    seen: list[Giving] = []

    def write(giving: Giving, record: SessionRecord) -> None:
        writes(giving, record)
        if giving not in seen:
            seen.append(giving)
            publish_before(nodes, lambda: None, rest[FETCHED:])()

    giver._write = write  # type: ignore[method-assign]
    moved = await nodes.join("b", "moves", clean=False, props=KEPT)
    expected = [b"%d" % number for number in range(MANY)] + rest
    assert [(await moved.message()).payload for _ in expected] == expected
    assert status(nodes.meshes["a"]).messages_left_behind == 0


async def test_what_comes_to_both_nodes_in_the_end_is_not_left_behind(start: Start, tmp_path: Path) -> None:
    """The other node has it from who published it."""
    nodes = await filled(start, tmp_path)
    giver = nodes.meshes["a"].ownership.giver
    late = [b"late %d" % number for number in range(10)]
    giver.taken = publish_before(nodes, giver.taken, late)  # type: ignore[method-assign]
    moved = await nodes.join("b", "moves", clean=False, props=KEPT)
    expected = [b"%d" % number for number in range(MANY)] + late
    assert [(await moved.message()).payload for _ in expected] == expected
    assert status(nodes.meshes["a"]).messages_left_behind == 0


async def test_what_is_being_read_for_its_client_goes_along_once(start: Start, tmp_path: Path) -> None:
    nodes = await filled(start, tmp_path)
    back = await nodes.join("a", "moves", clean=False, props=(*KEPT, (wire.RECEIVE_MAXIMUM, 1)))
    first = await back.expect(wire.PUBLISH)
    moved = await nodes.join("b", "moves", clean=False, props=KEPT)
    assert first.payload == b"0"
    assert [(await moved.message()).payload for _ in range(MANY)] == [b"%d" % number for number in range(MANY)]


async def test_what_comes_to_both_nodes_while_it_moves_comes_once_and_in_order(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than memory holds, before the new node has what waited at the old one."""
    nodes = await start("a", "b", "c", folder=tmp_path, store={"memory_messages": 4})
    gone = await nodes.join("a", "moves", ("x", 2), props=KEPT)
    gone.abort()
    says = await nodes.join("c", "says")
    await nodes.mesh.settle()
    await says.publish("x", b"0", qos=2)
    giver = nodes.meshes["a"].ownership.giver
    ready, known = giver.ready, asyncio.Event()
    goes_on: list[Callable[[], None]] = []

    def hears_ready(*what: Any) -> None:
        goes_on.append(partial(ready, *what))
        known.set()

    monkeypatch.setattr(giver, "ready", hears_ready)
    coming = asyncio.create_task(nodes.join("b", "moves", clean=False, props=KEPT))
    await known.wait()
    for number in range(1, 40):
        await says.publish("x", b"%d" % number, qos=2)
    goes_on[0]()
    moved = await coming
    assert [(await moved.message()).payload for _ in range(40)] == [b"%d" % number for number in range(40)]
    assert await moved.fence() == []
