"""What a journal is told, call by call, where no restart shows it: of sessions, shares and the broker's own topics.

What the next broker finds is held by `tests/store/test_machine.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.persistence.journal import Journal, share_name
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.subscription import Subscription
from tests.core.harness import Client, Network, bag

EXPIRY = 100


class Notes(Journal):
    """Writes down what it is told: the call, the client identifier, and what tells one such call from another."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.deliveries: list[Delivery] = []

    def take(self) -> list[tuple[Any, ...]]:
        """What was told since the last call."""
        taken, self.lines = self.lines, []
        return taken

    def _note(self, call: str, client_id: str, delivery: Delivery) -> None:
        if delivery not in self.deliveries:
            self.deliveries.append(delivery)
        self.lines.append((call, client_id, delivery.message.payload()))

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        del principal
        self.lines.append(("kept", client_id, expiry_interval, disconnected_at))

    def session_gone(self, client_id: str) -> None:
        self.lines.append(("gone", client_id))

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        self.lines.append(("subscribed", client_id, subscription.topic_filter, int(subscription.qos), streaming))

    def streamed(self, client_id: str, topic_filter: str) -> None:
        self.lines.append(("streamed", client_id, topic_filter))

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        self.lines.append(("unsubscribed", client_id, topic_filter))

    def queued(self, client_id: str, delivery: Delivery) -> None:
        self._note("queued", client_id, delivery)

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        assert delivery.packet_id > 0
        self._note("in flight", client_id, delivery)

    def unsent(self, client_id: str, delivery: Delivery) -> None:
        self._note("unsent", client_id, delivery)

    def released(self, client_id: str, delivery: Delivery) -> None:
        self._note("released", client_id, delivery)

    def finished(self, client_id: str, delivery: Delivery) -> None:
        self._note("finished", client_id, delivery)

    def received(self, client_id: str, packet_id: int) -> None:
        self.lines.append(("received", client_id, packet_id))

    def will_alone(self, name: str, principal: Principal, will: Will, due: float) -> None:
        del principal
        self.lines.append(("will alone", name, will.topic, due))

    def completed(self, client_id: str, packet_id: int) -> None:
        self.lines.append(("completed", client_id, packet_id))

    def will_set(self, client_id: str, will: Will, due: float) -> None:
        self.lines.append(("will", client_id, will.topic, due))

    def will_cleared(self, client_id: str) -> None:
        self.lines.append(("no will", client_id))

    def retained_set(self, message: Message) -> None:
        self.lines.append(("retained", message.topic, message.payload()))

    def retained_cleared(self, topic: str) -> None:
        self.lines.append(("not retained", topic))


class Place:
    """A network whose router has a journal, a client that lasts, and one that does not and publishes."""

    def __init__(self, given: Limits | None = None) -> None:
        self.network = Network(given)
        self.notes = Notes()
        self.network.router.journal = self.notes
        self.publisher = self.network.client("p")

    def lasting(self, client_id: str = "c", *filters: str, qos: int = 2, **connect: Any) -> Client:
        """A connected client whose session is kept; what was told of its coming is forgotten."""
        made = self.network.client(client_id, clean=False, expiry=EXPIRY, **connect)
        if filters:
            made.subscribe(*filters, qos=qos)
        self.notes.take()
        return made


@pytest.fixture
def place() -> Place:
    return Place()


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_that_ends_with_its_connection_is_not_told_of(place: Place) -> None:
    client = place.network.client("c")
    client.subscribe("a", qos=2)
    client.publish("a", b"1", 1)
    client.publish("a", b"2", 2)
    client.unsubscribe("a")
    client.cut()
    place.network.settle()
    assert place.notes.take() == []


@pytest.mark.parametrize("politely", [True, False])
def test_of_its_will_the_store_is_told(place: Place, politely: bool) -> None:
    client = place.network.client("c", will=Will("w", b"", 1))
    assert place.notes.take() == [("will alone", "c", "w", 0.0)]
    if politely:
        client.disconnect()
    else:
        client.cut()
    place.network.settle()
    assert place.notes.take() == [("no will", "c")]


def test_an_expiry_of_0_on_resumption_or_disconnect_ends_the_keeping(place: Place) -> None:
    client = place.lasting("c", "a")
    client.connect(clean=False, expiry=0)
    told = place.notes.take()
    assert told[-1] == ("gone", "c")
    place.publisher.publish("a", b"1", 1)
    client.disconnect()
    assert place.notes.take() == []
    client = place.lasting("d", "a")
    client.disconnect(properties=bag(i={0x11: 0}))
    assert place.notes.take() == [("gone", "d")]


# -- subscriptions -----------------------------------------------------------------------------------------------------


def test_retained_messages_on_their_way_are_told_of_until_they_have_gone(place: Place) -> None:
    place.publisher.publish("a", b"kept", 1, retain=True)
    client = place.lasting()
    client.subscribe("#", qos=1)
    assert place.notes.take() == [
        ("subscribed", "c", "#", 1, True),
        ("in flight", "c", b"kept"),
        ("streamed", "c", "#"),
        ("finished", "c", b"kept"),
    ]


# -- deliveries --------------------------------------------------------------------------------------------------------


def test_a_shared_message_passes_to_another_member(place: Place) -> None:
    """[MQTT-4.8.2-4]"""
    first = place.lasting("c", "$share/g/a")
    first.answering = False
    place.publisher.publish("a", b"1", 1)
    assert place.notes.take() == [("in flight", "c", b"1")]
    assert share_name(place.notes.deliveries[0]) == "$share/g/a"
    place.lasting("d", "$share/g/a")
    first.cut()
    place.network.settle()
    told = place.notes.take()
    assert ("finished", "c", b"1") in told
    assert told[-2:] == [("in flight", "d", b"1"), ("finished", "d", b"1")]


# -- retained messages -------------------------------------------------------------------------------------------------


def test_the_brokers_own_topics_are_not_told_of(place: Place) -> None:
    router = place.network.router
    router.retained_store.retain(Message(b"$SYS/broker/uptime", b"1", 0, True, b"", 0.0, ""))
    router.retained_store.retain(Message(b"$SYS/broker/uptime", b"", 0, True, b"", 0.0, ""))
    router.retained_store.retain(Message(b"$SYSTEM", b"1", 0, True, b"", 0.0, ""))
    assert place.notes.take() == [("retained", b"$SYSTEM", b"1")]


def test_a_journal_that_overrides_nothing_changes_nothing(place: Place) -> None:
    place.network.router.journal = Journal()
    client = place.network.client("c", expiry=EXPIRY, will=Will("w", b""))
    client.subscribe("a", qos=2)
    place.publisher.publish("a", b"1", 2, retain=True)
    client.publish("b", b"", 2)
    client.cut()
    assert client.payloads() == [b"1"]
