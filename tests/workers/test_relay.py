"""Connections that one worker copies for another: as many as it has file descriptors for, and each comes to an end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from canopy_mqtt.net.connections import time_limits
from canopy_mqtt.net.connections.ends import OPEN
from canopy_mqtt.workers import relay
from canopy_mqtt.workers.first_packet import Opening
from canopy_mqtt.workers.lines import UNAVAILABLE_V5
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.relay import Chooser, Place, Side
from canopy_mqtt.workers.wire import ANY, Arrival
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


FOUND = Arrival(0, ANY, 0, False, None, b"", until=60.0)
OPENING = Opening(0, None, 1_000)


def unexpected(*given: object) -> None:
    raise AssertionError(given)


async def test_a_client_of_another_worker_is_refused_where_no_descriptors_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "connections_that_fit", lambda beside: 10 - beside)
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
    Side(set(), cast(asyncio.Transport, tls)).end()
    assert tls.closed
    await until(lambda: tls.aborted)


def test_its_time_for_a_connect_began_when_it_was_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    connection = SimpleNamespace(state=OPEN)
    upper = SimpleNamespace(connection_made=lambda _: said.append("made"))
    monkeypatch.setattr(time_limits, "end_by", lambda *given: said.append(given))
    chooser = Chooser(FOUND, Place(0, 2, unexpected, lambda: 0), cast(Any, connection), cast(Any, upper), OPENING)
    chooser.connection_made(cast(Any, Tls()))
    assert said == ["made", (connection, FOUND.until)]
