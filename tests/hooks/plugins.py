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


class Exits(Hooks):
    """Ends the process, as a script does that reads arguments."""

    def __init__(self) -> None:
        raise SystemExit(2)


class Untold:
    """Raises where its methods are looked up."""

    def __getattr__(self, name: str) -> None:
        raise ValueError("no")
