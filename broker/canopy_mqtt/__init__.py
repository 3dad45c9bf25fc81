"""Canopy, an MQTT 3.1.1 and 5.0 broker: everything that a program may import of it.

    from canopy_mqtt import Broker, Settings

    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        print(broker.listening)

Owns: the public names, here and in `canopy_mqtt.hooks` and `canopy_mqtt.testing`, which each module's `__all__` lists.
They stay, by the promise of docs/embedding.md; all other modules are private.

Promises: importing this package imports nothing but the version. A name is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from canopy_mqtt.version import __version__

if TYPE_CHECKING:
    from canopy_mqtt.assembly.app import Broker
    from canopy_mqtt.buildinfo import build_info
    from canopy_mqtt.inprocess.client import QueueFullError, RefusedError, Subscription
    from canopy_mqtt.inprocess.inbox import Message
    from canopy_mqtt.inprocess.properties import Properties
    from canopy_mqtt.net.listening.listeners import StartupError
    from canopy_mqtt.settings import Settings
    from canopy_mqtt.settings.errors import SettingsError
    from canopy_mqtt.settings.loader import load_settings

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
    "Broker": "canopy_mqtt.assembly.app",
    "Message": "canopy_mqtt.inprocess.inbox",
    "Properties": "canopy_mqtt.inprocess.properties",
    "QueueFullError": "canopy_mqtt.inprocess.client",
    "RefusedError": "canopy_mqtt.inprocess.client",
    "Settings": "canopy_mqtt.settings",
    "SettingsError": "canopy_mqtt.settings.errors",
    "StartupError": "canopy_mqtt.net.listening.listeners",
    "Subscription": "canopy_mqtt.inprocess.client",
    "build_info": "canopy_mqtt.buildinfo",
    "load_settings": "canopy_mqtt.settings.loader",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
