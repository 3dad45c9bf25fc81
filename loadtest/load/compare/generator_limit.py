"""The generator's own limit: what one of its processes sends and checks when the broker does next to nothing.

Owns: the scenario that is played for it, and ``OwnLimit``.

Promises: the server only copies bytes (``loadtest.brokers.relay``), in a process of its own, on another core where
there is one; what is counted has been read, taken apart and judged like every delivery of a run.

It is no broker's figure. One stream with small payloads is the cheapest there is: with more clients, larger payloads or
higher QoS the generator does less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, Protocol

from loadtest.brokers.registry import PEERS
from loadtest.load.compare.started_brokers import Cores, started
from loadtest.load.engine import conductor
from loadtest.load.engine.job import Audience, Job, Nobody
from loadtest.load.report.result import Result
from loadtest.load.scenario.schema import Group, Payload, Publish, Scenario, Stage, Subscribe

PAYLOAD: Final = 64  # bytes
IN_FLIGHT: Final = 4000
WARMUP: Final = 0.3  # seconds


class Play(Protocol):
    """What plays a job: `conductor.play`."""

    def __call__(self, job: Job, audience: Audience, stop: asyncio.Event | None = None) -> Awaitable[Result]: ...


class LimitError(Exception):
    """The limit could not be measured; the message says why."""


@dataclass(frozen=True)
class OwnLimit:
    """Deliveries that one process checks: each second by the clock, and each second of its CPU."""

    rate: float
    per_cpu_second: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f} deliveries/s checked by one process, {self.per_cpu_second:,.0f} a second of its CPU"


def scenario(seconds: float) -> Scenario:
    """One publisher to one subscriber: QoS 0, 64 bytes, a window as wide as keeps the socket busy."""
    topic = "limit/%r"
    # Nobody pings: the server would copy the ping as well.
    return Scenario(
        name="own-limit",
        description="The generator against a server that only copies bytes.",
        drain=2.0,
        quiet=1.0,
        stages=[
            Stage(name="warm-up", seconds=WARMUP, measured=False),
            Stage(name="measured", seconds=seconds),
        ],
        groups=[
            Group(name="subscriber", clients=1, scaled=False, keep_alive=0, subscribe=[Subscribe(filter=topic)]),
            Group(
                name="publisher",
                clients=1,
                scaled=False,
                keep_alive=0,
                publish=[Publish(topic=topic, in_flight=IN_FLIGHT, payload=Payload(size=PAYLOAD))],
            ),
        ],
    )


async def measure(seconds: float = 1.0, play: Play | None = None, stop: asyncio.Event | None = None) -> OwnLimit:
    """What one process of the generator does on this machine, measured for so many seconds, or until `stop` is set.
    `play` stands in for `conductor.play`.

    Raises:
        LimitError: nothing was delivered, something was lost, or it was stopped: then nothing is known.
        RunError: the generator itself failed.
        BrokerFailed: the bare server did not start.
    """
    cores = Cores.choose()
    with cores.kept(), started(PEERS["relay"], cores.broker) as server:
        job = Job(
            scenario(seconds),
            scenario_text="",
            targets=[server.target],
            broker_pid=server.pid,
            cores=cores.generator[:1],
        )
        result = await (play or conductor.play)(job, Nobody(), stop)
    return judged(result)


def judged(result: Result) -> OwnLimit:
    """The limit that a run has shown."""
    if result.interrupted:
        raise LimitError("the measurement of the generator's own limit was interrupted")
    if not result.receive_rate or not result.generator_cpu:
        raise LimitError("the bare server delivered nothing, so the generator's own limit is not known")
    lost, altered = result.deliveries.lost, result.deliveries.altered
    if lost or altered:
        raise LimitError(f"the bare server lost {lost} and altered {altered} messages: the figure is not to be trusted")
    return OwnLimit(result.receive_rate, result.receive_rate / result.generator_cpu)
