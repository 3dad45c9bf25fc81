"""gmqtt against the broker: both versions of the protocol, and what only 5.0 has."""

from __future__ import annotations

from tests.e2e.clients.conftest import Unique
from tests.e2e.clients.python.contract import Contract
from tests.e2e.clients.python.drivers import Opener, Received
from tests.e2e.clients.python.gmqtt_driver import Gmqtt, Gmqtt311


class TestGmqtt(Contract):
    """MQTT 5.0 by gmqtt."""

    driver = Gmqtt

    async def test_properties_arrive_as_they_were_sent(self, opener: Opener, unique: Unique) -> None:
        """User properties in their order [MQTT-3.3.2-18]; the identifier of the subscription [MQTT-3.3.4-3]."""
        topic = unique("props")
        client = await opener(Gmqtt, unique("both"))
        assert isinstance(client, Gmqtt)
        assert await client.subscribe_with(topic, 1, subscription_identifier=9) == 1
        pairs = (("b", "1"), ("a", "2"), ("b", "3"))
        await client.publish_with(
            topic,
            b"body",
            1,
            content_type="text/plain",
            response_topic="answers/here",
            correlation_data=b"42",
            message_expiry_interval=60,
            user_property=list(pairs),
        )
        assert await client.receive() == Received(topic, b"body", 1, False, pairs)
        found = client.properties[-1]
        assert found["content_type"] == ["text/plain"]
        assert found["response_topic"] == ["answers/here"]
        assert found["correlation_data"] == [b"42"]
        assert found["subscription_identifier"] == [9]
        assert 0 < found["message_expiry_interval"][0] <= 60

    async def test_topic_aliases(self, opener: Opener, unique: Unique) -> None:
        """Set by the first message, used by the next ones, which carry no topic name (section 3.3.2.3.4)."""
        topic = unique("alias")
        subscriber = await opener(Gmqtt, unique("sub"))
        publisher = await opener(Gmqtt, unique("pub"))
        assert isinstance(publisher, Gmqtt)
        assert publisher.connack["topic_alias_maximum"][0] >= 1
        await subscriber.subscribe(topic, 1)
        await publisher.publish_with(topic, b"first", 1, topic_alias=1)
        await publisher.publish_with("", b"second", 1, topic_alias=1)
        assert [await subscriber.receive(), await subscriber.receive()] == [
            Received(topic, b"first", 1, False),
            Received(topic, b"second", 1, False),
        ]

    async def test_subscription_options(self, opener: Opener, unique: Unique) -> None:
        """No Local [MQTT-3.8.3-3], Retain As Published [MQTT-3.3.1-12], Retain Handling [MQTT-3.3.1-9]."""
        topic = unique("options")
        publisher = await opener(Gmqtt, unique("pub"))
        await publisher.publish(topic, b"old", 1, retain=True)
        client = await opener(Gmqtt, unique("sub"))
        assert isinstance(client, Gmqtt)
        await client.subscribe_with(topic, 1, no_local=True, retain_as_published=True, retain_handling_options=2)
        await client.publish(topic, b"mine", 1)
        await publisher.publish(topic, b"new", 1, retain=True)
        assert await client.receive() == Received(topic, b"new", 1, True)
        await publisher.publish(topic, b"", 1, retain=True)


class TestGmqtt311(Contract):
    """MQTT 3.1.1 by gmqtt."""

    driver = Gmqtt311
