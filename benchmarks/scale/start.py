"""``start``: a broker that begins with what a store kept of very many sessions and retained messages.

Owns: the order of the measurement: fill a broker's store over the network, end it, start a fresh process on the store,
and connect until it answers.

Promises: the measured step ends with the first CONNACK, and its CPU is all that the new process has used by then; its
memory is the most that the process has ever held. A CONNECT that the broker refuses is a failure of the run.

Only Canopy is started with a store here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection, socket
from typing import Final

from benchmarks.network import links
from benchmarks.network.links import LoadError
from benchmarks.network.measure import Sample, Spent
from benchmarks.scale.phases import Outcome, Phase
from loadtest.brokers import frames
from loadtest.brokers.process import HOST, BrokerProcess

BATCH: Final = 64
"""Clients that connect, or messages that wait for their PUBACK, at a time."""

PATIENCE: Final = 300.0
"""Seconds in which the broker must have started."""

StartOn = Callable[[Path], AbstractContextManager[BrokerProcess]]
"""Starts a fresh broker on the store of a folder."""


@dataclass(frozen=True)
class StartPlan:
    """``sessions`` with ``filters`` subscriptions each, and ``retained`` messages of ``payload`` bytes."""

    sessions: int
    filters: int = 10
    retained: int = 1_000_000
    payload: int = 16

    def __post_init__(self) -> None:
        if self.sessions < 1 or not 1 <= self.filters <= 64 or self.retained < 0:
            raise ValueError("there must be 1 session or more, 1 to 64 filters each, no less than 0 retained messages")


def run(outcome: Outcome, plan: StartPlan, start: StartOn, folder: Path) -> None:
    """Measure one size; the phase is added to the outcome when it is done."""
    with start(folder) as process:
        _sessions(process.port, plan)
        with ExitStack() as stack:
            publisher = links.open_clients(HOST, process.port, ["publisher"])
            stack.callback(links.close_all, publisher)
            _retain(publisher[0], plan)
        process.settle()
    begin = time.monotonic()
    with start(folder) as process:  # entered when it has answered a CONNECT
        wall, cpu = time.monotonic() - begin, process.cpu() / 1e9
        sample = Sample(1, Spent(wall, cpu, 0.0), _peak(process.pid))
        title = f"start with {plan.sessions:,} sessions of {plan.filters}, {plan.retained:,} retained messages"
        outcome.phases.append(Phase("start", title, "start", sample))


def _sessions(port: int, plan: StartPlan) -> None:
    for begin in range(0, plan.sessions, BATCH):
        numbers = range(begin, min(begin + BATCH, plan.sessions))
        with ExitStack() as stack:
            socks = [stack.enter_context(create_connection((HOST, port), links.ANSWER_TIMEOUT)) for _ in numbers]
            for number, sock in zip(numbers, socks, strict=True):
                wanted = [(f"site/{number % 1000}/device/{number}/+/{each}", 1) for each in range(plan.filters)]
                connect = frames.connect(f"device-{number}", clean=False)
                sock.sendall(connect + frames.subscribe(1, wanted))
            for sock in socks:
                _accepted(links.expect(sock, frames.CONNACK)[3])
                _accepted(max(links.expect(sock, frames.SUBACK)[4:]))
                sock.sendall(frames.DISCONNECT)


def _accepted(code: int) -> None:
    if code >= 0x80:
        raise LoadError(f"the broker refused with code 0x{code:02x}")


def _retain(sock: socket, plan: StartPlan) -> None:
    sock.settimeout(links.ANSWER_TIMEOUT)
    payload = bytes(plan.payload)
    for begin in range(0, plan.retained, BATCH):
        numbers = range(begin, min(begin + BATCH, plan.retained))
        topics = [f"state/{number % 1000}/{number}" for number in numbers]
        pieces = [frames.publish(topic, payload, 1, at, retain=True) for at, topic in enumerate(topics, 1)]
        sock.sendall(b"".join(pieces))
        for _ in numbers:
            links.expect(sock, frames.PUBACK)


def _peak(pid: int) -> int:
    """The most bytes of resident memory that the process has held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LoadError("the kernel does not tell the most memory that a process has held")
