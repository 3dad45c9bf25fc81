"""Connections on their way to a worker: each to one process, none lost with a process, and bounds on what waits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from canopy_mqtt.workers import lines
from canopy_mqtt.workers.lines import UNAVAILABLE_V5, UNTAKEN, Line, Newcomer, Room
from canopy_mqtt.workers.wire import CONNECTION, TAKEN, Arrival, Channel, Frame, Frames, arrival, encoded
from tests.support.waiting import until


class Ends:
    """A worker's side, and the clients."""

    def __init__(self) -> None:
        self.clients: list[socket.socket] = []
        self.got: list[bytes] = []
        self.takes = True
        self.other: Channel

    def newcomer(self, data: bytes = b"", version: int = 5, until: float = 1e9) -> Newcomer:
        client, accepted = socket.socketpair()
        client.setblocking(False)
        accepted.setblocking(False)
        self.clients.append(client)
        return Newcomer(Arrival(0, 0, version, False, b"", data), accepted, until)

    async def answer(self, number: int) -> bytes:
        """All that a client gets."""
        found = b""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(5):
            while piece := await loop.sock_recv(self.clients[number], 99):
                found += piece
        return found

    def channel(self, line: Line) -> Channel:
        """Begin a conversation with a worker, and return the supervisor's side."""
        mine, its = socket.socketpair()

        def received(frame: Frame) -> None:
            assert frame.kind == CONNECTION
            assert frame.sock is not None
            if self.takes:
                self.other.send(Frame(TAKEN, b""))
                self.got.append(arrival(frame.body).data)
                frame.sock.setblocking(False)
                frame.sock.send(b"served")
            frame.sock.close()

        self.other = Channel(its, received, lambda: None)
        return Channel(mine, lambda _: line.taken(), lambda: None)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    for client in made.clients:
        client.close()


async def test_what_waits_for_a_worker_comes_in_order_once_it_is_there(ends: Ends) -> None:
    room = Room(1_000)
    line = Line(room)
    for number in range(3 * UNTAKEN):
        line.add(ends.newcomer(b"%d" % number))
    channel = ends.channel(line)
    line.begin(channel)
    await until(lambda: room.count == 0)
    assert ends.got == [b"%d" % number for number in range(3 * UNTAKEN)]
    assert {await ends.answer(number) for number in range(3 * UNTAKEN)} == {b"served"}
    channel.close()
    ends.other.close()


async def test_what_a_worker_had_not_taken_goes_to_the_next(ends: Ends) -> None:
    room = Room(1_000)
    line = Line(room)
    ends.takes = False
    first = ends.channel(line)
    line.begin(first)
    for number in range(2 * UNTAKEN):
        line.add(ends.newcomer(b"%d" % number))
    ends.other.close()
    first.close()
    line.end()
    line.add(ends.newcomer(b"last"))
    ends.takes = True
    second = ends.channel(line)
    line.begin(second)
    await until(lambda: room.count == 0)
    assert ends.got == [*(b"%d" % number for number in range(2 * UNTAKEN)), b"last"]
    second.close()
    ends.other.close()


@pytest.mark.parametrize(
    ("version", "answer"), [(5, b"\x20\x03\x00\x88\x00"), (4, b"\x20\x02\x00\x03"), (3, b"\x20\x02\x00\x03"), (0, b"")]
)
async def test_what_does_not_fit_is_told(ends: Ends, version: int, answer: bytes) -> None:
    room = Room(1)
    line = Line(room)
    line.add(ends.newcomer())
    line.add(ends.newcomer(version=version))
    assert await ends.answer(1) == answer
    assert room.refused == 1
    line.close()
    assert await ends.answer(0) == UNAVAILABLE_V5


async def test_their_bytes_are_bounded_but_one_always_fits(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_BYTES", 10)
    room = Room(10)
    line = Line(room)
    line.add(ends.newcomer(b"x" * 20))
    assert (room.count, room.refused) == (1, 0)
    line.add(ends.newcomer(b"x"))
    assert (room.count, room.refused) == (1, 1)
    line.close()
    assert (room.count, room.bytes) == (0, 0)


async def test_none_waits_beyond_its_time(ends: Ends) -> None:
    room = Room(10)
    line = Line(room)
    now = asyncio.get_running_loop().time()
    line.add(ends.newcomer(until=now + 0.01))
    line.add(ends.newcomer(until=now + 1_000))
    await until(lambda: room.count == 1)
    assert await ends.answer(0) == UNAVAILABLE_V5
    line.close()


def test_a_descriptor_that_could_not_be_taken_is_missing_at_its_own_connection_alone() -> None:
    frames = Frames()
    first, second = (encoded(Arrival(number, 0, 5, False, b"", b"x").frame(None)) for number in range(2))  # type: ignore[arg-type]
    assert frames.feed(first[:3], [], lost=True) == []
    with socket.socket() as sock:
        found = frames.feed(first[3:], []) + frames.feed(second, [sock.detach()])
    assert [arrival(each.body).listener for each in found] == [0, 1]
    assert found[0].sock is None
    assert found[1].sock is not None
    found[1].sock.close()
