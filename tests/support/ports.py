"""Ports for programs that have to be told one before they listen."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of this machine on which nobody listens now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def free_ports(count: int) -> int:
    """The first of so many ports, one after the other, on which nobody listens now."""
    while True:
        first = free_port()
        try:
            for port in range(first + 1, first + count):
                with socket.socket() as found:
                    found.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return first
