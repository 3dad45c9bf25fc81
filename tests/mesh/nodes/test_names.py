"""A node that connects to another one has the session of its own name there, and no other."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from broker.core.codec import reasons
from broker.core.codec.encoder import encode
from broker.core.codec.packets import V5, Connect
from tests.mesh.brokers import Start
from tests.support.waiting import until


class Said(asyncio.Protocol):
    """A connection of a node that says one thing."""

    def __init__(self, packet: bytes) -> None:
        self.packet = packet
        self.answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self.packet)

    def data_received(self, data: bytes) -> None:
        self.answer += data


@pytest.mark.parametrize("name", ["$node/from/c", "a client", "$node/to/a"])
async def test_a_node_under_another_name_is_refused(start: Start, name: str) -> None:
    nodes = await start("a", "b", "c")
    client = await nodes.join("b", "a client")
    said = Said(encode(Connect(name, V5, True, 0, None, None, None), V5))
    nodes.meshes["a"].streams.open("b", lambda: said)
    await until(lambda: len(said.answer) > 3)
    assert said.answer[3] == reasons.CLIENT_IDENTIFIER_NOT_VALID
    assert await client.fence() == []
    assert nodes.meshes["c"].links["b"].connected
