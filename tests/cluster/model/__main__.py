"""Runs histories: `python -m tests.cluster.model 1000 --seconds 60 --without no_grp` (see --help)."""

from __future__ import annotations

import argparse
import sys
import time

from tests.cluster.model.clients import Subscriber
from tests.cluster.model.network import PARTS, Violation
from tests.cluster.model.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.model")
    parser.add_argument("seeds", type=int, nargs="?", default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--without", default="", help="rules that are taken away, by comma")
    parser.add_argument("--parts", default=",".join(sorted(PARTS)), help="parts of the design, by comma")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--calm", action="store_true", help="no faults: clients roam")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new seed after so long")
    parser.add_argument("--stop", type=int, default=1, help="after so many violations")
    args = parser.parse_args()
    without = frozenset(each for each in args.without.split(",") if each)
    parts = frozenset(each for each in args.parts.split(",") if each)
    began, bad, ran, delivered = time.monotonic(), 0, 0, 0
    for seed in range(args.first, args.first + args.seeds):
        world = World(seed, nodes=args.nodes, faults=not args.calm, parts=parts, without=without)
        ran += 1
        try:
            world.run()
        except Violation as error:
            bad += 1
            print(f"seed {seed}: {error}")
            if bad >= args.stop:
                break
        if time.monotonic() - began > args.seconds:
            break
        delivered += sum(len(each.got) for each in world.clients.values() if isinstance(each, Subscriber))
    taken = f"without {args.without}: " if without else ""
    print(f"{taken}{ran} seeds, {bad} violations, {delivered} deliveries, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
