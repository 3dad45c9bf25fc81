"""The well-behaved clients of an attacked broker: pairs that exchange stamped messages, and one that PINGs.

Half of the pairs use QoS 0 and half QoS 1. Waits and latencies are measured twice: in time, and in the processor time
that the broker's event loop used meanwhile. The second is what the broker did for others first, and does not grow with
what else the machine has to do.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from canopy_load.brokers import frames
from canopy_load.brokers.process import HOST
from canopy_load.brokers.stats import percentile
from canopy_mqtt.client.address import BrokerAddress
from canopy_mqtt.client.aio import AsyncClient
from canopy_mqtt.client.failures import ClientError
from canopy_mqtt.client.machine import ClientMachine, connect_packet
from canopy_mqtt.core.codec.packets import V311, Publish, SubscriptionRequest

PERIOD: Final = 0.1  # seconds between two messages of a publisher
PING_PAUSE: Final = 0.004  # seconds from PINGRESP to the next PINGREQ
STRAGGLERS: Final = 10.0  # seconds that messages have to come after the last was sent
PATIENCE: Final = 60.0  # seconds for an answer to CONNECT
AT_ONCE: Final = 50  # clients that connect at the same time


def p99(values: Sequence[float]) -> float:
    """The 99th percentile, 0.0 of nothing."""
    return percentile(sorted(values), 0.99) or 0.0


@dataclass
class Measured:
    """The figures of the well-behaved clients since the last measurement. Times in seconds."""

    sent: int = 0
    received: int = 0
    latencies: list[float] = field(default_factory=list)
    works: list[float] = field(default_factory=list)
    """The latencies in the broker's own processor time."""
    pings: int = 0
    wait: float = 0.0
    """The longest wait for a PINGRESP."""
    wait_work: float = 0.0
    """The same in the broker's own processor time."""
    cut: int = 0
    """Connections that the broker closed."""

    @property
    def lost(self) -> int:
        """Messages that did not arrive."""
        return self.sent - self.received


class Pairs:
    """`count` pairs on one broker, whose process is `pid`. Messages flow while the context is open."""

    def __init__(self, port: int, pid: int, count: int) -> None:
        self._port = port
        self._spent = os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY)
        self._subscribers = [self._client(f"pair-s-{at}", self._take) for at in range(count)]
        self._publishers = [self._client(f"pair-p-{at}") for at in range(count)]
        self._tasks: list[asyncio.Task[None]] = []
        self._sending = asyncio.Event()
        self._now = Measured()
        # The broker's processor time when messages under way were sent, by publisher and sequence number.
        self._begun: dict[tuple[int, int], int] = {}
        # When the PINGREQ without an answer was sent, in time and in the broker's processor time.
        self._pinged: tuple[float, int] | None = None

    def _client(self, name: str, on_message: Callable[[Publish], None] | None = None) -> AsyncClient:
        machine = ClientMachine(connect_packet(name, version=V311, keep_alive=0))
        return AsyncClient(BrokerAddress(HOST, self._port), machine, timeout=PATIENCE, on_message=on_message)

    async def __aenter__(self) -> Self:
        clients = [*self._subscribers, *self._publishers]
        for at in range(0, len(clients), AT_ONCE):
            await asyncio.gather(*(client.connect() for client in clients[at : at + AT_ONCE]))
        for at, client in enumerate(self._subscribers):
            await client.subscribe(SubscriptionRequest(f"pairs/{at:03}", at % 2))
        self._sending.set()
        work = [self._ping(), *(self._publish(at, client) for at, client in enumerate(self._publishers))]
        work += [self._watch(client) for client in clients]
        self._tasks = [asyncio.create_task(each) for each in work]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in (*self._subscribers, *self._publishers):
            client.close()
        os.close(self._spent)

    def _work(self) -> int:
        """Nanoseconds of processor time of the broker's main thread, where its event loop runs, to a kernel's tick."""
        return int(os.pread(self._spent, 64, 0).split()[0])

    async def measure(self) -> Measured:
        """Return the figures since the last call. Nothing new is sent until the messages under way have come."""
        self._sending.clear()
        end = time.monotonic() + STRAGGLERS
        while time.monotonic() < end and (self._now.lost or self._pinged is not None):  # noqa: ASYNC110
            await asyncio.sleep(PING_PAUSE)
        if self._pinged is not None:
            self._waited(*self._pinged)
        told, self._now = self._now, Measured()
        self._sending.set()
        return told

    async def _watch(self, client: AsyncClient) -> None:
        await client.lost()
        self._now.cut += 1

    async def _publish(self, number: int, client: AsyncClient) -> None:
        # Publishers take their turns evenly.
        await asyncio.sleep(PERIOD * number / len(self._publishers))
        sequence = 0
        while True:
            await self._sending.wait()
            sequence = (sequence + 1) % 65_536
            self._now.sent += 1
            self._begun[number, sequence] = self._work()
            data = frames.payload(number, sequence, 32, time.monotonic_ns())
            with suppress(ClientError):
                await client.publish(f"pairs/{number:03}", data, qos=number % 2)
            await asyncio.sleep(PERIOD)

    def _take(self, packet: Publish) -> None:
        work = self._work()
        number, sequence, _, stamp = frames.PAYLOAD_HEAD.unpack_from(packet.payload)
        self._now.received += 1
        self._now.latencies.append((time.monotonic_ns() - stamp) / 1e9)
        self._now.works.append((work - self._begun.pop((number, sequence), work)) / 1e9)

    async def _ping(self) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(frames.connect("pinger"))
            await reader.readexactly(4)
            while True:
                await self._sending.wait()
                self._pinged = time.monotonic(), self._work()
                writer.write(frames.PINGREQ)
                await reader.readexactly(2)
                self._waited(*self._pinged)
                self._pinged = None
                self._now.pings += 1
                await asyncio.sleep(PING_PAUSE)
        except (OSError, EOFError):
            self._now.cut += 1
        finally:
            writer.close()

    def _waited(self, since: float, work: int) -> None:
        self._now.wait = max(self._now.wait, time.monotonic() - since)
        self._now.wait_work = max(self._now.wait_work, (self._work() - work) / 1e9)
