"""``python -m benchmarks.routing``: see ``benchmarks.routing.cli``."""

import sys

from benchmarks.routing.cli import main

if __name__ == "__main__":
    sys.exit(main())
