"""A broker with several workers in processes of their own, as `canopy serve --workers` starts it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from typing import Any, Final, Self

from canopy_mqtt.workers.placing import worker_of
from tests.e2e import wire
from tests.e2e.wire import SESSION_EXPIRY, Peer, connect
from tests.support.daemon import Daemon
from tests.support.waiting import until

HOUR: Final = 3_600

PATIENT: Final = ("--set", "limits.connect_timeout=60")
"""Clients wait for as long as a worker takes to start again on a busy machine."""


class Crew:
    """One daemon with workers, and its clients. All processes are gone when the stack is closed."""

    def __init__(self, stack: AsyncExitStack, workers: int, shared: Daemon | None = None) -> None:
        """`shared`: one that runs, and that others use, too."""
        self.stack = stack
        self.workers = workers
        self.daemon: Daemon
        self._all: set[int] = set()
        if shared is not None:
            self.daemon = shared

    @classmethod
    async def started(cls, stack: AsyncExitStack, workers: int, *arguments: str) -> Self:
        """One of a test's own."""
        made = cls(stack, workers)
        await made.start(*arguments)
        return made

    async def start(self, *arguments: str) -> None:
        """Start it, with `self.workers` workers; 1: a broker of one process."""
        flags = ("--workers", str(self.workers), "--set", "shutdown.flush_timeout=0.5", *PATIENT, *arguments)
        self.daemon = await asyncio.to_thread(lambda: Daemon(*flags, patience=60.0))
        self.stack.push_async_callback(self.gone)

    @property
    def pids(self) -> dict[str, int]:
        """The workers that serve, or have served last."""
        return pids_of(self.daemon)

    @property
    def children(self) -> list[int]:
        """The processes that the supervisor has started: the one that forks workers."""
        supervisor = self.daemon.process.pid
        with open(f"/proc/{supervisor}/task/{supervisor}/children", encoding="ascii") as file:
            return [int(each) for each in file.read().split()]

    def told(self, event: str) -> list[dict[str, Any]]:
        """The lines of the log about an event."""
        return told(self.daemon, event)

    async def line(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait for a line of the log with these fields."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.told(event) if fields.items() <= line.items()]

        await until(found, f"{event} {fields}")
        return found()[0]

    async def gone(self) -> None:
        """Kill the supervisor, if it runs, and wait until no process is left."""
        self._all |= set(self.pids.values())
        self.daemon.close()
        await until(lambda: not any(map(runs, self._all)), "all workers have ended")

    async def stop(self) -> int:
        """End it in order, and return its exit code."""
        code, _ = await asyncio.to_thread(self.daemon.end)
        return code

    async def kill(self, worker: int) -> None:
        """Kill a worker; at the end of the test the next one serves."""
        name = f"w{worker}"
        pid = self.pids[name]
        os.kill(pid, signal.SIGKILL)

        async def back() -> None:
            await until(lambda: self.pids[name] != pid, f"{name} serves again")

        self.stack.push_async_callback(back)
        await self.line("worker ended", pid=pid)

    async def restarted(self, worker: int) -> None:
        """Kill a worker, and wait until the next one serves."""
        name = f"w{worker}"
        before = self.pids[name]
        await self.kill(worker)
        await until(lambda: self.pids[name] != before, f"{name} serves again")

    async def reload(self) -> None:
        """Have all workers take up what the settings are now, and wait until they have."""
        told = len(self.told("settings reloaded"))
        self.daemon.process.send_signal(signal.SIGHUP)
        await until(lambda: len(self.told("settings reloaded")) == told + self.workers, "all have reloaded")

    def names(self, worker: int, prefix: str = "client") -> Iterator[str]:
        """Client identifiers of a worker."""
        all_of_them = (f"{prefix}-{number}" for number in count())
        return (name for name in all_of_them if worker_of(name.encode(), self.workers) == worker)

    async def join(self, client_id: str, *filters: str | tuple[str, int], **options: Any) -> Peer:
        """A connected client."""
        peer = await Peer.join(self.daemon.port, client_id, *filters, **options)
        self.stack.callback(peer.abort)
        return peer

    async def stay(self, client_id: str, *filters: str | tuple[str, int], present: bool = False) -> Peer:
        """A connected client whose session stays; it was there before, or not."""
        peer = await self.join(client_id, *filters, clean=False, props=((SESSION_EXPIRY, HOUR),))
        assert peer.connack.session_present is present
        return peer

    async def knock(self, client_id: str, **options: Any) -> Peer:
        """A connection that has sent its CONNECT, and has no answer yet."""
        peer = await Peer.open("127.0.0.1", self.daemon.port)
        self.stack.callback(peer.abort)
        await peer.send(connect(client_id, **options))
        return peer


@contextmanager
def three_workers(*flags: str, environ: Mapping[str, str] | None = None) -> Iterator[Daemon]:
    """A daemon with three workers, of which none is left afterwards."""
    with Daemon("--workers", "3", *PATIENT, *flags, environ=environ, patience=60.0) as daemon:
        yield daemon
    # Their supervisor was killed.
    pids = pids_of(daemon).values()
    while any(map(runs, pids)):
        time.sleep(0.01)


def told(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    """The lines of a log about an event. A daemon's last word may be a line for people."""
    lines = [json.loads(line) for line in list(daemon.lines) if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def pids_of(daemon: Daemon) -> dict[str, int]:
    """The workers that serve, or have served last, by name."""
    pids: dict[str, int] = {}
    for line in told(daemon, "workers serve"):
        pids = line["pids"]
    return pids | {line["worker"]: line["pid"] for line in told(daemon, "worker serves again")}


def runs(pid: int) -> bool:
    """Whether a process is there, and is no zombie of a parent that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def accepted(peer: Peer) -> wire.Packet:
    """The CONNACK of a client that waits for it."""
    peer.connack = await peer.expect(wire.CONNACK)
    assert peer.connack.code == 0, peer.connack
    return peer.connack
