"""The daemon with a store on a disk whose syncs do not return for a while: it is told, goes on, and can be stopped.

A library of a few lines (`tests/support/hang.c`) is loaded into the daemon, and hangs while a file is there.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from canopy_mqtt.command.health import UnhealthyError, check
from canopy_mqtt.settings import Endpoint
from tests.e2e import wire
from tests.e2e.store.test_live import House
from tests.e2e.wire import Peer, publish
from tests.support.daemon import PATIENCE, Daemon

SOURCE = Path(__file__).resolve().parents[2] / "support" / "hang.c"


class Hanging(House):
    """A daemon whose disk hangs while a file is there."""

    def __init__(self, folder: Path, library: Path, stack: AsyncExitStack) -> None:
        super().__init__(folder, stack)
        self.hangs = folder.with_name("hangs")
        self._environ = {"LD_PRELOAD": str(library), "HANGS": str(self.hangs)}

    async def begin(self, on_failure: str) -> None:
        sets = (f"store.on_failure={on_failure}", "store.stall_timeout=0.3", "shutdown.flush_timeout=0")
        flags = ("--store", str(self.folder), *(word for each in sets for word in ("--set", each)))
        self.daemon = await asyncio.to_thread(lambda: Daemon(*flags, environ=self._environ))
        self._stack.callback(self.daemon.close)

    async def hang(self) -> Peer:
        """A publisher whose message is not acknowledged, and the broker has said why."""
        await self.away("s", ("t", 1))
        publisher = await self.peer("p", clean=True)
        self.hangs.touch()
        await publisher.send(publish("t", b"held", qos=1, packet_id=7))
        await asyncio.to_thread(self.daemon.until, "store cannot be written")
        return publisher


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Hanging]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path / "hang.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    await asyncio.to_thread(subprocess.run, command, check=True, timeout=PATIENCE)
    async with AsyncExitStack() as stack:
        made = Hanging(tmp_path / "store", library, stack)
        # Before the daemon is ended: it could not be.
        stack.callback(made.hangs.unlink, missing_ok=True)
        yield made


async def test_it_is_told_and_all_goes_on_when_the_disk_does(house: Hanging) -> None:
    await house.begin("hold")
    publisher = await house.hang()
    with pytest.raises(UnhealthyError, match="the disk does not answer: look at the system's log"):
        await asyncio.to_thread(check, Endpoint("mqtt", "127.0.0.1", house.daemon.port))
    # QoS 0 goes on, and nothing is acknowledged that is not on disk.
    assert await publisher.fence() == []
    house.hangs.unlink()
    await asyncio.to_thread(house.daemon.until, "store is written again")
    assert (await publisher.expect(wire.PUBACK)).packet_id == 7
    await asyncio.to_thread(check, Endpoint("mqtt", "127.0.0.1", house.daemon.port))
    await house.again()
    subscriber = await house.peer("s", present=True)
    assert (await subscriber.message()).payload == b"held"


async def test_it_refuses_where_it_is_asked_to(house: Hanging) -> None:
    await house.begin("refuse")
    publisher = await house.hang()
    assert await (await house.peer("q", clean=True)).publish("t", b"x", qos=1) == 0x97
    house.hangs.unlink()
    assert (await publisher.expect(wire.PUBACK)).packet_id == 7


async def test_a_broker_that_is_stopped_does_not_wait_for_the_disk_for_ever(house: Hanging) -> None:
    await house.begin("hold")
    await house.hang()
    house.daemon.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(house.daemon.until, "stopped")
    assert await asyncio.to_thread(house.daemon.process.wait, PATIENCE) == 0
