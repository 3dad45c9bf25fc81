"""The attacks, one function each, in files by what they abuse; `LIST` has them all, by name, in the files' order."""

from __future__ import annotations

from typing import Final

from benchmarks.attack.attacks import (
    acknowledgements,
    connections,
    guessing,
    handshakes,
    over_http,
    publishing,
    room,
    sessions,
    stores,
    subscriptions,
    tenants,
    websockets,
)
from benchmarks.attack.attacks.registry import REGISTRY, Attack

LIST: Final[dict[str, Attack]] = REGISTRY

__all__ = [
    "LIST",
    "Attack",
    "acknowledgements",
    "connections",
    "guessing",
    "handshakes",
    "over_http",
    "publishing",
    "room",
    "sessions",
    "stores",
    "subscriptions",
    "tenants",
    "websockets",
]
