"""Whose client speaks to the broker: our own, or another's.

Owns: the names of drivers and how each opens a connection.
"""

from __future__ import annotations

from loadtest.load.crew import Opener, open_socket


class DriverError(Exception):
    """There is no such driver, or its package is not installed."""


NAMES = ("canopy", "amqtt")


def opener(name: str) -> Opener:
    """What opens a client's connections.

    Raises:
        DriverError: an unknown name, or a package that is not installed.
    """
    if name == "canopy":
        return open_socket
    raise DriverError(f"there is no driver {name!r}: {', '.join(NAMES)}")
