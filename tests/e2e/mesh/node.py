"""`canopy` as a node that has no way to the others but those of its settings: through the fault proxies of a test.

Otherwise Zenoh's nodes tell each other where the others listen, and connect there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import zenoh

from broker.command.cli import main
from broker.mesh.zenoh import session
from broker.settings.brokers.mesh import Mesh

COMMAND: Final = (sys.executable, "-P", str(Path(__file__).resolve()))

_configuration = session.configuration


def configuration(settings: Mesh) -> zenoh.Config:
    """The node's own, without what others tell of others."""
    made = _configuration(settings)
    made.insert_json5("scouting/gossip/enabled", "false")
    return made


if __name__ == "__main__":
    session.configuration = configuration
    main()
