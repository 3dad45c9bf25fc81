"""Sessions of which more waits than memory holds, and that go to another node."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.core.counters import SESSION_ENDED
from broker.core.persistence.pages import FETCHED
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
