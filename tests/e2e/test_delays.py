"""`canopy-delay` over real sockets: TCP, TLS, WebSocket and a store. The clock of the windows stands still."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.admin.api.clients import connection_of
from canopy_mqtt.net.delays import Delays
from canopy_mqtt.store.sqlite.store import SqliteStore
from tests.e2e import wire
from tests.e2e.test_large_messages import connected
from tests.e2e.wire import Peer
from tests.net.test_delays import Clock, asking
from tests.support.certificates import Authority

COUNT = 20


class Place:
    """A broker with a listener of each kind, whose windows end when the test says so."""

    def __init__(self, broker: Broker, context: ssl.SSLContext) -> None:
        self.broker = broker
        self._context = context
        self.clock = Clock(broker.loop.time())
        broker.rounds.delays = Delays(broker.router, cast(asyncio.AbstractEventLoop, self.clock))
        broker.rounds.time = self.clock.time
        self.peers: list[Peer] = []

    async def join(self, transport: str, client_id: str, **options: Any) -> Peer:
        port = self.broker.ports[("tcp", "tls", "ws").index(transport)]
        self.peers.append(await connected(transport, port, self._context, client_id, **options))
        return self.peers[-1]

    def count_writes(self, client_id: str) -> list[bytes]:
        """Return the list to which each write to a client is added from now on."""
        connection = connection_of(self.broker.router.sessions[client_id])
        assert connection is not None
        writes: list[bytes] = []
        transport = connection.stream.transport

        def send(data: bytes) -> None:
            writes.append(data)
            transport.write(data)

        connection.stream.send = send
        return writes


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("127.0.0.1")
    listeners = (
        {"url": "mqtt://127.0.0.1:0"},
        {"url": "mqtts://127.0.0.1:0", "tls": {"certificate": certificate, "key": key}},
        {"url": "ws://127.0.0.1:0"},
    )
    settings = Settings.model_validate(
        {"listener": listeners, "sys": {"interval": 0}, "shutdown": {"flush_timeout": 0}}
    )
    async with Broker(settings, store=SqliteStore(tmp_path / "store")) as broker:
        made = Place(broker, ssl.create_default_context(cafile=authority.file))
        try:
            yield made
        finally:
            for peer in made.peers:
                peer.abort()


@pytest.mark.parametrize("transport", ["tcp", "tls", "ws"])
async def test_messages_gather_and_an_answer_takes_them_along(place: Place, transport: str) -> None:
    reader, publisher = await place.join(transport, "r"), await place.join("tcp", "p")
    assert await reader.subscribe("t/#", props=asking("20ms")) == (0,)
    writes = place.count_writes("r")
    for number in range(COUNT):
        await publisher.publish("t", b"%d" % number)
    assert writes == []
    place.clock.pass_time(0.02)
    assert [(await reader.message()).payload for _ in range(COUNT)] == [b"%d" % number for number in range(COUNT)]
    assert len(writes) == 1
    for number in range(COUNT):
        await publisher.publish("t", b"%d" % number)
    assert [packet.payload for packet in await reader.fence()] == [b"%d" % number for number in range(COUNT)]
    assert len(writes) == 2


@pytest.mark.parametrize("transport", ["tcp", "tls", "ws"])
async def test_committed_pubacks_gather(place: Place, transport: str) -> None:
    """With a store each PUBACK begins to wait when its message is on disk."""
    keep = [(wire.SESSION_EXPIRY, 100)]
    await (await place.join("tcp", "kept", props=keep)).subscribe(("t", 1))
    publisher = await place.join(transport, "p", props=asking("20ms"))
    writes = place.count_writes("p")
    for number in range(COUNT):
        await publisher.send(wire.publish("t", qos=1, packet_id=number + 1))
    buffer = place.broker.router.sessions["p"].send_buffer
    assert buffer is not None
    async with asyncio.timeout(wire.TIMEOUT):
        while buffer.unwritten < COUNT:  # noqa: ASYNC110 (a commit tells no test)
            await asyncio.sleep(0.002)
    assert writes == []
    place.clock.pass_time(0.02)
    assert [(await publisher.expect(wire.PUBACK)).packet_id for _ in range(COUNT)] == list(range(1, COUNT + 1))
    assert len(writes) == 1
