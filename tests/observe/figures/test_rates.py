"""Load averages, against mosquitto's formula."""

from __future__ import annotations

import math

import pytest

from canopy_mqtt.observe.figures.sources import LoadAverages


def test_nothing_is_known_before_an_interval_is_over() -> None:
    loads = LoadAverages()
    assert loads.averages() == {}
    loads.note({"sockets": 1_000}, 5.0)
    assert loads.averages() == {("sockets", "1min"): 0.0, ("sockets", "5min"): 0.0, ("sockets", "15min"): 0.0}


def test_as_mosquitto_computes_them() -> None:
    """sys_tree.c: average = pace + exp(-elapsed / 60 / minutes) * (average - pace), the pace per minute."""
    loads = LoadAverages()
    loads.note({"sockets": 0}, 0.0)
    expected = 0.0
    total = 0
    for turn, more in enumerate((10, 0, 30, 5), 1):
        total += more
        loads.note({"sockets": total}, turn * 10.0)
        pace = more * 6.0
        expected = pace + math.exp(-10.0 / 60.0) * (expected - pace)
        assert loads.averages()["sockets", "1min"] == pytest.approx(expected)


def test_a_steady_load_is_its_average() -> None:
    loads = LoadAverages()
    for turn in range(1_000):
        loads.note({"sockets": turn * 7}, turn * 10.0)
    assert loads.averages()["sockets", "1min"] == pytest.approx(42.0)
    assert loads.averages()["sockets", "15min"] == pytest.approx(42.0, rel=1e-3)


def test_the_same_moment_twice_changes_nothing() -> None:
    loads = LoadAverages()
    loads.note({"sockets": 0}, 0.0)
    loads.note({"sockets": 5}, 10.0)
    before = dict(loads.averages())
    loads.note({"sockets": 9}, 10.0)
    assert loads.averages() == before
