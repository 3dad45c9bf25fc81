"""``python -m benchmarks.network``: see ``benchmarks.network.cli``."""

import sys

from benchmarks.network.cli import main

if __name__ == "__main__":
    sys.exit(main())
