"""paho-mqtt against the broker: both versions of the protocol, and what only 5.0 has."""

from __future__ import annotations

from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.e2e.clients.conftest import Unique
from tests.e2e.clients.python.contract import Contract, UnicodeIdentifiers
from tests.e2e.clients.python.drivers import Opener, Received
from tests.e2e.clients.python.paho_driver import Paho, Paho5


class TestPaho(Contract, UnicodeIdentifiers):
    """MQTT 3.1.1 by paho."""

    driver = Paho


class TestPahoWeb(Contract, UnicodeIdentifiers):
    """MQTT 3.1.1 over WebSocket by paho."""

    class PahoWeb(Paho):
        web = True

    driver = PahoWeb


class TestPaho5(Contract, UnicodeIdentifiers):
    """MQTT 5.0 by paho."""

    driver = Paho5

    async def test_properties_arrive_as_they_were_sent(self, opener: Opener, unique: Unique) -> None:
        """User properties in their order [MQTT-3.3.2-18], the expiry counted down, identifiers of the subscription."""
        topic = unique("props")
        client = await opener(Paho5, unique("both"))
        assert isinstance(client, Paho5)
        await client.subscribe_with(topic, SubscribeOptions(1), SubscriptionIdentifier=77)
        pairs = [("b", "1"), ("a", "2"), ("b", "3"), ("ñ", "🌍")]
        await client.publish_with(
            topic,
            b"body",
            1,
            ContentType="text/plain",
            ResponseTopic="answers/here",
            CorrelationData=b"\x00\xff",
            PayloadFormatIndicator=1,
            MessageExpiryInterval=60,
            UserProperty=pairs,
        )
        assert await client.receive() == Received(topic, b"body", 1, False, tuple(pairs))
        found = client.messages[-1].properties
        assert found is not None
        told = found.json()  # type: ignore[no-untyped-call]
        assert 0 < told.pop("MessageExpiryInterval") <= 60
        assert told == {
            "ContentType": "text/plain",
            "ResponseTopic": "answers/here",
            "CorrelationData": "00ff",
            "PayloadFormatIndicator": 1,
            "SubscriptionIdentifier": [77],
            "UserProperty": pairs,
        }

    async def test_subscription_options(self, opener: Opener, unique: Unique) -> None:
        """No Local [MQTT-3.8.3-3], Retain As Published [MQTT-3.3.1-12], Retain Handling [MQTT-3.3.1-9]."""
        topic = unique("options")
        publisher = await opener(Paho5, unique("pub"))
        await publisher.publish(topic, b"old", 1, retain=True)
        client = await opener(Paho5, unique("sub"))
        assert isinstance(client, Paho5)
        options = SubscribeOptions(1, noLocal=True, retainAsPublished=True, retainHandling=2)
        assert await client.subscribe_with(topic, options) == 1
        await client.publish(topic, b"mine", 1)
        await publisher.publish(topic, b"new", 1, retain=True)
        assert await client.receive() == Received(topic, b"new", 1, True)
        await publisher.publish(topic, b"", 1, retain=True)

    async def test_the_broker_tells_what_it_offers(self, opener: Opener) -> None:
        """An identifier is assigned to who brings none [MQTT-3.2.2-16]; the defaults of the settings are announced."""
        client = await opener(Paho5, "")
        assert isinstance(client, Paho5)
        assert client.connack is not None
        told = client.connack.json()  # type: ignore[no-untyped-call]
        assert told["AssignedClientIdentifier"]
        assert told["MaximumPacketSize"] == 8_388_608
