"""The row of zmq.rs: what one delivery costs on the way from a message to a queue.

Owns: the fan-out send path. Its author (pull requests 257 and 283) counts locks and awaits for each message and has no
figure that compares; ``tests/core/routing/receivers/test_send_path.py`` shows that ours has
neither, and this row what is left.

Promises: the real ``Router.publish`` into real outboxes, with writers that take and join what waits.

There is no transport.
"""

from __future__ import annotations

from typing import Final

from benchmarks.routing.row import NANOSECONDS, Case, Measured, Sample, reported
from benchmarks.routing.stage import Stage, calls_of_delivery

SOURCE: Final = "zmq.rs"
PEERS: Final = 1_000
BURSTS: Final = 10


def _send_path(case: Case) -> Sample:
    stage = Stage(case.layout, case.scaled(PEERS))
    stage.send(1)
    routing, taking = stage.send(BURSTS)
    details = {"writer's part ns": taking.each_ns, **stage.counts(), "Python calls": calls_of_delivery(case.layout)}
    return Sample(routing.each_ns, routing.each_cpu_ns, details)


ROWS: Final = (
    Measured(
        "send-path",
        "fan-out to 1,000 outboxes, each delivery",
        SOURCE,
        NANOSECONDS,
        _send_path,
        "one bounded queue and one writer for each peer in both; no lock and no await here, by test",
        reported("no async lock, no map look-up"),
    ),
)
