"""A QoS 2 publish whose node is killed before the PUBREC, and that comes again: each node's clients get it once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from broker.app import Broker
from broker.mesh.mesh import Mesh
from broker.settings import Mesh as MeshSettings
from broker.settings import Settings
from tests.e2e import wire
from tests.e2e.wire import CONNACK, PUBCOMP, PUBREC, PUBREL, Peer
from tests.mesh.brokers import Nodes
from tests.store.grouped import GroupStore
from tests.support.memory_bus import MemoryMesh
from tests.support.waiting import until

KEPT = ((wire.SESSION_EXPIRY, 1_000),)
OTHERS = "bc"


class Scene:
    """The nodes a, b and c: the stores of a and b commit when they are told, or all along."""

    def __init__(self) -> None:
        self.nodes = Nodes(MemoryMesh("a", *OTHERS), {}, {})
        self.stores = {"a": GroupStore(time.time), "b": GroupStore(time.time)}
        self._committing: dict[str, asyncio.Task[None]] = {}

    async def start(self, node: str) -> None:
        broker = Broker(Settings(listen=("mqtt://127.0.0.1:0",)), store=self.stores.get(node))
        await broker.start()
        self.nodes.brokers[node] = broker
        settings = MeshSettings(name="one", node=node, confirm_timeout=60.0)
        self.nodes.meshes[node] = Mesh(broker, settings, self.nodes.mesh[node])
        if node in self.stores:
            self.commit_all_along(node)

    async def end(self) -> None:
        for node in list(self._committing):
            await self.commit_no_more(node)
        for node in list(self.nodes.brokers):
            await self.stop(node)

    async def stop(self, node: str) -> None:
        await self.nodes.meshes.pop(node).stop(0.0)
        await self.nodes.brokers.pop(node).stop()

    async def met(self) -> None:
        """All nodes are connected, and know what the others want."""
        meshes = self.nodes.meshes.values()
        await until(
            lambda: all(
                len(mesh.links) == len(OTHERS)
                and all(link.connected for link in mesh.links.values())
                and all(remote.complete for remote in mesh.interest.remotes.values())
                for mesh in meshes
            )
        )

    def commit_all_along(self, node: str) -> None:
        """Until `commit_no_more`."""

        async def commit() -> None:
            while True:
                self.stores[node].commit_all()
                await asyncio.sleep(0.001)

        self._committing[node] = asyncio.create_task(commit())

    async def commit_no_more(self, node: str) -> None:
        """What was told by now is committed."""
        committing = self._committing.pop(node, None)
        if committing is not None:
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)
            self.stores[node].commit_all()

    async def kill(self, *clients: Peer) -> None:
        """Node a is killed, and started again with what its store had committed; these are its clients."""
        store = GroupStore(time.time, self.stores["a"])
        for client in clients:
            client.abort()
        mesh = self.nodes.mesh
        mesh.stop("a")
        for other in OTHERS:
            mesh.release("a", other)
            mesh.release(other, "a")
        await mesh.settle()
        await self.stop("a")
        mesh["a"].rooms.clear()
        self.stores["a"] = store
        await self.start("a")
        for other in OTHERS:
            mesh.join("a", other)
        await self.met()

    async def publisher(self, node: str = "a") -> Peer:
        """The client that publishes, whose session is kept."""
        peer = await Peer.open("127.0.0.1", self.nodes.brokers[node].ports[0])
        self.nodes.peers.append(peer)
        await peer.send(wire.connect("says", clean=False, props=KEPT))
        peer.connack = await peer.expect(CONNACK)
        return peer

    async def told(self) -> None:
        """Node a has been sent a publish."""
        session = self.nodes.brokers["a"].router.sessions["says"]
        await until(lambda: session.incoming_qos2)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        made = Scene()
        for node in ("a", *OTHERS):
            await made.start(node)
        stack.push_async_callback(made.end)
        await stack.enter_async_context(made.nodes.mesh)
        stack.callback(made.nodes.abort)
        await made.met()
        yield made


async def again(publisher: Peer) -> int:
    """Publish x with the packet identifier 7 again, and see it through: the PUBREC's code."""
    await publisher.send(wire.publish("x", b"once", qos=2, packet_id=7, dup=True))
    code = (await publisher.expect(PUBREC)).code
    await publisher.send(wire.ack(PUBREL, 7))
    await publisher.expect(PUBCOMP)
    return code


async def once(peer: Peer) -> None:
    assert (await peer.message()).payload == b"once"
    assert await peer.fence() == []


def sent(scene: Scene, node: str) -> int:
    """How many messages were offered to a client of a node."""
    return int(scene.nodes.brokers[node].router.sessions[f"at {node}"].offered)


@pytest.mark.parametrize("then", ["a", "b"])
@pytest.mark.parametrize("has", ["", "b", "bc"])
async def test_it_is_killed_when_its_store_has_the_packet_identifier(scene: Scene, has: str, then: str) -> None:
    """Whichever nodes have the message by then, all get it once [MQTT-4.3.3-10]; also where none has told so, and where
    the publisher goes to another node when its own is there again."""
    nodes = scene.nodes
    hears = [await nodes.join(node, f"at {node}", ("x", 2)) for node in OTHERS]
    here = await nodes.join("a", "at a", ("x", 2), clean=False, props=KEPT)
    publisher = await scene.publisher()
    for other in OTHERS:
        nodes.mesh.hold(other, "a")
        if other not in has:
            nodes.mesh.hold("a", other)
    await publisher.send(wire.publish("x", b"once", qos=2, packet_id=7))
    await until(lambda: all(sent(scene, node) for node in has))
    await scene.told()
    await scene.commit_no_more("a")
    await scene.kill(publisher, here)
    publisher = await scene.publisher(then)
    assert publisher.connack.session_present
    assert await again(publisher) == 0
    for peer in hears:
        await once(peer)
    here = await nodes.join("a", "at a", clean=False, props=KEPT)
    await once(here)


async def test_no_node_has_what_the_store_has_not(scene: Scene) -> None:
    """It is killed before that: the publish that comes again is a new one."""
    nodes = scene.nodes
    hears = [await nodes.join(node, f"at {node}", ("x", 2)) for node in OTHERS]
    publisher = await scene.publisher()
    await scene.commit_no_more("a")
    await publisher.send(wire.publish("x", b"once", qos=2, packet_id=7))
    await scene.told()
    await nodes.mesh.settle()
    assert [sent(scene, node) for node in OTHERS] == [0, 0]
    await scene.kill(publisher)
    publisher = await scene.publisher()
    assert await again(publisher) == 0
    for peer in hears:
        await once(peer)


async def test_the_same_message_with_the_same_packet_identifier_is_another_one(scene: Scene) -> None:
    """The one before had been seen through."""
    nodes = scene.nodes
    hears = await nodes.join("b", "at b", ("x", 2))
    publisher = await scene.publisher()
    assert await again(publisher) == 0
    await once(hears)
    nodes.mesh.hold("a", "b")
    await publisher.send(wire.publish("x", b"once", qos=2, packet_id=7))
    await scene.told()
    await scene.commit_no_more("a")
    await scene.kill(publisher)
    assert await again(await scene.publisher()) == 0
    await once(hears)


async def test_it_waits_for_nodes_also_when_it_comes_again_to_a_node_that_lives(scene: Scene) -> None:
    """And they take it once."""
    nodes = scene.nodes
    hears = [await nodes.join(node, f"at {node}", ("x", 2)) for node in "ab"]
    publisher = await scene.publisher()
    await scene.commit_no_more("b")
    for _ in range(2):
        await publisher.send(wire.publish("x", b"once", qos=2, packet_id=7, dup=True))
        await scene.told()
        assert await publisher.fence() == []
        publisher.abort()
        publisher = await scene.publisher()
    again_and_over = asyncio.create_task(again(publisher))
    await until(lambda: nodes.meshes["a"].links["b"].session.inflight.count == 3)
    scene.commit_all_along("b")
    assert await again_and_over == 0
    for peer in hears:
        await once(peer)


async def test_nodes_are_not_asked_again_when_they_are_known_to_have_it(scene: Scene) -> None:
    """Also after a restart, and when they have forgotten its number: the publisher stayed away so long."""
    nodes = scene.nodes
    hears = await nodes.join("b", "at b", ("x", 2))
    publisher = await scene.publisher()
    await publisher.send(wire.publish("x", b"once", qos=2, packet_id=7))
    await publisher.expect(PUBREC)
    await once(hears)
    publisher.abort()
    await until(lambda: nodes.brokers["a"].router.sessions["says"].outbox is None)
    await scene.commit_no_more("a")
    await scene.kill(publisher)
    numbers = nodes.brokers["b"].router.nodes.numbers
    for numbered in (False, True):
        numbers.know("$node/from/a", numbered)
    assert await again(await scene.publisher()) == 0
    assert await hears.fence() == []


async def test_a_session_that_moves_while_it_waits_for_the_store_gets_it_once(scene: Scene) -> None:
    """The session has it before the link has: it arrives at the new node before the session's subscriptions stand."""
    nodes = scene.nodes
    near = await nodes.join("b", "at b", ("x", 2))
    (await nodes.join("a", "moves", ("x", 2), clean=False, props=KEPT)).abort()
    session = nodes.brokers["a"].router.sessions["moves"]
    await until(lambda: session.outbox is None)
    publisher = await scene.publisher()
    await scene.commit_no_more("a")
    await publisher.send(wire.publish("x", b"once", qos=2, packet_id=7))
    await until(session.queued)
    coming = asyncio.create_task(nodes.join("b", "moves", clean=False, props=KEPT))
    await until(lambda: nodes.meshes["a"].ownership.giver.givings)
    await nodes.mesh.settle()
    scene.commit_all_along("a")
    moved = await coming
    assert moved.connack.session_present
    await once(moved)
    await once(near)


async def test_a_session_that_has_moved_takes_what_comes_behind_its_mark_alone(scene: Scene) -> None:
    """The mark is of QoS 1, and what was published before it waits for the store when the node can be reached again."""
    nodes = scene.nodes
    near = await nodes.join("c", "at c", ("x", 2))
    (await nodes.join("b", "moves", ("x", 2), clean=False, props=KEPT)).abort()
    await scene.met()
    publisher = await scene.publisher()
    link = nodes.meshes["a"].links["c"]
    nodes.mesh.cut("a", "c")
    await until(lambda: not link.connected)
    for number in range(3):
        await publisher.publish("x", b"%d" % number, qos=2)
    hears = await nodes.join("c", "moves", clean=False, props=KEPT)
    await until(lambda: link.marks)
    for number in range(3, 5):
        await publisher.publish("x", b"%d" % number, qos=2)
    await scene.commit_no_more("a")
    nodes.mesh.join("a", "c")
    await until(lambda: link.connected)
    await nodes.mesh.settle()
    scene.commit_all_along("a")
    for peer in (near, hears):
        assert [(await peer.message()).payload for _ in range(5)] == [b"%d" % number for number in range(5)]
        assert await peer.fence() == []


async def had(scene: Scene) -> None:
    """A client of b has a publish of node a's, whose publisher has gone before its PUBREC; then it goes, too."""
    nodes = scene.nodes
    hears = await nodes.join("b", "moves", ("x", 2), clean=False, props=KEPT)
    publisher = await scene.publisher()
    nodes.mesh.hold("b", "a")
    await publisher.send(wire.publish("x", b"once", qos=2, packet_id=7))
    await once(hears)
    publisher.abort()
    session = nodes.brokers["a"].router.sessions["says"]
    await until(lambda: session.outbox is None)
    nodes.mesh.release("b", "a")
    hears.abort()


@pytest.mark.parametrize("then", ["a", "b", "c"])
async def test_who_has_had_it_and_moves_does_not_get_it_again(scene: Scene, then: str) -> None:
    """[MQTT-4.3.3-10] Nobody wanted it at the new node when it was published, and its number is not known there."""
    nodes = scene.nodes
    await had(scene)
    hears = await nodes.join("c", "moves", clean=False, props=KEPT)
    assert hears.connack.session_present
    near = await nodes.join("c", "at c", ("x", 2))
    publisher = await scene.publisher(then)
    assert publisher.connack.session_present
    assert await again(publisher) == 0
    assert await hears.fence() == []
    assert await publisher.publish("x", b"once", qos=2) == 0
    await once(hears)
    await once(near)


@pytest.mark.parametrize("then", ["a", "b", "c"])
async def test_who_has_had_it_does_not_get_it_again_while_its_session_moves(
    scene: Scene, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[MQTT-4.3.3-10] It comes again when all know where the subscriptions stand, and before the rest has come."""
    nodes = scene.nodes
    await had(scene)
    giver = nodes.meshes["b"].ownership.giver
    ready, goes_on = giver.ready, asyncio.Event()
    known: list[Callable[[], None]] = []

    def hears_ready(*what: Any) -> None:
        known.append(partial(ready, *what))
        goes_on.set()

    monkeypatch.setattr(giver, "ready", hears_ready)
    coming = asyncio.create_task(nodes.join("c", "moves", clean=False, props=KEPT))
    await goes_on.wait()
    monkeypatch.undo()
    publisher = await scene.publisher(then)
    assert publisher.connack.session_present
    assert await again(publisher) == 0
    known[0]()
    hears = await coming
    assert await hears.fence() == []
    assert await publisher.publish("x", b"once", qos=2) == 0
    await once(hears)


async def test_what_is_published_while_a_session_moves_comes_to_the_others_at_its_new_node(scene: Scene) -> None:
    """Each message waits for the store while the new node is told the numbers of those before."""
    nodes = scene.nodes
    near = await nodes.join("c", "at c", ("x", 2))
    hears = await nodes.join("b", "moves", ("x", 2), clean=False, props=KEPT)
    hears.abort()
    publisher = await scene.publisher()
    says = nodes.brokers["a"].router.sessions["says"]
    await scene.commit_no_more("a")
    store = scene.stores["a"]
    coming = asyncio.create_task(nodes.join("c", "moves", clean=False, props=KEPT))
    for number in range(10):
        await publisher.send(wire.publish("x", b"%d" % number, qos=2, packet_id=number + 1))
        await until(lambda: len(says.incoming_qos2 or ()) > number)  # noqa: B023
        store.commit()
        store.close_group()
        await nodes.mesh.settle()
    scene.commit_all_along("a")
    hears = await coming
    for peer in (near, hears):
        assert [(await peer.message()).payload for _ in range(10)] == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("speaks", [2, 3])
async def test_clients_see_nothing_of_the_number(scene: Scene, speaks: int) -> None:
    """Also those of a node that does not know it; and what a client has written stands as it was [MQTT-3.3.2-17]."""
    nodes = scene.nodes
    nodes.mesh["b"].speaks = speaks
    nodes.mesh.lose("a", "b")
    await nodes.mesh.settle()
    await scene.met()
    hears = await nodes.join("b", "at b", ("x", 2))
    publisher = await scene.publisher()
    own = ((wire.USER_PROPERTY, ("canopy-publish", "5")),)
    for props in ((), own, own, ()):
        await publisher.publish("x", qos=2, props=props)
        assert (await hears.message()).all(wire.USER_PROPERTY) == [value for _, value in props]


async def test_what_a_client_calls_a_number_is_none(scene: Scene) -> None:
    """Its session is not kept: its messages have none."""
    hears = await scene.nodes.join("b", "at b", ("x", 2))
    publisher = await scene.nodes.join("a", "passes")
    props = ((wire.USER_PROPERTY, ("canopy-publish", "5")),)
    for _ in range(2):
        assert await publisher.publish("x", qos=2, props=props) == 0
        assert (await hears.message()).all(wire.USER_PROPERTY) == [("canopy-publish", "5")]
