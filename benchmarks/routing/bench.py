"""The rows of all authors under one command.

Those of RabbitMQ and EMQX stand in files of their own. zmq.rs's author (pull requests 257 and 283) counts locks and
awaits for each message and has no figure that compares; ``tests/core/routing/test_send_path.py`` shows that
ours has neither, and the row here what is left: the real ``Router.publish`` into real buffers, without a transport.
"""

from __future__ import annotations

from typing import Final

from benchmarks.routing import emqx, rabbitmq
from benchmarks.routing.measure import as_the_daemon
from benchmarks.routing.row import CPU, LAYOUTS, NANOSECONDS, OURS, Scaled, row
from benchmarks.routing.stage import Stage
from benchmarks.runner import Bench, Entrant

PEERS: Final = 1_000
BURSTS: Final = 10


def _send_path(layout: str, scaled: Scaled) -> dict[str, float | None]:
    stage = Stage(layout, scaled(PEERS))
    stage.send(1)
    routing, taking = stage.send(BURSTS)
    figures = {OURS: routing.each_ns, CPU: routing.each_cpu_ns, "writer's part ns": taking.each_ns}
    return {**figures, **stage.counts()}


SEND_PATH: Final = row(
    "zmq.rs",
    "fan-out to 1,000 send buffers, each delivery",
    NANOSECONDS,
    _send_path,
    "one bounded queue and one writer for each peer in both; no lock and no await here, by test",
    "no async lock, no map look-up",
)

BENCH: Final = Bench(
    "routing",
    "The broker's routing, without a network, beside the figures of those whose ideas it uses.",
    {**rabbitmq.ROWS, **emqx.ROWS, "send-path": SEND_PATH},
    {layout: Entrant(layout) for layout in LAYOUTS},
    repeats=5,
    around=as_the_daemon,
)
