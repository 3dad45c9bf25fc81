"""The bus that the rooms of the mesh are tested with keeps what `broker.mesh.bus` promises."""

from __future__ import annotations

import pytest

from broker.mesh.bus import INTEREST, OWNERSHIP, ProtocolFault, Room
from tests.support.memory_bus import MemoryBus, MemoryMesh


class Heard(Room):
    """Writes down what it hears; greets who comes."""

    def __init__(self, bus: MemoryBus, kind: int = INTEREST) -> None:
        self.heard: list[str] = []
        self.bus = bus
        self.kind = kind
        bus.attach(kind, self)

    def joined(self, node: str) -> None:
        self.heard.append(f"+{node}")
        self.bus.send(node, self.kind, b"hello")

    def left(self, node: str) -> None:
        self.heard.append(f"-{node}")

    def received(self, node: str, data: bytes) -> None:
        if data == b"nonsense":
            raise ProtocolFault("nonsense")
        self.heard.append(f"{node}:{data.decode()}")


async def test_a_node_has_joined_before_its_messages_which_arrive_in_order_in_a_later_turn() -> None:
    mesh = MemoryMesh("a", "b")
    a, b = Heard(mesh["a"]), Heard(mesh["b"])
    async with mesh:
        await mesh.settle()
        assert mesh["a"].nodes() == ["b"]
        for text in (b"1", b"2", b"3"):
            mesh["a"].send("b", INTEREST, text)
        assert b.heard == ["+a", "a:hello"]
        await mesh.settle()
        assert b.heard == ["+a", "a:hello", "a:1", "a:2", "a:3"]
        assert a.heard == ["+b", "b:hello"]
    assert a.heard == ["+b", "b:hello", "-b"]


async def test_a_room_hears_messages_of_its_kind() -> None:
    mesh = MemoryMesh("a", "b")
    interest = Heard(mesh["b"])
    ownership = Heard(mesh["b"], OWNERSHIP)
    async with mesh:
        await mesh.settle()
        mesh["a"].send("b", OWNERSHIP, b"mine")
        await mesh.settle()
        assert interest.heard == ["+a"]
        assert ownership.heard == ["+a", "a:mine"]


async def test_what_was_on_the_way_when_a_link_was_lost_never_arrives() -> None:
    mesh = MemoryMesh("a", "b", "c")
    a, b, c = (Heard(mesh[name]) for name in "abc")
    async with mesh:
        await mesh.settle()
        mesh["a"].send("b", INTEREST, b"lost")
        mesh["a"].send("c", INTEREST, b"kept")
        mesh.lose("a", "b")
        await mesh.settle()
        assert b.heard[-3:] == ["-a", "+a", "a:hello"]
        assert a.heard[-3:] == ["-b", "+b", "b:hello"]
        assert c.heard[-1] == "a:kept"
        mesh.stop("b")
        await mesh.settle()
        assert mesh["a"].nodes() == ["c"]
        assert b.heard[-2:] == ["-a", "-c"]


async def test_what_is_held_waits_and_nothing_else_does() -> None:
    mesh = MemoryMesh("a", "b")
    a, b = Heard(mesh["a"]), Heard(mesh["b"])
    async with mesh:
        await mesh.settle()
        mesh.hold("a", "b")
        mesh["a"].send("b", INTEREST, b"later")
        mesh["b"].send("a", INTEREST, b"now")
        await mesh.settle()
        assert mesh.waiting("a", "b") == 1
        assert a.heard[-1] == "b:now"
        assert b.heard[-1] == "a:hello"
        mesh.release("a", "b")
        await mesh.settle()
        assert b.heard[-1] == "a:later"


async def test_more_than_may_be_on_the_way_has_both_begin_anew() -> None:
    mesh = MemoryMesh("a", "b", queue_bytes=10)
    b = Heard(mesh["b"])
    async with mesh:
        await mesh.settle()
        mesh["a"].send("b", INTEREST, b"12345678")
        mesh["a"].send("b", INTEREST, b"901")
        await mesh.settle()
        assert b.heard == ["+a", "-a", "+a"]


async def test_a_fault_of_a_room_ends_the_membership_of_two_nodes() -> None:
    mesh = MemoryMesh("a", "b")
    b = Heard(mesh["b"])
    async with mesh:
        await mesh.settle()
        mesh["a"].send("b", INTEREST, b"nonsense")
        mesh["a"].send("b", INTEREST, b"behind it")
        await mesh.settle()
        assert b.heard == ["+a", "-a"]
        assert isinstance(mesh.faults[0], ProtocolFault)


async def test_what_no_room_may_raise_fails_the_test() -> None:
    mesh = MemoryMesh("a", "b")
    b = Heard(mesh["b"])

    async def scenario() -> None:
        async with mesh:
            await mesh.settle()
            mesh["a"].send("b", INTEREST, b"\xff")
            await mesh.settle()

    with pytest.raises(UnicodeDecodeError):
        await scenario()
    assert b.heard == ["+a", "-a"]
