"""`python -m tests.fuzz [target ...]`: run fuzz targets for a while, and say what was found.

The time comes from `--seconds`, else from `FUZZ_SECONDS`, else it is a minute, and is shared by the targets. Exits 1
with the input when a target finds something. The seed is printed, and `--seed` runs the same inputs again.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable

from tests.fuzz import decoder_target, live_target, settings_target
from tests.fuzz.finding import Finding

TARGETS: dict[str, Callable[[int, Callable[[], bool]], int]] = {
    "decoder": decoder_target.run,
    "live": live_target.run,
    "settings": settings_target.run,
}


def after(seconds: float) -> Callable[[], bool]:
    """Whether that time has passed since now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def main(arguments: list[str]) -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Random and mutated packets, and hostile settings."
    )
    parser.add_argument("targets", nargs="*", metavar="target", help=f"any of: {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", "60")))
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args(arguments)
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}")
    chosen = options.targets or list(TARGETS)
    for name in chosen:
        print(f"{name}: seed {options.seed}, {options.seconds / len(chosen):g} s", flush=True)
        try:
            count = TARGETS[name](options.seed, after(options.seconds / len(chosen)))
        except Finding as finding:
            print(f"{name}: FOUND: {finding}", file=sys.stderr)
            return 1
        print(f"{name}: {count:,} inputs, nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
