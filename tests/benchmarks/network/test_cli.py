"""The command: its flags, whole runs on the relay and on mosquitto, and what an interruption leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.network.rows import ROWS
from canopy_load.brokers.registry import PEERS

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "benchmarks.network"]
RELAYED = "one-to-one,pairs,fan-out,pairs-v5,pairs-16k,paced-pairs,paced-fan-out,idle,connect,zeek-0,zeek-20"
LISTENERS = "pairs-tls,fan-out-tls,paced-pairs-tls,connect-tls,pairs-ws,paced-pairs-ws"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.long
def test_whole_run_on_the_relay(tmp_path: Path) -> None:
    """Every row that needs no broker; nothing is lost, and every run is in the file."""
    file = tmp_path / "out.json"
    done = run("--brokers", "relay", "--quick", "--seconds", "0.1", "--rows", f"{RELAYED},fan-in", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(file.read_text())
    assert [row["name"] for row in data["rows"]] == [*RELAYED.split(","), "fan-in"]
    for row in data["rows"][:-1]:
        result = row["brokers"]["relay"]
        assert result["samples"], row
        assert result["samples"][0]["units"] > 0
        assert (result["lost"], result["doubled"]) == (0, 0)
        assert row["title"] in done.stdout
    assert data["rows"][-1]["brokers"]["relay"]["notes"] == ["not run: relay lacks wildcards, UNSUBSCRIBE"]
    assert [row["name"] for row in data["generator_limit"]] == ["one-to-one", "pairs", "fan-out"]
    paced = data["rows"][5]["brokers"]["relay"]["medians"]
    assert 0 < paced["p50_us"] <= paced["p99_us"]


@pytest.mark.long
def test_tls_and_websocket_on_the_relay(tmp_path: Path) -> None:
    """The generator's own limit of each kind of listener is told, and what WebSocket costs beside TCP."""
    file = tmp_path / "out.json"
    done = run("--brokers", "relay", "--quick", "--seconds", "0.1", "--rows", LISTENERS, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(file.read_text())
    for row in data["rows"]:
        result = row["brokers"]["relay"]
        assert result["samples"][0]["units"] > 0, row
        assert (result["lost"], result["doubled"]) == (0, 0)
    assert [row["name"] for row in data["generator_limit"]][3:] == ["pairs-tls", "fan-out-tls", "pairs-ws"]
    web = data["rows"][-1]["brokers"]["relay"]
    assert web["samples"][0]["without"]["units"] > 0
    assert any(note.endswith(" of TCP") for note in web["notes"])


@pytest.mark.long
@pytest.mark.skipif(PEERS["mosquitto"].missing() is not None, reason=str(PEERS["mosquitto"].missing()))
def test_whole_run_on_mosquitto(tmp_path: Path) -> None:
    """Every row, on a broker nobody here wrote: it loses nothing, doubles nothing, and understands all it is asked."""
    file = tmp_path / "out.json"
    done = run("--brokers", "mosquitto", "--quick", "--seconds", "0.1", "--no-limit", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["name"] for row in rows] == list(ROWS)
    for row in rows:
        result = row["brokers"]["mosquitto"]
        lacking = ROWS[row["name"]].needs & PEERS["mosquitto"].lacks
        assert bool(result["samples"]) is not bool(lacking), row
        assert (result["lost"], result["doubled"]) == (0, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interruption_ends_the_broker_and_prints_what_there_is(number: signal.Signals) -> None:
    arguments = ["--brokers", "relay", "--rows", "one-to-one", "--quick", "--seconds", "60", "--no-limit"]
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as bench:
        assert bench.stdout is not None
        children = Path("/proc", str(bench.pid), "task", str(bench.pid), "children")
        try:
            if not children.exists():
                pytest.skip("this kernel does not list a process's children")
            started = [bench.stdout.readline(), bench.stdout.readline()]
            assert started[0].startswith("relay: ")
            while not (broker := children.read_text().split()):
                assert bench.poll() is None
            bench.send_signal(number)
            rest = bench.stdout.read()
            assert bench.wait(30) == 130, rest
        finally:
            bench.kill()
    assert "Interrupted" in rest
    assert not Path("/proc", broker[0]).exists()
