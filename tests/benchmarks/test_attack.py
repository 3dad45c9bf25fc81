"""The attacks: each one once, small, against one broker; and how they are metered and judged.

What is asserted are bounds and counts, and that the well-behaved clients lost nothing. Nothing here is timed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import runner
from benchmarks.attack import attacked_broker
from benchmarks.attack.bench import BENCH, AttackReport, Outcome
from benchmarks.attack.field import ATTACKS, Field, Refused
from benchmarks.attack.pairs import Measured, Pairs
from benchmarks.runner import Case, peers
from canopy_load.brokers.process import BrokerProcess
from tests.support.runs import for_each

PAIRS = 4
PATIENCE = 100.0
"""Seconds in which a broker must have started, on a busy machine."""
SECONDS = (0.05, 2.0, 20.0)
"""The seconds of an attack; most are through before, and one that has not begun by then gets more."""

LONG = pytest.mark.long
AT_LENGTH = {
    "control-characters-in-tokens", "everything-at-once", "forged-tokens", "giant-tokens", "handshakes-never-begun",
    "huge-names-and-passwords", "lost-while-timed-out", "operators-passwords-guessed",
    "passwords-guessed-from-many-addresses", "passwords-guessed-from-one-address", "short-keep-alives",
    "websocket-noise", "will-storm",
}  # fmt: skip
"""Attacks that last a second or more each, or cost as much."""


class Place(NamedTuple):
    """A broker, and its further listeners."""

    broker: BrokerProcess
    ports: dict[str, int]


@contextmanager
def attacked(guarded: bool) -> Iterator[Place]:
    case = Case(peers("canopy")["canopy"])
    ports = attacked_broker.listeners()
    with case.folder() as folder:
        settings = [*attacked_broker.settings(ports), *(attacked_broker.guards(folder) if guarded else ())]
        with case.broker(*settings, folder=folder, patience=PATIENCE) as broker:
            yield Place(broker, ports)


@pytest.fixture(scope="module")
def plain() -> Iterator[Place]:
    with attacked(guarded=False) as made:
        yield made


@pytest.fixture(scope="module")
def guarded() -> Iterator[Place]:
    """With authenticators and an ACL file, as only some attacks have it."""
    with attacked(guarded=True) as made:
        yield made


@pytest.fixture
def target(name: str, request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue("guarded" if ATTACKS[name].guarded else "plain")
    return found


def attack(name: str, target: Place) -> tuple[int, int]:
    """How many connections an attack made, and what the broker grew by."""
    before = target.broker.resident()
    for seconds in SECONDS:
        field = Field(target.broker.port, time.monotonic() + seconds, target.ports, 100)
        # The broker may turn an attack away; it must not be the world's loss.
        with suppress(Refused):
            ATTACKS[name].run(field)
        grown = target.broker.resident() - before
        field.close()
        if field.connections:
            break
    return field.connections, grown


@pytest.mark.parametrize("name", [pytest.param(name, marks=[LONG] if name in AT_LENGTH else []) for name in ATTACKS])
async def test_nobody_else_loses_anything(name: str, target: Place) -> None:
    async with Pairs(target.broker.port, target.broker.pid, PAIRS) as pairs:
        connections, grown = await asyncio.to_thread(attack, name, target)
        target.broker.check()
        assert connections > 0
        # A small attack may be over before a message came and a PING was answered.
        while True:
            under = await pairs.measure()
            assert (under.lost, under.cut) == (0, 0)
            if under.pings and under.sent:
                break
            await asyncio.sleep(0.01)
    assert grown <= ATTACKS[name].growth


def test_the_command_meters_an_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `make attack` does it, by a part of a name: a broker of its own, and JSON for programs."""
    file = tmp_path / "out.json"
    code = runner.main(BENCH, ["share-groups-of", "--quick", "--json", str(file)])
    [result] = json.loads(file.read_text())["results"]
    # What a PING waited for, how much of the attack came through in the time, and whether the process had to ask the
    # system for memory, is the machine's to say.
    assert code == (1 if result["failure"] else 0), capsys.readouterr().out
    assert "lost" not in result["failure"]
    assert result["row"] == "share-groups-of-everything"
    figures = result["steps"][""]
    assert min(figures[name] for name in ("sent MB", "messages", "PING ms")) > 0 <= figures["grew MB"]
    [[line]] = result["runs"]
    assert "SUBACK 0x97 ×900" in line["notes"]


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(BENCH, ["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [f"{name}: {each.about}" for name, each in ATTACKS.items()]
    assert all(each.about for each in ATTACKS.values())


CALM = Measured(100, 100, [0.001] * 100, [0.0] * 100, 10, 0.001, 0.001)


def under(**changes: Any) -> dict[str, Any]:
    return {"under": replace(CALM, **changes)}


def slow(seconds: float, work: float) -> dict[str, Any]:
    return under(latencies=[0.0] * 98 + [seconds] * 2, works=[0.0] * 98 + [work] * 2)


@for_each(
    ("name", "changes", "missed"),
    [
        ("flood", {}, None),
        ("flood", {"growth": ATTACKS["flood"].growth}, None),
        ("flood", {"growth": ATTACKS["flood"].growth + 1}, "grew by"),
        # The wait of a PING counts in the work of the broker.
        ("flood", under(wait=5.0), None),
        ("flood", under(wait_work=0.051), "a PING waited"),
        ("session-flood", under(wait_work=0.051), None),
        ("flood", slow(0.01, 0.01), None),
        ("flood", slow(1.0, 0.01), None),
        ("flood", slow(0.011, 0.011), "p99"),
        ("flood", {"logged": 2_000_000}, None),
        ("flood", {"logged": 2_000_001}, "logged"),
        ("flood", {"held": 1}, None),
        ("bursty-readers-of-everything", {}, None),
        ("bursty-readers-of-everything", {"held": 1}, "held back"),
        ("flood", under(received=99), "lost 1 messages"),
        ("flood", under(cut=1), "1 connections"),
        ("flood", {"told": AttackReport(error="it failed")}, "it failed"),
    ],
)
def test_a_bar_that_is_missed(name: str, changes: dict[str, Any], missed: str | None) -> None:
    found = Outcome(
        **{"told": AttackReport(1, 1), "calm": CALM, "under": CALM, "growth": 1, "cpu": 1.0, **changes}
    ).missed(ATTACKS[name])
    assert len(found) == (missed is not None)
    assert (missed or "") in "".join(found)
