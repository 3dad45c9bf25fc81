"""What it costs that each node knows what the clients of the others want: many filters in five nodes, and churn.

Clients of one node subscribe to very many topic filters. A SUBACK leaves when every node knows its filters, so the last
SUBACK says that all have converged. Bytes are counted by an observer, in a run of its own that nobody times.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from benchmarks.figures import aligned, number
from benchmarks.mesh import nodes
from benchmarks.mesh.nodes import Node, Together
from benchmarks.mesh.tap import Tap
from benchmarks.network import links
from benchmarks.network.links import Loop
from benchmarks.network.measure import Clocks
from benchmarks.network.paced import Churn
from loadtest.brokers.process import HOST

NODES: Final = 5
FILTERS: Final = 100_000
CLIENTS: Final = 100
CHURN_RATE: Final = 500.0
"""Filters that come and go, a second."""
IDLE: Final = 3.0
"""Seconds for which nodes that have nothing to do are metered."""


@dataclass(frozen=True)
class Figures:
    """What `paper` reckons with, of one node each: CPU in microseconds, bytes."""

    filter_bytes: float
    """Memory at a node for a filter of another node."""
    filter_cpu: float
    """CPU of a node that is told of one filter, among very many at once."""
    churn_cpu: float
    """CPU of a node for a filter of another node that comes and goes by itself."""
    churn_own_cpu: float
    """CPU of the client's own node for it, for each other node."""
    churn_wire: float
    """Bytes between two nodes for it, in both directions."""
    idle_cpu: float
    """CPU a second of a node for each other node, when there is nothing to say."""


def _subscribe(stack: ExitStack, node: Node, filters: int) -> list[socket.socket]:
    opened = links.open_clients(HOST, node.port, [f"many-{each}" for each in range(CLIENTS)])
    stack.callback(links.close_all, opened)
    for each in opened:
        each.settimeout(nodes.PATIENCE)
    per_client = filters // CLIENTS
    links.subscribe_all(
        opened, lambda client: [(f"site/{client}/device/{each}/command", 0) for each in range(per_client)]
    )
    return opened


def _know(others: list[Node], first: Node, count: int) -> bool:
    """Whether all others have so many filters of the first."""
    return all(
        any(each["name"] == first.name and each["filters"] == count for each in other.status()) for other in others
    )


def _churn(stack: ExitStack, node: Node, process: Together, seconds: float) -> tuple[int, list[float]]:
    """Filters that came and went, and CPU seconds: of the node, and of all."""
    loop = stack.enter_context(Loop())
    socks = links.open_clients(HOST, node.port, ["churn"])
    stack.callback(links.close_all, socks)
    links.prepare(socks)
    churn = Churn(loop, socks[0], CHURN_RATE)
    churn.start()
    loop.run_until(time.monotonic() + seconds / 4, churn.tick)
    answered, own, clocks = churn.answered, node.process.cpu(), Clocks(process)
    loop.run_until(time.monotonic() + seconds, churn.tick)
    own_cpu = (node.process.cpu() - own) / 1e9
    spent = clocks.read()
    count = (churn.answered - answered) // 2
    churn.stop()
    loop.run_until(time.monotonic() + 0.5)
    return max(1, count), [own_cpu, spent.broker]


def measure(filters: int, seconds: float, core: int | None, told: Callable[[str], None]) -> tuple[str, Figures]:
    """Two tables in one text, and the constants."""
    filters -= filters % CLIENTS
    told(f"{filters:,} filters in {NODES} nodes")
    alone_cpu, alone_churn, alone_idle = _alone(filters, seconds, core)
    with nodes.scene() as stack:
        there = nodes.start_nodes(stack, NODES, core)
        all_of_them = Together([node.process for node in there])
        all_of_them.settle()
        idle = max(0.0, _idle(all_of_them) / NODES - alone_idle) / (NODES - 1)
        first, others = there[0], there[1:]
        memory = [node.process.resident() for node in others]
        cpu = [node.process.cpu() for node in there]
        began = time.monotonic()
        _subscribe(stack, first, filters)
        converged = time.monotonic() - began
        nodes.await_that("all nodes know all filters", lambda: _know(others, first, filters))
        all_of_them.settle()
        cpu = [node.process.cpu() - before for node, before in zip(there, cpu, strict=True)]
        grown = sum(node.process.resident() - before for node, before in zip(others, memory, strict=True))
        told("a filter that comes and goes")
        count, (own, all_cpu) = _churn(stack, first, all_of_them, seconds)
    with nodes.scene() as stack:
        told("bytes, counted by an observer")
        there = nodes.start_nodes(stack, NODES, core)
        first, others = there[0], there[1:]
        with Tap(there) as tap:
            time.sleep(0.5)
            before = tap.bytes
            _subscribe(stack, first, filters)
            nodes.await_that("all nodes know all filters", lambda: _know(others, first, filters))
            time.sleep(0.5)
            wire = tap.bytes - before
            before, frames_before = tap.bytes, tap.frames
            counted, _ = _churn(stack, first, Together([node.process for node in there]), seconds)
            churn_wire, churn_frames = tap.bytes - before, tap.frames - frames_before
            # What was said while it warmed up counts, too.
            counted = round(counted * 1.25)
    others_cpu = sum(cpu[1:]) / 1e3 / filters / (NODES - 1)
    figures = Figures(
        filter_bytes=grown / filters / (NODES - 1),
        filter_cpu=others_cpu,
        churn_cpu=(all_cpu - own) / count / (NODES - 1) * 1e6,
        churn_own_cpu=max(0.0, own / count * 1e6 - alone_churn) / (NODES - 1),
        churn_wire=churn_wire / counted / (NODES - 1),
        idle_cpu=idle,
    )
    body = [
        ["seconds until the last SUBACK, which all nodes have confirmed", f"{converged:.2f}"],
        ["bytes between nodes, a filter and other node", number(wire / filters / (NODES - 1))],
        ["MB between nodes in all", number(wire / 1e6)],
        ["CPU µs a filter at the clients' node", number(cpu[0] / 1e3 / filters)],
        ["the same on a broker without a mesh", number(alone_cpu)],
        ["CPU µs a filter at each other node", number(others_cpu)],
        ["bytes of memory a filter at each other node", number(figures.filter_bytes)],
        [f"then, {CHURN_RATE:g} filters/s come and go: CPU µs at the clients' node", number(own / count * 1e6)],
        ["the same on a broker without a mesh", number(alone_churn)],
        ["CPU µs at each other node", number(figures.churn_cpu)],
        ["bytes between two nodes, both ways", number(figures.churn_wire)],
        ["frames between two nodes, both ways", number(churn_frames / counted / (NODES - 1))],
        ["CPU µs a second of a node for each other node, when nothing happens", number(figures.idle_cpu)],
    ]  # fmt: skip
    return aligned((f"{filters:,} filters at one of {NODES} nodes", "figure"), body, {
        f"{filters:,} filters at one of {NODES} nodes"
    }), figures  # fmt: skip


def _idle(process: Together) -> float:
    """CPU microseconds a second of processes that have nothing to do."""
    began, before = time.monotonic(), process.cpu()
    time.sleep(IDLE)
    return (process.cpu() - before) / 1e3 / (time.monotonic() - began)


def _alone(filters: int, seconds: float, core: int | None) -> tuple[float, float, float]:
    """CPU microseconds on a broker without a mesh: of a filter, of one that comes and goes, of a second without any."""
    with nodes.scene() as stack:
        node = nodes.start_alone(stack, core)
        node.process.settle()
        idle = _idle(Together([node.process]))
        before = node.process.cpu()
        _subscribe(stack, node, filters)
        node.process.settle()
        each = (node.process.cpu() - before) / 1e3 / filters
        count, (own, _) = _churn(stack, node, Together([node.process]), seconds)
        return each, own / count * 1e6, idle
