"""Canopy: an MQTT 3.1.1 and 5.0 broker.

Owns: the version, and the names a program that embeds the broker imports.

Promises: importing this package imports nothing but its version. `Broker` and `Settings` are loaded when first asked
for, so that `broker.core` can be used (by a load generator, say) without the event loop, pydantic or logging.

    from broker import Broker, Settings

    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        print(broker.listening)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from broker.version import __version__

if TYPE_CHECKING:
    from broker.app import Broker
    from broker.buildinfo import build_info
    from broker.net.listening.listeners import StartupError
    from broker.settings import Settings

__all__ = ["Broker", "Settings", "StartupError", "__version__", "build_info"]

_HOMES = {
    "Broker": "broker.app",
    "Settings": "broker.settings",
    "StartupError": "broker.net.listening.listeners",
    "build_info": "broker.buildinfo",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
