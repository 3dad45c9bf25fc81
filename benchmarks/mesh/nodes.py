"""Nodes of a mesh as processes, and waiting until they are one broker.

Owns: how nodes are started and metered together. Every wait ends, with LoadError where nothing comes.
"""

from __future__ import annotations

import json
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.network import links
from benchmarks.network.links import LoadError
from loadtest.brokers import frames
from loadtest.brokers.process import HOST, BrokerProcess, cpu_time, free_port
from loadtest.brokers.registry import PEERS

PATIENCE: Final = 600.0
"""Seconds for anything that many filters or messages take."""

PROBE: Final = 0.2
"""Seconds after which a message that nobody heard is published again."""

MESH: Final = "bench"


class Node:
    """A broker of a mesh: its process, its name, and where its API and other nodes reach it."""

    def __init__(self, process: BrokerProcess, name: str, http: int, bus: int) -> None:
        self.process = process
        self.name = name
        self.http = http
        self.bus = bus

    @property
    def port(self) -> int:
        """Where clients connect."""
        return self.process.port

    def status(self) -> list[dict[str, Any]]:
        """What it says of the other nodes."""
        with urllib.request.urlopen(f"http://{HOST}:{self.http}/api/v5/mesh", timeout=60) as answer:
            told: list[dict[str, Any]] = json.loads(answer.read())["nodes"]
        return told


class Together:
    """Several processes, metered as one: those that it was made with, and their children."""

    def __init__(self, processes: Sequence[BrokerProcess]) -> None:
        self._processes = processes
        self.port = processes[0].port

    @property
    def pid(self) -> int:
        """The first one's."""
        return self._processes[0].pid

    def cpu(self) -> int:
        """Nanoseconds of all of them."""
        return sum(each.cpu() + sum(map(cpu_time, _children(each.pid))) for each in self._processes)

    def resident(self) -> int:
        """Bytes of those that it was made with."""
        return sum(each.resident() for each in self._processes)

    def settle(self) -> None:
        """Wait until none has anything to do."""
        for each in self._processes:
            each.settle()


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@contextmanager
def scene() -> Iterator[ExitStack]:
    """Where processes live: they end with it."""
    with ExitStack() as stack:
        yield stack


def folder(stack: ExitStack) -> Path:
    """An empty folder that goes with the scene. mosquitto gives up its privileges, and writes there."""
    made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="canopy-mesh-")))
    made.chmod(0o777)
    return made


def start_node(
    stack: ExitStack, name: str, others: Sequence[Node], core: int | None, settings: Sequence[str] = ()
) -> Node:
    """One more node, which connects to those that there are."""
    port, http, bus = free_port(), free_port(), free_port()
    connect = ", ".join(f'"tcp/{HOST}:{other.bus}"' for other in others)
    ours = (
        f"mesh.name={MESH}",
        f"mesh.node={name}",
        f'mesh.listen=["tcp/{HOST}:{bus}"]',
        f"mesh.connect=[{connect}]",
        f'http.listen=["http://{HOST}:{http}"]',
        "top.enabled=false",
        *settings,
    )
    process = stack.enter_context(BrokerProcess(PEERS["canopy"].command(port, folder(stack), 0, ours), port, core))
    return Node(process, name, http, bus)


def start_alone(stack: ExitStack, core: int | None) -> Node:
    """A broker without a mesh."""
    port = free_port()
    command = PEERS["canopy"].command(port, folder(stack))
    return Node(stack.enter_context(BrokerProcess(command, port, core)), "", 0, 0)


def start_nodes(stack: ExitStack, count: int, core: int | None, settings: Sequence[str] = ()) -> list[Node]:
    """So many nodes, which know each other."""
    nodes: list[Node] = []
    for number in range(count):
        nodes.append(start_node(stack, f"n{number}", nodes, core, settings))
    for node in nodes:
        await_that("the nodes are connected", lambda node=node: connected(node, count - 1))  # type: ignore[misc]
    return nodes


def connected(node: Node, others: int) -> bool:
    """Whether a node takes part with so many others, and has their retained messages."""
    try:
        found = node.status()
    except OSError:  # it does not answer yet
        return False
    return len([each for each in found if each["state"] == "connected" and each["synchronized"]]) == others


def await_that(what: str, true: Callable[[], bool], pause: float = 0.05, patience: float = PATIENCE) -> None:
    """Ask again and again until it is so. LoadError where it does not become so."""
    until = time.monotonic() + patience
    while not true():
        if time.monotonic() > until:
            raise LoadError(f"not within {patience:g} s: {what}")
        time.sleep(pause)


def await_carried(source: int, target: int, topic: str) -> None:
    """Publish at one broker until a subscriber of the other hears it: whatever lies between carries then."""
    hearing = links.open_clients(HOST, target, ["carried"])
    sending = links.open_clients(HOST, source, ["carrying"])
    try:
        links.subscribe_all(hearing, lambda _: [(topic, 0)])
        hearing[0].settimeout(PROBE)
        until = time.monotonic() + 30.0
        while time.monotonic() < until:
            sending[0].sendall(frames.publish(topic, frames.payload(0, 0, 64)))
            if _hears(hearing[0]):
                return
        raise LoadError(f"nothing of {topic} came from one broker to the other")
    finally:
        links.close_all(hearing + sending)


def _hears(sock: socket.socket) -> bool:
    with suppress(TimeoutError):
        return bool(sock.recv(4_096))
    return False
