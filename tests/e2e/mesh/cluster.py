"""The nodes of a mesh as daemons with a store each, the proxies between them, and what is done to both.

Of two nodes the later one connects to the earlier one, through a proxy of the pair; there is no other way. What was
wrong is in the history as `Fault`s: what was done here, and how long a node said that another one was not connected.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from tests.e2e.faults import FaultProxy, Link
from tests.e2e.mesh.history import Fault, History
from tests.e2e.mesh.node import COMMAND
from tests.support.daemon import Daemon
from tests.support.ports import free_port

NODE_TIMEOUT: Final = 5.0
CONFIRM_TIMEOUT: Final = 2.0
STARTS: Final = 5
"""Times that a node is started at most until it stays: while others have not noticed that its process is gone, its
name is refused."""

STARTS_IN: Final = 120.0
"""Seconds for a node to start, and for all to be connected: with eight on a machine that has other work."""

NODE_FAULTS: Final = ("kill", "stop")
LINK_FAULTS: Final = ("cut", "apart", "one way", "slow", "late", "alone")


class Node:
    """One node: a daemon after another."""

    def __init__(self, name: str, folder: Path, connect: list[str]) -> None:
        self.name = name
        self.mesh_port = free_port()
        self.daemon: Daemon | None = None
        self.disturbing = asyncio.Lock()
        """Held while something is done to its process."""
        self.logs: list[list[str]] = []
        """The lines of each process."""
        self._arguments = [
            "--store", str(folder),
            "--set", "mesh.name=proof", "--set", f"mesh.node={name}",
            "--set", f'mesh.listen=["tcp/127.0.0.1:{self.mesh_port}"]',
            "--set", f"mesh.connect={json.dumps(connect)}",
            "--set", f"mesh.node_timeout={NODE_TIMEOUT}", "--set", f"mesh.confirm_timeout={CONFIRM_TIMEOUT}",
            "--set", "sys.interval=0",
        ]  # fmt: skip

    @property
    def port(self) -> int:
        """Where clients connect to; 0: there is no process."""
        return 0 if self.daemon is None else self.daemon.port

    async def start(self) -> None:
        """Start it, and again where it does not stay."""
        for attempt in range(STARTS):
            try:
                starting = asyncio.ensure_future(asyncio.to_thread(self._run))
                try:
                    self.daemon = await asyncio.shield(starting)
                except asyncio.CancelledError:
                    # The thread goes on: what it started is to end with the test.
                    self.daemon = await starting
                    raise
                break
            except (AssertionError, json.JSONDecodeError):  # it ended, with a line for people
                if attempt == STARTS - 1:
                    raise
        assert self.daemon is not None
        self.logs.append(self.daemon.lines)

    def _run(self) -> Daemon:
        return Daemon(*self._arguments, command=COMMAND, patience=STARTS_IN)

    async def kill(self) -> None:
        """kill -9."""
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.process.send_signal(signal.SIGCONT)
            daemon.process.kill()
            await asyncio.to_thread(daemon.close)

    def connected(self) -> set[str]:
        """The nodes that its process says are connected."""
        return set() if self.daemon is None else _connected(self.daemon.lines)


class Cluster:
    """A mesh of so many nodes. A context."""

    def __init__(self, folder: Path, count: int, chance: random.Random) -> None:
        self.history = History()
        self.nodes: dict[str, Node] = {}
        self._folder = folder
        self._names = [f"n{number}" for number in range(count)]
        self._chance = chance
        self._proxies: dict[tuple[str, str], FaultProxy] = {}
        # What each new link of a pair is told; nothing where it is whole.
        self._on_link: dict[tuple[str, str], Callable[[Link], None]] = {}
        self._stack = AsyncExitStack()
        # When all were connected for the first time.
        self._began = 0.0

    async def __aenter__(self) -> Cluster:
        try:
            for name in self._names:
                places = []
                for earlier in self.nodes.values():
                    pair = (earlier.name, name)
                    proxy = FaultProxy(earlier.mesh_port, partial(self._greet, pair))
                    self._proxies[pair] = await self._stack.enter_async_context(proxy)
                    places.append(f"tcp/127.0.0.1:{proxy.port}")
                self.nodes[name] = node = Node(name, self._folder / name, places)
                self._stack.push_async_callback(node.kill)
            # Where one does not start, none of the others goes on to.
            async with asyncio.TaskGroup() as group:
                for node in self.nodes.values():
                    group.create_task(node.start())
            await self.whole()
            self._began = time.time()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *args: object) -> None:
        await self._stack.aclose()

    def _greet(self, pair: tuple[str, str], link: Link) -> None:
        told = self._on_link.get(pair)
        if told is not None:
            told(link)

    async def whole(self) -> None:
        """Every node says that every other one is connected."""
        found = {name: node.connected() for name, node in self.nodes.items()}
        try:
            async with asyncio.timeout(STARTS_IN):
                while any(len(others) < len(self.nodes) - 1 for others in found.values()):
                    # Looking through all logs takes time that the nodes need.
                    await asyncio.sleep(0.1)
                    found = {name: node.connected() for name, node in self.nodes.items()}
        except TimeoutError:
            raise AssertionError(f"not connected within {STARTS_IN:g} s: {found}") from None

    def running(self) -> list[Node]:
        """The nodes that have a process."""
        return [node for node in self.nodes.values() if node.daemon is not None]

    # -- what is done --------------------------------------------------------------------------------------------------

    def stall(self, name: str) -> None:
        """Let nothing come to a node or from it, until it is killed."""
        for pair in self._proxies:
            if name in pair:
                self._put(pair, Link.half_open)

    async def kill(self, name: str) -> None:
        """Kill the process of a node, and start another, with links that are whole."""
        began = time.time()
        node = self.nodes[name]
        await node.kill()
        for pair in self._proxies:
            if name in pair:
                self._on_link.pop(pair, None)
        await node.start()
        self.history.add(Fault(began, time.time(), "kill", (name,)))

    async def disturb(self, kind: str) -> None:
        """Do something of a kind to some node or link, and undo it."""
        chance = self._chance
        name = chance.choice(self._names)
        pair = chance.choice(list(self._proxies))
        pairs = [each for each in self._proxies if name in each] if kind == "alone" else [pair]
        began = time.time()
        if kind in NODE_FAULTS:
            node = self.nodes[name]
            async with node.disturbing:
                began = time.time()
                await (self._kill(node) if kind == "kill" else self._stop(node))
            self.history.add(Fault(began, time.time(), kind, (name,)))
            return
        if kind == "cut":
            await self._proxies[pair].cut()
        else:
            for each in pairs:
                self._put(each, self._trouble(kind))
            await asyncio.sleep(chance.uniform(0.2, 2 * NODE_TIMEOUT))
            for each in pairs:
                # It may have been healed with another trouble of its own.
                self._on_link.pop(each, None)
                for link in self._proxies[each].links:
                    link.heal()
        if kind != "late":
            # A link that is late excuses nothing.
            for each in pairs:
                self.history.add(Fault(began, time.time(), kind, each))

    def _trouble(self, kind: str) -> Callable[[Link], None]:
        if kind == "one way":
            one = self._chance.choice(("up", "down"))
            return lambda link: (link.up if one == "up" else link.down).stall()
        if kind == "slow":
            return lambda link: link.trickle(30_000)
        if kind == "late":
            return lambda link: link.delay(0.15)
        return Link.half_open

    def _put(self, pair: tuple[str, str], trouble: Callable[[Link], None]) -> None:
        self._on_link[pair] = trouble
        for link in self._proxies[pair].links:
            if not link.ended:
                trouble(link)

    async def _kill(self, node: Node) -> None:
        await node.kill()
        await asyncio.sleep(self._chance.choice((0.0, self._chance.uniform(0.0, NODE_TIMEOUT))))
        await node.start()

    async def _stop(self, node: Node) -> None:
        assert node.daemon is not None
        node.daemon.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._chance.uniform(0.2, 1.5 * NODE_TIMEOUT))
        node.daemon.process.send_signal(signal.SIGCONT)

    def close_history(self) -> None:
        """Add what the nodes have noticed."""
        for node in self.nodes.values():
            for lines in node.logs:
                for fault in _noticed(node.name, lines):
                    if fault.until > self._began:
                        self.history.add(fault)


def _told(lines: list[str]) -> Iterator[tuple[str, str, float]]:
    """Event, the other node, and the time, of each line about another node."""
    for line in list(lines):
        if '"node' in line:
            told = json.loads(line)
            at = datetime.fromisoformat(told["timestamp"].replace("Z", "+00:00")).timestamp()
            if "node" in told:
                yield told["event"], told["node"], at


def _connected(lines: list[str]) -> set[str]:
    found: set[str] = set()
    for event, node, _ in _told(lines):
        if event == "node connected":
            found.add(node)
        elif event in ("node left", "node not connected"):
            found.discard(node)
    return found


def _noticed(name: str, lines: list[str]) -> Iterator[Fault]:
    """From when until when another node was not connected, as it is at the start of a process."""
    since: dict[str, float] = {}
    for event, node, at in _told(lines):
        if event == "node connected":
            yield Fault(since.pop(node, at), at, "not connected", (name, node))
        elif event in ("node left", "node not connected", "node joined"):
            since.setdefault(node, at)
    for node, at in since.items():
        yield Fault(at, time.time(), "not connected", (name, node))
