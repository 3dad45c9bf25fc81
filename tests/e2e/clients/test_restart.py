"""The life of an embedded broker: made outside a loop, started, stopped under clients, started again, two at once.

A stop leaves nothing behind: no task, no socket, no warning (which pytest turns into an error).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from tests.e2e import wire
from tests.e2e.clients.conftest import LOOPS, LoopFactory
from tests.e2e.wire import Peer, Will

KEPT = 3600
SHUTTING_DOWN = 0x8B


def settings(port: int = 0, **sections: Any) -> Settings:
    """Settings for 127.0.0.1."""
    return Settings(listen=(f"mqtt://127.0.0.1:{port}",), **sections)


async def join(broker: Broker, client_id: str, *filters: tuple[str, int], **options: Any) -> Peer:
    """A connected client."""
    return await Peer.join(broker.ports[0], client_id, *filters, **options)


def open_sockets() -> int:
    """Sockets that this process has open, whoever opened them. 0 where the system does not tell."""
    found = 0
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """Each test ends with the tasks and sockets that it began with."""
    gc.collect()
    tasks = asyncio.all_tasks()
    sockets = open_sockets()
    yield
    gc.collect()
    # A transport that was closed or aborted closes its socket in the next turn of the loop.
    for _ in range(10):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() - tasks - {asyncio.current_task()} == set()
    assert open_sockets() <= sockets


async def test_a_stop_publishes_wills() -> None:
    """The broker's end is none of the client's making [MQTT-3.1.2-8]: a retained Will is there for the next."""
    broker = Broker(settings())
    await broker.start()
    watcher = await join(broker, "watcher", ("wills", 1))
    mortal = await join(broker, "mortal", will=Will("wills", b"stopped", qos=1, retain=True))
    stopping = asyncio.create_task(broker.stop())
    await mortal.closed()
    mortal.abort()
    await watcher.closed()
    watcher.abort()
    await stopping
    will = broker.router.retained.get("wills")
    assert will is not None


async def test_a_stop_flushes_queues() -> None:
    """The broker writes the accepted messages of a client that reads before the goodbye."""
    broker = Broker(settings(queue={"write_batch_bytes": 4096}))
    await broker.start()
    reader = await join(broker, "reader", ("load", 0))
    publisher = await join(broker, "publisher")
    count = 500
    await publisher.send(*(wire.publish("load", b"%d " % number + bytes(2000)) for number in range(count)))
    # The last of them is routed before the stop begins; the reader has read nothing yet.
    await publisher.fence()
    stopping = asyncio.create_task(broker.stop())
    found = await reader.closed()
    assert [int(packet.payload.split(b" ", 1)[0]) for packet in found[:-1]] == list(range(count))
    assert (found[-1].kind, found[-1].code) == (wire.DISCONNECT, SHUTTING_DOWN)
    reader.abort()
    await publisher.closed()
    publisher.abort()
    await stopping


async def test_nobody_is_accepted_while_stopping() -> None:
    broker = Broker(settings())
    await broker.start()
    port = broker.ports[0]
    await broker.stop()
    assert broker.ports == []
    assert broker.listening == []
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_the_same_port_at_once() -> None:
    """Connections in TIME_WAIT do not keep the port: a restart needs no pause."""
    port = 0
    for turn in range(3):
        broker = Broker(settings(port))
        await broker.start()
        port = broker.ports[0]
        client = await join(broker, "client", ("echo", 1))
        await client.publish("echo", b"%d" % turn, qos=1)
        assert (await client.message()).payload == b"%d" % turn
        stopping = asyncio.create_task(broker.stop())
        # The broker closes first, so that the waiting socket is on its side.
        await client.closed()
        client.abort()
        await stopping


async def test_the_same_broker_again() -> None:
    """A broker that is started again goes on with the sessions and retained messages it had."""
    broker = Broker(settings())
    await broker.start()
    keeper = await join(broker, "keeper", ("kept", 1), props=[(wire.SESSION_EXPIRY, KEPT)])
    await keeper.disconnect()
    publisher = await join(broker, "publisher")
    await publisher.publish("kept", b"while away", qos=1, retain=True)
    await publisher.disconnect()
    await broker.stop()
    await broker.start()
    back = await join(broker, "keeper", clean=False, props=[(wire.SESSION_EXPIRY, KEPT)])
    assert back.connack.session_present
    assert (await back.message()).payload == b"while away"
    late = await join(broker, "late", ("kept", 1))
    assert (await late.message()).retain
    for peer in (back, late):
        await peer.disconnect()
    await broker.stop()


async def test_stopping_twice_and_before_a_start() -> None:
    broker = Broker(settings())
    await broker.stop()
    await broker.start()
    await broker.stop()
    await broker.stop()


async def test_two_stops_at_once() -> None:
    """The second does not return to a broker that still stops, nor does it disturb the first."""
    broker = Broker(settings())
    await broker.start()
    client = await join(broker, "client")
    first, second = (asyncio.create_task(broker.stop()) for _ in range(2))
    # The client has not closed its side yet, so the broker cannot have stopped.
    assert [packet.code for packet in await client.closed()] == [SHUTTING_DOWN]
    client.abort()
    await second
    assert broker.connections == set()
    await first


async def test_two_brokers_in_one_loop() -> None:
    """Nothing is shared: the same names mean different things."""
    async with Broker(settings()) as one, Broker(settings()) as two:
        assert one.ports != two.ports
        first = await join(one, "client", ("topic", 1))
        second = await join(two, "client", ("topic", 1))
        await first.publish("topic", b"one", qos=1, retain=True)
        await second.publish("topic", b"two", qos=1)
        assert (await first.message()).payload == b"one"
        assert (await second.message()).payload == b"two"
        assert await first.fence() == await second.fence() == []
        assert (len(one.router.retained.walk("topic").take(9)), len(two.router.retained.walk("topic").take(9))) == (
            1,
            0,
        )
        for peer in (first, second):
            await peer.disconnect()


async def test_an_error_in_the_embedding_program_stops_the_broker() -> None:
    ports: list[int] = []

    async def embed() -> None:
        async with Broker(settings()) as broker:
            ports.extend(broker.ports)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await embed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", ports[0])


class TestWithoutALoop:
    """These make their own event loops, one after the other."""

    @pytest.fixture(autouse=True)
    def nothing_left(self) -> None:
        """The loops are closed with all they had; the fixture of the others needs a running one."""

    @pytest.mark.parametrize("factory", LOOPS.values(), ids=LOOPS)
    def test_made_outside_a_loop(self, factory: LoopFactory) -> None:
        """One object, made before any loop runs, serves in one loop and then in another."""
        broker = Broker(settings())

        async def serve(turn: int) -> None:
            async with broker:
                client = await join(broker, "client", ("topic", 1))
                await client.publish("topic", b"%d" % turn, qos=1)
                assert (await client.message()).payload == b"%d" % turn
                await client.disconnect()
            assert asyncio.all_tasks() == {asyncio.current_task()}

        for turn in range(2):
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(serve(turn))

    @pytest.mark.parametrize("factory", LOOPS.values(), ids=LOOPS)
    def test_in_debug_mode_the_loop_complains_of_nothing(
        self, factory: LoopFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        """asyncio's debug mode tells of coroutines never awaited, calls from a wrong thread, sockets left open."""

        async def serve() -> None:
            broker = Broker(settings())
            await broker.start()
            client = await join(broker, "client", ("topic", 2))
            await client.publish("topic", b"", qos=2)
            await client.message()
            stopping = asyncio.create_task(broker.stop())
            await client.closed()
            client.abort()
            await stopping

        with asyncio.Runner(debug=True, loop_factory=factory) as runner:
            runner.run(serve())
        # How long something took depends on the machine.
        found = [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "WARNING")]
        assert [message for message in found if " took " not in message] == []
