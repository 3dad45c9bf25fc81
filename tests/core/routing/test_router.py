"""The router: the broker's own topics, and the one time that the shell waits for."""

from __future__ import annotations

from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.retained import RETAINED_BYTES
from canopy_mqtt.core.topics.topic_tree import NODE_BYTES
from tests.core.harness import Network, limits


class TestRouting:
    """Publishing."""

    def test_system_topics_take_no_room(self) -> None:
        """The broker's own retained messages neither use up the clients' limits nor are refused because of them."""
        network = Network(limits(max_retained_messages=2, max_retained_bytes=1_000 + 2 * RETAINED_BYTES))
        router = network.router
        publisher = network.client("p")
        for number in range(50):
            assert router.retain(Message(b"$SYS/broker/%d/x" % number, b"1" * 100, 0, True, b"", 0.0, ""))
        assert router.retain(Message(b"$SYS", b"1", 0, True, b"", 0.0, ""))
        assert (len(router.retained), router.retained_bytes) == (51, 0)
        for topic in ("a", "b", "c"):
            publisher.publish(topic, b"x", retain=True)
        assert router.retained.get("b") is not None
        assert router.retained.get("c") is None
        assert router.counters.retained_refused == 1
        assert router.retained_bytes == 2 * (NODE_BYTES + RETAINED_BYTES + 3 + 1)
        for number in range(50):
            assert router.retain(Message(b"$SYS/broker/%d/x" % number, b"2" * 100, 0, True, b"", 0.0, ""))
        assert router.counters.retained_refused == 1
        for name in (b"$SYS", *(b"$SYS/broker/%d/x" % number for number in range(50)), b"a", b"b"):
            router.retain(Message(name, b"", 0, True, b"", 0.0, ""))
        assert (len(router.retained), router.retained_bytes, router.retained_store.system_count) == (0, 0, 0)


class TestTime:
    """Deadlines are few, whatever clients do."""

    def test_next_due(self) -> None:
        """The shell arms one timer: the time of the next thing, -1 for nothing."""
        network = Network()
        assert network.router.deadlines.next_due() == -1.0
        client = network.client("c", expiry=10)
        client.cut()
        assert network.router.deadlines.next_due() == network.now + 10
        network.advance(10)
        assert network.router.sessions == {}
        assert network.router.deadlines.next_due() == -1.0
