"""Two nodes with stores, as daemons: what the one has for the other is there after its own restart, too."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.e2e import stores, wire
from tests.e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Peer, ack
from tests.support.daemon import Daemon
from tests.support.ports import free_port
from tests.support.waiting import until

KEPT = ((wire.SESSION_EXPIRY, 3_600),)
CONFIRM = 0.5


class Node:
    """One daemon after another, with one store."""

    def __init__(self, name: str, kept: stores.Kept, places: dict[str, str]) -> None:
        self.name = name
        self.daemon: Daemon | None = None
        others = json.dumps([place for other, place in places.items() if other != name])
        self._arguments = [
            *kept.flags, "--set", "mesh.name=kept", "--set", f"mesh.node={name}",
            "--set", f'mesh.listen=["{places[name]}"]', "--set", f"mesh.connect={others}",
            # The other one is not waited for long.
            "--set", "mesh.node_timeout=1", "--set", f"mesh.confirm_timeout={CONFIRM}", "--set", "sys.interval=0",
            "--set", "limits.max_loop_lag=0", "--set", "shutdown.flush_timeout=0.3",
        ]  # fmt: skip

    async def start(self) -> None:
        self.daemon = await asyncio.to_thread(lambda: Daemon(*self._arguments))

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Have it end by a signal."""
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            await asyncio.to_thread(daemon.end, number)

    async def until(self, event: str) -> None:
        """Wait for a line of its log, if it has not come yet."""
        daemon = self.daemon
        assert daemon is not None
        await until(lambda: any(json.loads(line)["event"] == event for line in daemon.lines), event)

    async def peer(self, client_id: str, clean: bool = False) -> Peer:
        assert self.daemon is not None
        return await Peer.join(self.daemon.port, client_id, clean=clean, props=() if clean else KEPT)


Pair = dict[str, Node]


@pytest.fixture
async def pair(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """The nodes `a` and `c`; at `c` is the session of `hears`, whose client is away."""
    kind = getattr(request, "param", "sqlite")
    places = {name: f"tcp/127.0.0.1:{free_port()}" for name in "ac"}
    async with AsyncExitStack() as stack:
        nodes = {name: Node(name, stores.kept(kind, tmp_path / name), places) for name in places}
        for node in nodes.values():
            stack.push_async_callback(node.end)
        await asyncio.gather(*(node.start() for node in nodes.values()))
        await nodes["a"].until("node connected")
        await nodes["c"].until("node connected")
        hears = await nodes["c"].peer("hears")
        await hears.subscribe(("x/#", 2))
        await hears.disconnect()
        yield nodes


async def publish(node: Node, numbers: range) -> None:
    """The even ones with QoS 1, the odd ones with QoS 2; each is acknowledged."""
    says = await node.peer("says", clean=True)
    for number in numbers:
        qos = 1 + number % 2
        assert await says.publish(f"x/{qos}", b"%d" % number, qos=qos) == 0
    await says.disconnect()


async def heard(node: Node, count: int) -> dict[str, list[int]]:
    """What comes for `hears`, of QoS 1 and 2; at least so many messages.

    Where the nodes lose each other for a moment, as on a machine that stands still for a second, QoS 1 comes again.
    """
    hears = await node.peer("hears")
    found: dict[str, list[int]] = {"x/1": [], "x/2": []}
    waiting: list[wire.Packet] = []
    while sum(map(len, found.values())) < count or waiting:
        packet = waiting.pop(0) if waiting else await hears.recv()
        packet_id = packet.packet_id or 0
        if packet.kind == PUBREL:
            await hears.send(ack(PUBCOMP, packet_id))
        elif packet.kind == PUBLISH:
            number = int(packet.payload)
            if packet.qos == 2 or number not in found[packet.topic]:
                found[packet.topic].append(number)
            await hears.send(ack(PUBACK if packet.qos == 1 else PUBREC, packet_id))
        if not waiting and sum(map(len, found.values())) >= count:
            waiting = await hears.fence()
    await hears.disconnect()
    return found


@pytest.mark.parametrize(
    ("pair", "ends"),
    [
        ("sqlite", signal.SIGKILL),
        pytest.param("sqlite", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("postgresql", signal.SIGKILL, marks=pytest.mark.long),
    ],
    indirect=["pair"],
)
async def test_what_waits_for_a_node_that_is_away_survives_the_end_of_the_publishers_node(
    pair: Pair, ends: signal.Signals
) -> None:
    """Before the node is back, messages are published again: its topic filters are known [MQTT-4.6.0-6]."""
    a, c = pair["a"], pair["c"]
    await c.end()
    await a.until("node left")
    await publish(a, range(60))
    for number in range(60, 80, 10):
        await a.end(ends)
        await a.start()
        await publish(a, range(number, number + 10))
    await c.start()
    assert await heard(c, 80) == {"x/1": [*range(0, 80, 2)], "x/2": [*range(1, 80, 2)]}


async def test_what_a_node_that_hangs_has_not_confirmed_survives_the_end_of_the_publishers_node(pair: Pair) -> None:
    """Its publisher has waited for it in vain."""
    a, c = pair["a"], pair["c"]
    assert c.daemon is not None
    c.daemon.process.send_signal(signal.SIGSTOP)
    await publish(a, range(4))
    await a.end()
    await c.end()
    await a.start()
    await c.start()
    assert await heard(c, 4) == {"x/1": [0, 2], "x/2": [1, 3]}
