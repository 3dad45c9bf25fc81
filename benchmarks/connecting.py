"""Clients that connect and go, one after another: CONNECT, CONNACK, close, with and without a log of them.

Owns rows of CPU for each connection. A log goes to a file. The limits on lines about clients are off, so that each
connection of a run is logged, as those of a fleet are that come over a day.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks.network.links import LoadError
from benchmarks.network.measure import Clocks, Sample
from benchmarks.runner import Bench, Case, Line, Row, line_of, peers
from canopy_load.brokers.frames import connect
from canopy_load.brokers.process import HOST

CONNECTIONS: Final = 10_000
WARM: Final = 500
CONNACK_BYTES: Final = 4

SILENT: Final[Mapping[str, tuple[str, ...]]] = {"canopy": ("log.level=warning",)}
LOGGED: Final[Mapping[str, tuple[str, ...]]] = {
    "canopy": ("log.level=info", "log.client_bytes=0"),
    "mosquitto": ("log_dest stderr", "log_type information", "log_type notice", "connection_messages true"),
}
"""Settings of each broker."""


def _run(settings: Mapping[str, tuple[str, ...]], case: Case) -> Iterator[Line]:
    count = case.scaled(CONNECTIONS)
    with case.broker(*settings.get(case.entrant.name, ())) as process:
        _come_and_go(process.port, WARM)
        process.settle()
        clocks = Clocks(process)
        _come_and_go(process.port, count)
        # With the lines that wait in the log's thread.
        process.settle()
        yield line_of("", Sample(count, clocks.read(), process.resident()))


def _come_and_go(port: int, count: int) -> None:
    packet = connect("come-and-go", keep_alive=60)
    for _ in range(count):
        with socket.create_connection((HOST, port), 10.0) as client:
            client.sendall(packet)
            if len(client.recv(CONNACK_BYTES, socket.MSG_WAITALL)) < CONNACK_BYTES:
                raise LoadError("the broker closed a connection instead of answering")


BENCH: Final = Bench(
    "connecting",
    "What a client costs that connects and goes.",
    {
        "connect-silent": Row("connect and go", partial(_run, SILENT), ("canopy", "mosquitto")),
        "connect-logged": Row("connect and go, logged", partial(_run, LOGGED), ("canopy", "mosquitto")),
    },
    peers("canopy", "mosquitto"),
    repeats=5,
)
