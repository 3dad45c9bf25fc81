"""``python -m loadtest.scale``: see ``loadtest.scale.cli``."""

import sys

from loadtest.scale.cli import main

if __name__ == "__main__":
    sys.exit(main())
