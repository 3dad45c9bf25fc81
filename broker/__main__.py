"""`python -m broker` is the `canopy` command."""

from __future__ import annotations

from broker.command.cli import main

if __name__ == "__main__":
    main()
