"""Hooks: objects of a program, or of a module in the settings, that decide about clients and messages, or observe them.

A plug-in implements `Hooks`, for `Broker(hooks=[...])` or the settings: docs/hooks.md. An `Authenticator` identifies
clients, while the settings' rules restrict them; an `AccessControl` decides both. An `AuthMethod` answers enhanced
authentication (MQTT 5.0, section 4.12): docs/embedding.md. Plug-ins of amqtt: `canopy_mqtt.hooks.amqtt`.

Owns the public names, which `__all__` lists. `interface` defines the hooks; `running` installs plug-ins in a broker.
"""

from __future__ import annotations

from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import (
    FORBIDDEN,
    LATER,
    UNSTEADY,
    AccessControl,
    AuthExchange,
    AuthMethod,
    Origin,
    PeerCertificate,
    Ticket,
)
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.hooks.interface import Answer, Hooks, Published
from canopy_mqtt.hooks.loading import PluginError
from canopy_mqtt.inprocess.properties import Properties
from canopy_mqtt.security import ASK, Attempt, Authenticator, Refusal, Verdict

__all__ = [
    "ASK",
    "FORBIDDEN",
    "LATER",
    "UNSTEADY",
    "AccessControl",
    "Answer",
    "Attempt",
    "AuthExchange",
    "AuthMethod",
    "Authenticator",
    "Connect",
    "Hooks",
    "Origin",
    "PeerCertificate",
    "PluginError",
    "Principal",
    "Properties",
    "Published",
    "Refusal",
    "Ticket",
    "Verdict",
]
