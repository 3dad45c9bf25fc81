"""``python -m benchmarks.mesh``: see ``benchmarks.mesh.cli``."""

import sys

from benchmarks.mesh.cli import main

if __name__ == "__main__":
    sys.exit(main())
