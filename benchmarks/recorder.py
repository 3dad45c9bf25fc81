"""What the recorder costs the broker: the same load without it, with it, and with an event for each delivery.

Owns: the rates, and the table that docs/benchmarks-pipeline.md shows. The runs are `canopy load compare`'s: brokers
take turns, each in a fresh process on a core of its own, and every message is checked.

    python -m benchmarks.recorder [--rounds 3] [--seconds 4]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

BROKERS: Final = ("canopy", "canopy-recording", "canopy-deliveries")
PAIRS: Final = 100
RATES: Final = (10_000, 100_000, 500_000)
"""Messages a second. The last is far beyond what single messages allow on one core: it comes in bursts."""


def scenario(rate: int, seconds: float) -> str:
    """Pairs at a steady rate; above 200,000 messages a second one publisher, whose messages come in bursts."""
    pairs = PAIRS if rate <= 200_000 else 1
    return f"""
name = "recorder"
description = "{rate} messages a second, {pairs} pairs, QoS 0, 64 bytes"
stages = [{{ name = "warm-up", seconds = 1, measured = false }}, {{ name = "steady", seconds = {seconds} }}]
[[groups]]
name = "subscribers"
clients = {pairs}
version = "3.1.1"
subscribe = [{{ filter = "load/%r/recorder/%c" }}]
[[groups]]
name = "publishers"
clients = {pairs}
version = "3.1.1"
publish = [{{ topic = "load/%r/recorder/%c", rate = {rate / pairs} }}]
"""


def compare(rate: int, rounds: int, seconds: float) -> dict[str, Any]:
    """The comparison at one rate, as `compare.json` says it."""
    with tempfile.TemporaryDirectory(prefix="canopy-recorder-") as name:
        file = Path(name, "recorder.toml")
        file.write_text(scenario(rate, seconds))
        out = Path(name, "out")
        brokers = [part for broker in BROKERS for part in ("--broker", broker)]
        flags = ["--rounds", str(rounds), "--no-limit", "--out", str(out)]
        command = [sys.executable, "-P", "-m", "broker", "load", "compare", str(file), *brokers, *flags]
        subprocess.run(command, check=True, stdout=sys.stderr)
        found: dict[str, Any] = json.loads((out / "compare.json").read_text())
        return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rate", type=int, action="append")
    wanted = parser.parse_args()
    print("| messages/s | | CPU µs a message | of without | p99 ms | memory MB | lost |")
    print("|---|---|---|---|---|---|---|")
    for rate in wanted.rate or RATES:
        found = compare(rate, wanted.rounds, wanted.seconds)
        base = 0.0
        for entrant in found["brokers"]:
            figures = entrant["figures"]
            cpu = figures["cpu_us"]["median"]
            base = base or cpu
            print(
                f"| {rate:,} | {entrant['broker']} | {cpu:.2f} | {cpu / base:.2f}× | "
                f"{figures['p99_us']['median'] / 1000:.2f} | {figures['memory_mb']['median']:.0f} | "
                f"{figures['loss_percent']['median']:.0f} % |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
