"""``python -m benchmarks.store``: see ``benchmarks.store.cli``."""

import sys

from benchmarks.store.cli import main

if __name__ == "__main__":
    sys.exit(main())
