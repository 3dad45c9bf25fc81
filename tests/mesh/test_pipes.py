"""Pipes between two nodes: bytes in order, flow control both ways, and how a pipe ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.counters import Counters
from broker.mesh.bus import PIPES, ProtocolFault
from broker.mesh.pipes import HEAD, HIGH, OPEN, PIECE, YOURS, Pipes, PipeTransport
from broker.net import sockets
from broker.net.stream import Stream, peer_name
from tests.support.memory_bus import MemoryMesh

WINDOW: Final = 65_536


class Heard(asyncio.Protocol):
    """Writes down what it hears. `greedy`: it reads on; else until the first bytes."""

    def __init__(self, greedy: bool = True) -> None:
        self.transport: PipeTransport
        self.data = bytearray()
        self.events: list[str] = []
        self.error: Exception | None = None
        self.greedy = greedy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, PipeTransport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        self.data += data
        if not self.greedy:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self.events.append("full")

    def resume_writing(self) -> None:
        self.events.append("room")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.error = exc


class Ends:
    """Two nodes, and a pipe from a to b whose ends are `opened` and `accepted`."""

    def __init__(self, mesh: MemoryMesh, greedy: bool = True) -> None:
        self.mesh = mesh
        self.accepts = True
        self.accepted = Heard(greedy)
        self.opened = Heard()
        self.a = Pipes(mesh["a"], WINDOW, lambda _node, _transport: None)
        self.b = Pipes(mesh["b"], WINDOW, self._accept)

    def _accept(self, node: str, transport: PipeTransport) -> asyncio.Protocol | None:
        assert node == "a" == transport.node
        return self.accepted if self.accepts else None


@asynccontextmanager
async def ends(greedy: bool = True) -> AsyncIterator[Ends]:
    mesh = MemoryMesh("a", "b")
    made = Ends(mesh, greedy)
    async with mesh:
        await mesh.settle()
        made.a.open("b", lambda: made.opened)
        await mesh.settle()
        yield made


async def test_bytes_go_both_ways_once_and_in_order() -> None:
    async with ends() as pipe:
        pipe.opened.transport.write(b"ping ")
        pipe.opened.transport.writelines([b"and ", bytearray(b"more")])
        pipe.accepted.transport.write(memoryview(b"pong"))
        await pipe.mesh.settle()
        assert bytes(pipe.accepted.data) == b"ping and more"
        assert bytes(pipe.opened.data) == b"pong"
        assert pipe.opened.events == pipe.accepted.events == ["made"]


async def test_what_is_written_before_the_pipe_is_accepted_arrives() -> None:
    mesh = MemoryMesh("a", "b")
    pipe = Ends(mesh)
    async with mesh:
        await mesh.settle()
        transport = pipe.a.open("b", lambda: pipe.opened)
        assert pipe.opened.events == []
        transport.write(b"early")
        await mesh.settle()
        assert bytes(pipe.accepted.data) == b"early"


async def test_a_pipe_to_a_node_that_is_not_there_is_an_error() -> None:
    mesh = MemoryMesh("a", "b")
    pipe = Ends(mesh)
    async with mesh:
        with pytest.raises(ConnectionError, match="b is not there"):
            pipe.a.open("b", Heard)


async def test_a_reader_that_does_not_read_has_the_writer_keep_all_beyond_the_window() -> None:
    async with ends(greedy=False) as pipe:
        sent = random.Random(1).randbytes(4 * WINDOW)
        pipe.opened.transport.write(sent)
        await pipe.mesh.settle()
        assert pipe.opened.transport.get_write_buffer_size() == 3 * WINDOW
        assert pipe.opened.events == ["made", "full"]
        assert 0 < len(pipe.accepted.data) <= PIECE
        pipe.accepted.greedy = True
        pipe.accepted.transport.resume_reading()
        await pipe.mesh.settle()
        assert bytes(pipe.accepted.data) == sent
        assert pipe.opened.events == ["made", "full", "room"]
        assert pipe.opened.transport.get_write_buffer_size() == 0


async def test_a_reader_that_pauses_hears_nothing_until_it_resumes() -> None:
    async with ends() as pipe:
        pipe.accepted.transport.pause_reading()
        assert not pipe.accepted.transport.is_reading()
        pipe.opened.transport.write(b"later")
        await pipe.mesh.settle()
        assert not pipe.accepted.data
        pipe.accepted.transport.resume_reading()
        await pipe.mesh.settle()
        assert bytes(pipe.accepted.data) == b"later"


async def test_closing_gives_what_was_written_time_and_then_ends_both_ends() -> None:
    async with ends(greedy=False) as pipe:
        sent = bytes(3 * WINDOW)
        pipe.opened.transport.write(sent)
        pipe.opened.transport.close()
        pipe.opened.transport.write(b"too late")
        await pipe.mesh.settle()
        assert pipe.opened.transport.is_closing()
        assert "lost" not in pipe.opened.events + pipe.accepted.events
        pipe.accepted.greedy = True
        pipe.accepted.transport.resume_reading()
        await pipe.mesh.settle()
        assert bytes(pipe.accepted.data) == sent
        assert pipe.opened.events[-1] == pipe.accepted.events[-1] == "lost"
        assert pipe.opened.error is None
        assert pipe.accepted.error is None


async def test_what_came_before_the_close_is_read_first_also_by_a_reader_that_had_paused() -> None:
    async with ends() as pipe:
        pipe.accepted.transport.pause_reading()
        pipe.opened.transport.write(b"last words")
        pipe.opened.transport.close()
        await pipe.mesh.settle()
        assert pipe.accepted.events == ["made"]
        pipe.accepted.transport.resume_reading()
        await pipe.mesh.settle()
        assert bytes(pipe.accepted.data) == b"last words"
        assert pipe.accepted.events == ["made", "lost"]


async def test_an_aborted_pipe_loses_what_waits_and_says_so() -> None:
    async with ends(greedy=False) as pipe:
        pipe.opened.transport.write(bytes(3 * WINDOW))
        pipe.opened.transport.abort()
        await pipe.mesh.settle()
        assert pipe.opened.events[-1] == "lost"
        pipe.accepted.greedy = True
        pipe.accepted.transport.resume_reading()
        await pipe.mesh.settle()
        assert isinstance(pipe.accepted.error, ConnectionResetError)


async def test_after_close_nothing_is_read_any_more() -> None:
    async with ends(greedy=False) as pipe:
        pipe.opened.transport.write(b"x")
        await pipe.mesh.settle()
        pipe.opened.transport.write(bytes(WINDOW // 2))
        pipe.accepted.transport.close()
        pipe.accepted.transport.resume_reading()
        await pipe.mesh.settle()
        assert bytes(pipe.accepted.data) == b"x"
        assert pipe.opened.events[-1] == "lost"


async def test_a_node_that_leaves_ends_its_pipes() -> None:
    async with ends() as pipe:
        pipe.mesh.cut("a", "b")
        await pipe.mesh.settle()
        for end in (pipe.opened, pipe.accepted):
            assert end.events == ["made", "lost"]
            assert isinstance(end.error, ConnectionResetError)
        with pytest.raises(ConnectionError):
            pipe.a.open("b", Heard)
        pipe.mesh.join("a", "b")
        await pipe.mesh.settle()
        again = Heard()
        pipe.a.open("b", lambda: again).write(b"again")
        await pipe.mesh.settle()
        assert bytes(pipe.accepted.data) == b"again"


async def test_a_protocol_hears_of_its_pipe_even_when_the_node_leaves_at_once() -> None:
    mesh = MemoryMesh("a", "b")
    pipe = Ends(mesh)
    async with mesh:
        await mesh.settle()
        transport = pipe.a.open("b", lambda: pipe.opened)
        transport.abort()
        await mesh.settle()
        assert pipe.opened.events == ["made", "lost"]


async def test_a_refused_pipe_is_over() -> None:
    mesh = MemoryMesh("a", "b")
    pipe = Ends(mesh)
    pipe.accepts = False
    async with mesh:
        await mesh.settle()
        pipe.a.open("b", lambda: pipe.opened).write(b"for nobody")
        await mesh.settle()
        assert pipe.opened.events == ["made", "lost"]
        assert isinstance(pipe.opened.error, ConnectionResetError)


async def test_a_protocol_that_raises_loses_its_pipe_alone() -> None:
    class Broken(Heard):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError(data)

    mesh = MemoryMesh("a", "b")
    pipe = Ends(mesh)
    broken = pipe.accepted = Broken()
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["exception"]))
    async with mesh:
        await mesh.settle()
        pipe.a.open("b", lambda: pipe.opened).write(b"x")
        await mesh.settle()
        assert isinstance(broken.error, ZeroDivisionError)
        assert pipe.opened.events == ["made", "lost"]
        assert mesh["a"].nodes() == ["b"]
    assert [type(error) for error in told] == [ZeroDivisionError]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        HEAD.pack(OPEN, 1),
        HEAD.pack(OPEN, 1) + b"\0\0\0\1",  # a second time
        HEAD.pack(77, 1),
        HEAD.pack(2, 1) + b"\0",
        HEAD.pack(1, 1) + bytes(WINDOW + 1),
    ],
)
async def test_what_no_node_says_of_pipes_is_a_fault_of_the_node(message: bytes) -> None:
    async with ends(greedy=False) as pipe:
        pipe.mesh["a"].send("b", PIPES, message)
        await pipe.mesh.settle()
        assert isinstance(pipe.mesh.faults[0], ProtocolFault)
        assert pipe.accepted.events[-1] == "lost"


async def test_what_is_said_of_a_pipe_that_is_over_is_no_fault() -> None:
    async with ends() as pipe:
        pipe.opened.transport.abort()
        pipe.mesh["b"].send("a", PIPES, HEAD.pack(YOURS | 1, 1) + b"late")
        await pipe.mesh.settle()
        assert pipe.mesh.faults == []


async def test_it_serves_a_stream_as_a_socket_does() -> None:
    async with ends(greedy=False) as pipe:
        stream = Stream(asyncio.get_running_loop(), Counters())
        stream.begin(pipe.opened.transport)
        assert pipe.opened.transport.get_write_buffer_limits() == (HIGH // 4, HIGH)
        assert peer_name(pipe.opened.transport) == ("", "unknown")
        assert sockets.unsent(pipe.opened.transport) == 0
        assert not stream.peer_is_gone
        stream.keep_fresh()
        stream.pause_reading()
        stream.resume_reading()
        stream.write(b"x" * (WINDOW + sockets.FRESH_BYTES + 1))
        assert pipe.opened.events[-1] == "full"
        await pipe.mesh.settle()
        stream.filled()
        now = asyncio.get_running_loop().time()
        assert stream.stall_due(now, 10.0) == pytest.approx(now + 2.5, abs=0.1)
        assert stream.stall_due(now + 11.0, 10.0) == 0.0
        stream.finish(b"bye", half=True)
        assert pipe.opened.transport.is_closing()
        stream.linger_due(now + 100.0)
        await pipe.mesh.settle()
        assert pipe.opened.events[-1] == "lost"


@given(st.lists(st.tuples(st.sampled_from(["write", "back", "pause", "resume", "turn"]), st.integers(0, 200_000))))
def test_whatever_the_order_of_writing_and_reading_all_arrives(steps: list[tuple[str, int]]) -> None:
    """And never more is on the way than the window."""

    async def run() -> None:
        async with ends() as pipe:
            random_bytes = random.Random(len(steps)).randbytes
            there, back = bytearray(), bytearray()
            for step, size in steps:
                if step == "write":
                    there += (data := random_bytes(size))
                    pipe.opened.transport.write(data)
                elif step == "back":
                    back += (data := random_bytes(size))
                    pipe.accepted.transport.write(data)
                elif step == "pause":
                    pipe.accepted.transport.pause_reading()
                elif step == "resume":
                    pipe.accepted.transport.resume_reading()
                else:
                    await asyncio.sleep(0)
            pipe.accepted.transport.resume_reading()
            pipe.opened.transport.close()
            await pipe.mesh.settle()
            assert pipe.accepted.data == there
            assert back.startswith(pipe.opened.data)
            assert pipe.mesh.faults == []
            assert pipe.accepted.events[-1] == "lost"

    asyncio.run(run())
