"""The live fuzz target for a fixed time, on each event loop, and the proof that it notices what it is there for.

A finding names its seed; `python -m tests.fuzz live --seed N` runs the same inputs again, for as long as one likes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from canopy_mqtt.core.codec.packets import PINGRESP
from canopy_mqtt.core.protocol.server_protocol import ServerProtocol
from canopy_mqtt.net.connections.connection import Connection
from tests.fuzz import live_target
from tests.fuzz.finding import Finding
from tests.fuzz.live_target import loop_factories

SECONDS = 8.0
"""For each event loop. A time and not a number of inputs: a slow machine sends fewer and still ends."""


def for_a_while(seconds: float) -> Callable[[], bool]:
    """Return a condition: that time is over, counted from its first call."""
    end: list[float] = []

    def over() -> bool:
        if not end:
            end.append(time.monotonic() + seconds)
        return time.monotonic() >= end[0]

    return over


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_random_and_mutated_packets_on_live_connections(seed: int) -> None:
    """[MQTT-4.13.1-1] and all that refuses a packet: whoever breaks the protocol hurts nobody else."""
    factories = loop_factories()
    watch = live_target.watched(seed, for_a_while(SECONDS), factories[seed % len(factories)])
    # It has to have been a test: packets that got through to the state behind them, answers, honest traffic.
    assert watch.inputs > 2_000
    assert watch.taken > 1_000
    assert watch.exchanged > 100
    assert set(watch.answers) >= {2, 3, 4, 5, 6, 7, 9, 11, PINGRESP, 14}


@pytest.mark.parametrize("seed", [1, 2])
def test_an_exception_in_the_broker_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Connection.data_received

    def careless(self: Connection, data: bytes) -> None:
        real(self, data)
        if data[:1] > b"\xe0":
            raise KeyError(data)

    monkeypatch.setattr(Connection, "data_received", careless)
    factories = loop_factories()
    with pytest.raises(Finding, match="KeyError"):
        live_target.watched(seed, for_a_while(30.0), factories[seed % len(factories)])


def test_what_is_left_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that keeps its connections."""
    kept: list[ServerProtocol] = []
    real = Connection.connection_lost

    def hoarding(self: Connection, exc: Exception | None) -> None:
        kept.append(self)  # type: ignore[arg-type]
        real(self, exc)

    monkeypatch.setattr(Connection, "connection_lost", hoarding)
    monkeypatch.setattr(live_target, "PATIENCE", 2.0)
    with pytest.raises(Finding, match="still referred to"):
        live_target.watched(3, for_a_while(0.2), None)
