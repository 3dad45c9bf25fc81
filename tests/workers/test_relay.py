"""Connections that one worker copies for another: as many as it has file descriptors for, and each comes to an end."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from canopy_mqtt.net.connections.ends import OPEN
from canopy_mqtt.workers import relay
from canopy_mqtt.workers.first_packet import Opening
from canopy_mqtt.workers.lines import UNAVAILABLE_V5
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.relay import Chooser, Place, Relay
from canopy_mqtt.workers.wire import ANY, Arrival, arrival
from tests.e2e.wire import connect
from tests.support.waiting import until


class Tls:
    """A client's connection, which takes nothing."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


FOUND = Arrival(0, ANY, 0, False, b"", b"", until=60.0)


def unexpected(*given: object) -> None:
    raise AssertionError(given)


async def test_a_client_of_another_worker_is_refused_where_no_descriptors_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "connections_that_fit", lambda: 10)
    place = Place(0, 2, unexpected, lambda: 9)
    connection = SimpleNamespace(state=OPEN, hold=lambda *_: None, failed=unexpected)
    chooser = Chooser(FOUND, place, cast(Any, connection), cast(Any, None), Opening(0, None, 1_000))
    tls = chooser._tls = cast(Any, Tls())
    name = next(name for name in map(str, range(99)) if worker_of(name.encode(), 2) == 1)
    chooser.data_received(connect(name))
    assert (tls.written, tls.closed) == (UNAVAILABLE_V5, True)
    assert not place.relays


async def test_a_client_that_takes_nothing_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LINGER", 0.0)
    tls = Tls()
    Relay(cast(asyncio.Transport, tls), set()).worker_gone()
    assert tls.closed
    await until(lambda: tls.aborted)


@pytest.mark.parametrize(
    ("until_then", "limit", "expected"),
    [(103.0, 10.0, 93.0), (120.0, 10.0, 100.0), (103.0, 0.0, 100.0), (0.0, 10.0, 100.0)],
)
async def test_its_time_for_a_connect_began_when_it_was_accepted(
    until_then: float, limit: float, expected: float
) -> None:
    """`expected`: when the connection counts as opened; it was at 100 s."""
    checks: list[float] = []
    wheel = SimpleNamespace(add=lambda _, at: checks.append(at))
    rounds = SimpleNamespace(connect_timeout=limit, wheel=wheel)
    connection = SimpleNamespace(state=OPEN, rounds=rounds, opened_at=0.0)
    upper = SimpleNamespace(connection_made=lambda _: setattr(connection, "opened_at", 100.0))
    place = Place(0, 2, unexpected, lambda: 0)
    found = FOUND._replace(until=until_then)
    Chooser(found, place, cast(Any, connection), cast(Any, upper), Opening(0, None, 1_000)).connection_made(
        cast(Any, Tls())
    )
    assert connection.opened_at == expected
    assert checks == ([expected + limit] if expected != 100.0 else [])


def test_how_long_a_connection_may_wait_goes_along() -> None:
    with socket.socket() as sock:
        assert arrival(FOUND.frame(sock).body) == FOUND
