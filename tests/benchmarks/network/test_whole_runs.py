"""Whole runs, on the relay and on mosquitto."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.network.rows import BENCH
from canopy_load.brokers.registry import PEERS

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "benchmarks", "network"]
RELAYED = ("one-to-one", "pairs", "fan-out", "pairs-v5", "pairs-16k", "paced-pairs", "paced-fan-out", "idle", "connect")
BESIDE = ("zeek-0", "zeek-20")
LISTENERS = ("pairs-tls", "fan-out-tls", "paced-pairs-tls", "connect-tls", "pairs-ws", "paced-pairs-ws")


def run(file: Path, broker: str, *rows: str) -> dict[str, Any]:
    """Run rows briefly, and return their results by name."""
    arguments = [*rows, "--brokers", broker, "--quick", "--seconds", "0.1", "--json", str(file)]
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    results = {each["row"]: each for each in json.loads(file.read_text())["results"]}
    assert done.returncode == int(any(each["failure"] for each in results.values())), done.stdout + done.stderr
    return results


def measured(result: dict[str, Any]) -> dict[str, Any]:
    """The figures of a row that ran: nothing was doubled, and nothing lost but what a busy machine had no time for."""
    assert result["failure"] == ""
    figures: dict[str, Any] = result["steps"][""]
    assert figures["rate/s"] > 0, result
    notes = [note for line in result["runs"][0] for note in line["notes"]]
    assert not [note for note in notes if "doubled" in note]
    assert figures["lost"] == 0 or [note for note in notes if "cores busy elsewhere" in note]
    return figures


@pytest.mark.long
def test_on_the_relay(tmp_path: Path) -> None:
    """Every row that needs no broker."""
    results = run(tmp_path / "out.json", "relay", *RELAYED, *BESIDE, "fan-in")
    assert results.pop("fan-in")["failure"] == "not run: relay lacks wildcards, UNSUBSCRIBE"
    figures = {name: measured(result) for name, result in results.items()}
    assert list(figures) == [*RELAYED, *BESIDE]
    assert 0 < figures["paced-pairs"]["p50 µs"] <= figures["paced-pairs"]["p99 µs"]
    assert figures["zeek-20"]["CPU × of without"] > 0


@pytest.mark.long
def test_tls_and_websocket_on_the_relay(tmp_path: Path) -> None:
    """The last of them is told as a multiple of what it is over TCP."""
    figures = [measured(result) for result in run(tmp_path / "out.json", "relay", *LISTENERS).values()]
    assert figures[-1]["CPU × of TCP"] > 0


@pytest.mark.long
@pytest.mark.skipif(PEERS["mosquitto"].missing() is not None, reason=str(PEERS["mosquitto"].missing()))
def test_on_mosquitto(tmp_path: Path) -> None:
    """Every row, on a broker nobody here wrote: it loses nothing, doubles nothing, and understands all it is asked."""
    results = run(tmp_path / "out.json", "mosquitto")
    assert list(results) == list(BENCH.rows)
    for name, result in results.items():
        if BENCH.rows[name].needs & PEERS["mosquitto"].lacks:
            assert result["failure"].startswith("not run: mosquitto lacks ")
        else:
            measured(result)
