"""Workers with stores: what was acknowledged outlives a worker, all of them, and a change of their number."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e import wire
from tests.e2e.store.test_live import KINDS, House, Publisher, Qos, Receiver, seen_through
from tests.e2e.stores import InDatabase, InFile, Kept, kept
from tests.support.daemon import Daemon
from tests.workers.live.test_serving import LONG, as_json, is_there

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

FOR_NODES: Final = "SELECT count(*) FROM session WHERE client_id LIKE '$node/to/%'"

WORKERS: Final = 3
CLIENTS: Final = 8


class Workers(House):
    """One supervisor after another, all with the same stores."""

    def __init__(self, folder: Path, stack: AsyncExitStack, kept: Kept | None = None) -> None:
        super().__init__(folder, stack, kept)
        self.pids: dict[str, int] = {}
        self._chance = random.Random(7)

    async def start(self, *arguments: str) -> None:
        flags = (*self.kept.flags, *(arguments or ("--workers", str(WORKERS))))
        self.daemon = await asyncio.to_thread(lambda: Daemon(*flags, environ=self.environ, patience=LONG))
        self._stack.callback(self.daemon.close)
        lines = map(as_json, self.daemon.lines)
        self.pids = next((line["pids"] for line in lines if line["event"] == "workers serve"), {})

    def kill(self) -> None:
        """Kill one worker, and have all clients come anew."""
        victim = self._chance.choice(list(self.pids))
        os.kill(self.pids[victim], signal.SIGKILL)
        for peer in self._peers:
            peer.abort()
        self._peers.clear()

    async def back(self) -> None:
        """The one that was killed serves again."""
        line = (await asyncio.to_thread(self.daemon.until, "worker serves again"))[-1]
        self.pids[line["worker"]] = line["pid"]

    async def kill_all(self) -> None:
        """All processes at once, as where a container is killed; and start them anew."""
        # The supervisor last: a worker that finds it gone ends in order, with a DISCONNECT for its clients.
        for pid in (*self.pids.values(), self.daemon.process.pid):
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(self.daemon.close)
        while any(map(is_there, self.pids.values())):  # noqa: ASYNC110 (they are no children of this process)
            await asyncio.sleep(0.01)
        for peer in self._peers:
            peer.abort()
        self._peers.clear()

    async def stop(self) -> None:
        for peer in self._peers:
            peer.abort()
        self._peers.clear()
        code, _ = await asyncio.to_thread(self.daemon.end)
        assert code == 0


@pytest.fixture(params=KINDS)
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Workers]:
    async with AsyncExitStack() as stack:
        yield Workers(tmp_path / "store", stack, kept(request.param, tmp_path / "store"))


async def run(publisher: Publisher, sender: wire.Peer, messages: int) -> None:
    """Publish some. QoS 2 ends acknowledged: a publish that is not may have come to other workers already, and comes
    again when its publisher's worker has died before it knew the packet identifier for good."""
    most = publisher.count + messages if publisher.qos == 2 else 1 << 30
    await publisher.run(sender, messages, most)


async def published(house: Workers, publisher: Publisher, here: Receiver, chance: random.Random, first: bool) -> None:
    """Publish for a while to a client that is there, and end in the midst of it."""
    sender = await house.peer("p", present=not first)
    taking = asyncio.ensure_future(here.run(await house.peer("here", present=True)))
    await run(publisher, sender, chance.randrange(50, 300))
    house.kill()
    await publisher.drain(sender)
    await taking


@Qos
async def test_a_worker_is_killed_again_and_again(house: Workers, qos: int) -> None:
    """Sessions are there again with it: nothing acknowledged is lost, QoS 2 comes exactly once, no order is broken."""
    await house.start()
    chance = random.Random(qos)
    publisher, here = Publisher(qos), Receiver()
    for name in ("away", "here"):
        await house.away(name, ("t", qos))
    for round_ in range(4):
        await published(house, publisher, here, chance, round_ == 0)
        await house.back()
    await seen_through(house, qos, publisher, here)


@Qos
async def test_all_are_killed_at_once(house: Workers, qos: int) -> None:
    await house.start()
    publisher, here = Publisher(qos), Receiver()
    for name in ("away", "here"):
        await house.away(name, ("t", qos))
    for round_ in range(3):
        sender = await house.peer("p", present=round_ > 0)
        taking = asyncio.ensure_future(here.run(await house.peer("here", present=True)))
        await run(publisher, sender, 100)
        await house.kill_all()
        await publisher.drain(sender)
        await taking
        await house.start()
    await seen_through(house, qos, publisher, here)


def numbers(house: Workers) -> set[int]:
    """The workers that have stores beside the first one's."""
    if isinstance(house.kept, InFile):
        return {int(each.name[1:]) for each in house.folder.glob("w*") if (each / "canopy.db").exists()}
    assert isinstance(house.kept, InDatabase)
    rows = house.kept.server.ask("SELECT nspname::text FROM pg_namespace")
    start = f"{house.kept.name}_w"
    return {int(name.removeprefix(start)) for (name,) in rows if name.startswith(start)}


async def test_sessions_and_messages_outlive_each_number_of_workers(house: Workers) -> None:
    """From a broker that is one process to four, to two, and back to one."""
    expected: dict[str, list[bytes]] = {f"c{at}": [] for at in range(CLIENTS)}
    for round_, workers in enumerate((1, 4, 2, 1)):
        await house.start("--workers", str(workers))
        for client_id in expected:
            peer = await house.peer(client_id, present=round_ > 0)
            if round_ == 0:
                await peer.subscribe(("t/#", 1))
            await peer.disconnect()
        source = await house.peer("", clean=True, expiry=0)
        await source.publish("t/a", b"%d" % round_, qos=1)
        await source.publish(f"kept/{round_}", b"%d" % workers, qos=1, retain=True)
        for told in expected.values():
            told.append(b"%d" % round_)
        if round_ > 1:
            gone = {2, 3} if workers == 2 else {1}
            emptied = {(await removed(house))["worker"] for _ in gone}
            assert emptied == {f"w{number}" for number in gone}
        assert await asyncio.to_thread(numbers, house) == set(range(1, workers))
        await house.stop()
    # Now without a supervisor.
    await house.start("--workers", "1")
    assert house.pids == {}
    for client_id, payloads in expected.items():
        peer = await house.peer(client_id, present=True)
        assert [(await peer.message()).payload for _ in payloads] == payloads
        assert await peer.fence() == []
    reader = await house.peer("", clean=True, expiry=0)
    await reader.subscribe("kept/#")
    assert {(await reader.message()).topic for _ in range(4)} == {f"kept/{round_}" for round_ in range(4)}
    await house.stop()
    # There are no other workers any more.
    assert await asyncio.to_thread(house.kept.count, FOR_NODES) == 0


async def removed(house: Workers) -> dict[str, Any]:
    return (await asyncio.to_thread(house.daemon.until, "store emptied and removed"))[-1]


async def test_a_rolling_restart_keeps_what_waits(house: Workers) -> None:
    await house.start("--workers", "2", "--set", "workers.drain_timeout=1")
    for at in range(CLIENTS):
        await house.away(f"c{at}", ("t", 2))
    source = await house.peer("source")
    await source.publish("t", b"before", qos=2)
    house.daemon.process.send_signal(signal.SIGUSR2)
    await asyncio.to_thread(house.daemon.until, "rolling restart done")
    source = await house.peer("source", present=True)
    await source.publish("t", b"after", qos=2)
    for at in range(CLIENTS):
        peer = await house.peer(f"c{at}", present=True)
        assert [(await peer.message()).payload for _ in range(2)] == [b"before", b"after"]
        assert await peer.fence() == []


async def test_what_ends_in_order_has_all_that_was_acknowledged(house: Workers) -> None:
    """Whichever worker has the publisher, and whichever the session: they end together."""
    await house.start()
    for at in range(CLIENTS):
        await house.away(f"c{at}", ("t", 1))
    sources = [await house.peer("", clean=True, expiry=0) for _ in range(CLIENTS)]
    acknowledged: list[bytes] = []

    async def publish(number: int, source: wire.Peer) -> None:
        for count in range(10_000):
            payload = b"%d/%d" % (number, count)
            await source.send(wire.publish("t", payload, qos=1, packet_id=1))
            if (await source.recv()).kind != wire.PUBACK:
                return
            acknowledged.append(payload)

    publishing = [asyncio.ensure_future(publish(*each)) for each in enumerate(sources)]
    while len(acknowledged) < 200:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    house.daemon.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*publishing, return_exceptions=True)
    await asyncio.to_thread(house.daemon.process.wait)
    await house.start()
    for at in range(CLIENTS):
        peer = await house.peer(f"c{at}", present=True)
        found = {each.payload for each in await peer.fence()}
        while not found >= set(acknowledged):
            more = await peer.fence()
            assert more, f"{len(set(acknowledged) - found)} are missing"
            found |= {each.payload for each in more}
        await peer.disconnect()
