"""Streams between nodes of one machine: through sockets, and through the bus where there is none."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from broker.mesh.pipes import Pipes
from broker.mesh.streams import LONGEST_NAME, Streams
from tests.mesh.zenoh.nodes import Lines
from tests.support.waiting import until


class End(asyncio.Protocol):
    """One end of a stream."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.data = b""
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.lost = True


class FakePipes:
    """Says which nodes a pipe was opened to."""

    def __init__(self) -> None:
        self.nodes: list[str] = []

    def open(self, node: str, protocol_factory: Callable[[], Any]) -> None:
        del protocol_factory
        self.nodes.append(node)


class Node:
    """The streams of one node, and the ends of those that others have opened to it."""

    def __init__(self, name: str, folder: Path, refuses: bool = False) -> None:
        self.pipes = FakePipes()
        self.ends: list[tuple[str, End]] = []
        self.log = Lines()
        self._refuses = refuses
        loop = asyncio.get_running_loop()
        path = None if folder.name == "none" else folder
        self.streams = Streams(
            cast(Pipes, self.pipes), name, self._accept, lambda node: path and path / f"{node}.link", loop, self.log
        )

    def _accept(self, node: str, transport: asyncio.Transport) -> End | None:
        del transport
        if self._refuses:
            return None
        self.ends.append((node, End()))
        return self.ends[-1][1]

    def open(self, node: str) -> End:
        end = End()
        self.streams.open(node, lambda: end)
        return end


Make = Callable[..., Any]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def begin(name: str, folder: Path = tmp_path, **options: Any) -> Node:
            node = Node(name, folder, **options)
            await node.streams.listen()
            stack.push_async_callback(node.streams.stop)
            return node

        yield begin


async def test_bytes_go_both_ways_through_a_socket(make: Make) -> None:
    one, two = await make("one"), await make("two")
    one.streams.joined("two")
    two.streams.joined("one")
    mine = one.open("two")
    await until(lambda: mine.transport is not None)
    mine.transport.write(b"there")
    await until(lambda: two.ends and two.ends[0][1].data == b"there")
    name, theirs = two.ends[0]
    assert name == "one"
    theirs.transport.write(b"and back")
    await until(lambda: mine.data == b"and back")
    assert not one.pipes.nodes


async def test_a_stream_waits_until_its_node_is_there(make: Make) -> None:
    one, two = await make("one"), await make("two")
    one.streams.joined("two")
    mine = one.open("two")
    await until(lambda: mine.transport is not None)
    mine.transport.write(b"early")
    await until(lambda: "one" in two.streams._early)
    assert not two.ends
    two.streams.joined("one")
    await until(lambda: two.ends and two.ends[0][1].data == b"early")


async def test_what_a_node_has_sent_is_read_after_it_left_and_then_its_streams_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.mesh.streams.DRAIN", 0.1)
    one, two = await make("one"), await make("two")
    one.streams.joined("two")
    two.streams.joined("one")
    mine = one.open("two")
    await until(lambda: two.ends)
    theirs = two.ends[0][1]
    mine.transport.write(b"last")
    two.streams.left("one")
    await until(lambda: theirs.lost)
    assert theirs.data == b"last"
    await until(lambda: mine.lost)
    one.streams.left("two")


async def test_streams_to_a_node_that_left_end(make: Make) -> None:
    one, two = await make("one"), await make("two")
    one.streams.joined("two")
    two.streams.joined("one")
    mine = one.open("two")
    await until(lambda: two.ends)
    one.streams.left("two")
    await until(lambda: mine.lost and two.ends[0][1].lost)


async def test_a_refused_stream_ends(make: Make) -> None:
    one, two = await make("one"), await make("two", refuses=True)
    one.streams.joined("two")
    two.streams.joined("one")
    mine = one.open("two")
    await until(lambda: mine.lost)


async def test_a_stream_that_names_no_node_ends(make: Make, tmp_path: Path) -> None:
    await make("two")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        sock.connect(str(tmp_path / "two.link"))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"x" * (LONGEST_NAME + 1))
        assert await loop.sock_recv(sock, 1) == b""


async def test_without_a_socket_it_is_a_pipe(make: Make, tmp_path: Path) -> None:
    one = await make("one")
    one.streams.joined("two")
    one.open("two")
    assert one.pipes.nodes == ["two"], "nobody listens"
    elsewhere = await make("other", tmp_path / "none")
    elsewhere.streams.joined("one")
    elsewhere.open("one")
    assert elsewhere.pipes.nodes == ["one"], "another machine"
    deep = await make("deep", tmp_path / ("x" * 120))
    deep.streams.joined("two")
    deep.open("two")
    assert deep.pipes.nodes == ["two"], "a path that is too long"


async def test_the_log_has_why_there_is_no_socket_once_for_each_node_and_reason(make: Make, tmp_path: Path) -> None:
    one = await make("one")
    one.streams.joined("two")

    def logged() -> list[tuple[str, str]]:
        return [(fields["node"], fields["why"]) for fields in one.log.named("no socket between workers")]

    missing = ("two", "FileNotFoundError: No such file or directory")
    for _ in range(3):
        one.open("two")
    assert logged() == [missing]
    listening = await make("two")
    one.open("two")
    await listening.streams.stop()
    one.open("two")
    assert logged() == [missing, missing], "it could be used meanwhile"
    (tmp_path / "two.link").write_text("no socket")
    for _ in range(2):
        one.open("two")
    assert logged() == [missing, missing, ("two", "ConnectionRefusedError: Connection refused")]
    elsewhere = await make("three", tmp_path / "none")
    elsewhere.streams.joined("one")
    elsewhere.open("one")
    assert elsewhere.log.lines == [], "another machine"


async def test_the_log_has_why_nobody_can_open_streams_to_this_worker(make: Make, tmp_path: Path) -> None:
    deep = await make("one", tmp_path / ("x" * 200))
    assert [fields["node"] for fields in deep.log.named("no socket between workers")] == ["one"]


async def test_the_socket_of_an_earlier_process_is_replaced_and_ones_own_removed(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "two.link"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    one, two = await make("one"), await make("two")
    one.streams.joined("two")
    two.streams.joined("one")
    one.open("two")
    await until(lambda: two.ends)
    await two.streams.stop()
    assert not path.exists()


async def test_without_a_descriptor_a_stream_is_a_pipe(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the link to that node would not be tried again."""

    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    two = await make("two")
    with monkeypatch.context() as patch:
        patch.setattr("broker.mesh.streams.socket.socket", none_left)
        one = await make("one")
        one.streams.joined("two")
        one.open("two")
    assert one.pipes.nodes == ["two"]
    assert [fields["node"] for fields in one.log.named("no socket between workers")] == ["one", "two"]
    assert not two.ends
