"""The daemon with a store on a disk that is full for a while: who is served, who waits, who is told; it goes on.

The disk is the system's limit of the size of files, which a test takes away from the running process.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from canopy_mqtt.command.health import UnhealthyError, check
from canopy_mqtt.settings import Endpoint
from tests.e2e import wire
from tests.e2e.store.test_live import House
from tests.e2e.wire import Closed, Peer, ack, publish
from tests.support.daemon import Daemon

ROOM = 300_000
"""Bytes that each file of the store may have."""

COUNT = 100
PAYLOAD = bytes(10_000)


class SmallDisk(House):
    """One daemon after another; the first one has little room."""

    async def begin(self, on_failure: str) -> None:
        def little_room() -> None:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))

        flags = ("--store", str(self.folder), "--set", f"store.on_failure={on_failure}")
        self.daemon = await asyncio.to_thread(lambda: Daemon(*flags, prepare=little_room))
        self._stack.callback(self.daemon.close)

    def make_room(self) -> None:
        pid = self.daemon.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    async def told(self, event: str) -> None:
        await asyncio.to_thread(self.daemon.until, event)

    async def fill(self) -> Peer:
        """A publisher that has sent more than there is room for, to a session that is away, and heard of less."""
        await self.away("s", ("t", 1))
        publisher = await self.peer("p", clean=True)
        for number in range(COUNT):
            await publisher.send(publish("t", b"%d " % number + PAYLOAD, qos=1, packet_id=number + 1))
        await self.told("store cannot be written")
        return publisher


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[SmallDisk]:
    async with AsyncExitStack() as stack:
        yield SmallDisk(tmp_path / "store", stack)


async def test_a_full_disk_holds_acknowledgements_back_and_nothing_else(house: SmallDisk) -> None:
    await house.begin("hold")
    publisher = await house.fill()
    # Of a session that ends with its connection nothing is kept.
    watcher = await house.peer("watcher", clean=True, expiry=0)
    await watcher.subscribe("q", "$SYS/broker/store/state")
    state = await watcher.message()
    assert "canopy.db" in state.payload.decode()
    # QoS 0 goes on, and so does what a client is told besides.
    other = await house.peer("other", clean=True)
    await other.publish("q", b"1")
    assert (await watcher.message()).payload == b"1"
    with pytest.raises(UnhealthyError, match="the store cannot be written"):
        await asyncio.to_thread(check, Endpoint("mqtt", "127.0.0.1", house.daemon.port))
    before = [one.packet_id for one in await publisher.fence()]
    assert before == list(range(1, len(before) + 1))
    assert len(before) < COUNT
    house.make_room()
    await house.told("store is written again")
    assert (await watcher.message()).payload == b"written"
    after = [(await publisher.expect(wire.PUBACK)).packet_id for _ in range(COUNT - len(before))]
    assert before + after == list(range(1, COUNT + 1))
    await asyncio.to_thread(check, Endpoint("mqtt", "127.0.0.1", house.daemon.port))
    await house.again()
    subscriber = await house.peer("s", present=True)
    found = [int((await subscriber.message()).payload.split()[0]) for _ in range(COUNT)]
    assert found == list(range(COUNT))


async def test_a_broker_that_is_killed_with_a_full_disk_has_kept_what_it_acknowledged(house: SmallDisk) -> None:
    await house.begin("hold")
    publisher = await house.fill()
    acknowledged = len(await publisher.fence())
    await house.again()
    subscriber = await house.peer("s", present=True)
    found: list[int] = []
    while packets := [one for one in await subscriber.fence() if one.kind == wire.PUBLISH]:
        for one in packets:
            assert one.packet_id is not None
            await subscriber.send(ack(wire.PUBACK, one.packet_id))
            found.append(int(one.payload.split()[0]))
    assert found == list(range(len(found)))
    assert len(found) >= acknowledged


async def test_a_full_disk_refuses_where_it_is_asked_to(house: SmallDisk) -> None:
    await house.begin("refuse")
    await house.fill()
    # MQTT 5.0 has a code for it, 3.1.1 has none.
    five = await house.peer("five", clean=True)
    assert await five.publish("t", b"x", qos=1) == 0x97
    assert await five.publish("t", b"x", qos=2) == 0x97
    stays = await house.peer("stays", clean=True)
    assert (await stays.unsubscribe("t"))[0] >= 0x80
    assert await stays.subscribe(("t", 1)) == (0x97,)
    four = await house.peer("four", version=4, clean=True)
    with pytest.raises(Closed):
        await four.publish("t", b"x", qos=1)
    house.make_room()
    await house.told("store is written again")
    assert await five.publish("t", b"x", qos=1) == 0
    assert await stays.subscribe(("t", 1)) == (1,)
