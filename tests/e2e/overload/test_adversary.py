"""Clients that mean harm, one way each: what a broker does that was attacked so, found by trying.

Most run a broker in the test's own process, because what counts is what is left inside. What can be asked of the core
alone is in `tests/core/protocol/test_adversary.py`.
"""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.settings import Settings
from tests.e2e import wire
from tests.e2e.overload.conftest import SetScene
from tests.e2e.overload.scene import join
from tests.e2e.wire import Peer
from tests.support.waiting import until

# ------------------------------------------------------------------------------------------------- what must not escape


async def test_a_client_text_too_long_for_a_reason_string(scene: SetScene) -> None:
    """[MQTT-3.2.2-19] is no excuse: the longest authentication method there is, and the answer about it."""
    stage = await scene()
    peer = await Peer.open("127.0.0.1", stage.port, 5)
    await peer.send(wire.connect("long", props=[(wire.AUTH_METHOD, "\x01" * 65_535)]))
    assert (await peer.expect(wire.CONNACK)).code == 0x8C
    assert await peer.closed() == []
    peer.abort()


async def test_an_exception_in_the_writer_ends_the_connection(scene: SetScene) -> None:
    """Whatever it was: a connection that nobody writes to any more must not stay."""
    stage = await scene()
    broker = stage.broker
    peer = await stage.join("victim")
    session = broker.router.sessions["victim"]
    # No peer can bring this about: a topic name that has no encoding.
    session.deliver(Message(b"t" * 70_000, b"", 1, False, b"", 0.0, ""), 1, False, (), None)
    trouble: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(str(context)))
    broker.after_batch()
    await peer.closed()
    await until(lambda: not broker.connections)
    peer.abort()


async def test_a_dead_peer_is_noticed_by_the_system(scene: SetScene) -> None:
    """Without keep alive nothing in MQTT tells that a client was switched off; TCP has to."""
    stage = await scene(queue={"stall_timeout": 30.0})
    broker = stage.broker
    peer = await stage.join("", keep_alive=0)
    sock = next(iter(broker.connections)).stream.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    # Later than `queue.stall_timeout`, so that the broker says why it ends the connection.
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 50_000
    await peer.disconnect()


# --------------------------------------------------------------------------------------------------------------- memory


async def test_a_connection_that_is_gone_is_forgotten_whatever_its_keep_alive(scene: SetScene) -> None:
    """18 hours of keep alive must not keep a dead connection, and what it had received, for 27 hours."""
    stage = await scene(limits={"connect_timeout": 0.2})
    broker = stage.broker
    peer = await stage.join("", keep_alive=65_535)
    # Past the look at the connect time-out, after which the next one is due by the keep alive.
    await until(lambda: next(iter(broker.connections)).check_at > broker.loop.time() + 1_000)
    await peer.send(b"\x30\xff\x3f" + b"x" * 5_000)
    peer.abort()
    await until(lambda: not broker.connections)

    def forgotten() -> bool:
        gc.collect()
        return not any(isinstance(thing, Connection) for thing in gc.get_objects())

    await until(forgotten)


# ------------------------------------------------------------------------------------------------------- extremes, ends


async def test_bytes_of_an_unfinished_packet_are_no_sign_of_life(scene: SetScene) -> None:
    """[MQTT-3.1.2-22]: a Control Packet is, and a byte every now and then is not one."""
    stage = await scene()
    broker = stage.broker
    peer = await stage.join("", keep_alive=1)
    slow = wire.publish("t", b"x" * 100)
    for at in range(40):
        peer.writer.write(slow[at : at + 1])
        await asyncio.sleep(0.1)
        if not broker.router.peers.send_buffers:
            break
    assert broker.router.peers.send_buffers == {}
    peer.abort()


@pytest.mark.parametrize("version", [4, 5])
async def test_fin_behind_a_publish(scene: SetScene, version: int) -> None:
    """The broker routes the packets before the end of the stream; the end without DISCONNECT publishes the will."""
    stage = await scene()
    broker = stage.broker
    other = await stage.join("")
    await other.subscribe(("t", 1), ("w", 0))
    hasty = socket.create_connection(("127.0.0.1", broker.ports[0]))
    # Both at once, with the event loop standing still: the broker finds packets and end in one turn.
    hasty.sendall(
        wire.connect("fin", version=version, will=wire.Will("w"))
        + wire.publish("t", b"1", version=version, qos=1, packet_id=1)
    )
    hasty.shutdown(socket.SHUT_WR)
    assert [(await other.message()).topic for _ in range(2)] == ["t", "w"]
    await until(lambda: len(broker.connections) == 1)
    hasty.close()
    await other.disconnect()


async def test_a_storm_of_takeovers(scene: SetScene) -> None:
    """[MQTT-3.1.4-3]: however many fight for one client identifier, there is one, and the others are gone."""
    stage = await scene()
    broker = stage.broker

    async def fight(number: int) -> None:
        for turn in range(20):
            peer = await Peer.open("127.0.0.1", broker.ports[0], 5)
            await peer.send(
                wire.connect("same", clean=turn % 2 == 0, props=[(wire.SESSION_EXPIRY, 100)], will=wire.Will("w")),
                wire.subscribe(1, [("w", 1), ("#", 2)]),
            )
            if (number + turn) % 3:
                await peer.expect(wire.CONNACK)
            peer.abort()

    await asyncio.gather(*(fight(number) for number in range(10)))
    await until(lambda: not broker.connections)
    assert len(broker.router.sessions) == 1
    assert broker.router.peers.send_buffers == {}
    assert broker.router.table.count <= 2


async def test_stopping_under_full_load_with_frozen_clients() -> None:
    """The time is bounded by settings, and nothing is left behind."""
    before = asyncio.all_tasks()
    broker = Broker(Settings.model_validate({"listen": ("mqtt://127.0.0.1:0",), "shutdown": {"flush_timeout": 0.1}}))
    await broker.start()
    frozen = []
    for number in range(10):
        sock = socket.create_connection(("127.0.0.1", broker.ports[0]))
        sock.sendall(wire.connect(f"frozen{number}") + wire.subscribe(1, [("#", number % 3)]))
        sock.setblocking(False)
        frozen.append(sock)
    await until(lambda: broker.router.table.count == 10)
    publisher = await join(broker.ports[0], "publisher")

    async def publish() -> None:
        try:
            while True:
                await publisher.send(wire.publish("t", b"x" * 50_000) * 5)
        except (ConnectionError, TimeoutError):
            pass

    busy = asyncio.create_task(publish())
    await until(lambda: sum(broker.router.counters.dropped) > 0)
    await broker.stop()
    publisher.abort()
    await asyncio.wait([busy], timeout=wire.TIMEOUT)
    assert broker.connections == set()
    assert asyncio.all_tasks() - before <= {busy}
    for sock in frozen:
        sock.close()
