"""Runs a topic plug-in of amqtt as a plug-in (extra `amqtt`): asked at PUBLISH, at SUBSCRIBE and for each delivery.

amqtt asks its plug-ins in coroutines that never wait; they are run to the end at once. A plug-in that does wait
refuses, because all clients would have to wait with it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.hooks.interface import Hooks, Published
from canopy_mqtt.hooks.loading import PluginError

REFUSED = 0x80


class AmqttTopics(Hooks):
    """Asks a topic plug-in; only a true answer allows."""

    def __init__(self, plugin: Callable[[Any], Any], config: Mapping[str, Any] | None = None) -> None:
        """`plugin`: a class derived from amqtt's `BaseTopicPlugin`; `config`: the fields of its `Config`.

        Raises:
            PluginError: amqtt is not installed. What the plug-in raises is raised as it is.
        """
        try:
            from amqtt.contexts import Action, BaseContext
            from amqtt.session import Session
        except ImportError as error:
            raise PluginError("amqtt is not installed: in a clone of Canopy, pip install '.[amqtt]'") from error
        context = BaseContext()
        context.config = getattr(plugin, "Config", dict)(**(config or {}))
        self._plugin = plugin(context)
        self._actions = Action
        self._new_session: Callable[[], Any] = Session

    def publish(self, client: Principal, message: Published) -> int:
        allowed = self._ask(client, message.topic, self._actions.PUBLISH)
        return reason_codes.SUCCESS if allowed else reason_codes.NOT_AUTHORIZED

    def subscribe(self, client: Principal, topic_filter: str, qos: int) -> int:
        return qos if self._ask(client, topic_filter, self._actions.SUBSCRIBE) else REFUSED

    def deliver(self, client: Principal, topic: str) -> bool:
        return self._ask(client, topic, self._actions.RECEIVE)

    def _ask(self, client: Principal, topic: str, action: Any) -> bool:
        session = self._new_session()
        session.client_id, session.username = client.client_id, client.user_name
        session.remote_address = client.host
        return bool(_at_once(self._plugin.topic_filtering(session=session, topic=topic, action=action)))


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, and return its result. Raises RuntimeError if it waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("a topic plug-in of amqtt waits for something; everybody would wait for it")
