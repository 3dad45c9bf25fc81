"""Nodes as daemons on one database: one is killed for good, and its clients find their sessions at the others."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.mesh.ownership.moves.leaving import chosen
from tests.e2e import wire
from tests.e2e.wire import Peer, Will, ack, publish
from tests.support import postgresql
from tests.support.daemon import Daemon
from tests.support.ports import free_port
from tests.support.waiting import until

DEAD_AFTER = 1.0
LEASE = 2.0


class Node:
    """One node: a daemon after another, on one schema."""

    def __init__(self, name: str, url: str, mesh: str, connect: list[int]) -> None:
        self.name = name
        self.mesh_port = free_port()
        self.schema = postgresql.new_name()
        self.daemon: Daemon | None = None
        self.peers: dict[str, Peer] = {}
        places = json.dumps([f"tcp/127.0.0.1:{port}" for port in connect])
        self._arguments = [
            "--store", url, "--set", f"store.name={self.schema}", "--set", f"store.lease_timeout={LEASE}",
            "--set", f"mesh.name={mesh}", "--set", "mesh.adopt_sessions=true", "--set", f"mesh.node={name}",
            "--set", f'mesh.listen=["tcp/127.0.0.1:{self.mesh_port}"]', "--set", f"mesh.connect={places}",
            "--set", f"mesh.dead_after={DEAD_AFTER}", "--set", "mesh.node_timeout=5", "--set", "sys.interval=0",
            "--set", "limits.max_loop_lag=0", "--set", "shutdown.flush_timeout=0.5",
        ]  # fmt: skip

    async def start(self) -> None:
        self.daemon = await asyncio.to_thread(lambda: Daemon(*self._arguments))

    async def kill(self) -> None:
        """kill -9."""
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.process.send_signal(signal.SIGCONT)
            daemon.process.kill()
            await asyncio.to_thread(daemon.close)
        for peer in self.peers.values():
            peer.abort()
        self.peers.clear()

    async def peer(self, client_id: str, *, present: bool | None = None, will: Will | None = None) -> Peer:
        """A client whose session stays."""
        assert self.daemon is not None
        props = ((wire.SESSION_EXPIRY, 3600),)
        peer = await Peer.join(self.daemon.port, client_id, clean=False, will=will, props=props)
        assert present is None or peer.connack.session_present is present
        self.peers[client_id] = peer
        return peer

    async def sessions(self) -> set[str]:
        """The client identifiers of those in its schema."""
        statement = f"SELECT client_id FROM {self.schema}.session WHERE NOT client_id LIKE '$node/%'"
        return {client_id for [client_id] in await postgresql.ask(postgresql.shared().url, statement)}

    def told(self, event: str, node: str = "") -> bool:
        """Whether its log has that event, of that node."""
        assert self.daemon is not None
        lines = [json.loads(line) for line in list(self.daemon.lines) if line.startswith("{")]
        return any(line["event"] == event and line.get("node", "") == node for line in lines)


class House:
    """Three nodes on one database."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    async def adopted(self, node: Node) -> None:
        """The others have taken the sessions of a node over."""
        async with asyncio.timeout(60):
            while await node.sessions():  # noqa: ASYNC110 (nobody says which is the last share)
                await asyncio.sleep(0.05)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    url = postgresql.shared().url
    # What a test leaves in the database is not for the nodes of another.
    mesh = postgresql.new_name()
    made = House()
    async with AsyncExitStack() as stack:
        for name in "abc":
            node = Node(name, url, mesh, [each.mesh_port for each in made.nodes])
            made.nodes.append(node)
            stack.push_async_callback(node.kill)
            await node.start()
        await until(
            lambda: all(
                node.told("node connected", other.name)
                for node in made.nodes
                for other in made.nodes
                if node is not other
            )
        )
        yield made


@pytest.mark.long
async def test_the_clients_of_a_node_that_is_killed_for_good_have_everything(house: House) -> None:
    """What waited comes in order and once, what was in flight comes again with its packet identifier and DUP, and what
    was released or received is remembered (section 4.3.3), at whichever node they connect; their wills are published.
    [MQTT-4.4.0-1] [MQTT-4.3.3-6] [MQTT-4.3.3-10] [MQTT-3.1.2-8]"""
    dead, *others = house.nodes
    for client_id, filters in (("away", [("t/#", 2)]), ("flight", [("f", 2)]), ("released", [("r", 2)])):
        peer = await dead.peer(client_id)
        await peer.subscribe(*filters)
        if client_id == "away":
            await peer.disconnect()
    flight, released = dead.peers["flight"], dead.peers["released"]
    watcher = await others[0].peer("watcher")
    await watcher.subscribe(("w", 1))
    await (await dead.peer("willing", will=Will("w", b"gone", 1))).subscribe(("x", 1))
    publisher = await others[1].peer("p")
    for number in range(20):
        await publisher.publish("t/1", b"%d" % number, qos=2)
    await publisher.publish("f", b"in flight", qos=2)
    await publisher.publish("r", b"had", qos=2)
    sent = await flight.expect(wire.PUBLISH)
    had = await released.expect(wire.PUBLISH)
    assert had.packet_id
    await released.send(ack(wire.PUBREC, had.packet_id))
    await released.expect(wire.PUBREL)
    unfinished = await dead.peer("unfinished")
    await unfinished.send(publish("t/2", b"once", qos=2, packet_id=7))
    await unfinished.expect(wire.PUBREC)
    await dead.kill()
    await house.adopted(dead)

    away = await others[0].peer("away", present=True)
    found = [await away.message() for _ in range(21)]
    assert [one.payload for one in found] == [*(b"%d" % number for number in range(20)), b"once"]
    assert await away.fence() == []
    flight = await others[1].peer("flight", present=True)
    again = await flight.message()
    assert (again.payload, again.packet_id, again.dup) == (b"in flight", sent.packet_id, True)
    released = await others[0].peer("released", present=True)
    assert (await released.expect(wire.PUBREL)).packet_id == had.packet_id
    unfinished = await others[1].peer("unfinished", present=True)
    await unfinished.send(publish("t/2", b"once", qos=2, packet_id=7, dup=True))
    await unfinished.expect(wire.PUBREC)
    assert await away.fence() == []
    assert (await watcher.message()).payload == b"gone"

    # It comes back, without them, and is a node as any other.
    await dead.start()
    peer = await dead.peer("away", present=True)
    await publisher.publish("t/1", b"after", qos=2)
    assert (await peer.message()).payload == b"after"
    assert await peer.fence() == []


@pytest.mark.long
async def test_the_sessions_are_shared_among_those_that_are_left(house: House) -> None:
    """By rendezvous hashing of the client identifier."""
    dead, *others = house.nodes
    clients = {f"c{number}" for number in range(20)}
    for client_id in clients:
        await (await dead.peer(client_id)).subscribe((client_id, 1))
    await dead.kill()
    await house.adopted(dead)
    names = [node.name for node in others]
    for node in others:
        share = {client_id for client_id in clients if chosen(client_id, names) == node.name}
        assert await node.sessions() == share != set()
    await until(lambda: all(node.told("sessions adopted", dead.name) for node in others))
    for number, client_id in enumerate(sorted(clients)):
        await (await others[number % 2].peer(client_id, present=True)).fence()


@pytest.mark.long
async def test_a_client_that_came_elsewhere_first_has_what_waited(house: House) -> None:
    """Its new session and the one that is adopted become one."""
    dead, *others = house.nodes
    peer = await dead.peer("c")
    await peer.subscribe(("old", 2))
    await peer.disconnect()
    publisher = await others[1].peer("p")
    await publisher.publish("old", b"1", qos=2)
    await dead.kill()
    peer = await others[0].peer("c", present=False)
    await peer.subscribe(("new", 2))
    await house.adopted(dead)
    assert (await peer.message()).payload == b"1"
    await until_wanted(publisher, peer)
    assert await peer.fence() == []


async def until_wanted(publisher: Peer, peer: Peer) -> None:
    """Both subscriptions are the session's, as soon as the publisher's node knows it."""
    for topic in ("old", "new"):
        found: list[wire.Packet] = []
        while not found:
            await publisher.publish(topic, topic.encode(), qos=2)
            found = await peer.fence()
        assert [one.payload for one in found] == [topic.encode()]


@pytest.mark.long
async def test_what_is_published_while_a_node_is_dead_comes_to_its_sessions(house: House) -> None:
    """At the node that takes them and at another one, before they are taken and after; once, in order."""
    dead, *others = house.nodes
    peer = await dead.peer("c")
    await peer.subscribe(("t/#", 2))
    await peer.disconnect()
    # One that has nothing to do with it wants the same.
    await (await others[0].peer("other")).subscribe(("t/#", 0))
    publishers = [await node.peer(f"p {node.name}") for node in others]
    for publisher, node, qos in zip(publishers, others, (1, 2), strict=True):
        await publisher.publish(f"t/{node.name}", b"0", qos=qos)
    await dead.kill()
    await until(lambda: all(node.told("node left", dead.name) for node in others))
    for number in range(1, 10):
        for publisher, node, qos in zip(publishers, others, (1, 2), strict=True):
            await publisher.publish(f"t/{node.name}", b"%d" % number, qos=qos)
    await house.adopted(dead)
    peer = await others[0].peer("c", present=True)
    for publisher, node, qos in zip(publishers, others, (1, 2), strict=True):
        await publisher.publish(f"t/{node.name}", b"10", qos=qos)
    found = [await peer.message() for _ in range(22)]
    for node in others:
        assert [int(one.payload) for one in found if one.topic == f"t/{node.name}"] == list(range(11))
    assert await peer.fence() == []
    # The dead node comes back, and gets what waits for it: nobody has it again.
    await dead.start()
    await until(lambda: all(node.told("node connected", dead.name) for node in others))
    await publishers[1].publish(f"t/{others[1].name}", b"11", qos=2)
    assert (await peer.message()).payload == b"11"
    assert await peer.fence() == []


@pytest.mark.long
async def test_a_node_that_stood_still_ends_when_it_goes_on(house: House) -> None:
    """Its sessions are elsewhere: it acknowledges nothing more, says 0x8B to its clients, and ends with an error."""
    dead, *others = house.nodes
    peer = await dead.peer("c")
    await peer.subscribe(("t", 1))
    assert dead.daemon is not None
    dead.daemon.process.send_signal(signal.SIGSTOP)
    await house.adopted(dead)
    dead.daemon.process.send_signal(signal.SIGCONT)
    await asyncio.to_thread(dead.daemon.until, "the broker stops")
    assert [(one.kind, one.code) for one in await peer.closed()] == [(wire.DISCONNECT, 0x8B)]
    assert await asyncio.to_thread(dead.daemon.process.wait, 60) == 1
    found = await others[0].peer("c", present=True)
    assert await found.fence() == []
    await dead.kill()
    await dead.start()
    again = await dead.peer("c", present=True)
    assert (await found.closed())[0].code == 0x8E
    assert await again.fence() == []
