"""Listening sockets that a supervisor has opened for its workers.

Owns them until a listener takes its own, by its name. A broker that has such sockets opens none itself.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable


class HandedSockets:
    """Sockets that are bound and wait for their listeners."""

    def __init__(self) -> None:
        self._of: dict[str, list[socket.socket]] = {}

    def add(self, name: str, sockets: Iterable[socket.socket]) -> None:
        """Keep the sockets of the listener of this name."""
        self._of.setdefault(name, []).extend(sockets)

    def take(self, name: str) -> list[socket.socket]:
        """The sockets of a listener; none: nothing was handed over for it."""
        return self._of.pop(name, [])

    def close(self) -> None:
        """Close those that nobody took."""
        left, self._of = self._of, {}
        for found in left.values():
            for each in found:
                each.close()
