"""Every library keeps an idle connection alive by pings that are answered; a client that falls silent is let go."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e import wire
from tests.e2e.clients.conftest import Elapse, Served, Unique
from tests.e2e.clients.python.aiomqtt_driver import Aio, Aio5
from tests.e2e.clients.python.amqtt_driver import Amqtt
from tests.e2e.clients.python.drivers import Opener
from tests.e2e.clients.python.gmqtt_driver import Gmqtt, Gmqtt311
from tests.e2e.clients.python.paho_driver import Paho, Paho5

LIBRARIES = (Paho, Paho5, Aio, Aio5, Gmqtt, Gmqtt311, Amqtt)

KEEP_ALIVE = 3
"""Seconds. paho looks once a second whether a ping is due, so that less would come too close to the limit."""

LONGER = 7
"""Seconds: more than one and a half times the keep alive, by far."""


@pytest.mark.long
async def test_idle_clients_stay_and_silent_ones_go(
    opener: Opener, daemon: Served, unique: Unique, elapse: Elapse
) -> None:
    """[MQTT-3.1.2-22] [MQTT-3.12.4-1] All at once: it is a test of waiting."""
    topic = unique("alive")
    clients = [await opener(kind, unique("idle"), keep_alive=KEEP_ALIVE) for kind in LIBRARIES]
    for client in clients:
        assert await client.subscribe(topic, 1) == 1
    silent = []
    for version in (4, 5):
        peer = await wire.Peer.open("127.0.0.1", daemon.port, version)
        await peer.send(wire.connect(unique("silent"), version=version, keep_alive=KEEP_ALIVE))
        await peer.expect(wire.CONNACK)
        silent.append(peer)

    await elapse(LONGER)

    four, five = silent
    assert await four.closed() == []
    assert [(packet.kind, packet.code) for packet in await five.closed()] == [(wire.DISCONNECT, 0x8D)]
    for peer in silent:
        peer.abort()
    await asyncio.gather(*(client.publish(topic, client.client_id.encode(), 1) for client in clients))
    everybody = sorted(client.client_id.encode() for client in clients)
    for client in clients:
        assert sorted(message.payload for message in await client.receive_all(len(clients))) == everybody
