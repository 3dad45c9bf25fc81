"""Clients of a mesh that write down what they see: publishers, subscribers, and one identifier for which many compete.

They keep what a client keeps of its session (MQTT 5.0, section 4.1), and drop it when the broker has none.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from tests.e2e import wire
from tests.e2e.mesh.cluster import Cluster, Node
from tests.e2e.mesh.history import Acknowledged, Answered, Ended, Opened, Received, Retained, Sent, Subscribed
from tests.e2e.wire import Closed, Packet, Peer, WireError, ack, connect, publish, subscribe

GONE: Final = (Closed, WireError, ConnectionError, TimeoutError)
"""What reading or writing comes to when a node is killed, be it within a packet, or stands still."""

PROPERTIES: Final = ((wire.SESSION_EXPIRY, 3_600),)
OPENS: Final = 6.0
"""Seconds for a CONNACK: of a node that waits for others, and not of one that is stopped."""

WINDOW: Final = 5
"""Messages of a publisher that are not acknowledged, at most."""

PACE: Final = 0.02
"""Seconds between what a publisher does, at most."""

_numbers = itertools.count(1)


class Line:
    """One connection, recorded."""

    def __init__(self, cluster: Cluster, client_id: str, node: Node, peer: Peer) -> None:
        self.cluster = cluster
        self.client_id = client_id
        self.node = node.name
        self.peer = peer
        self.number = next(_numbers)
        self.present = False
        self.over = False

    @classmethod
    async def open(cls, cluster: Cluster, client_id: str, node: Node) -> Line | None:
        """Connect, and continue the session. None: the node has no process, does not answer, or refuses."""
        if node.port == 0:
            return None
        began = time.time()
        try:
            async with asyncio.timeout(OPENS):
                peer = await Peer.open("127.0.0.1", node.port)
        except GONE:
            return None
        try:
            async with asyncio.timeout(OPENS):
                await peer.send(connect(client_id, clean=False, props=PROPERTIES))
                answer = await peer.expect(wire.CONNACK)
        except GONE:
            peer.abort()
            return None
        if answer.code:
            peer.abort()
            return None
        line = cls(cluster, client_id, node, peer)
        line.present = answer.session_present
        opened = Opened(time.time(), client_id, line.node, line.number, began, line.present)
        cluster.history.add(opened)
        return line

    async def recv(self) -> Packet:
        """The next packet. Raises one of GONE when there is none to come."""
        try:
            packet = await self.peer.recv()
        except GONE as error:
            self._ended(None, own=isinstance(error, TimeoutError))
            raise
        if packet.kind == wire.DISCONNECT:
            self._ended(packet.code)
            raise Closed
        return packet

    async def send(self, *packets: bytes) -> None:
        """Write packets. What the broker said before the connection broke is read."""
        with suppress(ConnectionError):
            await self.peer.send(*packets)

    def abort(self) -> None:
        """The client's end of it, without a word."""
        self._ended(None, own=True)
        self.peer.abort()

    def _ended(self, code: int | None, own: bool = False) -> None:
        if not self.over:
            self.over = True
            self.cluster.history.add(Ended(time.time(), self.client_id, self.number, code, own))


class Places:
    """Which node a client connects to next: its home, or, for one that `roams`, any that has a process."""

    def __init__(self, cluster: Cluster, home: str, roams: bool, chance: random.Random) -> None:
        self.roams = roams
        self._cluster = cluster
        self._home = home
        self._chance = chance

    def next(self) -> Node:
        """The node."""
        running = self._cluster.running()
        return self._chance.choice(running) if self.roams and running else self._cluster.nodes[self._home]

    def stay(self) -> int:
        """For how many packets."""
        return self._chance.randrange(20, 400) if self.roams else 1 << 60


async def once(line: Line | None, over: Callable[[Line], Awaitable[None]]) -> None:
    """Use a connection until it is gone; where there was none, wait before the next."""
    if line is None:
        await asyncio.sleep(0.1)
        return
    try:
        await over(line)
    except GONE:
        pass
    finally:
        line.abort()


class Writer:
    """Publishes numbers to a topic that nobody else publishes to."""

    def __init__(self, cluster: Cluster, name: str, qos: int, retain: bool, places: Places) -> None:
        self.client_id = name
        self.topic = f"{'r' if retain else 't'}/{name}"
        self.again = 0
        """How many messages it has sent again."""
        self._cluster = cluster
        self._qos = qos
        self._retain = retain
        self._places = places
        self._count = 0
        self._stopping = False
        # In the order in which they were published: packet identifier → number, and whether PUBREC came.
        self._open: dict[int, tuple[int, bool]] = {}

    @property
    def waits(self) -> bool:
        """Whether a message that it has sent is not acknowledged."""
        return not all(released for _, released in self._open.values())

    def stop(self) -> None:
        """Publish nothing new; see the rest through."""
        self._stopping = True

    async def run(self) -> None:
        """Until it was stopped and all is seen through."""
        while not self._stopping or self._open:
            await once(await Line.open(self._cluster, self.client_id, self._places.next()), self._over)

    async def _over(self, line: Line) -> None:
        if not line.present:
            self._open.clear()
        for packet_id, (number, released) in self._open.items():
            self.again += not released
            again = ack(wire.PUBREL, packet_id) if released else self._publish(packet_id, number, dup=True)
            await line.send(again)
        left = self._places.stay()
        while left > 0:
            left -= 1
            if not self._stopping:
                await asyncio.sleep(random.uniform(0, PACE))
                if len(self._open) < WINDOW:
                    await self._one_more(line)
                    continue
            if not self._open:
                return
            await self._take(line, await line.recv())

    async def _one_more(self, line: Line) -> None:
        packet_id = next(number for number in range(1, 100) if number not in self._open)
        self._open[packet_id] = (self._count, False)
        sent = Sent(time.time(), self.client_id, line.node, self.topic, self._count, self._qos, self._retain)
        self._cluster.history.add(sent)
        self._count += 1
        await line.send(self._publish(packet_id, sent.number))

    def _publish(self, packet_id: int, number: int, dup: bool = False) -> bytes:
        payload = b"%d" % number
        return publish(self.topic, payload, qos=self._qos, packet_id=packet_id, dup=dup, retain=self._retain)

    async def _take(self, line: Line, packet: Packet) -> None:
        assert packet.packet_id is not None, packet
        number, released = self._open.pop(packet.packet_id, (-1, False))
        assert number >= 0, packet
        if packet.kind == wire.PUBCOMP or packet.code >= 0x80:
            return
        if not released:
            self._cluster.history.add(Acknowledged(time.time(), line.node, self.topic, number))
        if packet.kind == wire.PUBREC:
            self._open[packet.packet_id] = (number, True)
            await line.send(ack(wire.PUBREL, packet.packet_id))


class Reader:
    """Subscribes, and takes what comes."""

    def __init__(self, cluster: Cluster, name: str, topic_filter: str, places: Places) -> None:
        self.client_id = name
        self.count = 0
        """How many messages have come."""
        self.subscribed = asyncio.Event()
        self._cluster = cluster
        self._filter = topic_filter
        self._places = places
        # Of QoS 2: those whose PUBREL is still to come.
        self._known: set[int] = set()
        self._line: Line | None = None
        self._fenced = asyncio.Event()

    def stay(self) -> None:
        """Come to other nodes no more."""
        self._places.roams = False

    async def fence(self) -> None:
        """What the node had to say before now has come. The connection is to be a good one."""
        self._fenced.clear()
        while not self._fenced.is_set():
            if self._line is not None:
                await self._line.send(wire.PING)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._fenced.wait(), 1.0)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._line = await Line.open(self._cluster, self.client_id, self._places.next())
            await once(self._line, self._over)

    async def _over(self, line: Line) -> None:
        if not line.present:
            self._known.clear()
            await line.send(subscribe(1, [(self._filter, 2)]))
        left = self._places.stay()
        while left > 0:
            left -= 1
            await self._take(line, await line.recv())

    async def _take(self, line: Line, packet: Packet) -> None:
        if packet.kind == wire.SUBACK:
            assert packet.codes == (2,), packet
            self._cluster.history.add(Subscribed(time.time(), self.client_id, self._filter))
            self.subscribed.set()
        elif packet.kind == wire.PINGRESP:
            self._fenced.set()
        elif packet.kind == wire.PUBREL:
            assert packet.packet_id is not None
            self._known.discard(packet.packet_id)
            await line.send(ack(wire.PUBCOMP, packet.packet_id))
        else:
            assert packet.kind == wire.PUBLISH, packet
            if packet.qos < 2 or packet.packet_id not in self._known:
                number = int(packet.payload)
                event = Received(time.time(), self.client_id, line.node, packet.topic, number, packet.qos)
                self._cluster.history.add(event)
                self.count += 1
            if packet.packet_id is not None:
                if packet.qos == 2:
                    self._known.add(packet.packet_id)
                await line.send(ack(wire.PUBACK if packet.qos == 1 else wire.PUBREC, packet.packet_id))


class Contender:
    """One client identifier that connects to node after node, and never disconnects."""

    MOST = 4

    def __init__(self, cluster: Cluster, name: str, chance: random.Random) -> None:
        self.client_id = name
        self._cluster = cluster
        self._chance = chance
        self._stopping = False

    def stop(self) -> None:
        """Connect no more."""
        self._stopping = True

    async def run(self) -> None:
        """Until it was stopped."""
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[None]] = []
            while not self._stopping:
                tasks = [task for task in tasks if not task.done()]
                running = self._cluster.running()
                if len(tasks) < self.MOST and running:
                    line = await Line.open(self._cluster, self.client_id, self._chance.choice(running))
                    if line is not None:
                        tasks.append(group.create_task(self._ask(line)))
                await asyncio.sleep(self._chance.uniform(0.05, 0.5))

    async def _ask(self, line: Line) -> None:
        try:
            while not self._stopping:
                asked = time.time()
                await line.send(wire.PING)
                packet = await line.recv()
                assert packet.kind == wire.PINGRESP, packet
                self._cluster.history.add(Answered(time.time(), line.client_id, line.number, asked))
                await asyncio.sleep(0.05)
        except GONE:
            pass
        finally:
            line.abort()


async def retained_at(node: Node, topic_filter: str) -> Retained:
    """What a client gets as retained that subscribes there now."""
    peer = await Peer.join(node.port, f"retained at {node.name}", clean=True)
    try:
        await peer.subscribe((topic_filter, 0))
        found = [(packet.topic, int(packet.payload)) for packet in await peer.fence() if packet.kind == wire.PUBLISH]
    finally:
        peer.abort()
    return Retained(time.time(), node.name, tuple(sorted(found)))
