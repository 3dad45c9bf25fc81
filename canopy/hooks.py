"""Plug-ins: a class with the hooks that it wants, for `Broker(hooks=[...])` or named in the settings: docs/hooks.md."""

from __future__ import annotations

from broker.core.codec.packets import Connect
from broker.core.principal import Principal
from broker.hooks.interface import Answer, Hooks, Published
from broker.hooks.loading import PluginError
from broker.inprocess.properties import Properties

__all__ = ["Answer", "Connect", "Hooks", "PluginError", "Principal", "Properties", "Published"]
