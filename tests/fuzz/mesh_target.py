"""Two brokers that are one, and a third node that says what no node says: what the two have said, spoilt.

What must hold whatever it says: an honest pair, one at each of the two, goes on exchanging messages, with nothing lost
or doubled; whatever is raised over a message of the third node is a `ProtocolFault`, which costs that node its
membership and nobody else; no exception reaches the event loop's handler, and nothing is logged as an error; and when
the third node is gone and given up, so is all that was under way with it.

The inputs follow from the seed and from what the brokers have said, which times decide a little.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import deque
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from typing import Any, Final
from unittest import mock

from broker.app import Broker
from broker.mesh.bus import INTEREST, OWNERSHIP, PIPES, RETAINED, WILLS, ProtocolFault
from broker.mesh.mesh import Mesh
from broker.settings import Settings
from tests.e2e import wire
from tests.fuzz.live_target import Watch, _Log
from tests.mesh.brokers import joining
from tests.support.memory_bus import MemoryMesh
from tests.support.waiting import until

HOSTILE: Final = "m"
REMEMBERED: Final = 400
"""Messages of each kind that are spoilt: the last ones."""

OPENING: Final = 9
"""Messages with which a node begins, about: greetings of its rooms, and what it wants."""

BURST: Final = 40
"""What the third node says between two looks at the honest pair."""

ROAMERS: Final = ("roams-1", "roams-2", "roams-3")
KEPT: Final = ((wire.SESSION_EXPIRY, 100),)
GONE: Final = 1.0
"""Seconds after which a node that is gone is given up."""

_TELLING: Final = (
    b"\x00\x01\x02\x03\x04\x05\x0f\x7f\x80\x90\x91\x92\x93\xa0\xa1\xc0\xc2\xc3\xc4\xcf\xd9\xdc\xdd\xff$/#+"
)


class Tapped(MemoryMesh):
    """Remembers what the two say to each other."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(*nodes)
        self.said: dict[int, deque[bytes]] = {}
        # What a says to b at first, before there are clients.
        self.opening: list[tuple[int, bytes]] = []
        # Kinds of which nothing more is remembered.
        self.enough: set[int] = set()

    def carry(self, source: str, target: str, kind: int, data: bytes) -> None:
        """See `MemoryMesh.carry`."""
        if HOSTILE not in (source, target) and kind not in self.enough:
            self.said.setdefault(kind, deque(maxlen=REMEMBERED)).append(bytes(data))
            if source == "a" and len(self.opening) < OPENING:
                self.opening.append((kind, bytes(data)))
        super().carry(source, target, kind, data)


def spoil(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A message, more or less spoilt; now and then as it was, or noise."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randint(0, 40))
    raw = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        if not raw:
            break
        at = rng.randrange(len(raw))
        match rng.randrange(6):
            case 0:
                raw[at] = rng.choice(_TELLING)
            case 1:
                raw[at] ^= 1 << rng.randrange(8)
            case 2:
                del raw[at : at + rng.randint(1, 8)]
            case 3:
                raw[at:at] = bytes(rng.choice(_TELLING) for _ in range(rng.randint(1, 8)))
            case 4:
                raw[at:at] = raw[at : at + rng.randint(1, 30)] * rng.randint(1, 3)
            case _:
                raw[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(raw)


def settings(node: str) -> Settings:
    """A node that waits for nobody for long."""
    return Settings.model_validate(
        {
            "listen": ["mqtt://127.0.0.1:0"],
            "sys": {"interval": 0.0},
            "shutdown": {"flush_timeout": 0.1},
            "mesh": {"name": "one", "node": node, "confirm_timeout": 0.1, "node_expiry": GONE, "dead_after": 0.2},
        }
    )


class Run:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.watch = Watch()
        self.memory = Tapped("a", "b", HOSTILE)
        self.brokers: dict[str, Broker] = {}
        self.faults = 0
        self.number = 0

    def port(self, node: str) -> int:
        return self.brokers[node].ports[0]

    def mesh(self, node: str) -> Mesh:
        mesh = self.brokers[node].mesh
        assert mesh is not None
        return mesh

    async def roam(self) -> None:
        """Clients whose sessions move, with a will, a retained message and a share group: all that nodes speak of."""
        client_id, node = self.rng.choice(ROAMERS), self.rng.choice("ab")
        try:
            will = wire.Will("roams/will", b"gone", qos=1, properties=((wire.WILL_DELAY, 1),))
            peer = await wire.Peer.open("127.0.0.1", self.port(node))
            await peer.send(
                wire.connect(client_id, clean=self.rng.random() < 0.1, props=KEPT, will=will),
                wire.subscribe(1, [("roams/#", 2), (f"$share/g/{self.rng.randrange(9)}", 1)]),
                wire.publish(f"roams/{self.rng.randrange(9)}", b"x", qos=2, packet_id=7, retain=True),
            )
            await asyncio.wait((asyncio.ensure_future(peer.reader.read(10)),), timeout=0.3)
            peer.abort()
        except (OSError, wire.Closed):
            pass

    async def attack(self) -> None:
        """The third node says something to one of the two."""
        memory, rng = self.memory, self.rng
        target = rng.choice("ab")
        if HOSTILE not in memory[target].there:
            memory.join(HOSTILE, target)
            await memory.settle()
            for kind, data in memory.opening if rng.random() < 0.9 else ():
                memory.carry(HOSTILE, target, kind, data)
            await memory.settle()
        for _ in range(rng.randint(1, BURST)):
            kind = rng.choice((INTEREST, RETAINED, OWNERSHIP, OWNERSHIP, PIPES, WILLS, rng.randrange(20)))
            said = memory.said.get(kind) or memory.said[INTEREST]
            data = spoil(rng.choice(said), rng.choice(said), rng)
            self.watch.sent(kind, data)
            memory.carry(HOSTILE, target, kind, data)
            if rng.random() < 0.2:
                await memory.settle()
        await memory.settle()
        for fault in memory.faults:
            self.faults += 1
            if not isinstance(fault, ProtocolFault):
                self.watch.trouble.append(f"a room raised {fault!r}")
        memory.faults.clear()

    async def exchange(self, says: wire.Peer, hears: wire.Peer) -> None:
        """One message of the honest pair, with each QoS in turn."""
        self.number += 1
        payload, qos = b"%d" % self.number, self.number % 3
        try:
            code = await says.publish("honest/t", payload, qos=qos)
            found = await hears.message()
        except (wire.WireError, wire.Closed, TimeoutError) as error:
            self.watch.trouble.append(f"an honest client suffers: {type(error).__name__}: {error}")
            return
        if code or found.payload != payload:
            self.watch.trouble.append(f"{payload!r} was due to an honest client, {found} came")

    def remains(self) -> str:
        """What there is of the third node; nothing when there is nothing."""
        for node in "ab":
            mesh = self.mesh(node)
            room = mesh.ownership
            tables: dict[str, Collection[Any]] = {
                "links": mesh.links,
                "claims": room.claims.pending,
                "sessions that go": room.giver.givings,
                "sessions that come": room.taker.coming,
                "moves": room.gates._gates,
                "interest": [name for name in mesh.interest.remotes if name == HOSTILE],
                "pipes": mesh.streams._pipes._theirs.get(HOSTILE, ()),
                "nodes that wills are told": [name for name in mesh.wills.replicator.nodes if name == HOSTILE],
                "peers of retained messages": [name for name in mesh.retained._peers if name == HOSTILE],
            }
            for what, table in tables.items():
                if HOSTILE in table or (what != "links" and table):
                    return f"{node} has {what}: {table}"
        return ""

    async def run(self, stop: Callable[[], bool]) -> None:
        """Until `stop()`."""
        asyncio.get_running_loop().set_exception_handler(self.watch.on_exception)
        async with AsyncExitStack() as stack:
            stack.enter_context(mock.patch("broker.mesh.joining.join", joining(self.memory)))
            for node in "ab":
                broker = self.brokers[node] = await stack.enter_async_context(Broker(settings(node)))
                broker.log = _Log(self.watch)
                broker.log_changed()
            self.memory.join("a", "b")
            await until(lambda: all(self.mesh(node).down() == {other: 0.0} for node, other in ("ab", "ba")))
            says = await wire.Peer.join(self.port("a"), uuid.uuid4().hex)
            hears = await wire.Peer.join(self.port("b"), uuid.uuid4().hex, ("honest/t", 2))
            stack.callback(says.abort)
            stack.callback(hears.abort)
            # The third node is not to know the honest ones by name, nor what they say.
            del self.memory.said[OWNERSHIP]
            for _ in range(40):
                await self.roam()
            self.memory.enough.add(PIPES)
            while not stop() and not self.watch.trouble:
                await self.roam()
                await self.attack()
                await self.exchange(says, hears)
            self.memory.stop(HOSTILE)
            if not self.watch.trouble:
                try:
                    await until(lambda: not self.remains())
                except AssertionError:
                    self.watch.trouble.append(self.remains())
            await self.exchange(says, hears)
            self.memory.cut("a", "b")
            await self.memory.settle()


def run(seed: int, stop: Callable[[], bool]) -> int:
    """Inputs until `stop()`; how many there were.

    Raises:
        Finding: a broker did what it must not do.
    """
    return watched(seed, stop).watch.inputs


def watched(seed: int, stop: Callable[[], bool]) -> Run:
    """The same; what was seen."""
    made = Run(seed)
    asyncio.run(made.run(stop))
    made.watch.check(seed)
    return made
