"""The system's clock is set while a daemon runs, and between two of them: no session and no message expires by it.

libfaketime changes the wall clock of the daemon alone; the clocks of its kernel go on as they do.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.store.test_live import House
from tests.e2e.wire import MESSAGE_EXPIRY

DAY: Final = 86_400
DAYS_BEHIND: Final = 20


def _library() -> str:
    folders = [Path(each) for each in ("/usr/lib", "/usr/local/lib", "/usr/lib64")]
    for pattern in ("faketime/libfaketime.so.1", "*/faketime/libfaketime.so.1"):
        for folder in folders:
            for found in sorted(folder.glob(pattern)):
                return str(found)
    pytest.skip("there is no libfaketime")


class Machine(House):
    """Daemons on a machine whose clock is behind by some days."""

    def __init__(self, folder: Path, library: str, stack: AsyncExitStack) -> None:
        super().__init__(folder, stack)
        self._stamp = folder.with_name("now")
        self.environ = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(self._stamp),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def behind(self, days: int) -> None:
        """Set the clock."""
        new = self._stamp.with_suffix(".new")
        new.write_text(f"-{days}d\n" if days else "+0\n")
        os.replace(new, self._stamp)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with AsyncExitStack() as stack:
        made = Machine(tmp_path / "store", _library(), stack)
        made.behind(DAYS_BEHIND)
        await made.start("--set", "store.memory_bytes=1000")
        yield made


async def fill(machine: Machine) -> None:
    """A session that is away, messages of a day for it in memory and on disk, and a retained one."""
    await machine.away("s", ("t", 1))
    publisher = await machine.peer("p", clean=True)
    for number in range(10):
        await publisher.publish("t", b"%d" % number, qos=1, props=((MESSAGE_EXPIRY, DAY),))
    await publisher.publish("kept", b"kept", qos=1, retain=True, props=((MESSAGE_EXPIRY, DAY),))


async def whole(machine: Machine) -> bool:
    """Return whether all of that is there."""
    subscriber = await machine.peer("s", present=True)
    found = [(await subscriber.message()).payload for _ in range(10)]
    await subscriber.subscribe(("kept", 1))
    return [*found, (await subscriber.message()).payload] == [*(b"%d" % number for number in range(10)), b"kept"]


async def test_ntp_answers_while_the_broker_runs(machine: Machine) -> None:
    """As on each start of a Raspberry Pi: the queue that waits on disk is read with the right time."""
    await fill(machine)
    machine.behind(0)
    assert await whole(machine)


@pytest.mark.long
async def test_ntp_answers_and_the_broker_is_killed(machine: Machine) -> None:
    await fill(machine)
    machine.behind(0)
    publisher = await machine.peer("p2", clean=True)
    await publisher.publish("other", b"after the step", qos=1, retain=True)
    await machine.again()
    assert await whole(machine)


@pytest.mark.long
@pytest.mark.parametrize("days", [0, 3 * DAYS_BEHIND])
async def test_the_clock_is_set_between_two_brokers_of_one_boot(machine: Machine, days: int) -> None:
    await fill(machine)
    machine.kill()
    machine.behind(days)
    await machine.again()
    assert "the system's clock has jumped" in " ".join(machine.daemon.lines)
    assert await whole(machine)
