"""``python -m benchmarks.scale``: see ``benchmarks.scale.cli``."""

import sys

from benchmarks.scale.cli import main

if __name__ == "__main__":
    sys.exit(main())
