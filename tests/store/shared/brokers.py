"""Brokers of one shared store in one process: a real router each, clients without sockets, PostgreSQL between them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from canopy_mqtt.core.codec.packets import Suback, Subscribe
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.store.shared.calls import Ask, DeliveryKey, Page, Piece
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.store import SharedStore
from tests.core.harness import Client, Network, limits
from tests.store.shared.nodes import Nodes
from tests.support.waiting import PATIENCE, until

EXPIRY = 300


class Broker(Network):
    """A node, and the links to the others, which tell everything at once while `linked`."""

    def __init__(self, others: list[Broker], database: SharedDatabase, *, most: int = 100, **given: Any) -> None:
        super().__init__(limits(**given))
        self.linked = True
        self.others = others
        self.store = SharedStore(database, window=0.002, dead_after=60.0, most=most)
        self.reads: list[list[Ask]] = []
        """What was asked of the database for sessions."""
        read = database.read

        def reads(asks: Sequence[Ask], known: Iterable[DeliveryKey] = ()) -> Coroutine[Any, Any, list[Page]]:
            self.reads.append([*asks])
            return read(asks, known)

        database.read = reads  # type: ignore[method-assign]
        self.router.journal = self.store.journal
        self.router.shared = self.store
        self.store.attach(self.router, after_batch=self.settle, tell=self._tell, linked=lambda _: self.linked)

    def _tell(self, piece: Piece) -> None:
        for other in self.others:
            if other is not self and self.linked and other.linked:
                other.store.hear(piece)

    async def open(self) -> None:
        await self.store.open(lambda: self.now)
        await self.store.load()
        self.others.append(self)

    async def kill(self) -> None:
        """End without a word to anybody: nothing that is noted is written."""
        self.linked = False
        self.others.remove(self)
        await self.store.running.close()
        for link in self.links:
            link.lose()


async def connect(client: Client, broker: Broker, **given: Any) -> None:
    """Connect a client to a broker, from wherever it was, and wait for its CONNACK, or until it is turned away."""
    if client.link is not None:
        client.killed()
    client.network = broker
    client.connect(**{"clean": False, "expiry": EXPIRY, **given})
    await until(lambda: client.connack.reason_code != -1 or client.closed, "CONNACK")


async def client_of(broker: Broker, name: str, **given: Any) -> Client:
    """A client that is connected."""
    client = broker.idle(name)
    client.judge.enabled = False  # it does not know what the client did at other brokers
    await connect(client, broker, **given)
    assert client.connack.reason_code == 0
    return client


async def subscribe(client: Client, *filters: str, qos: int = 2) -> None:
    before = len(client.got(Suback))
    client.send(Subscribe(client.take_id(), [Request(each, qos) for each in filters]))
    client.network.settle()
    await until(lambda: len(client.got(Suback)) > before, "SUBACK")


async def publish(client: Client, payload: bytes, qos: int = 1, topic: str = "a") -> None:
    """Publish, and wait until it is acknowledged."""
    packet = client.publish(topic, payload, qos)
    await until(lambda: packet.packet_id not in client.outgoing, f"the acknowledgement of {payload!r}")


async def rows(nodes: Nodes, table: str) -> int:
    """Return how many rows a table has."""
    [[count]] = await nodes.ask(f"SELECT count(*) FROM {table}")
    return int(count)


async def until_empty(nodes: Nodes, *tables: str) -> None:
    """Wait until nothing is left in tables."""
    async with asyncio.timeout(PATIENCE):
        for table in tables:
            while await rows(nodes, table):
                pass
