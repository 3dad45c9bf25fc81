"""Acknowledgements that wait for a commit, through sockets: they leave on the event loop, in turns, and delay no
other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mypy_extensions import i64

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.persistence.commits import RELEASE_TURN, Waiter
from canopy_mqtt.settings import Mqtt, Settings
from tests.e2e import wire
from tests.e2e.wire import PUBACK, SESSION_EXPIRY, Peer, connect, publish
from tests.store.grouped import GroupStore
from tests.support.waiting import until

RECEIVE_MAXIMUM = 5


class House:
    """A broker whose store commits when a test says so. A client is away for whom everything is kept."""

    def __init__(self) -> None:
        self.store = GroupStore(time.monotonic)
        settings = Settings(listen=("mqtt://127.0.0.1:0",), mqtt=Mqtt(receive_maximum=RECEIVE_MAXIMUM))
        self.broker = Broker(settings, store=self.store)
        self.peers: list[Peer] = []

    async def start(self) -> None:
        await self.broker.start()
        away = await self.peer("away", clean=False, props=((SESSION_EXPIRY, 100),))
        await away.send(wire.subscribe(1, [("t/#", 1)]))
        assert await away.fence() == []
        self.store.commit_all()
        await away.expect(wire.SUBACK)
        await away.disconnect()
        await until(lambda: self.broker.router.sessions["away"].send_buffer is None)
        self.store.commit_all()

    async def queued(self, count: int) -> None:
        """So many messages wait for the client that is away."""
        queue = self.broker.router.sessions["away"].queue
        await until(lambda: queue.messages >= count)

    async def peer(self, client_id: str, **more: Any) -> Peer:
        peer = await Peer.open("127.0.0.1", self.broker.ports[0], more.get("version", 5))
        self.peers.append(peer)
        await peer.send(connect(client_id, **more))
        assert (await peer.expect(wire.CONNACK)).code == 0
        return peer


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    await made.start()
    yield made
    for peer in made.peers:
        peer.abort()
    made.store.commit_all()
    await made.broker.stop()


async def test_a_client_of_311_is_read_from_again_when_its_acknowledgements_have_left(house: House) -> None:
    """It sent more at once than may be without an acknowledgement."""
    publisher = await house.peer("p", version=4)
    count = 4 * RECEIVE_MAXIMUM
    await publisher.send(*[publish("t/1", b"x", qos=1, packet_id=1 + n, version=4) for n in range(count)])
    queue = house.broker.router.sessions["away"].queue
    for batch in range(1, 5):
        await house.queued(batch * RECEIVE_MAXIMUM)
        assert queue.messages == batch * RECEIVE_MAXIMUM
        house.store.commit_all()
        for _ in range(RECEIVE_MAXIMUM):
            await publisher.expect(PUBACK)


class Heavy(Waiter):
    """Takes a whole turn."""

    def __init__(self, done: list[int], number: int) -> None:
        super().__init__()
        self.done = done
        self.number = number

    def committed(self, number: i64) -> i64:
        del number
        if self.number < 0:
            raise KeyError("a fault of ours")
        self.done.append(self.number)
        return RELEASE_TURN


async def test_a_commit_is_worked_off_in_rounds_of_the_event_loop(house: House) -> None:
    """Others have theirs in between; and one that raises keeps nobody back."""
    gate = house.store.gate
    done: list[int] = []
    gate.journal_position += 1
    for number in (0, 1, -1, 2, 3):
        gate.wait(Heavy(done, number))
    house.store.commit_all()
    assert done == [0]
    rounds = 0
    while len(done) < 4:
        before = len(done)
        await asyncio.sleep(0)
        assert len(done) <= before + 1
        rounds += 1
        assert rounds < 20
    assert done == [0, 1, 2, 3]
    # The next commit is worked off as well.
    publisher = await house.peer("p")
    await publisher.send(publish("t/1", b"x", qos=1, packet_id=1))
    assert await publisher.fence() == []
    house.store.commit_all()
    await publisher.expect(PUBACK)


async def test_a_broker_that_stops_sends_what_is_committed_meanwhile(house: House) -> None:
    publisher = await house.peer("p")
    await publisher.send(publish("t/1", b"x", qos=1, packet_id=1))
    assert await publisher.fence() == []
    stopping = asyncio.ensure_future(house.broker.stop())
    await until(lambda: not house.broker.listening)
    house.store.commit_all()
    assert (await publisher.expect(PUBACK)).packet_id == 1
    await publisher.closed()
    publisher.abort()
    await stopping
