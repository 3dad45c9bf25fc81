"""What supervisor and worker say to each other: whole objects in order, each with its sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from broker.workers.wire import MOST_SOCKETS, Channel, Message, frame, receive

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    mine, its = socket.socketpair()
    with mine, its:
        yield mine, its


class Listener:
    """Notes what a channel is told."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sockets: list[list[socket.socket]] = []
        self.came = asyncio.Event()
        self.gone = asyncio.Event()

    def received(self, message: Message, sockets: list[socket.socket]) -> None:
        self.messages.append(message)
        self.sockets.append(sockets)
        self.came.set()

    async def wait(self, messages: int) -> None:
        async with asyncio.timeout(10.0):
            while len(self.messages) < messages:
                self.came.clear()
                await self.came.wait()


async def test_messages_come_whole_and_in_order_whatever_their_size(pair: Pair) -> None:
    told = Listener()
    sender = Channel(pair[0], lambda *_: None, lambda: None)
    receiver = Channel(pair[1], told.received, told.gone.set)
    large = "x" * 3_000_000
    for number in range(3):
        sender.send({"number": number, "text": large})
    await told.wait(3)
    assert [(each["number"], each["text"] == large) for each in told.messages] == [(0, True), (1, True), (2, True)]
    sender.close()
    async with asyncio.timeout(10.0):
        await told.gone.wait()
    receiver.close()


async def test_sockets_come_with_the_message_that_they_belong_to(pair: Pair) -> None:
    """More of them than one call of the system carries, beside messages without any."""
    told = Listener()
    sender = Channel(pair[0], lambda *_: None, lambda: None)
    receiver = Channel(pair[1], told.received, told.gone.set)
    left, right = socket.socketpair()
    many = MOST_SOCKETS + 1
    with left, right:
        sender.send({"before": True})
        sender.send({"with": True}, [left] * many)
        sender.send({"after": True}, [right])
        await told.wait(3)
    assert [len(each) for each in told.sockets] == [0, many, 1]
    (end,) = told.sockets[2]
    for each in told.sockets[1]:
        each.sendall(b"x")
        each.close()
    with closing(end):
        assert end.recv(many, socket.MSG_WAITALL) == b"x" * many
    sender.close()
    receiver.close()


def test_the_first_message_is_read_and_no_byte_more(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        first = frame({"name": "w0"}, 1)
        socket.send_fds(pair[0], [first + frame({"do": "ping"})], [listening.fileno()])
        message, (handed,) = receive(pair[1])
        with handed:
            assert message["name"] == "w0"
            assert handed.getsockname() == listening.getsockname()
    assert pair[1].recv(65_536) == frame({"do": "ping"})


def test_a_conversation_that_never_began(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(EOFError):
        receive(pair[1])


async def test_sockets_of_a_message_that_never_became_whole_are_closed(pair: Pair) -> None:
    gone = asyncio.Event()
    receiver = Channel(pair[1], lambda *_: None, gone.set)
    inner, outer = socket.socketpair()
    with outer:
        with inner:
            socket.send_fds(pair[0], [frame({"with": True}, 1)[:-1]], [inner.fileno()])
        pair[0].close()
        async with asyncio.timeout(10.0):
            await gone.wait()
        receiver.close()
        # The last one that had it was the channel.
        assert os.read(outer.fileno(), 1) == b""
