"""Who is connected, as the nodes of a mesh tell it: clients that move, and those whose node is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.core.queues.message import Message
from broker.mesh import presence as module
from broker.mesh.mesh import Mesh
from broker.observe import presence as told
from broker.settings import Settings
from canopy import Broker
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.memory_bus import MemoryMesh
from tests.support.waiting import until

TOPIC = "here"
SOON = 0.05
NEVER = 86_400.0


class Nodes:
    """Some brokers, and what lies between them."""

    def __init__(self, names: tuple[str, ...], **mesh: float) -> None:
        self.memory = MemoryMesh(*names)
        self.names = names
        self.mesh = mesh
        self.brokers: dict[str, Broker] = {}
        self.meshes: dict[str, Mesh] = {}
        self.peers: list[Peer] = []

    async def run(self, name: str) -> None:
        """Start a node's broker, and make it one."""
        settings = Settings.model_validate(
            {
                "listen": ["mqtt://127.0.0.1:0"],
                "sys": {"interval": 0.0},
                "presence": {"topic": TOPIC},
                "mesh": {"name": "one", "node": name, **self.mesh},
            }
        )
        # With a mesh's name the broker would make a bus of its own.
        broker = self.brokers[name] = Broker(
            settings.model_copy(update={"mesh": settings.mesh.model_copy(update={"name": ""})})
        )
        await broker.start()
        assert broker.presence is not None
        mesh = self.meshes[name] = Mesh(broker, settings.mesh, self.memory[name])
        broker.presence.others = mesh.watch_presence(broker.presence)

    async def end(self, name: str) -> None:
        """A process that is gone. What it tells in its last moment nobody hears."""
        self.memory.stop(name)
        await self.memory.settle()
        for peer in self.peers:
            if peer.writer.get_extra_info("peername")[1] == self.brokers[name].ports[0]:
                peer.abort()
        await self.meshes.pop(name).stop(0.0)
        await self.brokers.pop(name).stop()

    async def join(self, node: str, client_id: str, *filters: tuple[str, int], **options: Any) -> Peer:
        """A client of a node, once the node tells of it."""
        self.peers.append(await Peer.join(self.brokers[node].ports[0], client_id, *filters, **options))
        await until(lambda: client_id in self.present(node))
        return self.peers[-1]

    async def listener(self, node: str) -> Peer:
        """Who hears of all others, from now on."""
        peer = await self.join(node, "listener")
        await until(lambda: all("listener" in self.present(each) for each in self.brokers))
        await peer.send(wire.subscribe(1, [(f"{TOPIC}/+", 1 | 2 << 4)]))
        await peer.wait_for(wire.SUBACK)
        return peer

    def present(self, node: str) -> set[str]:
        """The clients that are told to be connected, as a node has it."""
        tree = self.brokers[node].router.retained
        return {each.topic.removeprefix(f"{TOPIC}/") for each in tree.matching(f"{TOPIC}/+")}

    async def agree(self, *clients: str) -> None:
        """Wait until all nodes tell the same."""
        wanted = {*clients, "listener"}
        await until(lambda: all(self.present(each) == wanted for each in self.brokers), str(wanted))


Start = Callable[..., Awaitable[Nodes]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Brokers of these names, joined."""
    async with AsyncExitStack() as stack:

        async def begin(*names: str, dead_after: float = SOON, **mesh: float) -> Nodes:
            nodes = Nodes(names, dead_after=dead_after, **mesh)

            async def end() -> None:
                for peer in nodes.peers:
                    peer.abort()
                for name in list(nodes.brokers):
                    await nodes.meshes[name].stop(0.0)
                    await nodes.brokers[name].stop()

            for name in names:
                await nodes.run(name)
            stack.push_async_callback(end)
            await stack.enter_async_context(nodes.memory)
            others = len(names) - 1
            await until(lambda: all(len(mesh.links) == others for mesh in nodes.meshes.values()))
            await until(lambda: all(link.connected for mesh in nodes.meshes.values() for link in mesh.links.values()))
            return nodes

        yield begin


async def heard(peer: Peer, count: int) -> list[tuple[str, bytes]]:
    """What comes next, so many, in the order of names; nothing else has come then."""
    found = [await peer.message() for _ in range(count)]
    assert await peer.fence() == []
    return sorted((each.topic.removeprefix(f"{TOPIC}/"), each.payload) for each in found)


async def test_the_clients_of_a_node_that_is_gone_are_told_to_be_gone_once(start: Start) -> None:
    nodes = await start("a", "b", "c")
    listener = await nodes.listener("a")
    for number in range(8):
        await nodes.join("b", f"b{number}")
    await nodes.join("c", "stays")
    await heard(listener, 9)
    await nodes.end("b")
    await nodes.agree("stays")
    assert await heard(listener, 8) == [(f"b{number}", b"") for number in range(8)]


async def test_a_node_that_comes_back_in_time_changes_nothing(start: Start) -> None:
    nodes = await start("a", "b", dead_after=NEVER)
    listener = await nodes.listener("a")
    await nodes.join("b", "c")
    await heard(listener, 1)
    nodes.memory.lose("a", "b")
    await until(lambda: nodes.meshes["a"].retained.ready_with("b"))
    await nodes.agree("c")
    assert await listener.fence() == []


async def test_clients_that_are_connected_still_are_told_to_be_there_again(start: Start) -> None:
    """Each side of a partition takes the other for dead; then both have all clients."""
    nodes = await start("a", "b", "c")
    listener = await nodes.listener("a")
    await nodes.join("b", "b1")
    await nodes.join("c", "c1")
    await heard(listener, 2)
    nodes.memory.stop("b")
    await until(lambda: nodes.present("a") == nodes.present("c") == {"listener", "c1"})
    await until(lambda: nodes.present("b") == {"b1"})
    assert await heard(listener, 1) == [("b1", b"")]
    for other in "ac":
        nodes.memory.join(other, "b")
    await nodes.agree("b1", "c1")
    last = {}
    while waiting := await listener.fence():
        for packet in waiting:
            last[packet.topic.removeprefix(f"{TOPIC}/")] = packet.payload
            await listener.send(wire.ack(wire.PUBACK, packet.packet_id or 0))
    assert last["b1"] == b"online"
    assert set(last.values()) == {b"online"}


async def test_a_client_that_moves_between_nodes_is_no_news(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "MOVES", SOON)
    nodes = await start("a", "b", "c", dead_after=NEVER)
    listener = await nodes.listener("a")
    first = await nodes.join("b", "moves")
    await nodes.agree("moves")
    await heard(listener, 1)
    await nodes.join("c", "moves")
    await first.expect(wire.DISCONNECT)
    c = nodes.meshes["c"].presence
    assert c is not None
    await until(lambda: c.writer(f"{TOPIC}/moves") == "c")
    presence = nodes.brokers["b"].presence
    assert presence is not None
    await until(lambda: not presence._moving)
    await nodes.agree("moves")
    assert await listener.fence() == []
    # Where it was it is not told of any more.
    await nodes.end("b")
    assert nodes.present("c") == {"moves", "listener"}


async def test_a_client_that_came_here_in_time_is_not_gone_with_its_node(start: Start) -> None:
    nodes = await start("a", "b", "c", dead_after=0.5)
    listener = await nodes.listener("a")
    for client in ("moves", "ends"):
        await nodes.join("b", client)
    await nodes.agree("moves", "ends")
    await heard(listener, 2)
    nodes.memory.stop("b")
    await nodes.join("c", "moves")
    c = nodes.meshes["c"].presence
    assert c is not None
    await until(lambda: c.writer(f"{TOPIC}/moves") == "c")
    await until(lambda: nodes.present("a") == nodes.present("c") == {"moves", "listener"})
    assert await heard(listener, 1) == [("ends", b"")]


async def test_one_whose_new_node_does_not_tell_of_it_is_gone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that took it over has refused it in the end, or is gone itself."""
    monkeypatch.setattr(told, "MOVES", SOON)
    nodes = await start("a", "b", dead_after=NEVER)
    listener = await nodes.listener("a")
    await nodes.join("b", "moves")
    await heard(listener, 1)
    b = nodes.brokers["b"]
    outbox = b.router.sessions["moves"].outbox
    assert outbox is not None
    assert outbox.peer is not None
    outbox.peer.take_over(b.loop.time())
    b.after_batch()
    assert await heard(listener, 1) == [("moves", b"")]
    await nodes.agree()


async def test_a_new_process_of_a_node_tells_that_the_clients_of_the_old_one_are_gone(start: Start) -> None:
    nodes = await start("a", "b", dead_after=NEVER)
    listener = await nodes.listener("a")
    await nodes.join("b", "gone")
    await heard(listener, 1)
    await nodes.end("b")
    nodes.memory["b"].rooms.clear()
    await nodes.run("b")
    nodes.memory.join("a", "b")
    assert await heard(listener, 1) == [("gone", b"")]
    await nodes.agree()


async def test_what_the_chosen_node_has_left_any_node_clears(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN", SOON)
    monkeypatch.setattr(module, "chosen", lambda *_: "somebody else")
    nodes = await start("a", "b")
    await nodes.listener("a")
    await nodes.join("b", "gone")
    await nodes.end("b")
    await nodes.agree()
    presence = nodes.meshes["a"].presence
    assert presence is not None
    await until(lambda: not presence._gone)


async def test_very_many_clients_of_a_node_are_told_of_in_turns(start: Start) -> None:
    nodes = await start("a", "b")
    await nodes.listener("a")
    b = nodes.brokers["b"]
    many = 20 * module.TURN
    for number in range(many):
        b.router.publish(Message(f"{TOPIC}/{number}".encode(), told.ONLINE, 1, True, b"", 0.0, ""), None)
        if number % module.TURN == 0:
            b.after_batch()
            await asyncio.sleep(0)
    await until(lambda: len(nodes.present("a")) == many + 1)
    presence = nodes.brokers["a"].presence
    assert presence is not None
    clear, in_turn, turns = presence.clear, 0, 0

    def counted(topic: str) -> bool:
        nonlocal in_turn
        in_turn += 1
        return clear(topic)

    presence.clear = counted  # type: ignore[method-assign]
    await nodes.end("b")
    while nodes.present("a") != {"listener"}:
        assert in_turn <= module.TURN
        turns += in_turn > 0
        in_turn = 0
        await asyncio.sleep(0)
    assert turns >= 20


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
async def test_all_nodes_tell_in_the_end_who_is_connected(
    start: Start, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever comes, goes, moves and is cut off in whatever order: who is connected is online, and nobody else."""
    monkeypatch.setattr(told, "MOVES", SOON)
    monkeypatch.setattr(module, "AGAIN", 2 * SOON)
    chance = random.Random(seed)
    nodes = await start("a", "b", "c", dead_after=SOON / 2, confirm_timeout=0.2, digest_interval=1.0)
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    for _ in range(60):
        match chance.choice(["come", "come", "come", "go", "cut", "heal", "wait"]):
            case "come":
                name, node = f"c{chance.randrange(6)}", chance.choice("abc")
                peer = await Peer.open("127.0.0.1", nodes.brokers[node].ports[0])
                nodes.peers.append(peer)
                await peer.send(wire.connect(name, props=((wire.SESSION_EXPIRY, chance.choice([0, 100])),)))
            case "go" if nodes.peers:
                nodes.peers.pop(chance.randrange(len(nodes.peers))).abort()
            case "cut":
                nodes.memory.cut(*chance.choice(pairs))
            case "heal":
                nodes.memory.join(*chance.choice(pairs))
            case _:
                await asyncio.sleep(chance.choice([0.0, SOON / 2, 2 * SOON]))
    for pair in pairs:
        nodes.memory.join(*pair)

    def agreed() -> bool:
        sessions = [session for broker in nodes.brokers.values() for session in broker.router.sessions.values()]
        here = {each.client_id for each in sessions if each.outbox is not None and not each.own}
        return all(nodes.present(node) == here for node in nodes.brokers)

    def state() -> str:
        return str(
            {
                name: (
                    sorted(nodes.present(name)),
                    sorted(s.client_id for s in b.router.sessions.values() if s.outbox is not None and not s.own),
                )
                for name, b in nodes.brokers.items()
            }
        )

    for _ in range(3):
        # And it stays so.
        try:
            await until(agreed)
        except AssertionError:
            raise AssertionError(state()) from None
        await asyncio.sleep(4 * SOON)
