"""A broker and a fleet of devices for 20 seconds: what `make demo` shows.

Owns: a broker of its own on a free port, and `canopy load run mixed-fleet` beside it, as anybody would run it.

Promises: the exit code is 0 only when nothing was lost, doubled, out of order or altered, and when what the broker says
it dropped agrees with what the subscribers saw missing. The report stays where the last line says.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

BROKER = [sys.executable, "-P", "-m", "broker"]
LISTEN = "mqtt://127.0.0.1:0"
PATIENCE = 10.0
"""Seconds the broker has to end."""


def fleet(port: int, flags: list[str]) -> int:
    """Let the fleet loose; the exit code."""
    out = Path("canopy-load") / f"demo-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    target = f"mqtt://127.0.0.1:{port}"
    status = subprocess.run(
        [*BROKER, "load", "run", "mixed-fleet", "--target", target, "--strict", "--out", str(out), *flags], check=False
    ).returncode
    if status:
        return status
    reconciled = json.loads((out / "summary.json").read_text())["reconciled"]
    if not reconciled["agrees"]:
        print(f"canopy: the broker's ledger does not reconcile: {reconciled['why']}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """Start the broker, run the fleet, end the broker."""
    serve = [*BROKER, "serve", "--listen", LISTEN, "--log-level", "warning", "--set", "sys.interval=1"]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if line.startswith("listening on "):
                    return fleet(int(line.rsplit(":", 1)[1]), sys.argv[1:])
            print("canopy: the broker did not start", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            process.terminate()
            process.wait(PATIENCE)


if __name__ == "__main__":
    sys.exit(main())
