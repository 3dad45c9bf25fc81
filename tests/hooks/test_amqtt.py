"""amqtt's own topic plug-ins, unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from amqtt.plugins.base import BaseTopicPlugin
from amqtt.plugins.topic_checking import TopicAccessControlListPlugin, TopicTabooPlugin

from canopy_mqtt import Broker, Settings
from canopy_mqtt.hooks.amqtt import AmqttTopics
from tests.e2e.wire import Peer


def serving(hook: AmqttTopics) -> Broker:
    return Broker(Settings(listen=("mqtt://127.0.0.1:0",)), hooks=[hook])


async def test_taboo() -> None:
    async with serving(AmqttTopics(TopicTabooPlugin)) as broker:
        peer = await Peer.join(broker.ports[0], "client")
        assert await peer.subscribe("top-secret", "a") == (0x87, 0)
        assert await peer.publish("prohibited", b"x", qos=1) == 0x87
        assert await peer.publish("a", b"x", qos=1) == 0
        assert (await peer.message()).payload == b"x"
        admin = await Peer.join(broker.ports[0], "admin", user="admin")
        assert await admin.subscribe("top-secret") == (0,)
        peer.abort()
        admin.abort()


@pytest.mark.filterwarnings("ignore:The 'acl' option is deprecated")
async def test_access_control_list() -> None:
    config = {"publish_acl": {"anonymous": ["out/#"]}, "acl": {"anonymous": ["in/+"]}}
    async with serving(AmqttTopics(TopicAccessControlListPlugin, config)) as broker:
        peer = await Peer.join(broker.ports[0], "client")
        assert await peer.subscribe("in/a", "in/a/b", "out/a") == (0, 0x87, 0x87)
        assert await peer.publish("in/a", b"x", qos=1) == 0x87
        assert await peer.publish("out/a/b", b"x", qos=1) in (0, 0x10)
        peer.abort()


async def test_one_that_waits_refuses() -> None:
    """Everybody would wait for it."""

    class Waits(BaseTopicPlugin):  # type: ignore[misc]
        async def topic_filtering(self, **_: Any) -> bool:
            import asyncio

            await asyncio.sleep(1)
            return True

    async with serving(AmqttTopics(Waits)) as broker:
        peer = await Peer.join(broker.ports[0], "client")
        assert await peer.subscribe("a") == (0x87,)
        assert broker.faults.counts["hooks"] == 1
        peer.abort()
