"""Brokers on schemas of the tests' database, in this process, which take over each other's sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from broker.mesh.ownership.adopting import Adopter
from broker.settings import Settings
from broker.store.adoptions import Adoptions, Estate
from broker.store.postgresql import PostgresStore
from canopy import Broker
from tests.e2e import wire
from tests.e2e.wire import Peer, ack, publish
from tests.store.postgresql.place import ask, count, kill, make

MESH = "one"
MESSAGES = 9


def every(client_id: str) -> bool:
    """All sessions are to come."""
    return bool(client_id)


class Node:
    """A broker on a schema, in this process."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self.store: PostgresStore = make(
            name, **{"mesh": MESH, "lease_timeout": 3600.0, "memory_messages": 3, **options}
        )
        self.broker = Broker(
            Settings.model_validate({"listen": ["mqtt://127.0.0.1:0"], "sys": {"interval": 0.0}}), store=self.store
        )
        self.peers: list[Peer] = []
        self.named: list[str] = []

    async def start(self) -> None:
        await self.broker.start()
        await self.adoptions.join(self.name)
        loop = asyncio.get_running_loop()
        self.adopter = Adopter(
            self.broker.router, lambda _: False, self.named.extend, loop.time, structlog.get_logger("tests")
        )

    @property
    def adoptions(self) -> Adoptions:
        found = self.store.adoptions
        assert found is not None
        return found

    async def peer(self, client_id: str, present: bool | None = None, **more: Any) -> Peer:
        """A client whose session stays."""
        expiry = ((wire.SESSION_EXPIRY, 3600),)
        peer = await Peer.join(self.broker.ports[0], client_id, clean=False, props=(*expiry, *more.pop("props", ())))
        self.peers.append(peer)
        assert present is None or peer.connack.session_present is present
        return peer

    async def die(self) -> None:
        """As if its process had died."""
        if self.store._task is not None:
            await kill(self.store)
        for peer in self.peers:
            peer.abort()
        await self.broker.stop()

    async def expire(self) -> None:
        """Its lease is over."""
        await ask(self.name, "UPDATE owner SET lease_until = '-infinity'")

    async def sees(self, other: Node) -> bool:
        """Whether another one's store is there to be taken."""
        return other.name in {each.name for each in await self.adoptions.abandoned()}

    async def take(self, other: Node, mine: Callable[[str], bool] = every) -> Estate:
        """Hold the schema of another one that is dead."""
        [found] = [each for each in await self.adoptions.abandoned() if each.name == other.name]
        estate = await self.adoptions.take(found, mine)
        assert estate is not None
        return estate

    async def put(self, estate: Estate) -> None:
        """All of it."""
        while estate.sessions or await estate.more():
            await estate.prepare(1)
            self.adopter.adopt(estate, 1)
        self.broker.after_batch()

    async def adopt(self, other: Node, mine: Callable[[str], bool] = every) -> None:
        """All that another one had that is this one's."""
        estate = await self.take(other, mine)
        await self.put(estate)
        await estate.kept()
        await estate.close()


Start = Callable[..., Awaitable[Node]]
"""Has a node begin: on a schema of its own, or on that of the name."""


async def fill(node: Node) -> tuple[int, int]:
    """Sessions with all that one can have; the packet identifiers of what is in flight, and of what was released."""
    for client_id in ("away", "too"):
        peer = await node.peer(client_id)
        await peer.subscribe(("t/#", 2))
        await peer.disconnect()
    flight = await node.peer("flight")
    await flight.subscribe(("f", 2), ("r", 2))
    publisher = await node.peer("publisher")
    for number in range(MESSAGES):
        await publisher.publish("t/1", b"%d" % number, qos=2)
    await publisher.publish("r", b"had", qos=2)
    had = await flight.expect(wire.PUBLISH)
    assert had.packet_id
    await flight.send(ack(wire.PUBREC, had.packet_id))
    await flight.expect(wire.PUBREL)
    await publisher.publish("f", b"in flight", qos=2)
    sent = await flight.expect(wire.PUBLISH)
    assert sent.packet_id
    await publisher.send(publish("t/2", b"last", qos=2, packet_id=77))
    await publisher.expect(wire.PUBREC)
    await node.store.flush()
    assert await count(node.name, "delivery WHERE size IS NOT NULL") > 2
    return sent.packet_id, had.packet_id


async def hold(node: Node, sent: int, had: int) -> None:
    """All of it is here, once."""
    publisher = await node.peer("publisher", present=True)
    await publisher.send(publish("t/2", b"last", qos=2, packet_id=77, dup=True))
    assert (await publisher.expect(wire.PUBREC)).packet_id == 77
    for client_id in ("away", "too"):
        peer = await node.peer(client_id, present=True)
        found = [(await peer.message()).payload for _ in range(MESSAGES + 1)]
        assert found == [*(b"%d" % number for number in range(MESSAGES)), b"last"]
        assert await peer.fence() == []
    flight = await node.peer("flight", present=True)
    kinds = {one.kind: one for one in [await flight.recv(), await flight.recv()]}
    assert kinds[wire.PUBREL].packet_id == had
    assert (kinds[wire.PUBLISH].packet_id, kinds[wire.PUBLISH].dup) == (sent, True)
    assert await flight.fence() == []
