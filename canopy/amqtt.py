"""Plug-ins of amqtt in this broker (extra `amqtt`): docs/hooks.md."""

from __future__ import annotations

from broker.hooks.amqtt_topics import AmqttTopics
from broker.security.amqtt_plugins import AmqttAuthenticator

__all__ = ["AmqttAuthenticator", "AmqttTopics"]
