"""Clients that do not keep up, or do not mean to: nobody else pays for them, and what is lost is counted.

The broker is embedded, so that its queues can be looked at; all else goes over sockets.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from canopy_mqtt.core.ledger import DISCONNECTED
from canopy_mqtt.core.queues.send_buffer import MAX_CONTROL_BYTES
from tests.e2e import wire
from tests.e2e.clients.frozen import Frozen
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import KEPT, Scene, Tap, stamped
from tests.e2e.wire import Peer, Will
from tests.support.losses import dropped_by_cause

SOON = 0.8
"""A stall time-out in seconds that tests wait for."""


# A read of the event loop is 256 KiB at most; the smallest PUBLISH here has 10 bytes, its PUBACK 4.
ONE_READ = 262_144


async def fill(stage: Scene, publisher: Peer) -> None:
    """Publish until the queue of the frozen client is full."""
    session = stage.session("frozen")
    for _ in range(5000):
        await publisher.publish("load", bytes(16_384))
        if any(dropped_by_cause(session)):
            return
    raise AssertionError("the frozen client's queue is never full")


@pytest.mark.parametrize("expiry", [0, KEPT], ids=["session ends", "session kept"])
async def test_a_frozen_subscriber_is_evicted(scene: SetScene, expiry: int) -> None:
    """After the stall time-out: its Will is published, its session kept as its expiry says, and its socket is gone."""
    stage = await scene(queue={"stall_timeout": SOON, "live_messages": 20})
    connect = wire.connect(
        "frozen", keep_alive=0, will=Will("wills", b"stalled"), props=[(wire.SESSION_EXPIRY, expiry)]
    )
    frozen = await Frozen.join(stage.port, connect, ("load", 0), ("wanted", 1))
    publisher = await stage.join("publisher")
    watcher = await stage.join("watcher", "wills")
    await fill(stage, publisher)
    assert (await watcher.message()).payload == b"stalled"
    assert "frozen" not in [session.client_id for session in stage.broker.router.peers.send_buffers]
    await stage.until("the socket is gone", lambda: len(stage.broker.connections) == 3)
    assert stage.broker.router.counters.dropped[DISCONNECTED] >= 20

    await publisher.publish("wanted", b"kept", qos=1)
    # What the dead socket still holds is data, then its end.
    await frozen.read_to_end()
    back = await stage.join("frozen", clean=False)
    assert back.connack.session_present is (expiry > 0)
    if expiry:
        assert (await back.message()).payload == b"kept"


@pytest.mark.parametrize(
    ("cut", "why"), [(False, "it has read nothing"), (True, "its machine has acknowledged nothing")]
)
async def test_the_log_says_that_the_broker_ended_a_stalled_subscriber(
    scene: SetScene, caplog: pytest.LogCaptureFixture, cut: bool, why: str
) -> None:
    """Never `connection-lost`, which is what the system's own time-out would make of it; and whose fault it may be."""
    caplog.set_level(logging.INFO, "canopy")
    stage = await scene(queue={"stall_timeout": SOON, "live_messages": 20}, sys={"interval": 0.0})
    frozen = await Frozen.join(stage.port, wire.connect("frozen", keep_alive=0), ("load", 0))
    publisher = await stage.join("publisher")
    if cut:
        frozen.cut()
    await fill(stage, publisher)
    await stage.until("the socket is gone", lambda: len(stage.broker.connections) == 2)
    (ended,) = [
        record
        for record in caplog.records
        if getattr(record, "fields", {}).get("client_id") == "frozen" and "cause" in record.__dict__["fields"]
    ]
    assert ended.levelno == logging.WARNING
    fields = ended.__dict__["fields"]
    assert (ended.__dict__["event"], fields["cause"]) == ("client evicted", "stalled")
    assert fields["detail"].startswith(why)
    assert stage.broker.connection_table.ends["stalled"] == 1


async def test_a_frozen_subscriber_that_only_gets_a_little_is_not_evicted(scene: SetScene) -> None:
    """A client that has nothing to take is not stalled, however long it says nothing."""
    stage = await scene(queue={"stall_timeout": 0.2}, sys={"interval": 0.0})
    far = await stage.join_far("quiet", "load", keep_alive=0)
    far.freeze()
    publisher = await stage.join("publisher")
    clock = await stage.join("clock", "clock")
    await publisher.publish("load", b"a little")
    ticking = await stage.join(
        "ticking", will=Will("clock", b"", properties=[(wire.WILL_DELAY, 1)]), props=[(wire.SESSION_EXPIRY, 9)]
    )
    ticking.abort()
    await clock.message()
    assert "quiet" in stage.broker.router.sessions
    far.thaw()
    assert [packet.payload for packet in await far.peer.fence()] == [b"a little"]


async def test_a_slow_subscriber_is_not_evicted_and_loses_nothing(scene: SetScene) -> None:
    """Progress, however slow, is no stall: it reads in small sips over several stall time-outs."""
    count, patience = 600, 0.5
    stage = await scene(queue={"stall_timeout": patience, "live_messages": 5, "hold_publishers": 0.0})
    slow = await Tap.open(stage.port, "slow", ("load", 1), small=True, rate=200_000)
    publisher = await stage.join("publisher")
    for number in range(count):
        assert await publisher.publish("load", stamped(number, 8000), qos=1) == 0
    await asyncio.sleep(4 * patience)  # this is what makes it slow
    assert "slow" in stage.broker.router.sessions
    assert len(slow.numbers) < count
    slow.thaw()
    await slow.count(count)
    assert slow.numbers == list(range(count))


@pytest.mark.parametrize("kind", ["PUBLISH", "PINGREQ", "SUBSCRIBE"])
async def test_who_does_not_read_answers_is_not_read_from(scene: SetScene, kind: str) -> None:
    """Acknowledgements are never dropped, so the client that causes them without end has to wait; no other has."""
    stage = await scene()
    broker = stage.broker
    flooder = await Frozen.join(stage.port, wire.connect("flooder", version=4, keep_alive=0), version=4)
    other = await stage.join("other", "news")
    requests = {
        "PUBLISH": [wire.publish("flood", b"", version=4, qos=1, packet_id=1 + i % 1000) for i in range(1000)],
        "PINGREQ": [wire.PING] * 1000,
        "SUBSCRIBE": [wire.subscribe(1 + i, [("flood", 0)], version=4) for i in range(1000)],
    }[kind]
    size = len(requests[0])
    answer = 2 if kind == "PINGREQ" else 5 if kind == "SUBSCRIBE" else 4
    block = b"".join(requests)
    start = flooder.sent
    send_buffer = stage.send_buffer("flooder")
    (connection,) = [found for found in broker.connections if found.send_buffer is send_buffer]

    def pending() -> int:
        return send_buffer.control_bytes + connection.stream.transport.get_write_buffer_size()

    bound = MAX_CONTROL_BYTES + ONE_READ // size * answer + 2 * broker.settings.queue.write_batch_bytes
    rest = block
    blocked = 0
    async with asyncio.timeout(3 * wire.TIMEOUT):
        while blocked < 20 or not (send_buffer.congested or connection.protocol.throttled):
            assert flooder.sent < 50_000_000, "the broker reads without end from a client that does not read"
            went = flooder.push(rest)
            rest = rest[went:] or block
            # Served while the flood is on, and the reason why the broker has had its turn.
            await other.fence()
            assert pending() <= bound
            blocked = 0 if went else blocked + 1
    await other.publish("news", b"still served")
    assert [packet.payload for packet in await other.fence()] == [b"still served"]

    # Once it reads, every request is answered.
    flooder.widen()
    if rest is block:
        rest = b""
    expected = (flooder.sent - start + len(rest)) // size
    writing = asyncio.create_task(flooder.send(rest))
    answers = await flooder.read(expected * answer)
    await writing
    kinds = {"PUBLISH": wire.PUBACK, "PINGREQ": wire.PINGRESP, "SUBSCRIBE": wire.SUBACK}
    assert {answers[at] >> 4 for at in range(0, len(answers), answer)} == {kinds[kind]}


async def test_who_never_reads_answers_is_evicted(scene: SetScene) -> None:
    stage = await scene(queue={"stall_timeout": SOON})
    connect = wire.connect("flooder", version=4, keep_alive=0, will=Will("wills", b"stalled"))
    flooder = await Frozen.join(stage.port, connect, version=4)
    watcher = await stage.join("watcher", "wills")
    send_buffer = stage.send_buffer("flooder")
    block = wire.PING * 1000
    rest = block
    with suppress(ConnectionError):  # on a busy machine its time is over before it has sent enough
        while not send_buffer.congested:
            rest = rest[flooder.push(rest) :] or block
            await watcher.send(wire.PING)
            await watcher.wait_for(wire.PINGRESP)
    assert (await watcher.message()).payload == b"stalled"
    await stage.until("the socket is gone", lambda: len(stage.broker.connections) == 2)


HALF_A_CONNECT = wire.connect("half")[:-2]


@pytest.mark.parametrize("data", [b"", b"\x10", HALF_A_CONNECT], ids=["nothing", "one byte", "half a CONNECT"])
async def test_a_half_open_connection_is_closed(scene: SetScene, data: bytes) -> None:
    """[MQTT-3.1.4-5] leaves the time to the server: `limits.connect_timeout`."""
    stage = await scene(limits={"connect_timeout": 0.3})
    mute = [await Frozen.open(stage.port) for _ in range(20)]
    for connection in mute:
        await connection.send(data)
    await stage.until("all connections were made", lambda: len(stage.broker.connections) == 21)
    for connection in mute:
        assert await connection.read_to_end() == b""
        connection.close()
    await stage.until("their sockets are gone", lambda: len(stage.broker.connections) == 1)
    assert list(stage.broker.router.sessions) == ["probe"]
