"""A subscriber of QoS 2 gets each application message once, though its retained messages are still on their way.

What is published while a stream of retained messages runs goes to the subscriber as a live message, and becomes the
retained one that the stream has still to send.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

from canopy_mqtt.core.codec.packets import Subscribe
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.session.retained_stream import MISSED
from tests.core.harness import Client, Network, limits
from tests.support.runs import for_each

TOPICS = 600


def _filled(**bounds: int) -> tuple[Network, Client]:
    network = Network(limits(**{"session_messages": 0, "live_messages": 0, **bounds}))
    publisher = network.client("p")
    for number in range(TOPICS):
        publisher.publish(f"r/{number:03}", b"old %d" % number, 2, retain=True)
    return network, publisher


def _subscribed(network: Network, request: Request, *, expiry: int | None = None) -> Client:
    """A subscriber whose stream has begun and waits for its acknowledgements."""
    client = network.idle("s")
    client.connect(clean=expiry is None, expiry=expiry, receive_maximum=5)
    client.answering = False
    client.send(Subscribe(client.take_id(), [request]))
    network.settle()
    assert client.session.streams is not None
    return client


def _all(client: Client) -> Counter[bytes]:
    """What comes until nothing is left, by payload."""
    client.answering = True
    for _ in range(2 * TOPICS):
        client.answer()
        if client.session.streams is None and not client.session.inflight.count:
            break
    return Counter(packet.payload for packet in client.take())


@for_each(("handling", "as_published"), [*product((0, 1), (False, True))])
def test_what_is_published_meanwhile_comes_once(handling: int, as_published: bool) -> None:
    """[MQTT-4.3.3-1] [MQTT-3.3.1-9]; the last message of each topic is among them."""
    network, publisher = _filled()
    client = _subscribed(network, Request("r/#", 2, False, as_published, handling))
    for number in range(0, TOPICS, 2):
        publisher.publish(f"r/{number:03}", b"new %d" % number, 2, retain=True)
    publisher.publish("r/100", b"newer", 2, retain=True)
    came = _all(client)
    assert set(came.values()) == {1}
    assert {b"new %d" % number for number in range(0, TOPICS, 2)} | {b"newer"} <= set(came)
    assert {b"old %d" % number for number in range(1, TOPICS, 2)} <= set(came)


def test_a_message_that_was_dropped_comes_from_the_stream() -> None:
    """The queue was full: without the stream the subscriber would not have the value of the topic."""
    network, publisher = _filled(session_messages=3)
    client = _subscribed(network, Request("r/#", 2))
    for number in range(TOPICS):
        publisher.publish(f"r/{number:03}", b"new %d" % number, 2, retain=True)
    lost = network.router.counters.dropped_in_all()
    assert lost > MISSED
    came = _all(client)
    started = {payload for payload in came if payload.startswith(b"old")}
    # The first five were on their way before the new ones were published.
    assert {b"new %d" % number for number in range(5, TOPICS)} <= set(came)
    assert len(started) < TOPICS / 2


def test_with_qos_1_it_comes_twice() -> None:
    """At least once: the stream may be the only one that gets through."""
    network, publisher = _filled()
    client = _subscribed(network, Request("r/#", 1))
    publisher.publish("r/599", b"new", 2, retain=True)
    assert _all(client)[b"new"] == 2


def test_what_is_retained_and_not_published_comes_from_the_stream() -> None:
    """Nothing but the stream sends it (`Router.retain`)."""
    network, _ = _filled()
    client = _subscribed(network, Request("r/#", 2))
    for number in (598, 599):
        node = network.router.retained.get(f"r/{number}")
        network.router.retained_store.retain(node)  # type: ignore[arg-type]
    came = _all(client)
    assert came[b"old 598"] == came[b"old 599"] == 1
