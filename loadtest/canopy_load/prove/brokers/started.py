"""A broker that a proof starts, of one or more nodes, and all that goes wrong with it.

Owns: `Started`, which faults can be made here (`unmade`), and the order in which everything begins and ends.

Promises: clients connect to a node by its entrance, a proxy on 127.0.0.1, which is closed while the node is down. Nodes
keep their folders over all their processes. Whatever happens, no process, namespace or folder is left: the keeper sees
to that also if this process is killed. A node that ends by itself, or does not come back after a fault, is an error,
and no verdict.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from itertools import permutations
from pathlib import Path
from subprocess import DEVNULL
from typing import Final

import psutil

from canopy_load.brokers.database import Database
from canopy_load.brokers.process import HOST, BrokerFailed, BrokerProcess, free_port
from canopy_load.brokers.registry import python_module
from canopy_load.engine.job import Target
from canopy_load.prove.brokers import keeper
from canopy_load.prove.brokers.driver import Driver, fill
from canopy_load.prove.brokers.network import Loopback, Namespaces, Network, namespaces_missing
from canopy_load.prove.brokers.preloads import Clock, Disk, clock_missing, compiler_missing, static
from canopy_load.prove.brokers.proxy import Proxy
from canopy_load.prove.faults import BROKER_FAULTS, DISK_FAULTS, LEAST_NODES, MAX_START, PARTITIONS, BrokerFault, Fault
from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.aio import AsyncClient
from canopy_mqtt.client.failures import ClientError
from canopy_mqtt.client.machine import ClientMachine, connect_packet
from canopy_mqtt.core.codec.packets import V311

MEETING: Final = "canopy-prove/meeting"
"""The topic by which nodes show that they have met."""
MEETING_PATIENCE: Final = 60.0
"""Seconds for all nodes to meet."""
MEETING_STEP: Final = 0.2
"""Seconds between two messages there."""
KILLED_STARTS: Final = 2
"""How many starts with another number of workers are killed."""


def unmade(driver: Driver, nodes: int) -> dict[Fault, str]:
    """Return the faults of brokers that cannot be made with this broker, so many nodes and this machine, each with the
    reason."""
    found: dict[Fault, str] = {}
    for fault in BROKER_FAULTS:
        if why := _obstacle(fault, driver, nodes):
            found[fault] = why
    return found


def _obstacle(fault: Fault, driver: Driver, nodes: int) -> str:
    least = LEAST_NODES.get(fault, 1)
    if nodes < least:
        return f"it needs {least} nodes (--nodes {least})"
    if fault in (Fault.KILL_WORKER, Fault.WORKERS):
        return "" if driver.workers else "it has no workers"
    if fault is Fault.VERSION:
        return "" if driver.versions else "its file names no versions"
    if fault in PARTITIONS:
        # Where nodes dial the addresses that they are given, proxies will do.
        return "" if driver.dials else namespaces_missing()
    if fault is Fault.STORE_RESTART:
        return "" if driver.database else "its store is no database server"
    if fault is Fault.STORE_PAUSED and driver.database:
        return ""
    if fault in DISK_FAULTS and not driver.store:
        return "its store is a database server" if driver.database else "it has no store"
    if fault in (*DISK_FAULTS, Fault.CLOCK) and static(driver.program):
        return f"{driver.program} is linked statically"
    if fault is Fault.CLOCK and driver.workers:
        return "libfaketime does not survive a process that is killed while others use its clock"
    if fault in DISK_FAULTS:
        return compiler_missing()
    return clock_missing() if fault is Fault.CLOCK else ""


class _Node:
    """One node, with what is its own. `process`: None while it is down or begins. `begun`: from its start, before it
    answers, to its end. `severed`: its clients are kept away from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: BrokerProcess | None = None
        self.begun = False
        self.severed = False
        self.command: list[str] = []
        self.workers = self.version = 0
        self.entrance: Proxy
        self.disk: Disk | None = None
        self.clock: Clock | None = None
        folder.mkdir()

    def admit(self) -> None:
        """Accept clients, or refuse them."""
        if self.begun and not self.severed:
            self.entrance.open()
        else:
            self.entrance.refuse()


class Started:
    """A broker with its folder. `faults`: those that may happen to it."""

    def __init__(self, driver: Driver, folder: Path, nodes: int = 1, faults: Iterable[Fault] = ()) -> None:
        self.driver = driver
        self.folder = folder
        self._faults = frozenset(faults)
        # Only where packets are to be lost it has to be more than the loopback.
        apart = nodes > 1 and self._faults.intersection(PARTITIONS) and not namespaces_missing()
        self._network: Network = Namespaces(nodes) if apart else Loopback(nodes)
        self._nodes = [_Node(folder / f"node-{number + 1}") for number in range(nodes)]
        for number, node in enumerate(self._nodes):
            node.entrance = Proxy(partial(self._network.socket, number), node.port)
        self._database = Database(folder) if driver.database else None
        self._with_clocks: set[int] = set()
        """The processes that libfaketime has been in, and that have not been seen to end."""
        self._looking = threading.Lock()
        """Whoever looks, does it in a thread: nodes end at the same time."""

    @property
    def targets(self) -> list[Target]:
        return [Target(HOST, each.entrance.port) for each in self._nodes]

    @property
    def processes(self) -> list[int]:
        """The identifiers of the processes that run, with those that they started."""
        running = [(node.process.pid, self._workers(node)) for node in self._nodes if node.process is not None]
        return [pid for node, workers in running for pid in (node, *(each.pid for each in workers))]

    def _workers(self, node: _Node, *, serve: bool = False) -> list[psutil.Process]:
        """Return the processes that a node has started; `serve`: but for those that only started others."""
        with suppress(psutil.Error):
            found = [] if node.process is None else psutil.Process(node.process.pid).children(recursive=True)
            return [each for each in found if not serve or not each.children()]
        return []

    # -- its beginning and its end -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all nodes, and wait until each answers, and a message comes from each to each.

        Raises:
            BrokerFailed: they do not.
        """
        await self._network.open()
        if self._database is not None:
            await asyncio.to_thread(self._database.make)
        for number in range(len(self._nodes)):
            await asyncio.to_thread(self._prepare, number)
        if self.driver.one_by_one:
            for each in self._nodes:
                await self._begin(each)
        else:
            await asyncio.gather(*(self._begin(each) for each in self._nodes))
        if len(self._nodes) > 1:
            await self._meet()

    def _prepare(self, number: int) -> None:
        """Make the files and the command of a node."""
        node, driver = self._nodes[number], self.driver
        host, port = self._network.address(number)
        others = [
            {"peer": str(to + 1), "host": host, "port": str(port)}
            for to in range(len(self._nodes))
            if to != number
            for host, port in [self._network.way(number, to) if driver.dials else self._network.address(to)]
        ]
        store = node.folder / "store"
        store.mkdir()
        places = {
            "port": str(node.port), "folder": str(node.folder), "store": str(store), "node": str(number + 1),
            "address": host, "cluster_port": str(port), "python": sys.executable,
            "database": self._database.url if self._database is not None else "",
            "peers": ", ".join(fill(driver.peers, each) for each in others),
        }  # fmt: skip
        environment = {name: fill(text, places) for name, text in driver.environment.items()}
        environment[keeper.MARK] = str(self.folder)
        libraries = []
        if self._faults.intersection(DISK_FAULTS) and driver.store:
            node.disk = Disk(node.folder, store)
            libraries.append(node.disk.library)
            environment |= node.disk.environment
        if Fault.CLOCK in self._faults:
            node.clock = Clock(node.folder)
            libraries.append(node.clock.library)
            environment |= node.clock.environment
        if libraries:
            environment["LD_PRELOAD"] = ":".join(map(str, libraries))
        settings = [f"{name}={value}" for name, value in environment.items()]
        wrapped = partial(self._network.within, number)
        there = ["env", f"--chdir={node.folder}", *settings]
        try:
            command = driver.make(places)
        except OSError as error:
            raise BrokerFailed(f"the files of {driver.name} cannot be written: {error}") from error
        for each in driver.prepare:
            words = wrapped([*there, *(fill(word, places) for word in each)])
            done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise BrokerFailed(f"{each[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
        node.command = wrapped([*there, *command])

    async def _begin(self, node: _Node) -> None:
        node.begun = True
        node.admit()
        process = BrokerProcess(self._command(node), node.entrance.port, None, self.driver.patience)
        await asyncio.to_thread(process.__enter__)
        node.process = process

    def _command(self, node: _Node) -> list[str]:
        driver = self.driver
        workers = str(driver.workers[node.workers % len(driver.workers)]) if driver.workers else ""
        version = driver.versions[node.version % len(driver.versions)] if driver.versions else ""
        return [fill(each, {"workers": workers, "version": version}) for each in node.command]

    def _look(self) -> None:
        """Note the processes that run, and remove what libfaketime has left of those that do not any more."""
        if Fault.CLOCK not in self._faults:
            return
        with self._looking:
            there = set(keeper.processes(str(self.folder)))
            keeper.forget(self._with_clocks - there)
            self._with_clocks = there

    async def _meet(self) -> None:
        """Publish at each node until messages have come from each to each. Raises BrokerFailed."""
        seen: set[tuple[int, bytes]] = set()
        names = [str(number).encode() for number in range(len(self._nodes))]
        try:
            async with asyncio.timeout(MEETING_PATIENCE), AsyncExitStack() as stack:
                clients = []
                for number, node in enumerate(self._nodes):
                    packet = connect_packet(f"prove-meeting-{number}", version=V311, clean_start=True)
                    client = AsyncClient(
                        BrokerAddress(HOST, node.entrance.port),
                        ClientMachine(packet),
                        on_message=lambda message, number=number: seen.add((number, bytes(message.payload))),  # type: ignore[misc]
                    )
                    clients.append(await stack.enter_async_context(client))
                    await client.subscribe(f"{MEETING}/#")
                while len(seen) < len(names) ** 2:
                    for client, name in zip(clients, names, strict=True):
                        await client.publish(f"{MEETING}/node", name)
                    await asyncio.sleep(MEETING_STEP)
        except (TimeoutError, ClientError) as error:
            reason = str(error) or "no message comes from each to each"
            raise BrokerFailed(f"the nodes do not form a cluster: {reason}") from error

    async def close(self) -> None:
        """End all processes, by SIGTERM first; those that are stopped go on for it."""
        if self._database is not None:
            self._database.pause(False)
        for node in self._nodes:
            if node.disk is not None:
                node.disk.turn(None)
            self._signal(node, signal.SIGCONT)
        await asyncio.gather(*(self._end(each) for each in self._nodes))
        if self._database is not None:
            await asyncio.to_thread(self._database.stop)
        for node in self._nodes:
            await node.entrance.close()
        await asyncio.to_thread(self._look)
        await self._network.close()

    async def _end(self, node: _Node, patience: float | None = None) -> bool:
        """End a node by SIGTERM; return False if it took SIGKILL."""
        await asyncio.to_thread(self._look)
        process, node.process = node.process, None
        if process is None:
            return True
        group = process.pid
        by_itself = await asyncio.to_thread(process.stop, *(() if patience is None else (patience,)))
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        await asyncio.to_thread(self._look)
        return by_itself

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise BrokerFailed if a node has ended by itself."""
        for node in self._nodes:
            if node.process is not None and node.begun:
                node.process.check()

    async def inflict(self, fault: BrokerFault) -> None:
        """Let something happen. Raises BrokerFailed: a node had ended before, or does not end."""
        self.check()
        await self._turn(fault, True)

    async def heal(self, fault: BrokerFault) -> None:
        """Let it be as before. Raises BrokerFailed: it is not."""
        await self._turn(fault, False)
        self.check()

    async def _turn(self, fault: BrokerFault, on: bool) -> None:
        """Let a fault begin, or end."""
        node = self._nodes[fault.nodes[0]]
        match fault.fault:
            case Fault.KILL_ALL if on:
                await asyncio.to_thread(self._look)
                for each in self._nodes:
                    self._kill(each)
                for each in self._nodes:
                    await self._down(each)
            case Fault.KILL_ALL:
                for each in self._nodes:
                    await self._begin(each)
            case Fault.KILL_WORKER if workers := self._workers(node, serve=True):
                if on:
                    workers[int(fault.amount * len(workers))].kill()
            case Fault.KILL | Fault.KILL_WORKER if on:
                await asyncio.to_thread(self._look)
                self._kill(node)
                await self._down(node)
            case Fault.RESTART | Fault.SCALE | Fault.WORKERS | Fault.VERSION if on:
                await self._down(node, self.driver.patience)
                node.workers += fault.fault is Fault.WORKERS
                node.version += fault.fault is Fault.VERSION
            case Fault.KILL | Fault.RESTART | Fault.SCALE | Fault.KILL_WORKER | Fault.WORKERS | Fault.VERSION:
                for _ in range(KILLED_STARTS if fault.fault is Fault.WORKERS else 0):
                    start = partial(subprocess.run, self._command(node), stdout=DEVNULL, stderr=DEVNULL)
                    with suppress(subprocess.TimeoutExpired):  # which ends it by SIGKILL
                        await asyncio.to_thread(start, timeout=fault.amount * MAX_START)
                await self._begin(node)
            case Fault.STOP:
                self._signal(node, signal.SIGSTOP if on else signal.SIGCONT)
            case Fault.LATENCY:
                node.entrance.delay = fault.amount if on else 0.0
            case Fault.SEVER:
                node.severed = on
                node.admit()
                if on:
                    node.entrance.cut()
            case Fault.STORE_RESTART:
                assert self._database is not None
                await asyncio.to_thread(self._database.stop if on else self._database.start)
            case Fault.CLOCK:
                assert node.clock is not None
                node.clock.set(fault.amount if on else 0.0)
            case each if each in PARTITIONS:
                for way in permutations(range(len(self._nodes)), 2):
                    if fault.loses(*way):
                        self._network.lose(*way, on)
            case Fault.STORE_PAUSED if self._database is not None:
                self._database.pause(on)
            case each:
                assert node.disk is not None
                node.disk.turn(each if on else None)

    def _signal(self, node: _Node, number: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        if node.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(node.process.pid, number)

    def _kill(self, node: _Node) -> None:
        """Kill a node, which has not ended by itself then: another fault may begin meanwhile, and look."""
        node.begun = False
        self._signal(node, signal.SIGKILL)

    async def _down(self, node: _Node, patience: float | None = None) -> None:
        """End a node; its clients are refused then. Raises BrokerFailed: it took SIGKILL where there was patience."""
        by_itself = await self._end(node, patience)
        node.begun = False
        node.admit()
        if patience is not None and not by_itself:
            raise BrokerFailed(f"the broker had not ended {patience:g} s after SIGTERM")


@asynccontextmanager
async def started(driver: Driver, nodes: int = 1, faults: Iterable[Fault] = ()) -> AsyncIterator[Started]:
    """Run a fresh broker while the block lasts. `faults`: those that may happen to it. Raises BrokerFailed."""
    with _kept() as folder:
        broker = Started(driver, folder, nodes, faults)
        try:
            await broker.start()
            yield broker
        finally:
            await broker.close()


@contextmanager
def _kept() -> Iterator[Path]:
    """Make a temporary folder, and a process that removes it with all processes of the proof, when the block is left or
    this process ends."""
    # The system's folder for such things may be a symbolic link; the keeper compares paths.
    folder = Path(tempfile.mkdtemp(prefix="canopy-prove-")).resolve()
    words = [*python_module("canopy_load.prove.brokers.keeper"), str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True):
        # It ends when its standard input does.
        yield folder
