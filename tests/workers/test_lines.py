"""Connections on their way to a worker: each to one process, none lost with a process, and bounds on what waits."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from canopy_mqtt.workers import wire
from canopy_mqtt.workers.lines import SMALL, UNAVAILABLE_V5, UNTAKEN, Line, Newcomer, Room
from canopy_mqtt.workers.wire import ANY, SHORTAGE, Arrival, Channel, Frames, encoded
from canopy_mqtt.workers.worker import Worker
from tests.support.waiting import until


def broke(place: str, error: Exception) -> None:
    """What no test expects."""
    raise AssertionError(place) from error


class Ends:
    """A worker's side, and the clients."""

    def __init__(self) -> None:
        self.clients: list[socket.socket] = []
        self.got: list[bytes] = []
        self.takes = True
        self._channels: list[Channel] = []

    def newcomer(self, data: bytes = b"", version: int = 5, until: float = 1e9, address: str = "") -> Newcomer:
        """`address`: empty for none."""
        client, accepted = socket.socketpair()
        client.setblocking(False)
        accepted.setblocking(False)
        self.clients.append(client)
        return Newcomer(Arrival(0, 0, version, False, None, data, until=until), accepted, address)

    async def answer(self, number: int) -> bytes:
        """All that a client gets."""
        found = b""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(5):
            while piece := await loop.sock_recv(self.clients[number], 99):
                found += piece
        return found

    def begin(self, line: Line) -> None:
        """Begin a conversation with a worker, to which the line passes connections."""
        mine, its = socket.socketpair()

        def received(sock: socket.socket, what: str, found: Arrival) -> None:
            assert what == "connection"
            if self.takes:
                other.send("taken")
                self.got.append(found.data)
                sock.setblocking(False)
                sock.send(b"served")
            sock.close()

        other = Channel(its, received, lambda: None, broke)
        self._channels = [Channel(mine, lambda *_: line.taken(), lambda: None, broke), other]
        line.begin(self._channels[0])

    def end(self) -> None:
        """End the conversation."""
        for channel in self._channels:
            channel.close()

    async def served(self, line: Line) -> list[bytes]:
        """What the worker has when nothing waits for it any more."""
        await until(lambda: not len(line))
        return self.got


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.end()
    for client in made.clients:
        client.close()


async def test_what_waits_for_a_worker_comes_in_order_once_it_is_there(ends: Ends) -> None:
    line = Line(Room(0), 1_000)
    for number in range(3 * UNTAKEN):
        line.add(ends.newcomer(b"%d" % number))
    ends.begin(line)
    assert await ends.served(line) == [b"%d" % number for number in range(3 * UNTAKEN)]
    assert {await ends.answer(number) for number in range(3 * UNTAKEN)} == {b"served"}


async def test_what_a_worker_had_not_taken_goes_to_the_next(ends: Ends) -> None:
    line = Line(Room(0), 1_000)
    ends.takes = False
    ends.begin(line)
    for number in range(2 * UNTAKEN):
        line.add(ends.newcomer(b"%d" % number))
    ends.end()
    line.end()
    line.add(ends.newcomer(b"last"))
    ends.takes = True
    ends.begin(line)
    assert await ends.served(line) == [*(b"%d" % number for number in range(2 * UNTAKEN)), b"last"]


@pytest.mark.parametrize(
    ("version", "answer"), [(5, b"\x20\x03\x00\x88\x00"), (4, b"\x20\x02\x00\x03"), (3, b"\x20\x02\x00\x03"), (0, b"")]
)
async def test_what_does_not_fit_is_told(ends: Ends, version: int, answer: bytes) -> None:
    line = Line(Room(0), 1)
    line.add(ends.newcomer())
    line.add(ends.newcomer(version=version))
    assert await ends.answer(1) == answer
    line.close()
    assert await ends.answer(0) == UNAVAILABLE_V5


async def test_their_bytes_are_bounded_but_one_always_fits(ends: Ends) -> None:
    line = Line(Room(0), 10, SMALL)
    large = bytes(SMALL + 1)
    for data in (large, large, bytes(SMALL)):
        line.add(ends.newcomer(data))
    assert await ends.answer(1) == UNAVAILABLE_V5
    assert len(line) == 2
    line.close()
    assert await ends.answer(0) == UNAVAILABLE_V5


async def test_one_address_keeps_out_no_other(ends: Ends) -> None:
    """The oldest of the address that has most makes place, as long as that has more than the new one's."""
    line = Line(Room(2), 2)
    for _ in range(4):
        line.add(ends.newcomer(address="stranger"))
    for address in ("a", "b", "b", "b"):
        line.add(ends.newcomer(address=address))
    line.add(ends.newcomer(address="stranger"))
    # The stranger's first two made place; when nobody has two more than the new one, that is refused.
    refused = [0, 1, 6, 7, 8]
    for number in refused:
        assert await ends.answer(number) == UNAVAILABLE_V5
    assert len(line) == 4
    ends.begin(line)
    await ends.served(line)
    assert {await ends.answer(number) for number in (2, 3, 4, 5)} == {b"served"}


async def test_large_ones_of_one_address_keep_out_no_other(ends: Ends) -> None:
    line = Line(Room(0), 10, 3 * SMALL)
    large = bytes(SMALL + 1)
    for address in ("stranger", "stranger", "a"):
        line.add(ends.newcomer(large, address=address))
    assert await ends.answer(0) == UNAVAILABLE_V5
    line.add(ends.newcomer(large, address="b"))
    assert await ends.answer(3) == UNAVAILABLE_V5
    assert len(line) == 2
    line.close()


CONNECT_ALONE = b"\x10\x03abc"


@pytest.mark.parametrize(
    ("data", "left"),
    [(CONNECT_ALONE, True), (CONNECT_ALONE + b"\xc0\0", False), (b"PROXY", False), (b"", False), (b"\x10\x83", False)],
)
async def test_who_has_left_after_a_connect_is_not_served(ends: Ends, data: bytes, left: bool) -> None:
    line = Line(Room(0), 10)
    for each in (data, b"stays"):
        line.add(ends.newcomer(each))
    ends.clients[0].shutdown(socket.SHUT_WR)
    ends.begin(line)
    assert await ends.served(line) == ([b"stays"] if left else [data, b"stays"])


async def test_bytes_that_are_on_their_way_keep_none_out(ends: Ends) -> None:
    """The worker is there; those that it did not take are not refused when it ends, either."""
    line = Line(Room(0), 10, 2 * SMALL)
    ends.takes = False
    ends.begin(line)
    packets = [bytes([number]) * (SMALL + 1) for number in range(3)]
    for data in packets:
        line.add(ends.newcomer(data))
    ends.end()
    line.end()
    ends.takes = True
    ends.begin(line)
    assert await ends.served(line) == packets


async def test_who_waits_for_one_worker_keeps_out_no_client_of_another(ends: Ends) -> None:
    room = Room(3)
    away, other = Line(room, 2), Line(room, 2)
    for _ in range(6):
        away.add(ends.newcomer())
    assert await ends.answer(5) == UNAVAILABLE_V5
    for _ in range(3):
        other.add(ends.newcomer())
    assert await ends.answer(8) == UNAVAILABLE_V5
    assert (len(away), len(other)) == (5, 2)
    away.close()
    other.close()
    assert room.left == 3


async def test_those_that_any_worker_can_have_do_not_wait_for_one_that_is_gone(ends: Ends) -> None:
    line = Line(Room(0), 10)
    ends.takes = False
    ends.begin(line)
    newcomers = [ends.newcomer(b"%d" % number) for number in range(4)]
    newcomers = [each._replace(arrival=each.arrival._replace(worker=ANY)) for each in newcomers[:2]] + newcomers[2:]
    for each in newcomers:
        line.add(each)
    ends.end()
    assert line.end() == newcomers[:2]
    assert len(line) == 2
    line.close()
    for each in newcomers[:2]:
        each.sock.close()


@pytest.mark.parametrize("number", sorted(SHORTAGE))
async def test_a_shortage_of_the_system_passes(ends: Ends, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """ETOOMANYREFS: another program of this user has too many descriptors on their way."""
    send, failures = socket.send_fds, iter([OSError(number, "short")] * 3)

    def send_fds(*arguments: Any) -> int:
        for error in failures:
            raise error
        return send(*arguments)

    monkeypatch.setattr(socket, "send_fds", send_fds)
    monkeypatch.setattr(wire, "PAUSE", 0.001)
    line = Line(Room(0), 100)
    ends.begin(line)
    for number in range(5):
        line.add(ends.newcomer(b"%d" % number))
    assert [await ends.answer(number) for number in range(5)] == [b"served"] * 5
    assert ends.got == [b"%d" % number for number in range(5)]


async def test_another_error_ends_the_conversation_when_all_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out would make the other side misread the rest, and nobody would find out."""
    mine, its = socket.socketpair()
    got: list[tuple[Any, ...]] = []
    lost = asyncio.Event()
    channel, other = (
        Channel(mine, lambda *said: got.append(said), lost.set, broke),
        Channel(its, print, lambda: None, broke),
    )
    other.send("failed", "why")

    def send_fds(*_: Any) -> int:
        raise OSError(errno.EINVAL, "invalid")

    monkeypatch.setattr(socket, "send_fds", send_fds)
    channel.send("ping")
    async with asyncio.timeout(10):
        await lost.wait()
    assert got == [(None, "failed", "why")]
    assert not channel.open
    other.close()


async def test_what_fails_in_one_frame_costs_no_other_one() -> None:
    mine, its = socket.socketpair()
    got: list[str] = []
    faults: list[str] = []

    def received(_: None, what: str) -> None:
        got.append(what)

    def note(place: str, error: Exception) -> None:
        faults.append(f"{place}: {type(error).__name__}")

    channel, other = Channel(mine, received, lambda: None, note), Channel(its, print, lambda: None, note)
    other.send("one", "too many")
    other.send("next", then=lambda: [][0])
    other.send("last")
    await until(lambda: got == ["next", "last"])
    assert faults == ["workers: IndexError", "workers: TypeError"]
    channel.close()
    other.close()


async def test_what_fails_of_a_workers_tasks_is_counted() -> None:
    worker = Worker.__new__(Worker)
    failed: asyncio.Future[tuple[str, Exception]] = asyncio.get_running_loop().create_future()
    worker._broker = cast(Any, SimpleNamespace(faults=SimpleNamespace(broke=lambda *what: failed.set_result(what))))
    worker._works = set()

    async def fails() -> None:
        raise RuntimeError

    worker._begin(fails())
    place, error = await failed
    assert (place, type(error)) == ("workers", RuntimeError)


async def test_a_worker_touches_nothing_before_it_has_said_so() -> None:
    """The supervisor would give the connection to the next process, too."""
    mine, its = socket.socketpair()
    got: list[str] = []
    supervisor, worker = (
        Channel(mine, lambda _, what: got.append(what), lambda: None, broke),
        Channel(its, print, lambda: None, broke),
    )
    asyncio.get_running_loop().remove_reader(mine.fileno())
    order: list[str] = []
    worker.send(bytes(1 << 22), then=lambda: order.append("much"))
    worker.send("taken", then=lambda: order.append("taken"))
    assert order == []
    asyncio.get_running_loop().add_reader(mine.fileno(), supervisor._read)
    await until(lambda: len(got) == 2)
    assert order == ["much", "taken"]
    supervisor.close()
    worker.close()


async def test_a_worker_begins_with_a_connection_once_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker.__new__(Worker)
    left: list[Callable[[], object]] = []
    begun: list[Coroutine[Any, Any, None]] = []
    worker._channel = cast(Any, SimpleNamespace(send=lambda _, then: left.append(then)))
    worker._counted = cast(Any, SimpleNamespace(arrive=lambda _: None))
    monkeypatch.setattr(worker, "_begin", begun.append)
    with socket.socket() as sock:
        worker._received(sock, "connection", Arrival(0, 0, 5, False, None, b""))
        assert begun == []
        left[0]()
        (work,) = begun
        work.close()


async def test_none_waits_beyond_its_time(ends: Ends) -> None:
    line = Line(Room(0), 10)
    now = asyncio.get_running_loop().time()
    # In whichever order they came.
    line.add(ends.newcomer(until=now + 1_000))
    line.add(ends.newcomer(until=now + 0.02))
    line.add(ends.newcomer(until=now + 0.01))
    await until(lambda: len(line) == 1)
    for number in (1, 2):
        assert await ends.answer(number) == UNAVAILABLE_V5
    line.close()


def test_a_descriptor_that_could_not_be_taken_is_missing_at_its_own_connection_alone() -> None:
    frames = Frames()
    first, second = (encoded("connection", number, descriptor=True) for number in range(2))
    assert frames.feed(first[:3], [], lost=True) == []
    with socket.socket() as sock:
        found = frames.feed(first[3:], []) + frames.feed(second, [sock.detach()])
    assert [each.said() for each in found] == [("connection", 0), ("connection", 1)]
    assert found[0].sock is None
    assert found[1].sock is not None
    found[1].sock.close()
