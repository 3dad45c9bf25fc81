"""Ports for programs that have to be told one before they listen."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of this machine on which nobody listens now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
