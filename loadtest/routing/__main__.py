"""``python -m loadtest.routing``: see ``loadtest.routing.cli``."""

import sys

from loadtest.routing.cli import main

if __name__ == "__main__":
    sys.exit(main())
