"""Many clients, some or all of them bad: frozen in a crowd, vanishing by the thousand, coming back all at once."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from canopy_mqtt.core.ledger import DROP_CAUSES
from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene, StartDaemon
from tests.e2e.overload.scene import (
    KEPT,
    PATIENCE,
    Tap,
    Watch,
    join,
    lost,
    number_of,
    room_for_files,
    scaled,
    stamped,
)
from tests.e2e.wire import Peer

pytestmark = pytest.mark.long

Record = Callable[[str, object], None]


HALF: Final = scaled(500, 50)
"""Clients of a crowd that freeze; as many stay healthy."""

VANISHING: Final = scaled(10_000, 400)
RECONNECTING: Final = scaled(300, 20)

AHEAD: Final = 200
"""Messages that a publisher is ahead of the slowest healthy reader at most."""


async def flood(
    publisher: Peer, taps: Sequence[Tap], topic: str, first: int, count: int, size: int, ahead: int = AHEAD
) -> None:
    """Publish numbered messages as fast as the slowest of these readers takes them."""
    base = len(taps[0].numbers)
    step = max(1, ahead // 4)
    for start in range(0, count, step):
        for tap in taps:
            await tap.count(base + max(0, start - ahead + step))
        block = range(first + start, first + min(count, start + step))
        await publisher.send(*(wire.publish(topic, stamped(number, size)) for number in block))
    for tap in taps:
        await tap.count(base + count)


@pytest.mark.usefixtures("files")
async def test_half_of_a_crowd_is_frozen(daemon: StartDaemon, record: Record) -> None:
    """The healthy half gets everything, memory stays in bounds, the frozen half goes and costs nothing after that.

    nats and mosquitto users know it as the consumer that takes the broker down with it: vernemq#1624, mochi-mqtt#95.
    """
    room_for_files(2 * HALF + 200)
    live_bytes = 65_536
    server = daemon({"queue.live_bytes": live_bytes, "queue.stall_timeout": 1.0})
    watch = await Watch.open(server.port)
    publisher = await join(server.port, "publisher")
    healthy: list[Tap] = []
    frozen: list[Tap] = []
    for start in range(0, HALF, 50):
        numbers = range(start, min(HALF, start + 50))
        healthy += await asyncio.gather(*(Tap.open(server.port, f"healthy{i}", ("load", 0)) for i in numbers))
        frozen += await asyncio.gather(
            *(Tap.open(server.port, f"frozen{i}", ("load", 0), small=True, reading=False) for i in numbers)
        )
    await watch.open_connections(2 * HALF + 2)
    before = server.resident

    # More than the sockets and the queue of a frozen one hold; never more at once than the queue of a healthy one.
    size, count, ahead = 8_000, 40, 4
    assert ahead * size < live_bytes < count * size / 3
    await flood(publisher, healthy, "load", 0, count, size, ahead)
    grown = server.resident - before
    bound = HALF * 2 * live_bytes + (32 << 20)
    record("memory grown", f"{grown / 2**20:.1f} MiB of {bound / 2**20:.0f} allowed")
    assert grown < bound

    await watch.open_connections(HALF + 2)
    await watch.until("sessions are gone", lambda values: values["clients/total"] == str(HALF + 2))
    dropped = watch.number("messages/dropped")
    assert dropped > 0
    received = watch.number("messages/received")
    await flood(publisher, healthy, "load", count, 10, size, ahead)
    await watch.until("the news are told", lambda values: int(values["messages/received"]) >= received + 10)
    assert watch.number("messages/dropped") == dropped
    for tap in healthy:
        assert tap.numbers == list(range(count + 10))


async def _vanish(port: int, number: int, silent: deque[socket.socket]) -> None:
    """One client that connects and is gone, in one of four manners."""
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        await loop.sock_connect(connection, ("127.0.0.1", port))
        if number & 1:
            # An expiry of 0: its session ends with it. A second of keep alive: it is missed soon.
            await loop.sock_sendall(connection, wire.connect(f"vanishing{number}", keep_alive=1))
    except BaseException:
        connection.close()
        raise
    if number & 2:
        silent.append(connection)
    else:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, and not an end
        connection.close()


async def _gone(connection: socket.socket) -> None:
    """Until the broker has closed a connection that nobody speaks on."""
    loop = asyncio.get_running_loop()
    with connection:
        async with asyncio.timeout(PATIENCE):
            try:
                while await loop.sock_recv(connection, 4096):
                    pass
            except ConnectionResetError:
                pass


@pytest.mark.usefixtures("files")
async def test_ten_thousand_clients_connect_and_vanish(daemon: StartDaemon, record: Record) -> None:
    """Reset or silent, before CONNECT or after: nothing of them is left, and others are served meanwhile.

    hbmqtt#207 (memory grows for each connection), rmqtt#465 (900 sockets for 470 sessions), emqx#13338 (a client that
    was powered off is shown connected for a month).
    """
    wave, most = 250, 2_500
    room_for_files(most + wave + 500)
    server = daemon({"limits.connect_timeout": 0.5})
    watch = await Watch.open(server.port)
    good = await Tap.open(server.port, "good", ("mine", 0))
    await watch.open_connections(2)
    descriptors = server.descriptors
    silent: deque[socket.socket] = deque()
    half_way = 0
    try:
        for start in range(0, VANISHING, wave):
            numbers = range(start, min(VANISHING, start + wave))
            await asyncio.gather(*(_vanish(server.port, number, silent) for number in numbers))
            good.transport.write(wire.publish("mine", stamped(start // wave, 50)))
            await good.count(start // wave + 1)
            while len(silent) > most:
                await _gone(silent.popleft())
            if start <= VANISHING // 2 < start + wave:
                half_way = server.resident
        while silent:
            await _gone(silent.popleft())
    finally:
        for connection in silent:
            connection.close()
    await watch.open_connections(2)
    await watch.until("no session is left", lambda values: values["clients/total"] == "2")
    assert watch.number("clients/connected") == 2
    assert server.descriptors == descriptors
    grown = server.resident - half_way
    record("memory grown in the second half", f"{grown / 1024:.0f} KiB")
    assert grown < 16 << 20
    record("slowest answer to a good client", f"{max(good.ages) * 1000:.0f} ms")
    assert good.numbers == list(range(len(good.numbers)))
    assert not good.ended


class Member:
    """A client with a session that it comes back to."""

    def __init__(self, number: int) -> None:
        self.client_id = f"member{number}"
        self.numbers: list[int] = []

    async def come(self, port: int, *, back: bool) -> Peer:
        """Connect, and subscribe the first time."""
        filters = () if back else (("all", 1),)
        peer = await join(port, self.client_id, *filters, clean=not back, props=[(wire.SESSION_EXPIRY, KEPT)])
        assert peer.connack.session_present is back
        return peer

    async def read(self, peer: Peer, last: int) -> None:
        """Everything up to a number, acknowledged."""
        while last not in self.numbers:
            packet = await peer.message()
            assert packet.qos == 1
            number = number_of(packet.payload)
            assert packet.dup or number not in self.numbers
            if number not in self.numbers:
                self.numbers.append(number)


@pytest.mark.parametrize("how", ["cut", "vanished"])
async def test_all_clients_are_gone_at_once_and_back_at_once(scene: SetScene, how: str) -> None:
    """Reset, or vanished without a word and back before anybody missed them: no session and no message is lost.

    rmqtt#465: sockets are as many as clients when all are back. [MQTT-3.1.4-3] [MQTT-4.4.0-1]
    """
    stage = await scene()
    publisher = await stage.join("publisher")
    members = [Member(number) for number in range(RECONNECTING)]
    sent = 0

    async def publish(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            assert await publisher.publish("all", stamped(sent), qos=1) == 0
            sent += 1

    for start in range(0, RECONNECTING, 50):
        await asyncio.gather(*(member.come(stage.proxy.port, back=False) for member in members[start : start + 50]))
    # Nobody has read or acknowledged these when the connections go.
    await publish(10)
    if how == "cut":
        stage.proxy.cut()
        await publish(10)
    else:
        for link in stage.proxy.links:
            link.freeze()
        await publish(10)
    returned, _ = await asyncio.gather(
        asyncio.gather(*(member.come(stage.port, back=True) for member in members)), publish(10)
    )
    await publish(1)
    await asyncio.gather(*(member.read(peer, sent - 1) for member, peer in zip(members, returned, strict=True)))

    for member in members:
        assert member.numbers == list(range(sent))
        assert lost(stage.session(member.client_id)) == {}
    await stage.until("the old connections are gone", lambda: len(stage.broker.connections) == RECONNECTING + 2)
    assert len(stage.broker.router.sessions) == RECONNECTING + 2
    assert sum(stage.broker.router.counters.dropped) == 0, DROP_CAUSES
