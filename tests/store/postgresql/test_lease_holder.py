"""A broker that was killed keeps its schema from nobody on the same machine, and one that stands still keeps it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import asyncpg
import pytest

from canopy_mqtt.store.postgresql import lease_holder
from canopy_mqtt.store.postgresql.database import TAKEN
from tests.store.postgresql.place import ask, opened
from tests.support import postgresql
from tests.support.runs import for_each
from tests.support.waiting import until

HOLDING = """
import asyncio, sys
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.store.postgresql import PostgresStore, lease_holder

async def main():
    if len(sys.argv) > 1:
        store = PostgresStore(sys.argv[1], name=sys.argv[2], lease_timeout=3600.0)
        await store.open(asyncio.get_running_loop().time)
        store.journal.session_kept("c", Principal("u"), 300, 0.0)
        await store.flush()
    print(lease_holder.this_process(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Process:
    """Another process that says which it is, and has a store open where it is told of one."""

    def __init__(self, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-c", HOLDING, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.popen.stdout is not None
        self.text = self.popen.stdout.readline().strip()

    def signal(self, number: int) -> None:
        os.kill(self.popen.pid, number)
        # Until the kernel has done so.
        os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        if self.popen.stdout is not None:
            self.popen.stdout.close()


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.close()


class TestProof:
    def test_a_process_that_runs(self, process: Process) -> None:
        assert process.text
        assert not lease_holder.has_ended(process.text)
        assert not lease_holder.has_ended(lease_holder.this_process())

    def test_one_that_stands_still_is_alive(self, process: Process) -> None:
        process.signal(signal.SIGSTOP)
        assert not lease_holder.has_ended(process.text)

    def test_one_that_was_killed(self, process: Process) -> None:
        """It is over before and after its parent has waited for it."""
        process.signal(signal.SIGKILL)
        assert lease_holder.has_ended(process.text)
        process.popen.wait()
        assert lease_holder.has_ended(process.text)

    def test_another_process_has_its_number_now(self, process: Process) -> None:
        place, pid, started = process.text.rsplit(" ", 2)
        assert lease_holder.has_ended(f"{place} {pid} {int(started) - 1}")

    @pytest.mark.parametrize("part", range(4))
    def test_another_machine_boot_or_namespace(self, process: Process, part: int) -> None:
        """A container has the same machine and boot, and numbers of its own."""
        process.close()
        parts = process.text.split(" ")
        parts[part] = "x"
        assert not lease_holder.has_ended(" ".join(parts))

    @for_each("text", ["", "x", "a b c d 1", f"{' '.join('abcd')} 1 x"])
    def test_what_cannot_be_read(self, text: str) -> None:
        assert not lease_holder.has_ended(text)

    def test_a_process_of_somebody_else(self, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where `/proc` hides it, the kernel still says that it is there."""
        process.close()

        def forbid(*_: int) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "kill", forbid)
        assert not lease_holder.has_ended(process.text)

    def test_a_system_that_does_not_tell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lease_holder, "MACHINE", ("/nowhere",))
        assert lease_holder.this_process() == ""


async def holding(name: str) -> Process:
    return await asyncio.to_thread(Process, postgresql.shared().url, name)


async def test_who_was_killed_is_not_waited_for(name: str) -> None:
    """Its lease would last for an hour."""
    process = await holding(name)
    try:
        await asyncio.to_thread(process.signal, signal.SIGKILL)
        async with asyncio.timeout(30):
            second = await opened(name)
        assert [each.client_id for each in (await second.load()).sessions] == ["c"]
        await second.close()
        assert await ask(name, "SELECT epoch FROM owner") == [(2,)]
    finally:
        await asyncio.to_thread(process.close)


async def test_who_stands_still_keeps_its_lease(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = await holding(name)
    fetchrow, asked = asyncpg.Connection.fetchrow, 0

    async def counted(connection: object, query: str, *values: object, **options: object) -> object:
        nonlocal asked
        asked += query == TAKEN
        return await fetchrow(connection, query, *values, **options)

    try:
        await asyncio.to_thread(process.signal, signal.SIGSTOP)
        monkeypatch.setattr(asyncpg.Connection, "fetchrow", counted)
        start = asyncio.ensure_future(opened(name))
        await until(lambda: asked >= 4, "the second broker waits")
        assert await ask(name, "SELECT epoch FROM owner") == [(1,)]
        assert not start.done()
        await asyncio.to_thread(process.signal, signal.SIGKILL)
        async with asyncio.timeout(30):
            await (await start).close()
    finally:
        await asyncio.to_thread(process.close)
