"""Which worker makes the TLS handshake of a client: its own, if the client has an address for itself."""

from __future__ import annotations

import pytest

from canopy_mqtt.workers import homes
from canopy_mqtt.workers.homes import APART, Homes

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_client_that_comes_again_is_guessed_and_those_of_a_crowd_are_not() -> None:
    clock = Clock()
    made = Homes(clock)
    assert made.guess(HERE) is None
    made.note(HERE, 3)
    made.note(THERE, 1)
    for _ in range(2):
        clock.now += 2 * APART
        assert [made.guess(host) for host in (HERE, THERE)] == [3, 1]
    # One after the other without a pause, however long that goes on.
    for _ in range(5):
        clock.now += APART / 2
        assert made.guess(HERE) is None
    clock.now += 2 * APART
    made.note(HERE, 2)
    assert made.guess(HERE) is None


def test_no_more_addresses_are_known_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "MOST", 2)
    clock = Clock()
    made = Homes(clock)
    for host, worker in ((HERE, 0), (THERE, 1), (HERE, 2), ("192.0.2.3", 3)):
        made.note(host, worker)
    clock.now += 2 * APART
    assert [made.guess(host) for host in (HERE, THERE, "192.0.2.3")] == [2, None, 3]
