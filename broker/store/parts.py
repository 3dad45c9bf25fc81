"""The stores of several workers: the first has the configured one, each other one its own beside it.

Owns their names: `w1`, `w2` … in the folder of `store.path`, `NAME_w1`, `NAME_w2` … beside the schema of `store.name`.
"""

from __future__ import annotations

import re
from typing import Final

from broker.core.routing.remote.loop_detection import NODES, TO_NODE

FOLDER: Final = re.compile(r"w([1-9][0-9]?)")
"""What the folder of a worker's store is called; the group: the worker's number."""

CLIENTS: Final = f"SELECT count(*) FROM session WHERE substr(client_id, 1, {len(NODES)}) <> '{NODES}'"
WAITING: Final = (
    "SELECT count(*) FROM delivery WHERE state < 2 AND session IN"
    f" (SELECT id FROM session WHERE substr(client_id, 1, {len(TO_NODE)}) = '{TO_NODE}')"
)
BROADCASTS: Final = "SELECT count(*) FROM broadcast"

REMAINS: Final = (("sessions", CLIENTS), ("messages for other workers", WAITING), ("messages on their way", BROADCASTS))
"""What is to be 0 before a store may go, as it is told: sessions, but for those of other nodes; what waits for these;
messages on their way to many."""

LONGEST_SCHEMA: Final = 63
"""Bytes of a name in PostgreSQL."""


def folder_of(path: str, worker: int) -> str:
    """The folder of a worker's store, where that of all is `path`."""
    return f"{path}/w{worker}" if worker else path


def schema_of(name: str, worker: int) -> str:
    """The schema of a worker's store, where that of all is `name`."""
    return f"{name}_w{worker}" if worker else name
