"""``clients``: very many connected clients, nearly all of them silent.

Owns: the order of the measurement, all on one broker: paced pairs alone, connect the others, keep them alive, the same
paced pairs beside them, all of the others leave.

Promises: the pairs stay connected throughout, so that memory for each client is that of the idle ones alone. The pings
go on while the pairs are measured beside the crowd, and are in their CPU.

What the kernel holds for a connection is not counted: it is in no process's resident memory.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from socket import socket
from typing import Final

from benchmarks.clients import opened
from benchmarks.network import links
from benchmarks.network.links import LoadError, Loop, receive
from benchmarks.network.loads import topic
from benchmarks.network.measure import Clocks, Sample, measure, settled
from benchmarks.network.paced import Clocked, Paced
from benchmarks.network.streams import Ledger
from benchmarks.runner import Case, Line, NotRun, line_of
from benchmarks.scale.pulse import Pulse
from canopy_load.brokers import frames
from canopy_load.brokers.process import HOST, raise_file_limit
from canopy_load.brokers.stats import ratio

KEEP_ALIVE: Final = 60
"""Seconds, of each idle client."""
PAIRS: Final = 1_000
RATE: Final = 10_000.0
"""Messages a second of all pairs together."""
PER_ADDRESS: Final = 10_000  # clients on one source address; Linux has some 28,000 ports for each
ADDRESSES: Final = 250  # 127.0.0.2 up to 127.0.0.251
SPARE_FILES: Final = 100


def run(case: Case) -> Iterator[Line]:
    """Measure one size: so many idle clients."""
    pairs, rate = case.scaled(PAIRS), RATE / case.divide
    reason = why_not(case.size + 2 * pairs) if case.size > 0 else "there must be 1 client or more"
    if reason is not None:
        raise NotRun(reason)
    with case.broker() as process, ExitStack() as stack:
        # Both loops before the sockets: a loop made after a thousand of them cannot pace as finely.
        alone, beside = stack.enter_context(Loop()), stack.enter_context(Loop())
        port, meter = process.port, case.meter(process)
        subscribers = opened(stack, port, *(f"sub-{number}" for number in range(pairs)))
        publishers = opened(stack, port, *(f"pub-{number}" for number in range(pairs)))
        pulses = opened(stack, port, "pulse")
        links.subscribe_all(subscribers, lambda number: [(topic(number), 0)])
        links.prepare([*subscribers, *publishers])

        without = measure(meter, alone, Paced(alone, publishers, subscribers, rate))
        yield line_of("pairs, no idle clients", without)

        process.settle()
        memory, clocks = process.resident(), Clocks(process)
        idle = open_crowd(port, case.size, KEEP_ALIVE)
        stack.callback(links.close_all, idle)
        yield line_of("connect", settled(process, clocks, clocks.read(), case.size, memory))

        crowd = Crowd(beside, idle, KEEP_ALIVE)
        yield line_of("keep alive", measure(meter, beside, crowd))

        load = Paced(beside, publishers, subscribers, rate)
        crowd.start()
        sample = measure(meter, beside, load, crowd.tick)
        times = ratio(sample.cpu_us, without.cpu_us)
        yield line_of("pairs beside them", sample, {"CPU × without": times})

        done = Pulse(process, pulses[0]).aftermath(lambda: links.close_all(idle))
        sample = Sample(len(idle), done.spent, process.resident())
        yield line_of("leave", sample, {"deaf ms": done.deaf * 1e3})


def source_address(number: int) -> str:
    """The address of this machine that client ``number`` (0..2,499,999) connects from."""
    return f"127.0.0.{2 + number // PER_ADDRESS}"


def why_not(clients: int) -> str | None:
    """Why so many connections cannot be held, or None; raises the soft limit of open files as far as it may go."""
    if clients > PER_ADDRESS * ADDRESSES:
        return f"more than {PER_ADDRESS * ADDRESSES:,} clients have no address to come from"
    needed = clients + SPARE_FILES
    if raise_file_limit(needed):
        return None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (
        f"{needed:,} open files are needed in the broker and in the generator, and the hard limit is {hard:,} "
        f"(ulimit -Hn; raise it, or ask for fewer clients)"
    )


def open_crowd(port: int, count: int, keep_alive: int) -> list[socket]:
    """So many clients, connected and ready for a loop."""
    names = [f"crowd-{number}" for number in range(count)]
    socks = links.open_clients(HOST, port, names, keep_alive=keep_alive, source=source_address)
    for sock in socks:
        sock.setblocking(False)
    return socks


class Crowd(Clocked):
    """Idle clients that keep themselves alive: each sends PINGREQ once every keep alive, in the order of the connects.

    There is no task, thread or timer for a client: one turn of the loop sends what is due. A client that is sent
    another packet, or is disconnected, is an error. ``ledger.delivered`` counts the answers.
    """

    def __init__(self, loop: Loop, socks: list[socket], keep_alive: int) -> None:
        super().__init__(keep_alive / len(socks))
        self.ledger = Ledger()
        self._socks = socks
        self._buffer = loop.buffer
        self._turn = 0
        self._asked = 0
        for sock in socks:
            reader: Callable[[], None] = partial(self._read, sock)
            loop.add(sock, reader)

    def start(self) -> None:
        """Go on with the next client's ping, now."""
        self._stopped = False
        super().start()

    def missing(self) -> int:
        """Pings that were not answered yet."""
        return self._asked - self.ledger.delivered

    def _send(self) -> None:
        number = self._turn
        self._turn = (number + 1) % len(self._socks)
        try:
            self._socks[number].send(frames.PINGREQ)
        except OSError as error:
            raise LoadError(f"idle client {number} cannot ping ({error})") from error
        self._asked += 1

    def _read(self, sock: socket) -> None:
        size = receive(sock, self._buffer)
        if size % 2 or self._buffer[:size] != frames.PINGRESP * (size // 2):
            raise LoadError(f"the broker sent {frames.packet_name(self._buffer[0])} to an idle client")
        self.ledger.delivered += size // 2
