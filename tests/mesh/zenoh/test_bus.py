"""The bus on real sessions of Zenoh, in one process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from broker.mesh import frames
from broker.mesh.bus import INTEREST, ProtocolFault
from broker.mesh.zenoh.session import MeshError
from tests.mesh.zenoh.nodes import QUICK, Node, running, together
from tests.support.ports import free_port
from tests.support.waiting import until


def place(folder: Path, name: str) -> str:
    return f"unixsock-stream/{folder}/{name}"


def two(folder: Path, **settings: Any) -> tuple[Node, Node]:
    """`b` connects to `a`."""
    return (
        Node("a", listen=[place(folder, "a")], **settings),
        Node("b", listen=[place(folder, "b")], connect=[place(folder, "a")], **settings),
    )


async def test_nodes_join_talk_both_ways_and_leave_in_order(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with running(a):
        async with running(b):
            await a.sees("b")
            await b.sees("a")
            a.send("b", b"1")
            a.send("b", b"")
            b.send("a", b"3")
            await b.hears(2)
            await a.hears(1)
            assert (b.messages, a.messages) == ([b"1", b""], [b"3"])
            b.send("a", b"last words")
        await a.sees()
        assert a.messages == [b"3", b"last words"]
        assert a.events == ["+b", "-b"]
        assert b.events == ["+a", "-a"]
        assert a.log.named("node left") == [{"node": "b", "why": "it stops"}]


async def test_nodes_find_all_others_by_the_one_they_connect_to() -> None:
    ports = [free_port() for _ in range(4)]
    nodes = [
        Node(name, listen=[f"tcp/127.0.0.1:{port}"], connect=[f"tcp/127.0.0.1:{ports[0]}"] if name != "a" else [])
        for name, port in zip("abcd", ports, strict=True)
    ]
    async with together(*nodes):
        for node in nodes:
            for other in node.bus.nodes():
                node.send(other, node.name.encode())
        for node in nodes:
            await node.hears(3)
            assert sorted(node.messages) == [other.name.encode() for other in nodes if other is not node]


async def test_two_that_connect_to_each_other_are_there_once(tmp_path: Path) -> None:
    places = [place(tmp_path, "a"), place(tmp_path, "b")]
    a = Node("a", listen=places[:1], connect=places[1:])
    b = Node("b", listen=places[1:], connect=places[:1])
    async with together(a, b):
        for number in range(1_000):
            a.send("b", b"%d" % number)
            if number % 10 == 0:
                await asyncio.sleep(0)
        await b.hears(1_000)
        assert b.messages == [b"%d" % number for number in range(1_000)]
        assert b.events == ["+a"]


async def test_a_place_where_nobody_is_yet_is_tried_again(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with running(b, a):
        await a.sees("b")


async def test_a_hundred_thousand_messages_of_all_sizes_arrive_in_order(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    sizes = [0, 10, 100, 10_000, frames.LARGEST + 1]
    async with together(a, b):
        sent = 0
        while sent < 100_000:
            for _ in range(1_000):
                size = sizes[4] if sent % 20_000 == 0 else sizes[3] if sent % 500 == 0 else sizes[sent % 3]
                a.send("b", sent.to_bytes(4, "big") + bytes(size))
                sent += 1
            await asyncio.sleep(0)
        await b.hears(sent)
        assert [int.from_bytes(each[:4], "big") for each in b.messages] == list(range(sent))
        assert max(len(each) for each in b.messages) == frames.LARGEST + 5
        assert b.events == ["+a"]


async def test_what_one_turn_says_goes_in_few_frames(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with together(a, b):
        came: list[int] = []
        hears = b.bus._hear

        def hear(node: str, payload: bytes) -> None:
            if payload[0] == frames.FRAME:
                came.append(len(payload))
            hears(node, payload)

        b.bus._hear = hear  # type: ignore[method-assign]
        for _ in range(1_000):
            a.send("b", bytes(1_000))
        await b.hears(1_000)
        assert len(came) == 4
        assert max(came) <= frames.LARGEST + 25


async def test_the_log_has_it_once_where_no_other_node_comes(tmp_path: Path) -> None:
    """Of another mesh, as behind a wrong address or certificate, Zenoh tells nothing."""
    a = Node("a", listen=[place(tmp_path, "a")], node_timeout=QUICK)
    b = Node("b", connect=[place(tmp_path, "a")], node_timeout=QUICK, mesh="other")
    c = Node("c", connect=[place(tmp_path, "a")], node_timeout=QUICK)
    async with running(a, b):
        await until(lambda: b.log.named("no other node"), "the log of b")
        assert b.log.named("no other node") == [{"mesh": "other", "connect": [place(tmp_path, "a")]}]
        await until(lambda: a.log.named("no other node"), "the log of a")
        async with running(c):
            await a.sees("c")
        await a.sees()
        assert len(a.log.named("no other node")) == 1
        assert c.log.named("no other node") == []


async def test_another_node_with_the_same_id_does_not_start(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    third = Node("a", listen=[place(tmp_path, "c")], connect=[place(tmp_path, "a")])
    async with together(a, b):
        with pytest.raises(MeshError, match=r"another process is the node 'a' of the mesh 'test' already"):
            await third.bus.start()
        assert b.events == ["+a"]


async def test_the_younger_of_two_with_one_id_fails_when_they_meet_and_the_older_stays(tmp_path: Path) -> None:
    a = Node("a", listen=[place(tmp_path, "a")], connect=[place(tmp_path, "b")])
    again = Node("a", listen=[place(tmp_path, "c")], connect=[place(tmp_path, "b")])
    b = Node("b", listen=[place(tmp_path, "b")])
    async with running(a, again, b):
        await until(lambda: again.failed, "the younger fails")
        assert not a.failed
        assert "another process is the node 'a'" in again.failed[0]
        await again.bus.stop()
        await b.sees("a")
        await a.sees("b")
        a.send("b", b"still here")
        await until(lambda: b"still here" in b.messages, "the older is heard")


async def test_a_node_that_comes_back_begins_with_nothing(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with running(a):
        async with running(b):
            await a.sees("b")
        await a.sees()
        again = Node("b", listen=[place(tmp_path, "b")], connect=[place(tmp_path, "a")])
        async with running(again):
            await a.sees("b")
            await again.sees("a")
        assert a.events[:3] == ["+b", "-b", "+b"]


async def test_the_other_mesh_on_the_same_machine_is_not_seen(tmp_path: Path) -> None:
    a = Node("a", listen=[place(tmp_path, "a")])
    b = Node("b", mesh="other", connect=[place(tmp_path, "a")])
    third = Node("c", listen=[place(tmp_path, "c")], connect=[place(tmp_path, "a")])
    async with running(b), together(a, third):
        assert b.bus.nodes() == []


async def test_more_than_may_wait_has_both_begin_anew(tmp_path: Path) -> None:
    a, b = two(tmp_path, queue_bytes=4_194_304)
    async with together(a, b):
        a.send("b", bytes(3_000_000))
        a.send("b", bytes(3_000_000))
        assert a.bus.nodes() == ["b"]  # rooms hear it when they are not in the midst of something
        await until(lambda: a.events == ["+b", "-b", "+b"], "a begins anew")
        await until(lambda: b.events == ["+a", "-a", "+a"], "b begins anew")
        assert b.messages == []
        assert a.log.named("node left") == [{"node": "b", "why": "more waits for it than mesh.queue_bytes"}]
        a.send("b", b"again")
        await b.hears(1)


async def test_a_room_that_fails_over_a_node_costs_that_node_its_membership(tmp_path: Path) -> None:
    a, b = two(tmp_path, node_timeout=QUICK)

    def fail(_node: str, _data: bytes) -> None:
        raise ZeroDivisionError

    async with together(a, b):
        b.answer = fail
        a.send("b", b"x")
        await until(lambda: b.events == ["+a", "-a"], "b lets go of a")
        await until(lambda: a.events[:2] == ["+b", "-b"], "a hears so")
        assert b.log.named("internal error")[0]["place"] == "mesh"
        b.answer = None
        await until(lambda: b.events == ["+a", "-a", "+a"], "a has another chance")


async def test_a_node_that_breaks_the_protocol_is_let_go_of(tmp_path: Path) -> None:
    a, b = two(tmp_path)

    def refuse(_node: str, _data: bytes) -> None:
        raise ProtocolFault("nonsense")

    async with together(a, b):
        b.answer = refuse
        a.send("b", b"x")
        await until(lambda: b.events == ["+a", "-a"], "b lets go of a")
        assert b.log.named("node broke the protocol") == [{"node": "a", "why": "nonsense"}]


async def test_a_message_of_a_kind_that_nobody_knows_breaks_the_protocol(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    async with together(a, b):
        a.bus.send("b", INTEREST + 1, b"x")
        await until(lambda: b.log.named("node broke the protocol"), "b lets go of a")


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_frame_that_is_lost_has_both_begin_anew(tmp_path: Path, lost: int) -> None:
    a, b = two(tmp_path, node_timeout=QUICK)
    async with together(a, b):
        hears = b.bus._hear
        left = [lost]

        def hear(node: str, payload: bytes) -> None:
            if payload[0] == frames.FRAME and left[0]:
                left[0] -= 1
            else:
                hears(node, payload)

        b.bus._hear = hear  # type: ignore[method-assign]
        a.send("b", b"lost")  # the next sign of life shows it
        await until(lambda: b.events == ["+a", "-a", "+a"], "b begins anew")
        await until(lambda: a.events == ["+b", "-b", "+b"], "a begins anew")
        assert b.messages == []


async def test_a_node_of_another_version_is_refused_and_the_log_says_so_once(tmp_path: Path) -> None:
    a = Node("a", (1, 2), listen=[place(tmp_path, "a")])
    b = Node("b", (2, 4), connect=[place(tmp_path, "a")])
    c = Node("c", (3, 4), connect=[place(tmp_path, "a")])
    async with running(a, b, c):
        await a.sees("b")
        for node, other in ((a, "c"), (c, "a")):
            await until(lambda node=node: node.log.named("node refused"), f"{node.name} refuses {other}")  # type: ignore[misc]
        assert "it speaks versions 3 to 4 of the mesh, this node 1 to 2" in a.log.named("node refused")[0]["why"]
        assert a.log.named("node joined") == [{"node": "b", "version": 2}]
        assert (a.bus.version("b"), a.bus.version("c")) == (2, 0)
        # Longer than until the next greeting.
        await asyncio.sleep(0.3)
        assert len(a.log.named("node refused")) == len(c.log.named("node refused")) == 1
        assert a.bus.nodes() == ["b"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"listen": ["unixsock-stream/FOLDER/no/such/folder"]}, "the mesh cannot be opened: "),
        ({"ca_file": "FOLDER/ca", "cert_file": "x", "key_file": "y"}, "mesh.ca_file .*/ca: No such file"),
        (
            {"ca_file": "FOLDER/empty", "cert_file": "x", "key_file": "y"},
            "mesh.ca_file .*/empty: it is not a PEM file",
        ),
    ],
)
async def test_what_cannot_be_used_is_told_in_one_line(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    (tmp_path / "empty").touch()
    found: dict[str, Any] = json.loads(json.dumps(settings).replace("FOLDER", str(tmp_path)))
    with pytest.raises(MeshError, match=why) as raised:
        await Node("a", **found).bus.start()
    assert "\n" not in str(raised.value)
