"""``python -m benchmarks NAME …``: one command for all of them; without a name it lists them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from benchmarks import runner

ROWS: Final = {
    "network": "the same loads on several brokers in turn: the figures of docs/benchmarks.md",
    "attack": "hostile clients of every kind beside clients that behave well",
    "scale": "how a broker's costs grow with what it holds",
    "routing": "the routing core without a network, beside what the authors of its ideas reported",
    "connecting": "clients that connect and go, with and without a log of them",
    "delay": "what a delay of some milliseconds saves",
    "growth": "how the costs of routing grow",
    "store": "what it costs to keep what is acknowledged",
    "upstream": "what folding saves an upstream broker, and what a link costs",
    "nodes": "what a message costs that crosses from one node of a cluster to another",
    "cluster": "durable messages on three nodes with one database, and fail-over",
    "inprocess": "messages that the program publishes and subscribes to itself",
    "pipeline": "ten million recorded messages through each job",
    "source": "messages a second into the source of Spark",
}
"""The benchmarks."""
PLOTS: Final = {"plots": "the pictures of the documentation"}

MODULES: Final = {"attack": "attack.bench", "network": "network.rows", "routing": "routing.bench"}
"""The modules of those that do not have their benchmark's name."""


def main() -> int:
    """Run the benchmark that is asked for, and return the exit code."""
    name, arguments = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if name in ROWS:
        return runner.main(import_module(f"benchmarks.{MODULES.get(name, name)}").BENCH, arguments)
    if name in PLOTS:
        return int(import_module("benchmarks.plots").main(arguments))
    print("usage: python -m benchmarks NAME [--help]\n", file=sys.stderr)
    for each, about in (ROWS | PLOTS).items():
        print(f"  {each:<10} {about}", file=sys.stderr)
    return 0 if name in ("", "-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main())
