"""The runner: its flags, the order of runs, medians, what failed, and what an interruption leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.network.measure import Missed, Sample, Spent
from benchmarks.runner import Bench, Case, Entrant, Line, NotRun, Row, line_of, main, peers
from canopy_load.brokers import process
from tests.support.runs import for_each

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "benchmarks"]
RUNS: list[tuple[str, int]] = []


def _rising(case: Case) -> Iterator[Line]:
    """Two steps; the first figure rises with each run."""
    RUNS.append((case.entrant.name, case.size))
    cost = float(len(RUNS)) if case.entrant.name == "a" else 10.0
    yield Line("first", {"CPU µs": cost, "lost": 1.0})
    if case.entrant.name == "b":
        raise NotRun("b has no second step")
    yield Line("second", {"CPU µs": cost * case.scaled(100)})


def _failing(_: Case) -> Iterator[Line]:
    raise KeyError("gone")


def _interrupted(case: Case) -> Iterator[Line]:
    if case.entrant.name == "b":
        raise KeyboardInterrupt
    yield Line("", {"seconds": 1.0})


BENCH = Bench(
    "trial",
    "A trial.",
    {
        "rising": Row("rising cost", _rising, ("a", "b"), sizes=(1_000,), against="CPU µs"),
        "failing": Row("failing", _failing, ("a",)),
        "interrupted": Row("interrupted", _interrupted, ("a", "b")),
        "away": Row("away", _failing, ("relay",), needs=frozenset({"QoS 1"})),
    },
    {"a": Entrant("a"), "b": Entrant("b"), **peers("relay")},
)


@pytest.fixture(autouse=True)
def _anew() -> None:
    RUNS.clear()


def test_brokers_take_turns_and_medians_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    arguments = ["rising", "--brokers", "a", "--sizes", "10,20", "--repeats", "3", "--json", str(file)]
    assert main(BENCH, arguments) == 0
    assert RUNS == [("a", 10)] * 3 + [("a", 20)] * 3
    first, _ = json.loads(file.read_text())["results"]
    assert first["steps"] == {"first": {"CPU µs": 2.0, "lost": 3.0}, "second": {"CPU µs": 200.0}}
    assert len(first["runs"]) == 3
    out = capsys.readouterr().out
    assert "1.00–3.00" in out
    assert "Quick run" not in out


def test_what_is_not_run_keeps_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BENCH, ["rising", "--repeats", "2"]) == 1
    assert RUNS == [("a", 1_000), ("b", 1_000), ("a", 1_000)]
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if " b " in line]
    # A multiple of what the first broker took, in the median: 10 by 2.
    assert lines[0] == ["rising", "cost", "1,000", "b", "first", "10", "1", "5.000", "10.0–10.0"]
    assert " ".join(lines[1]).endswith("not run: b has no second step")


def test_a_quick_run_divides_sizes_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BENCH, ["rising", "--quick", "--brokers", "a"]) == 0
    assert RUNS == [("a", 100)]
    assert "Quick run" in capsys.readouterr().out


@for_each(("row", "told"), [("failing", "FAILED: KeyError: 'gone'"), ("away", "not run: relay lacks QoS 1")])
def test_a_row_that_failed_says_why(row: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BENCH, [row]) == 1
    assert told in capsys.readouterr().out


def test_an_interruption_prints_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BENCH, ["interrupted"]) == 130
    out = capsys.readouterr().out
    assert "Interrupted" in out
    assert "interrupted  a" in out


@for_each(
    ("arguments", "message"),
    [
        (["pears"], "no row 'pears'"),
        (["--brokers", "hive"], "no broker 'hive'"),
        (["--brokers", ","], "at least one broker"),
        (["--sizes", "10,many"], "many"),
        (["--repeats", "0"], "--repeats"),
        (["--seconds", "0"], "--seconds"),
        (["--json", "/nowhere/at/all.json"], "no directory /nowhere/at"),
    ],
)
def test_wrong_flags_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(BENCH, arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_settings_are_those_of_the_broker(tmp_path: Path) -> None:
    canopy = Case(Entrant("x", "canopy"), settings=("top.enabled=false",)).command(1883, tmp_path, ["store.path=a"])
    assert canopy[-4:] == ["--set", "store.path=a", "--set", "top.enabled=false"]
    mosquitto = Case(Entrant("x", "mosquitto"), settings=("top.enabled=false",))
    config = Path(mosquitto.command(1883, tmp_path, ["persistence true"])[-1]).read_text()
    assert config.endswith("\npersistence true\n")
    assert "top.enabled" not in config


def sample(cpu: float = 0.5, generator: float = 0.2) -> Sample:
    return Sample(1000, Spent(1.0, cpu, generator), resident=10_000_000)


def test_generator_bound_means_busy_beside_a_broker_that_is_not() -> None:
    assert sample(cpu=0.6, generator=0.99).generator_bound
    assert not sample(cpu=0.99, generator=0.99).generator_bound
    assert not sample(cpu=0.6, generator=0.6).generator_bound


def test_a_line_tells_of_those_who_did_not_read_and_of_what_was_beside() -> None:
    run = sample()
    run.without = sample(cpu=0.25)
    run.p99_us, run.without.p99_us = 3.0, 2.0
    run.missed = Missed(clients=10, messages=4000, cut=0, full=True)
    line = line_of("", run)
    ratios = {name: value for name, value in line.figures.items() if name.endswith("of without")}
    assert ratios == {"CPU × of without": 2.0, "rate × of without": 1.0, "p99 × of without": 1.5}
    assert line.figures["missed"] == 4000
    assert line.notes == ("10 frozen",)
    run.missed = Missed(clients=20, messages=5000, cut=3, full=False)
    said = ("20 frozen", "3 of the frozen disconnected", "the queues of the frozen were not full")
    assert line_of("", run).notes == said


def test_the_commands_are_listed_and_others_refused() -> None:
    listed = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert listed.returncode == 0
    names = {line.split()[0] for line in listed.stderr.splitlines() if line.startswith("  ")}
    assert {"network", "attack", "routing", "scale", "store", "upstream"} <= names
    assert subprocess.run([*COMMAND, "unicorn"], cwd=ROOT, capture_output=True, timeout=60, check=False).returncode == 2


def test_sigterm_ends_the_broker() -> None:
    arguments = ["scale", "clients", "--brokers", "relay", "--sizes", "20", "--seconds", "60"]
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as bench:
        assert bench.stdout is not None
        children = Path("/proc", str(bench.pid), "task", str(bench.pid), "children")
        try:
            while "runs, medians" not in bench.stdout.readline():
                assert bench.poll() is None
            while not (broker := children.read_text().split()):
                assert bench.poll() is None
            bench.send_signal(signal.SIGTERM)
            rest = bench.stdout.read()
            assert bench.wait(30) == 130, rest
        finally:
            bench.kill()
    assert "Interrupted" in rest
    assert not Path("/proc", broker[0]).exists()


LATE = """
import socket, sys, time
time.sleep(0.3)
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        client, _ = server.accept()
        client.sendall(bytes.fromhex("20020000"))
        client.recv(100)
"""


def test_a_broker_is_waited_for_as_long_as_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start on a large store takes longer than any other."""
    monkeypatch.setattr(process, "START_TIMEOUT", 0.0)
    port = process.free_port()
    with process.BrokerProcess([sys.executable, "-c", LATE, str(port)], port, None, 30.0) as broker:
        assert broker.pid
