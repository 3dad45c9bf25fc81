"""The machine sleeps while a broker runs: the time counts for what expires, and not against clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.assembly.daemon import Suspends
from canopy_mqtt.settings import Shutdown
from tests.e2e import wire
from tests.e2e.wire import MESSAGE_EXPIRY, SESSION_EXPIRY, WILL_DELAY, Peer, Will
from tests.support.waiting import until

HOUR = 3_600


class Machine:
    """Of which the test says when it is suspended."""

    def __init__(self, broker: Broker) -> None:
        self._asleep = 0.0
        self._suspends = Suspends(broker.loop, lambda: self._asleep)
        self._seen = asyncio.Event()
        broker.suspended = self._look

    def _look(self) -> float:
        passed = self._suspends.look()
        if passed > 0.0:
            self._seen.set()
        return passed

    async def sleep(self, seconds: float) -> None:
        """Be suspended, and wake up."""
        self._seen.clear()
        self._asleep += seconds
        # No time-out: those of asyncio go by the clock that moves now.
        await self._seen.wait()
        await asyncio.sleep(0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    settings = Settings(listen=["mqtt://127.0.0.1:0"], shutdown=Shutdown(flush_timeout=0.0))
    async with Broker(settings) as running:
        yield running


async def test_what_expires_meanwhile(lines: list[dict[str, Any]], broker: Broker) -> None:
    machine = Machine(broker)
    port = broker.ports[0]
    # [MQTT-3.1.2-22]: silence counts from when the client can speak again.
    watcher = await Peer.join(port, "watcher", ("will", 0), keep_alive=10)
    short = await Peer.join(port, "short", ("a", 1), props=[(SESSION_EXPIRY, HOUR)])
    long = await Peer.join(port, "long", ("a", 1), props=[(SESSION_EXPIRY, 3 * HOUR)])
    dying = await Peer.join(
        port, "dying", will=Will("will", properties=[(WILL_DELAY, HOUR)]), props=[(SESSION_EXPIRY, 3 * HOUR)]
    )
    for peer in (short, long):
        await peer.send(wire.disconnect())
        await peer.closed()
        peer.abort()
    dying.abort()
    await until(lambda: broker.router.sessions["dying"].send_buffer is None)
    for expiry, topic in ((HOUR, "short"), (3 * HOUR, "long")):
        expires = [(MESSAGE_EXPIRY, expiry)]
        await watcher.send(wire.publish(f"kept/{topic}", b"x", retain=True, props=expires))
        await watcher.send(wire.publish("a", topic.encode(), qos=1, packet_id=watcher.next_id(), props=expires))
        await watcher.expect(wire.PUBACK)
    began = broker.loop.time()
    await machine.sleep(2 * HOUR)
    assert 2 * HOUR <= broker.loop.time() - began < 2 * HOUR + 60
    # A will that was due in the meantime is published at once [MQTT-3.1.3-9].
    assert (await watcher.expect(wire.PUBLISH)).payload == b"gone"
    assert await watcher.fence() == []
    assert set(broker.router.sessions) == {"watcher", "long", "dying"}
    back = await Peer.join(port, "long", clean=False, props=[(SESSION_EXPIRY, HOUR)])
    found = await back.expect(wire.PUBLISH)
    assert found.payload == b"long"
    # [MQTT-3.3.2-6]: less the time that it has waited.
    left = found.get(MESSAGE_EXPIRY)
    assert isinstance(left, int)
    assert HOUR - 60 < left <= HOUR
    await watcher.subscribe("kept/#")
    assert [each.topic for each in await watcher.fence()] == ["kept/long"]
    assert [each["seconds"] for each in lines if each["event"] == "machine was suspended"] == [2 * HOUR]
    # The loop was not late.
    assert broker.lag_monitor.take_worst(broker.loop.time()) < 60
    for peer in (watcher, back):
        peer.abort()


async def test_keep_alive_goes_on(broker: Broker) -> None:
    """From the moment at which the machine woke up."""
    machine = Machine(broker)
    silent = await Peer.join(broker.ports[0], "silent", keep_alive=1)
    for _ in range(3):
        await machine.sleep(HOUR)
        assert "silent" in broker.router.sessions
    await until(lambda: "silent" not in broker.router.sessions)
    assert [each.code for each in await silent.closed()] == [0x8D]
    silent.abort()
