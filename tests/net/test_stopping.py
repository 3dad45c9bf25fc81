"""A broker that stops ends its connections in turns, so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.causes import SHUTDOWN
from canopy_mqtt.net import server
from canopy_mqtt.settings import Settings
from tests.e2e import wire
from tests.e2e.wire import Peer, connect


async def test_connections_are_ended_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STOP_TURN", 2)
    broker = Broker(Settings(listen=("mqtt://127.0.0.1:0",)))
    await broker.start()
    peers = [await Peer.open("127.0.0.1", broker.ports[0], 5) for _ in range(9)]
    for number, peer in enumerate(peers):
        await peer.send(connect(f"c{number}"))
        assert (await peer.expect(wire.CONNACK)).code == 0
    connections = list(broker.connections)
    ended: list[int] = []
    stopping = asyncio.ensure_future(broker.stop())
    while len(ended) < 1000 and (not ended or ended[-1] < len(peers)):
        ended.append(sum(connection.protocol.close_cause == SHUTDOWN for connection in connections))
        await asyncio.sleep(0)
    assert max(after - before for before, after in zip([0, *ended], ended, strict=False)) == 2
    for peer in peers:
        assert (await peer.expect(wire.DISCONNECT)).code == 0x8B
        await peer.closed()
        peer.abort()
    await stopping
    assert not broker.connections
