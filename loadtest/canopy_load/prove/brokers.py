"""Brokers that a proof starts, kills, stops and restarts itself: how each keeps its data, and what it promises.

Owns: `Driver`, one for each broker that is known, and `Started`, a broker with its folder over all its processes.

Promises: a broker listens on one free port of 127.0.0.1 and keeps its data in a temporary folder, over all its
processes. Whatever happens, no process is left. One that ends by itself, or does not come back after a fault, is an
error, and no verdict.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from canopy_load.brokers.process import HOST, BrokerFailed, BrokerProcess, free_port
from canopy_load.brokers.registry import PEERS, mosquitto_with
from canopy_load.engine.job import Target
from canopy_load.prove.judge import Durability
from canopy_load.prove.plan import Fault

PATIENCE: Final = 30.0
"""Seconds for a broker to answer after a start, and to end after SIGTERM."""


@dataclass(frozen=True)
class Driver:
    """One broker. `command` returns its command line for a port and a folder, and may write its configuration there."""

    name: str
    command: Callable[[int, Path], list[str]]
    durability: Durability

    @property
    def missing(self) -> str | None:
        """Why it cannot run here; None: it can."""
        return PEERS[self.name].missing()

    @property
    def version(self) -> str:
        return PEERS[self.name].version()


def _canopy(port: int, folder: Path) -> list[str]:
    # The bench's settings, with a store: queues as wide as the defaults.
    return PEERS["canopy"].command(port, folder, settings=(f"store.path={folder / 'store'}",))


def _mosquitto(port: int, folder: Path) -> list[str]:
    lines = (
        # It would give up root, and not be allowed to write here.
        f"user {getpass.getuser()}",
        "persistence true",
        f"persistence_location {folder}/",
        "autosave_interval 1",
    )
    return mosquitto_with(PEERS["mosquitto"].command(port, folder), lines)


DRIVERS: Final[dict[str, Driver]] = {
    each.name: each
    for each in (
        Driver("canopy", _canopy, Durability(0.0, "what is acknowledged is on disk (docs/durability.md)")),
        Driver(
            "mosquitto",
            _mosquitto,
            # It compares whole seconds, and the file has to be written.
            Durability(3.0, "it saves every autosave_interval (here 1 s) and when it is stopped (mosquitto.conf)"),
        ),
    )
}


class Started:
    """A broker that runs, with its folder."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self.driver = driver
        self._port = free_port()
        self._command = driver.command(self._port, folder)
        self._process: BrokerProcess | None = None

    @property
    def target(self) -> Target:
        return Target(HOST, self._port)

    async def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            BrokerFailed: it does not.
        """
        process = BrokerProcess(self._command, self._port, None, PATIENCE)
        await asyncio.to_thread(process.__enter__)
        self._process = process

    async def inflict(self, fault: Fault) -> None:
        """Let something happen to it: KILL, STOP or RESTART. Raises BrokerFailed: it had ended before."""
        self.check()
        process = self._process
        assert process is not None
        match fault:
            case Fault.KILL:
                os.kill(process.pid, signal.SIGKILL)
                await self.close()
            case Fault.STOP:
                os.kill(process.pid, signal.SIGSTOP)
            case Fault.RESTART:
                self._process = None
                if not await asyncio.to_thread(process.stop, PATIENCE):
                    raise BrokerFailed(f"the broker had not ended {PATIENCE:g} s after SIGTERM")
            case _:
                raise ValueError(f"{fault} is no fault of a broker")

    async def heal(self) -> None:
        """Let it run again. Raises BrokerFailed: it does not."""
        if self._process is None:
            await self.start()
            return
        os.kill(self._process.pid, signal.SIGCONT)
        self.check()

    def check(self) -> None:
        """Raise BrokerFailed if it has ended by itself."""
        if self._process is not None:
            self._process.check()

    async def close(self) -> None:
        """End its process, by SIGTERM first."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop)


@asynccontextmanager
async def started(driver: Driver) -> AsyncIterator[Started]:
    """Run a fresh broker while the block lasts. Raises BrokerFailed."""
    with tempfile.TemporaryDirectory(prefix="canopy-prove-") as name:
        broker = Started(driver, Path(name))
        try:
            await broker.start()
            yield broker
        finally:
            if broker._process is not None:
                # A process that is stopped does not hear SIGTERM.
                with suppress(ProcessLookupError):
                    os.kill(broker._process.pid, signal.SIGCONT)
            await broker.close()
