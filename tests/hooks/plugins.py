"""Plug-ins that settings name."""

from __future__ import annotations

from canopy_mqtt.hooks import Hooks, Principal

NONE = object()


class Noting(Hooks):
    """Hears of clients."""

    def connected(self, client: Principal) -> None:
        """One came."""


class Raises(Hooks):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ValueError("no")
