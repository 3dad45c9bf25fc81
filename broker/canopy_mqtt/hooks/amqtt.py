"""Plug-ins of amqtt in this broker (extra `amqtt`): docs/hooks.md."""

from __future__ import annotations

from canopy_mqtt.hooks.amqtt_topics import AmqttTopics
from canopy_mqtt.security.amqtt_plugins import AmqttAuthenticator

__all__ = ["AmqttAuthenticator", "AmqttTopics"]
