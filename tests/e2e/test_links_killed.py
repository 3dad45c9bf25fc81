"""The daemon at the edge with a store and a link, killed by SIGKILL under load while its connection upstream flaps.

The upstream is a broker of this process, which keeps the link's session all the while. Both ways: what a publisher has
an acknowledgement for arrives on the other side, QoS 2 once, and nothing overtakes anything of its topic.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.settings import Shutdown, Sys
from tests.e2e import wire
from tests.e2e.store.test_live import House, Publisher, Receiver, hold
from tests.e2e.wire import SESSION_EXPIRY, Peer, connect, publish
from tests.support.daemon import Daemon
from tests.support.runs import seeds, times
from tests.support.waiting import until

HOUR = 3600
EDGE = "edge"
"""The link's client identifier upstream."""


class OverTheLink(Publisher):
    """Publishes to a topic of its QoS; nothing is retained."""

    def __init__(self, qos: int, below: str) -> None:
        super().__init__(qos)
        self.topic = f"{below}/{qos}"

    def _publish(self, packet_id: int, dup: bool = False) -> bytes:
        number, _ = self._open[packet_id]
        return publish(self.topic, b"%d" % number, qos=self.qos, packet_id=packet_id, dup=dup)


class Edge(House):
    """One daemon after another, with one store, and a link to a broker of this process."""

    def __init__(self, folder: Path, stack: AsyncExitStack, cloud: Broker) -> None:
        super().__init__(folder, stack)
        self.cloud = cloud
        link = (
            f'name = "cloud", url = "mqtt://127.0.0.1:{cloud.ports[0]}", client_id = "{EDGE}", clean_start = false, '
            'publish = ["up/#"], subscribe = ["down/#"], subscribe_qos = 2, retry_min = 0.01, retry_max = 0.02'
        )
        self.environ = {"CANOPY_UPSTREAM": f"[{{{link}}}]"}

    async def start(self, *arguments: str) -> None:
        flags = ("--store", str(self.folder), *arguments)
        self.daemon = await asyncio.to_thread(lambda: Daemon(*flags, environ=self.environ))
        self._stack.callback(self.daemon.close)

    async def linked(self) -> None:
        """The link has connected and has subscribed."""
        await until(lambda: "down/#" in getattr(self.cloud.router.sessions.get(EDGE), "subscriptions", ()))

    def flap(self) -> None:
        """The connection between the two breaks, if there is one."""
        for connection in list(self.cloud.connections):
            if connection.protocol.client_id == EDGE:
                connection.stream.transport.abort()

    async def at_cloud(self, client_id: str) -> Peer:
        peer = await Peer.open("127.0.0.1", self.cloud.ports[0])
        self._stack.callback(peer.abort)
        await peer.send(connect(client_id, clean=False, props=((SESSION_EXPIRY, HOUR),)))
        assert (await peer.expect(wire.CONNACK)).code == 0
        return peer


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with AsyncExitStack() as stack:
        settings = Settings(listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=0.0), shutdown=Shutdown(flush_timeout=0.0))
        made = Edge(tmp_path / "store", stack, await stack.enter_async_context(Broker(settings)))
        await made.start()
        yield made
    # A connection that came in the last moment was cut; its socket is closed in the next turns.
    for _ in range(5):
        await asyncio.sleep(0)


async def killed_and_flapping(edge: Edge, kills: int, seed: int) -> None:
    """Two publishers at the edge and two upstream; on each side somebody who takes it all."""
    chance = random.Random(seed)
    up = [OverTheLink(qos, "up") for qos in (1, 2)]
    down = [OverTheLink(qos, "down") for qos in (1, 2)]
    above, below = [Receiver(), Receiver()], [Receiver(), Receiver()]
    for sender in up:
        peer = await edge.at_cloud(f"above {sender.qos}")
        await peer.subscribe((sender.topic, sender.qos))
        await peer.disconnect()
    for sender in down:
        await edge.away(f"below {sender.qos}", (sender.topic, sender.qos))
    await edge.linked()
    for round_ in range(kills + 1):
        last = round_ == kills
        takers = [await edge.peer(f"below {sender.qos}", present=True) for sender in down]
        takers += [await edge.at_cloud(f"above {sender.qos}") for sender in up]
        taking = [
            asyncio.ensure_future(receiver.run(peer)) for receiver, peer in zip((*below, *above), takers, strict=True)
        ]
        # The session of one that has heard nothing but CONNACK may be gone.
        senders = [await edge.peer(f"up {sender.qos}", present=None) for sender in up]
        senders += [await edge.at_cloud(f"down {sender.qos}") for sender in down]
        # The last time, all that is open is seen through.
        most = [sender.count if last else 1 << 30 for sender in (*up, *down)]
        few = [1 << 30 if last else chance.randrange(1, 200) for _ in most]
        working = [
            asyncio.ensure_future(sender.run(peer, count, limit))
            for sender, peer, count, limit in zip((*up, *down), senders, few, most, strict=True)
        ]
        came = len(above[0].received) + chance.randrange(1, 100)
        await until(lambda: len(above[0].received) >= came or working[0].done())  # noqa: B023
        edge.flap()
        if last:
            await asyncio.gather(*working)
            for sender, receiver in zip((*up, *down), (*above, *below), strict=True):
                await until(lambda: sender.count in (0, len(set(receiver.received))), sender.topic)  # noqa: B023
            await until(lambda: not edge.cloud.router.sessions[EDGE].inflight)
        else:
            await asyncio.wait([chance.choice(working)])
            edge.kill()
            # Below, they hear all that the daemon had sent.
            await asyncio.gather(*working, *taking[:2])
            for sender, peer in zip(up, senders[:2], strict=True):
                await sender.drain(peer)
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        if last:
            break
        for peer in takers[2:]:
            peer.abort()
        await edge.again()
    for sender, receiver in zip((*up, *down), (*above, *below), strict=True):
        hold(sender, (receiver,))


@pytest.mark.parametrize("seed", seeds(10))
async def test_killed_again_and_again(edge: Edge, seed: int) -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-4.4.0-1]"""
    await killed_and_flapping(edge, kills=times(5, 3), seed=seed)
