"""The connection over a transport that the test holds: who writes, when, and what a failing write costs others."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from broker import Broker, Settings
from broker.core.channel import Channel
from broker.core.outbox import Outbox
from broker.core.session import Session
from broker.net.connection import Connection
from tests.e2e import wire


class Transport:
    """Takes what is written and does nothing by itself."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.failing = False
        self.aborted = False
        self.connection: Connection | None = None  # to be told that one write is enough

    def write(self, data: bytes) -> None:
        if self.failing:
            raise RuntimeError("no more")
        self.written.append(data)
        if self.connection is not None:
            self.connection.pause_writing()

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 4711) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.aborted = True


class Client:
    """A connection of the broker's, with its transport."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.transport = Transport()
        self.connection = Connection(broker)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        self.connection.data_received(wire.connect(name))

    def take(self) -> bytes:
        """What was written since the last call."""
        data = b"".join(self.transport.written)
        self.transport.written.clear()
        return data


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(Settings(listen=["mqtt://127.0.0.1:0"])) as running:
        yield running
        for connection in list(running.connections):
            connection.connection_lost(None)


async def rounds(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def subscriber(broker: Broker, name: str) -> Client:
    client = Client(broker, name)
    client.connection.data_received(wire.subscribe(1, [("t", 0)]))
    await rounds()
    client.take()
    return client


async def test_a_single_frame_is_written_at_once(broker: Broker) -> None:
    """Where one message comes at a time, nothing is scheduled for it."""
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    frame = wire.publish("t", b"x")
    source.connection.data_received(frame)
    assert there.take() == frame
    assert there.connection.outbox.empty


async def test_more_than_one_is_the_writers(broker: Broker) -> None:
    """It joins what waits to one write, in the next round."""
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    frames = [wire.publish("t", b"%d" % number) for number in range(5)]
    source.connection.data_received(b"".join(frames))
    assert there.take() == b""
    await rounds(1)
    assert there.transport.written == [b"".join(frames)]


async def test_none_overtakes_what_the_writer_has_yet_to_take(broker: Broker) -> None:
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    frames = [wire.publish("t", b"%d" % number) for number in range(6)]
    source.connection.data_received(frames[0])
    source.connection.data_received(frames[1] + frames[2])
    source.connection.data_received(frames[3])
    await rounds(1)
    source.connection.data_received(frames[4])
    source.connection.data_received(frames[5])
    await rounds()
    assert there.take() == b"".join(frames)


async def test_a_full_transport_is_waited_for(broker: Broker) -> None:
    """Not a byte goes to a transport that has said stop, and all of it when it has room."""
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    there.connection.pause_writing()
    frames = [wire.publish("t", b"%d" % number) for number in range(3)]
    source.connection.data_received(frames[0])
    await rounds()
    first = there.take()
    source.connection.data_received(frames[1])
    source.connection.data_received(frames[2])
    await rounds()
    # The task had a batch in hand when it found the transport full; no other follows.
    assert first == frames[0]
    assert there.take() == b""
    there.connection.resume_writing()
    await rounds()
    assert there.take() == frames[1] + frames[2]


async def test_a_write_that_fills_the_transport_is_the_last(broker: Broker) -> None:
    """Also where it was no writer's: the transport's own buffer has no bound but this."""
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    there.transport.connection = there.connection
    frames = [wire.publish("t", b"%d" % number) for number in range(5)]
    for frame in frames:
        source.connection.data_received(frame)
        await rounds()
    assert there.take() == frames[0]
    there.transport.connection = None
    there.connection.resume_writing()
    await rounds()
    assert there.take() == b"".join(frames[1:])


async def test_a_write_that_fails_ends_its_own_connection_alone(broker: Broker) -> None:
    there, source = await subscriber(broker, "there"), await subscriber(broker, "source")
    other = await subscriber(broker, "other")
    there.transport.failing = True
    frame = wire.publish("t", b"x")
    source.connection.data_received(frame)
    await rounds()
    assert there.transport.aborted
    assert not source.transport.aborted
    assert other.take() == frame
    assert "there" not in {session.client_id for session in broker.router.fanout.peers}


def parts() -> list[object]:
    """What connections are made of, of all there are in this process."""
    return [thing for thing in gc.get_objects() if isinstance(thing, Connection | Channel | Outbox | Session)]


@pytest.mark.parametrize(
    "ending", [b"", b"\xe0\x00", b"\xff\xff\xff\xff\xff"], ids=["lost", "left", "broke the protocol"]
)
async def test_what_is_left_of_a_connection_goes_at_once(broker: Broker, ending: bytes) -> None:
    """No cycle keeps it until the garbage collector comes, which the daemon has come seldom."""
    gc.collect()
    # Other tests of this process may have left some.
    before = {id(thing): thing for thing in parts()}
    gc.disable()
    try:
        client = await subscriber(broker, "there")
        client.connection.data_received(ending)
        await rounds()
        client.connection.connection_lost(None)
        del client
        await rounds()
        assert not [thing for thing in parts() if id(thing) not in before]
    finally:
        gc.enable()
