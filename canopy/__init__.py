"""Canopy, an MQTT 3.1.1 and 5.0 broker: everything that a program may import of it.

    from canopy import Broker, Settings

    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        print(broker.listening)

Owns: the public names, here and in `canopy.hooks`, `canopy.security`, `canopy.spark` and `canopy.testing`, which each
module's `__all__` lists. They stay, by the promise of docs/stability.md; where they are made may change.

Promises: importing this package imports nothing but the version. A name is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from broker.version import __version__

if TYPE_CHECKING:
    from broker.app import Broker
    from broker.buildinfo import build_info
    from broker.configuration.reading import load_settings
    from broker.inprocess.client import QueueFullError, RefusedError, Subscription
    from broker.inprocess.inbox import Message
    from broker.inprocess.properties import Properties
    from broker.net.listening.listeners import StartupError
    from broker.settings import Settings
    from broker.settings.errors import SettingsError

__all__ = [
    "Broker",
    "Message",
    "Properties",
    "QueueFullError",
    "RefusedError",
    "Settings",
    "SettingsError",
    "StartupError",
    "Subscription",
    "__version__",
    "build_info",
    "load_settings",
]

_HOMES = {
    "Broker": "broker.app",
    "Message": "broker.inprocess.inbox",
    "Properties": "broker.inprocess.properties",
    "QueueFullError": "broker.inprocess.client",
    "RefusedError": "broker.inprocess.client",
    "Settings": "broker.settings",
    "SettingsError": "broker.settings.errors",
    "StartupError": "broker.net.listening.listeners",
    "Subscription": "broker.inprocess.client",
    "build_info": "broker.buildinfo",
    "load_settings": "broker.configuration.reading",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
