"""The services that every client library must get from the broker, with its default settings.

A test class for a library inherits from `Contract` and says which driver it uses. Where a library cannot do a thing
at all, its class
says so by inheriting less.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.e2e.clients.conftest import Unique
from tests.e2e.clients.python.drivers import Driver, Opener, Received, Will

UNICODE = "grüße/世界/🌍/ñandú ¿qué?"


async def only(client: Driver, other: Driver, fence: str, *, qos: int = 0) -> list[Received]:
    """Return the messages of `client` before one on the topic `fence`, to which it is subscribed."""
    await other.publish(fence, b"fence", qos)
    found = []
    while (message := await client.receive()).topic != fence:
        found.append(message)
    return found


class Contract:
    """Quality of service, retained messages, Wills, sessions, filters, sizes and names."""

    driver: ClassVar[type[Driver]]

    @pytest.mark.parametrize("granted", [0, 1, 2])
    @pytest.mark.parametrize("published", [0, 1, 2])
    async def test_each_quality_of_service(self, opener: Opener, unique: Unique, published: int, granted: int) -> None:
        """Delivered with the lower of the two qualities, payload untouched [MQTT-3.8.4-8]."""
        topic = unique("qos")
        subscriber = await opener(self.driver, unique("sub"))
        publisher = await opener(self.driver, unique("pub"))
        assert await subscriber.subscribe(topic, granted) == granted
        payload = bytes(range(256))
        await publisher.publish(topic, payload, published)
        assert await subscriber.receive() == Received(topic, payload, min(published, granted), False)

    async def test_many_messages_of_each_quality_keep_their_order(self, opener: Opener, unique: Unique) -> None:
        """[MQTT-4.6.0-5] Order within a topic and quality of service."""
        topic = unique("order")
        subscriber = await opener(self.driver, unique("sub"))
        publisher = await opener(self.driver, unique("pub"))
        for qos in (0, 1, 2):
            await subscriber.subscribe(f"{topic}/{qos}", qos)
            payloads = [b"%d" % number for number in range(100)]
            for payload in payloads:
                await publisher.publish(f"{topic}/{qos}", payload, qos)
            found = await subscriber.receive_all(len(payloads))
            assert [message.payload for message in found] == payloads

    async def test_an_empty_payload(self, opener: Opener, unique: Unique) -> None:
        topic = unique("empty")
        client = await opener(self.driver, unique("both"))
        await client.subscribe(topic, 1)
        await client.publish(topic, b"", 1)
        assert await client.receive() == Received(topic, b"", 1, False)

    async def test_retained_messages(self, opener: Opener, unique: Unique) -> None:
        """Kept, replaced and cleared [MQTT-3.3.1-5] [MQTT-3.3.1-6]; marked for the new alone [MQTT-3.3.1-8]."""
        topic, fence = unique("retained"), unique("fence")
        publisher = await opener(self.driver, unique("pub"))
        watcher = await opener(self.driver, unique("watch"))
        await watcher.subscribe(topic, 1)
        await publisher.publish(topic, b"old", 1, retain=True)
        await publisher.publish(topic, b"new", 1, retain=True)
        assert [await watcher.receive(), await watcher.receive()] == [
            Received(topic, b"old", 1, False),
            Received(topic, b"new", 1, False),
        ]
        late = await opener(self.driver, unique("late"))
        await late.subscribe(topic, 1)
        assert await late.receive() == Received(topic, b"new", 1, True)
        await publisher.publish(topic, b"", 1, retain=True)
        assert (await watcher.receive()).payload == b""
        later = await opener(self.driver, unique("later"))
        await later.subscribe(fence)
        await later.subscribe(topic, 1)
        assert await only(later, publisher, fence) == []

    async def test_the_will_of_a_lost_connection(self, opener: Opener, unique: Unique) -> None:
        """[MQTT-3.1.2-8]"""
        topic = unique("will")
        watcher = await opener(self.driver, unique("watch"))
        await watcher.subscribe(topic, 1)
        mortal = await opener(self.driver, unique("mortal"), will=Will(topic, b"lost", 1, retain=True))
        await mortal.cut()
        assert await watcher.receive() == Received(topic, b"lost", 1, False)
        late = await opener(self.driver, unique("late"))
        await late.subscribe(topic, 1)
        assert await late.receive() == Received(topic, b"lost", 1, True)

    async def test_a_second_connection_takes_over(self, opener: Opener, unique: Unique) -> None:
        """[MQTT-3.1.4-3] The first connection ends; the second works."""
        client_id, topic = unique("twin"), unique("topic")
        first = await opener(self.driver, client_id)
        await first.subscribe(topic, 1)
        second = await opener(self.driver, client_id)
        await first.gone()
        assert not second.session_present
        await second.subscribe(topic, 1)
        await second.publish(topic, b"mine", 1)
        assert await second.receive() == Received(topic, b"mine", 1, False)

    async def test_a_kept_session_gets_what_it_missed(self, opener: Opener, unique: Unique) -> None:
        """QoS 1 and 2 wait, in order; the subscription lives on [MQTT-3.1.2-5] [MQTT-4.5.0-1]."""
        client_id, topic = unique("keeper"), unique("missed")
        keeper = await opener(self.driver, client_id, keep=True)
        assert not keeper.session_present
        await keeper.subscribe(f"{topic}/#", 2)
        await keeper.disconnect()
        publisher = await opener(self.driver, unique("pub"))
        for number in range(30):
            qos = 1 + number % 2
            await publisher.publish(f"{topic}/{qos}", b"%d" % number, qos)
        back = await opener(self.driver, client_id, keep=True)
        assert back.session_present
        found = await back.receive_all(30)
        for qos in (1, 2):
            of_one = [message for message in found if message.qos == qos]
            assert [(message.topic, message.payload) for message in of_one] == [
                (f"{topic}/{qos}", b"%d" % number) for number in range(30) if 1 + number % 2 == qos
            ]
        await publisher.publish(f"{topic}/live", b"still subscribed", 1)
        assert (await back.receive()).payload == b"still subscribed"

    async def test_unsubscribing(self, opener: Opener, unique: Unique) -> None:
        """[MQTT-3.10.4-3] What comes after UNSUBACK is not delivered; other subscriptions stay."""
        topic, fence = unique("topic"), unique("fence")
        client = await opener(self.driver, unique("both"))
        await client.subscribe(topic)
        await client.subscribe(fence)
        await client.publish(topic, b"before")
        assert (await client.receive()).payload == b"before"
        await client.unsubscribe(topic)
        await client.publish(topic, b"after")
        assert await only(client, client, fence) == []

    async def test_topics_and_payloads_in_many_scripts(self, opener: Opener, unique: Unique) -> None:
        """[MQTT-1.5.4-1] UTF-8 beyond the basic plane; nothing is normalised on its way [MQTT-4.7.3-4]."""
        client = await opener(self.driver, unique("unicode"))
        composed, decomposed = unique("caf") + "/é", unique("caf") + "/e\u0301"
        for topic in (f"{unique('t')}/{UNICODE}", composed, decomposed):
            assert await client.subscribe(topic, 1) == 1
            await client.publish(topic, topic.encode(), 1)
            assert await client.receive() == Received(topic, topic.encode(), 1, False)

    async def test_a_shared_subscription(self, opener: Opener, unique: Unique) -> None:
        """Section 4.8.2, and for 3.1.1 clients too: every message to one member, all members in turn."""
        topic, fence = unique("work"), unique("fence")
        members = [await opener(self.driver, unique("member")) for _ in range(3)]
        for member in members:
            await member.subscribe(f"$share/{topic}/{topic}/#", 1)
            await member.subscribe(fence, 1)
        publisher = await opener(self.driver, unique("pub"))
        payloads = [b"%d" % number for number in range(60)]
        for payload in payloads:
            await publisher.publish(f"{topic}/{payload.decode()}", payload, 1)
        await publisher.publish(fence, b"fence", 1)
        shares = []
        for member in members:
            share = []
            while (message := await member.receive()).topic != fence:
                share.append(message.payload)
            shares.append(share)
        assert sorted(payload for share in shares for payload in share) == sorted(payloads)
        assert all(share == sorted(share, key=int) and len(share) >= 10 for share in shares)


class UnicodeIdentifiers:
    """Client identifiers in any script [MQTT-3.1.3-4]."""

    driver: ClassVar[type[Driver]]

    async def test_a_client_identifier_beyond_ascii(self, opener: Opener, unique: Unique) -> None:
        client_id, topic = unique("ключ") + "-🔑", unique("topic")
        keeper = await opener(self.driver, client_id, keep=True)
        await keeper.subscribe(topic, 1)
        await keeper.disconnect()
        back = await opener(self.driver, client_id, keep=True)
        assert back.session_present
