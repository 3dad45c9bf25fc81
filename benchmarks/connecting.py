"""Clients that connect and go, one after another: CONNECT, CONNACK, close; with a log of them, without one, over TLS.

Owns rows of CPU for each connection. A log goes to a file. The limits on lines about clients are off, so that each
connection of a run is logged, as those of a fleet are that come over a day. Over TLS nothing is logged, and each client
makes a whole handshake, or resumes the session of the connection before.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from benchmarks.certificates import certificate
from benchmarks.network.links import LoadError
from benchmarks.network.measure import Clocks, Sample
from benchmarks.runner import Bench, Case, Line, Row, line_of, peers
from canopy_load.brokers.frames import connect
from canopy_load.brokers.listeners import TLS, Listener, client_context
from canopy_load.brokers.process import HOST, BrokerProcess, free_port
from canopy_load.brokers.registry import SECURED

BROKERS: Final = ("canopy", "mosquitto")
CONNECTIONS: Final = 10_000
HANDSHAKES: Final = 2_000
WARM: Final = 500
CONNECT: Final = connect("come-and-go", keep_alive=60)
CONNACK_BYTES: Final = 4

SILENT: Final[Mapping[str, tuple[str, ...]]] = {"canopy": ("log.level=warning",)}
LOGGED: Final[Mapping[str, tuple[str, ...]]] = {
    "canopy": ("log.level=info", "log.client_bytes=0"),
    "mosquitto": ("log_dest stderr", "log_type information", "log_type notice", "connection_messages true"),
}
"""Settings of each broker."""


def _run(settings: Mapping[str, tuple[str, ...]], case: Case) -> Iterator[Line]:
    with case.broker(*settings.get(case.entrant.name, ())) as process:
        yield _measured(process, case.scaled(CONNECTIONS), case.scaled(WARM), partial(_come_and_go, process.port))


def _run_secured(resumes: bool, case: Case) -> Iterator[Line]:
    listener = Listener(TLS, free_port(), *certificate())
    with case.broker(*SILENT.get(case.entrant.name, ()), listener=listener) as process:
        process.wait_listening(listener.port)
        yield _measured(
            process, case.scaled(HANDSHAKES), case.scaled(WARM), partial(_shake_and_go, listener.port, resumes)
        )


def _measured(process: BrokerProcess, count: int, warm: int, load: Callable[[int], None]) -> Line:
    load(warm)
    process.settle()
    clocks = Clocks(process)
    load(count)
    # With the lines that wait in the log's thread.
    process.settle()
    return line_of("", Sample(count, clocks.read(), process.resident()))


def _come_and_go(port: int, count: int) -> None:
    for _ in range(count):
        with socket.create_connection((HOST, port), 10.0) as client:
            _connect(client)


def _shake_and_go(port: int, resumes: bool, count: int) -> None:
    context = client_context()
    session = None
    for _ in range(count):
        with (
            socket.create_connection((HOST, port), 10.0) as plain,
            context.wrap_socket(plain, session=session) as client,
        ):
            _connect(client)
            if client.session_reused is (session is None):
                raise LoadError("the broker did not resume the session" if resumes else "a session was resumed")
            if resumes:
                # With the ticket that came before the CONNACK.
                session = client.session


def _connect(client: socket.socket) -> None:
    client.sendall(CONNECT)
    if len(client.recv(CONNACK_BYTES)) < CONNACK_BYTES:
        raise LoadError("the broker closed a connection instead of answering")


BENCH: Final = Bench(
    "connecting",
    "What a client costs that connects and goes.",
    {
        "connect-silent": Row("connect and go", partial(_run, SILENT), BROKERS),
        "connect-logged": Row("connect and go, logged", partial(_run, LOGGED), BROKERS),
        "tls-full": Row("connect and go, TLS 1.3", partial(_run_secured, False), BROKERS, needs=frozenset({SECURED})),
        "tls-resumed": Row(
            "connect and go, TLS 1.3 resumed", partial(_run_secured, True), BROKERS, needs=frozenset({SECURED})
        ),
    },
    peers(*BROKERS),
    repeats=5,
)
