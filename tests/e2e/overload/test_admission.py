"""Too many connections, too many a second, too many publishes, and a broker that cannot keep up: over real sockets.

What is timed here is timed from below only: a limit that holds makes things slow, and a slow machine makes them slower.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from canopy_mqtt import Broker
from canopy_mqtt.net.connections.admission import Admission
from tests.e2e import wire
from tests.e2e.clients.frozen import until
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import at_end
from tests.e2e.wire import Packet, Peer
from tests.support.losses import dropped_by_cause

HOST: Final = "127.0.0.1"

REFUSED: Final = {4: 3}
"""The return code for a 3.1.1 client when there is no room: Server unavailable."""


async def attempt(broker: Broker, client_id: str = "", *, version: int = 5, **connect: Any) -> tuple[Peer, Packet]:
    """Connect; the CONNACK, whatever it says. A connection that was refused is closed by the broker."""
    peer = await Peer.open(HOST, broker.ports[0], version)
    at_end.append(peer.abort)
    await peer.send(wire.connect(client_id, version=version, **connect))
    peer.connack = await peer.expect(wire.CONNACK)
    if peer.connack.code:
        assert await peer.closed() == []
        peer.abort()
    return peer, peer.connack


async def join(broker: Broker, client_id: str, *filters: str, **connect: Any) -> Peer:
    """Connect, and be accepted."""
    peer, connack = await attempt(broker, client_id, **connect)
    assert connack.code == 0, connack
    if filters:
        await peer.subscribe(*filters)
    return peer


def counted(broker: Broker) -> Admission:
    """The admission control of a broker whose settings ask for it."""
    assert broker.admission is not None
    return broker.admission


# ---------------------------------------------------------------------------------------------------------- connections


@pytest.mark.parametrize("version", [4, 5])
async def test_connections_of_one_address(scene: SetScene, version: int) -> None:
    """One over the limit is refused in CONNACK; when one goes, however it goes, the next one comes in."""
    broker = (await scene(limits={"max_connections_per_address": 3})).broker
    witness = await join(broker, "witness", "news")
    first, _ = [await join(broker, name, version=version) for name in ("first", "second")]
    for number in range(3):
        _, connack = await attempt(broker, f"late{number}", version=version)
        assert connack.code == REFUSED.get(version, 0x97)
        if version == 5:
            assert connack.get(wire.REASON_STRING) == "too many connections from this address"
    # Those that are connected do not notice.
    await first.publish("news", b"still here", qos=1)
    assert (await witness.message()).payload == b"still here"
    first.abort()
    await until("the place is free", lambda: counted(broker).by_address.get(HOST, 0) == 2, witness)
    await join(broker, "third", version=version)
    _, connack = await attempt(broker, "fourth", version=version)
    assert connack.code
    assert set(broker.router.sessions) == {"witness", "second", "third"}


async def test_a_full_address_and_a_dead_connection(scene: SetScene) -> None:
    """A client whose old connection is dead comes in its place, before anybody has noticed that it is dead."""
    broker = (await scene(limits={"max_connections_per_address": 1})).broker
    old = await join(broker, "device")
    for _ in range(3):
        new = await join(broker, "device")
        assert (await old.closed())[-1].code == 0x8E
        old = new
    _, connack = await attempt(broker, "another device")
    assert connack.code == 0x97
    assert counted(broker).by_address.get(HOST, 0) == 1
    assert await old.fence() == []


async def test_one_that_comes_in_place_of_another_and_leaves_at_once(scene: SetScene) -> None:
    """It sends its DISCONNECT with its CONNECT; its address has its place again."""
    broker = (await scene(limits={"max_connections_per_address": 1})).broker
    old = await join(broker, "device")
    peer = await Peer.open(HOST, broker.ports[0])
    at_end.append(peer.abort)
    await peer.send(wire.connect("device") + wire.disconnect())
    await peer.closed()
    assert (await old.closed())[-1].code == 0x8E
    await join(broker, "another device")


@pytest.mark.parametrize("version", [4, 5])
async def test_new_connections_a_second(scene: SetScene, version: int) -> None:
    """Sooner or later too many have come in too short a time; and sooner or later one may come again."""
    broker = (await scene(limits={"max_connect_rate": 4.0})).broker
    witness = await join(broker, "witness")
    code = 0
    for _ in range(100):
        peer, connack = await attempt(broker, version=version)
        code = connack.code
        if code:
            break
        peer.abort()
    assert code == REFUSED.get(version, 0x9F)
    if version == 5:
        assert connack.get(wire.REASON_STRING) == "too many new connections"
    async with asyncio.timeout(wire.TIMEOUT):
        while code:
            assert await witness.fence() == []
            _, connack = await attempt(broker, version=version)
            code = connack.code


async def test_a_flood_of_mute_connections(scene: SetScene) -> None:
    """They say nothing, so they cannot be told anything; what they hold is bounded, and others come and go."""
    broker = (await scene(limits={"max_connections_per_address": 2, "connect_timeout": 0.0})).broker
    witness = await join(broker, "witness")
    other = await join(broker, "other")
    for _ in range(300):
        at_end.append((await Peer.open(HOST, broker.ports[0])).abort)
    await until("the rest is closed", lambda: len(broker.connections) == 2 + 128, witness)
    assert counted(broker).turned_away == 300 - 128
    await other.disconnect()
    await until("the place is free", lambda: counted(broker).by_address.get(HOST, 0) == 1, witness)
    await join(broker, "next")


@pytest.mark.parametrize("version", [4, 5])
async def test_a_broker_that_lags_takes_nobody_in(scene: SetScene, version: int) -> None:
    """Those that are connected go on; when it has caught up everybody may come."""
    broker = (await scene(limits={"max_loop_lag": 2.0})).broker
    there = await join(broker, "there", "news")
    totals = broker.router.counters.totals
    broker.lag_monitor.close()
    totals.lag = 2.1
    for _ in range(3):
        _, connack = await attempt(broker, "late", version=version)
        assert connack.code == REFUSED.get(version, 0x89)
        if version == 5:
            assert connack.get(wire.REASON_STRING) == "the broker is overloaded"
    await there.publish("news", b"still here", qos=1)
    assert (await there.message()).payload == b"still here"
    assert set(broker.router.sessions) == {"there"}
    totals.lag = 1.9
    await join(broker, "late", version=version)


# ------------------------------------------------------------------------------------------------------------ publishes


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_fast_publisher_is_slowed(scene: SetScene, qos: int) -> None:
    """All of it arrives, at the rate that is allowed; its pings are answered late, and others are not slowed."""
    broker = (await scene(limits={"max_publish_rate": 500.0})).broker
    loop = asyncio.get_running_loop()
    subscriber = await join(broker, "subscriber", "load")
    fast = await join(broker, "fast", keep_alive=1)
    other = await join(broker, "other", "news")
    began = loop.time()
    for number in range(1_000):
        fast.writer.write(wire.publish("load", b"%d" % number, qos=qos, packet_id=1 + number if qos else None))
    await fast.send(wire.PING)
    for number in range(1_000):
        assert (await subscriber.message()).payload == b"%d" % number
        if number == 600:
            # In the middle of it.
            await other.publish("news", b"not slowed")
            assert (await other.message()).payload == b"not slowed"
            assert not fast.reader.at_eof()
    # A second's worth at once, a second for the rest; the last 64 of QoS 0 may be taken in one go.
    assert loop.time() - began >= 0.8
    answers = [await fast.recv() for _ in range(1_001 if qos else 1)]
    assert [answer.kind for answer in answers] == [wire.PUBACK] * (1_000 * qos) + [wire.PINGRESP]
    session = broker.router.sessions["subscriber"]
    assert (session.delivered_in_all(), sum(dropped_by_cause(session))) == (1_000, 0)


@pytest.mark.parametrize(
    ("limits", "code", "text"),
    [
        ({"max_publish_rate": 50.0}, 0x96, "more than 50 PUBLISH packets a second for 0.5 s"),
        ({"max_publish_bytes": 1_000}, 0x97, "more than 1000 bytes of PUBLISH packets a second for 0.5 s"),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
async def test_patience_comes_to_its_end(
    scene: SetScene, limits: dict[str, Any], code: int, text: str, version: int
) -> None:
    """DISCONNECT with the reason, in 3.1.1 the end alone; what was taken until then went out, in order."""
    broker = (await scene(limits={"publish_patience": 0.5, **limits})).broker
    subscriber = await join(broker, "subscriber", "load", "wills")
    will = wire.Will("wills", b"too fast")
    fast = await join(broker, "fast", version=version, will=will)
    for number in range(5_000):
        fast.writer.write(wire.publish("load", b"%d" % number, version=version))
    said = await fast.closed()
    if version == 5:
        assert [(packet.kind, packet.code) for packet in said] == [(wire.DISCONNECT, code)]
        assert said[0].get(wire.REASON_STRING) == text
    else:
        assert said == []
    fast.abort()
    taken = 0
    while (packet := await subscriber.message()).topic == "load":
        assert packet.payload == b"%d" % taken
        taken += 1
    assert packet.payload == b"too fast"
    assert 50 <= taken < 1_000
    assert "fast" not in broker.router.sessions
    # It may come back, and begin anew.
    again = await join(broker, "fast", version=version)
    assert await again.publish("load", b"again", qos=1) == 0


async def test_a_broker_stops_while_clients_are_held_back(scene: SetScene) -> None:
    """They are told 0x8B at once, whatever they still owe."""
    broker = (await scene(limits={"max_publish_rate": 0.01, "publish_patience": 0.0})).broker
    fast = await join(broker, "fast")
    await fast.send(*(wire.publish("load", b"x", qos=1, packet_id=1 + number) for number in range(100)))
    assert (await fast.recv()).kind == wire.PUBACK
    assert (await fast.recv()).kind == wire.PUBACK
    stopping = asyncio.create_task(broker.stop())
    assert [packet.code for packet in await fast.closed()] == [0x8B]
    fast.abort()
    await stopping
    assert not broker.connections
