"""Random histories of clients that roam between nodes, which are killed and cut off: what is promised is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from canopy_mqtt.store.shared.calls import Hello
from tests.core.harness import Client
from tests.store.shared.brokers import EXPIRY, Broker, client_of, connect, subscribe, until_empty
from tests.store.shared.nodes import Nodes
from tests.support.waiting import PATIENCE

STEPS = 150
IN_FLIGHT = 4
"""Publishes that a publisher has unacknowledged at once."""


class History:
    """Three nodes, two publishers, three subscribers: of QoS 1 and 2, and one that is away most of the time; and two
    members of a share group."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self.nodes = nodes
        self.rng = Random(seed)
        self.linked: list[Broker] = []
        self.brokers: dict[str, Broker] = {}
        self.clients: dict[str, Client] = {}
        self.qos: dict[str, int] = {}
        self.sent: Counter[str] = Counter()

    async def run(self) -> None:
        for name in "abc":
            await self.begin(name)
        for name, qos in (("p1", 1), ("p2", 2), ("s1", 1), ("s2", 2), ("away", 2), ("m1", 2), ("m2", 2)):
            self.clients[name] = await client_of(self.rng.choice(self.linked), name)
            self.qos[name] = qos
            if name[0] == "m":
                await subscribe(self.clients[name], "$share/g/t", qos=qos)
            elif name[0] != "p":
                await subscribe(self.clients[name], "t", "t/+", qos=qos)
        for _ in range(STEPS):
            await self.step()
        await self.come_to_rest()
        self.check()
        for broker in self.linked:
            await broker.store.close()

    async def begin(self, name: str) -> None:
        self.brokers[name] = Broker(self.linked, await self.nodes.open(name), most=5)
        await self.brokers[name].open()

    async def step(self) -> None:
        """Something happens."""
        rng = self.rng
        chance = rng.random()
        if chance < 0.6:
            self.publish(rng.choice(("p1", "p2")))
        elif chance < 0.85:
            self.roam(rng.choice([*self.clients]))
        elif chance < 0.89:
            name = rng.choice("abc")
            await self.brokers[name].kill()
            await self.begin(name)
        elif chance < 0.93:
            broker = rng.choice(self.linked)
            broker.linked = not broker.linked
        elif chance < 0.96:
            broker = rng.choice(self.linked)
            for line in broker.store.running.database._lines:
                line.drop()
        else:
            await asyncio.sleep(rng.random() * 0.05)
        await asyncio.sleep(rng.random() * 0.004)

    def publish(self, name: str) -> None:
        client = self.clients[name]
        if self.is_here(client) and len(client.outgoing) < IN_FLIGHT:
            self.sent[name] += 1
            topic = self.rng.choice(("t", "t/a"))
            client.publish(topic, f"{name} {self.sent[name]}".encode(), self.qos[name])

    def roam(self, name: str) -> None:
        """A client connects elsewhere, or comes back; it does not wait for an answer."""
        client = self.clients[name]
        if client.link is not None and not client.wire.cut:
            if self.rng.random() < 0.3 and not client.closed:
                client.disconnect()
            client.killed()
        if name == "away" and self.rng.random() < 0.7:
            return
        client.network = self.rng.choice(self.linked)
        client.connect(clean=False, expiry=EXPIRY)

    async def come_to_rest(self) -> None:
        for broker in self.linked:
            broker.linked = True
            broker.store.node.receive(Hello())
        async with asyncio.timeout(PATIENCE):
            while not all(self.is_here(client) and not client.outgoing for client in self.clients.values()):
                for client in self.clients.values():
                    if not self.is_here(client):
                        # Also if an earlier CONNECT of its own, whose claim came late, has ended the last one.
                        await self.arrive(client)
                await asyncio.sleep(0.002)
        await until_empty(self.nodes, "delivery")
        await until_empty(self.nodes, "received")

    @staticmethod
    def is_here(client: Client) -> bool:
        return client.connack.reason_code == 0 and not client.closed and not client.wire.cut

    async def arrive(self, client: Client) -> None:
        while True:
            await connect(client, self.rng.choice(self.linked))
            if self.is_here(client):
                return

    def check(self) -> None:
        inboxes = [self.clients[name].inbox for name in ("s2", "m1", "m2")]
        every, *shared = ([each.payload for each in inbox if each.topic == b"t"] for inbox in inboxes)
        assert set(shared[0] + shared[1]) == set(every)
        exact = Counter(payload for payload in shared[0] + shared[1] if payload.startswith(b"p2"))
        assert set(exact.values()) <= {1}, "a share group got QoS 2 twice"
        for name in ("s1", "s2", "away"):
            got = [each.payload.decode() for each in self.clients[name].inbox]
            for publisher in ("p1", "p2"):
                count = self.sent[publisher]
                mine = [each for each in got if each.startswith(publisher)]
                assert set(mine) == {f"{publisher} {number}" for number in range(1, count + 1)}
                if self.qos[name] == self.qos[publisher] == 2:
                    assert len(mine) == len(set(mine)), f"{name} got QoS 2 twice"
                for topic in (b"t", b"t/a"):
                    first = dict.fromkeys(
                        int(each.payload.split()[1])
                        for each in self.clients[name].inbox
                        if each.topic == topic and each.payload.startswith(publisher.encode())
                    )
                    assert list(first) == sorted(first), f"{name}: order of {publisher}"


@pytest.mark.parametrize("seed", range(3))
async def test_a_history_keeps_what_is_promised(nodes: Nodes, seed: int) -> None:
    await History(nodes, seed).run()
