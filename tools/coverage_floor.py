#!/usr/bin/env python3
"""Holds the coverage of a run of the tests against the floor in `.ci/coverage`, which may only rise.

Reads what `make suite interpreted COVERAGE=1` left in build/coverage: lines that any process of these tests ran, among
all lines of ten rooms of the broker, also those of modules that no test imports. Nothing measures compiled code, so the
lines of compiled modules count where they are run from the source.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parent.parent
FLOOR = ROOT / ".ci" / "coverage"
CLEARLY = 1.0
"""Percent above the floor from which it is to be raised."""


def rooms() -> list[str]:
    """Rooms of the broker whose lines count: those that pyproject.toml has measured."""
    measured = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]["include"]
    return [pattern.split("/")[2] for pattern in measured]


def verdict(percent: float, floor: float, highest: float) -> tuple[bool, str]:
    """Return whether it is enough, and the line to print. `highest`: of the floors that there were before."""
    if floor < highest:
        return False, f"the floor in .ci/coverage fell from {highest} to {floor}: it may only rise"
    if percent < floor:
        return False, f"{percent:.2f} % of the lines are run by a test, and the floor in .ci/coverage is {floor} %"
    if percent >= floor + CLEARLY:
        raised = int(percent * 10) / 10
        return True, f"{percent:.2f} % of the lines: raise the floor in .ci/coverage from {floor} to {raised}"
    return True, f"{percent:.2f} % of the lines, and the floor is {floor} %"


def highest_before() -> float:
    """The highest floor that git remembers; 0 where it remembers none."""
    command = ["git", "log", "-p", "--format=", "--", str(FLOOR)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return max((float(line[1:]) for line in told.splitlines() if line[:1] == "+" and line[1:2].isdigit()), default=0.0)


def main() -> int:
    """Print a line for each room, and the verdict."""
    data = ROOT / "build" / "coverage"
    found = coverage.Coverage(data_file=str(data / "combined"), config_file=str(ROOT / "pyproject.toml"))
    found.combine([str(path) for path in data.glob("data.*")], strict=True, keep=True)
    lines: Counter[str] = Counter()
    run: Counter[str] = Counter()
    for room in rooms():
        for path in sorted((ROOT / "broker" / "canopy_mqtt" / room).rglob("*.py")):
            _, statements, _, missing, _ = found.analysis2(str(path))
            lines[room] += len(statements)
            run[room] += len(statements) - len(missing)
    for room, count in lines.items():
        if count:
            print(f"{run[room] / count:7.1%} of {count:6,}  {room}")
    passed, told = verdict(100 * run.total() / lines.total(), float(FLOOR.read_text()), highest_before())
    print(f"coverage: {told}", file=sys.stdout if passed else sys.stderr)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
