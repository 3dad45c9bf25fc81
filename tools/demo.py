"""A recorded broker, a fleet of devices for 20 seconds, and what the pipeline makes of it: what `make demo` shows.

It starts a broker on a free port with its recorder on, a small plant (plant.py) and `canopy load run mixed-fleet`
beside it, and then `canopy pipeline tables` and `report` on what they wrote. The exit code is 0 only when nothing was
lost, doubled, out of order or altered, when the broker's own counts of drops agree with what subscribers missed, when
every number of the record is accounted for, and when the oracle finds no message missing or astray. The broker logs to
a file beside the page, so that the live view has the terminal to itself; the last lines name both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import IO

CANOPY = [sys.executable, "-P", "-m", "canopy_mqtt"]
LISTEN = "mqtt://127.0.0.1:0"
PATIENCE = 30.0
"""Seconds the broker has to end."""
LOG = "broker.log"
LAST = "last"
TOOLS = Path(__file__).parent
MAPPING = TOOLS.parent / "config" / "tables" / "tables.toml"


def fleet(port: int, out: Path, flags: list[str]) -> int:
    """Let the fleet loose; the exit code."""
    target = f"mqtt://127.0.0.1:{port}"
    load = [*CANOPY, "load", "run", "mixed-fleet", "--target", target, "--strict"]
    status = subprocess.run([*load, "--out", str(out / "load"), *flags], check=False).returncode
    if status:
        return status
    reconciled = json.loads((out / "load" / "summary.json").read_text())["reconciled"]
    if not reconciled["agrees"]:
        print(f"canopy: the broker's ledger does not reconcile: {reconciled['why']}", file=sys.stderr)
        return 1
    return 0


def listening(stderr: IO[str], log: IO[str]) -> int:
    """Copy the broker's log up to its start; the port, or 0 where it did not start."""
    for line in stderr:
        log.write(line)
        if line.startswith("{") and (event := json.loads(line))["event"] == "started":
            return int(event["listening"][0].rsplit(":", 1)[1])
        if not line.startswith("{"):
            # Why it cannot start.
            sys.stderr.write(line)
    return 0


def recorded(out: Path, flags: list[str]) -> int:
    """The fleet on a broker that is recorded; the exit code. Everything is written when this returns."""
    serve = [*CANOPY, "serve", "--listen", LISTEN, "--set", "log.format=json", "--set", "sys.interval=1"]
    serve += ["--set", f"recorder.directory={out / 'record'}", "--set", "recorder.deliveries=true"]
    with (
        (out / LOG).open("w", encoding="utf-8") as log,
        subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        port = listening(process.stderr, log)
        if port == 0:
            print("canopy: the broker did not start", file=sys.stderr)
            return 1
        # What it says from now on must not wait for anybody to read it.
        copier = Thread(target=log.writelines, args=(process.stderr,), daemon=True)
        copier.start()
        try:
            plant = subprocess.run([sys.executable, str(TOOLS / "plant.py"), str(port)], check=False).returncode
            return plant or fleet(port, out, flags)
        finally:
            process.terminate()
            process.wait(PATIENCE)
            copier.join(PATIENCE)


def jobs(out: Path) -> list[list[str]]:
    """Return the words of the commands that read the record."""
    record = ["--input", str(out / "record"), "--output"]
    return [
        ["pipeline", "tables", *record, str(out / "tables"), "--mapping", str(MAPPING)],
        ["pipeline", "report", *record, str(out)],
    ]


def main() -> int:
    """Record, then look at what was recorded."""
    out = Path("canopy-demo") / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    out.mkdir(parents=True)
    # A name that does not change, for whoever looks at the results.
    last = out.parent / LAST
    last.unlink(missing_ok=True)
    last.symlink_to(out.name)
    try:
        status = recorded(out, sys.argv[1:])
        if status:
            return status
        status = subprocess.run([*CANOPY, "record", "verify", str(out / "record")], check=False).returncode
        if status:
            return status
        for words in jobs(out):
            status = subprocess.run([*CANOPY, *words], check=False).returncode
            if status:
                return status
        print(f'query it: docs/pipeline.md, "From a demo to a query"; it is also in {last}')
        return 0
    except KeyboardInterrupt:
        return 130
    finally:
        print(f"log of the broker: {out / LOG}")


if __name__ == "__main__":
    sys.exit(main())
