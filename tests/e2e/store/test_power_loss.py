"""A power cut under the daemon: of its files there is what was synced when it was synced, and nothing else.

A library of a few lines (`tests/support/power.c`) is loaded into the daemon and copies each file when it is synced. The
copies are what the next daemon starts with.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.e2e.store.test_live import House, killed_again_and_again
from tests.support.daemon import PATIENCE, Daemon
from tests.support.runs import seeds, times

SOURCE = Path(__file__).resolve().parents[2] / "support" / "power.c"


class Outages(House):
    """One daemon after another, each with what the last one had synced."""

    def __init__(self, folder: Path, library: Path, stack: AsyncExitStack, synchronous: str) -> None:
        super().__init__(folder, stack)
        self.synced = folder.with_name("synced")
        self.environ = {"LD_PRELOAD": str(library), "SYNCED_FROM": str(folder), "SYNCED_TO": str(self.synced)}
        self.synchronous = synchronous

    async def start(self, *arguments: str) -> None:
        flags = ("--store", str(self.folder), "--set", f"store.synchronous={self.synchronous}", *arguments)
        self.synced.mkdir(exist_ok=True)
        self.daemon = await asyncio.to_thread(lambda: Daemon(*flags, environ=self.environ))
        self._stack.callback(self.daemon.close)

    async def again(self, *, after: float = 0.0) -> None:
        """The power fails, and comes back."""
        assert not after
        self.kill()
        await asyncio.to_thread(self.daemon.close)
        for peer in self._peers:
            peer.abort()
        self._peers.clear()
        shutil.rmtree(self.folder)
        self.synced.rename(self.folder)
        for part in self.folder.glob("*.part"):
            part.unlink()
        # What is on the disk already counts as synced.
        shutil.copytree(self.folder, self.synced)
        await self.start()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled."""
    made = tmp_path_factory.mktemp("power") / "power.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=PATIENCE)
    return made


@pytest.fixture
async def house(request: pytest.FixtureRequest, tmp_path: Path, library: Path) -> AsyncIterator[Outages]:
    async with AsyncExitStack() as stack:
        made = Outages(tmp_path / "store", library, stack, getattr(request, "param", "full"))
        await made.start()
        yield made


async def test_what_was_acknowledged_is_on_disk(house: Outages) -> None:
    """A message that waits, a subscription, a retained message: the very moment that its acknowledgement has come."""
    await house.away("s", ("t/#", 1))
    publisher = await house.peer("p", clean=True)
    await publisher.publish("t/a", b"1", qos=1)
    await house.again()
    publisher = await house.peer("p", clean=True)
    await publisher.publish("t/a", b"2", qos=2, retain=True)
    await house.again()
    subscriber = await house.peer("s", present=True)
    assert [(await subscriber.message()).payload for _ in range(2)] == [b"1", b"2"]
    await subscriber.subscribe(("t/a", 1))
    assert (await subscriber.message()).payload == b"2"


@pytest.mark.long
@pytest.mark.parametrize("house", ["normal"], indirect=True)
async def test_normal_loses_the_last_of_it_and_no_more(house: Outages) -> None:
    """The file is whole, and starts; this is also how we know that the library does what it says."""
    await house.away("s", ("t", 1))
    publisher = await house.peer("p", clean=True)
    for number in range(50):
        await publisher.publish("t", b"%d" % number, qos=1)
    await house.again()
    subscriber = await house.peer("s", present=None)
    found = [int(one.payload) for one in await subscriber.fence()]
    assert len(found) < 50
    assert found == list(range(len(found)))


@pytest.mark.parametrize("seed", seeds(10))
async def test_outages_again_and_again(house: Outages, seed: int) -> None:
    """Nothing acknowledged is lost, QoS 2 comes exactly once, no order is broken [MQTT-4.3.3-1]."""
    await killed_again_and_again(house, 2 - seed % 2, kills=times(10), seed=seed)
