"""`python -m canopy_mqtt` is the `canopy` command."""

from __future__ import annotations

from canopy_mqtt.command.cli import main

if __name__ == "__main__":
    main()
