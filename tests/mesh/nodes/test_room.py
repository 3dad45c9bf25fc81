"""Clients that take all the room there is keep no node out."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.e2e import wire
from tests.mesh.brokers import Nodes, Start
from tests.support.waiting import until


def connected(nodes: Nodes) -> bool:
    """Whether each of the two takes what is published at the other."""
    a, b = nodes.meshes["a"].links.get("b"), nodes.meshes["b"].links.get("a")
    return a is not None and b is not None and a.connected and b.connected


@pytest.mark.parametrize("half_open", [0, 1_000])
async def test_a_node_connects_however_many_clients_there_are(
    start: Start, half_open: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether one more would be closed at once, or be refused by its CONNECT."""
    monkeypatch.setattr("broker.net.connections.admission.HALF_OPEN_ROOM", half_open)
    nodes = await start("a", "b", limits={"max_connections": 2})
    await until(lambda: connected(nodes))
    nodes.mesh.cut("a", "b")
    await until(lambda: not any(link.connected for mesh in nodes.meshes.values() for link in mesh.links.values()))
    for number in range(4):
        with suppress(AssertionError, wire.Closed):
            await nodes.join("b", f"fills-{number}")
    nodes.mesh.join("a", "b")
    await until(lambda: connected(nodes))


async def test_a_node_gets_a_session_however_many_clients_have_one(start: Start) -> None:
    nodes = await start("a", "b", session={"max_sessions": 2}, mesh={"node_expiry": 1.0})
    await until(lambda: connected(nodes))
    nodes.mesh.cut("a", "b")
    await until(lambda: not nodes.meshes["b"].links)
    for number in range(3):
        with suppress(AssertionError, wire.Closed):
            await nodes.join("b", f"fills-{number}", ("x", 1), clean=False, props=((wire.SESSION_EXPIRY, 100),))
    nodes.mesh.join("a", "b")
    await until(lambda: connected(nodes))
