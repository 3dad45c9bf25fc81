"""The attacks: each one once, small, against one broker; and how they are metered and judged.

What is asserted are bounds and counts, and that the well-behaved clients lost nothing. Nothing here is timed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from benchmarks.attack import guards
from benchmarks.attack.attacks import LIST
from benchmarks.attack.bars import Bars, calm_p99
from benchmarks.attack.cli import app
from benchmarks.attack.field import Field, Refused
from benchmarks.attack.listeners import Listeners
from benchmarks.attack.pairs import Measured, World, p99
from benchmarks.attack.runner import Result, Told
from loadtest.brokers.process import HOST, BrokerProcess, free_port
from loadtest.brokers.registry import python_module

PAIRS = 4
SECONDS = (0.2, 2.0, 20.0)
"""What an attack may take here; most are through before, and one that has not begun by then has more."""


class Place(NamedTuple):
    """A broker, and the well-behaved clients that it has."""

    broker: BrokerProcess
    listeners: Listeners
    world: World


@contextmanager
def place(*options: str) -> Iterator[Place]:
    port = free_port()
    listeners = Listeners.free()
    command = [*python_module("broker"), "serve", "--listen", f"mqtt://{HOST}:{port}", *listeners.options(), *options]
    with BrokerProcess(command, port, None) as broker, World(PAIRS, None) as world:
        world.open(broker.port, broker.pid)
        yield Place(broker, listeners, world)


@pytest.fixture(scope="module")
def plain() -> Iterator[Place]:
    with place() as made:
        yield made


@pytest.fixture(scope="module")
def guarded() -> Iterator[Place]:
    """With authenticators and an ACL file, as only some attacks have it."""
    with place(*guards.options()) as made:
        yield made


@pytest.mark.parametrize("name", LIST)
def test_nobody_else_loses_anything(name: str, request: pytest.FixtureRequest) -> None:
    broker, listeners, world = request.getfixturevalue("guarded" if LIST[name].guarded else "plain")
    world.measure()
    before = broker.resident()
    connections = 0
    for seconds in SECONDS:
        field = Field(broker.port, time.monotonic() + seconds, 0.01, listeners)
        # The broker may turn an attack away; it must not be the world's loss.
        with suppress(Refused):
            LIST[name].run(field)
        grown = broker.resident() - before
        field.close()
        if connections := field.connections:
            break
    broker.check()
    assert connections > 0
    # A small attack may be over before the next PING was answered.
    heard = 0
    while heard == 0:
        under = world.measure()
        assert (under.lost, under.cut) == (0, 0)
        heard = under.pings
    assert grown <= LIST[name].growth


def test_the_command_meters_an_attack() -> None:
    """As `make attack` does it: a broker of its own, and JSON for programs."""
    found = CliRunner().invoke(
        app,
        [
            "share groups of everything",
            "--json",
            "--seconds",
            "0.3",
            "--calm",
            "0.1",
            "--pairs",
            "2",
            "--ratio",
            "1e9",
        ],
        catch_exceptions=False,
    )
    assert found.exit_code in (0, 1), found.output
    [row] = json.loads(found.stdout.splitlines()[-1])
    # What a PING waited for, and how much of the attack came through in the time, is the machine's to say.
    assert found.exit_code == (1 if row["missed"] else 0), found.output
    assert row["attack"] == "share groups of everything"
    assert row["sent"] > 0
    assert 0 < row["held"]["SUBACK 0x97"] <= 9_900
    assert row["messages"] > 0
    assert (row["lost"], row["cut"]) == (0, 0)
    assert 0 < row["growth"] <= row["growth_allowed"]


def test_no_attack_of_that_name() -> None:
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2


def test_the_list() -> None:
    found = CliRunner().invoke(app, ["--list"])
    assert found.exit_code == 0
    assert len(found.stdout.splitlines()) >= len(LIST)
    assert all(attack.about for attack in LIST.values())


class TestBars:
    """What is missed, and what is not."""

    CALM = Measured(100, 100, (0.001,) * 100, (0.0,) * 100, 10, 0.001, 0.001, 0)
    GOOD = Result(LIST["flood"], Told(1, 1, Counter()), 1, CALM, CALM, 1.0, Counter(), Counter())

    def missed(self, result: Result) -> list[str]:
        return Bars().missed(result, calm_p99([result]))

    def test_nothing(self) -> None:
        assert self.missed(self.GOOD) == []

    def test_growth(self) -> None:
        assert len(self.missed(replace(self.GOOD, growth=self.GOOD.attack.growth + 1))) == 1

    def test_the_wait_of_a_ping_counts_in_the_work_of_the_broker(self) -> None:
        assert self.missed(replace(self.GOOD, under=replace(self.CALM, wait=5.0))) == []
        assert len(self.missed(replace(self.GOOD, under=replace(self.CALM, wait_cpu=0.051)))) == 1

    def test_latency(self) -> None:
        def slow(seconds: float, work: float) -> Result:
            latencies, works = (0.0,) * 98 + (seconds,) * 2, (0.0,) * 98 + (work,) * 2
            return replace(self.GOOD, under=replace(self.CALM, latencies=latencies, works=works))

        assert self.missed(slow(0.01, 0.01)) == []
        assert self.missed(slow(1.0, 0.01)) == []
        assert len(self.missed(slow(0.011, 0.011))) == 1

    def test_the_log(self) -> None:
        assert self.missed(replace(self.GOOD, logged=2_000_000)) == []
        assert len(self.missed(replace(self.GOOD, logged=2_000_001))) == 1

    def test_a_publisher_that_was_held_back(self) -> None:
        assert self.missed(replace(self.GOOD, held=1)) == []
        steady = replace(self.GOOD.attack, steady=True)
        assert self.missed(replace(self.GOOD, attack=steady)) == []
        assert len(self.missed(replace(self.GOOD, attack=steady, held=1))) == 1

    @pytest.mark.parametrize("change", [{"received": 99}, {"cut": 1}])
    def test_losses(self, change: dict[str, int]) -> None:
        under = Measured(**{**self.CALM.__dict__, **change})
        assert len(self.missed(replace(self.GOOD, under=under))) == 1

    def test_a_broker_that_did_not_stand_it(self) -> None:
        assert len(self.missed(replace(self.GOOD, broken="it ended"))) == 1

    def test_an_attack_that_failed(self) -> None:
        assert len(self.missed(replace(self.GOOD, told=Told(0, 0, Counter(), "it failed")))) == 1

    def test_percentile(self) -> None:
        assert p99(()) == 0.0
        assert p99(tuple(float(number) for number in range(1, 101))) == 99.0
