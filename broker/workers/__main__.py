"""`python -m broker.workers DESCRIPTOR` is a worker."""

from __future__ import annotations

import sys

from broker.process.imports import imports_that_stay

with imports_that_stay():
    from broker.workers.worker import main

if __name__ == "__main__":
    sys.exit(main())
