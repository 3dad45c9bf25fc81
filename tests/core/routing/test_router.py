"""The router: who gets what, wills, and time; without an event loop anywhere."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from canopy_mqtt.core.codec.packets import V311, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.hooks import EventListener
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.peers import PeerDisconnected
from canopy_mqtt.core.routing.retained import EXPIRY_BYTES, RETAINED_BYTES
from canopy_mqtt.core.topics.topic_tree import NODE_BYTES
from canopy_mqtt.core.topics.trie import LAYOUTS
from tests.core.harness import START, Client, Network, bag, limits


def listening(network: Network, topic_filter: str = "will/#", qos: int = 2) -> Client:
    """Somebody who hears wills."""
    client = network.client("witness")
    client.subscribe(topic_filter, qos=qos)
    return client


class TestRouting:
    """Publishing."""

    def test_no_event_loop(self) -> None:
        """A publish reaches its receivers with no loop running: nothing on the way awaits, and no task is started."""
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        network = Network()
        clients = [network.client(f"c{number}") for number in range(50)]
        for number, client in enumerate(clients):
            client.subscribe("t/#", qos=number % 3)
        for link in network.links:
            link.frozen = True
        count = network.router.publish(Message(b"t/a", b"x", 2, False, b"", 0.0, ""), None)
        assert count == 50
        assert [client.wire.send_buffer.messages for client in clients] == [1] * 50

    @pytest.mark.parametrize(("trie", "cache"), [*product(LAYOUTS, (0, 1, 1_000))])
    def test_every_layout(self, trie: str, cache: int) -> None:
        """Changing subscriptions are seen by the next message, whatever is cached [MQTT-4.5.0-1]."""
        network = Network(trie=trie, match_cache=cache)
        publisher, clients = network.client("p"), [network.client(f"c{number}") for number in range(3)]
        filters = ("a/b", "a/+", "#")
        for _ in range(3):
            expected: list[list[bytes]] = [[], [], []]
            for step in range(6):
                at = step % 3
                if step < 3:
                    clients[at].subscribe(filters[at])
                else:
                    clients[at].unsubscribe(filters[at])
                for topic in ("a/b", "a/c", "b"):
                    publisher.publish(topic, b"%d" % step)
                    for index, topic_filter in enumerate(filters):
                        there = index <= step < 3 or (step >= 3 and index > step - 3)
                        if there and (topic_filter == "#" or topic == "a/b" or (index == 1 and topic == "a/c")):
                            expected[index].append(b"%d" % step)
            assert [client.payloads() for client in clients] == expected
            assert len(network.router.trie) == 0

    def test_one_frame_for_all(self) -> None:
        """A QoS 0 frame goes on as the very bytes it came in, shared by all receivers of its version."""
        network = Network()
        clients = [network.client(f"c{number}", V311) for number in range(5)]
        for client in clients:
            client.subscribe("t")
            client.wire.frozen = True
        publisher = network.client("p", V311)
        publisher.publish("t", b"warm")
        publisher.publish("t", b"payload")
        frames = [client.wire.send_buffer.take_batch(1 << 20, START)[-1] for client in clients]
        assert frames[0] == b"\x30\x0a\x00\x01tpayload"
        assert all(frame is frames[0] for frame in frames)

    def test_one_wakeup_for_a_read(self) -> None:
        """Each touched peer is listed once, however many messages a read held."""
        network = Network()
        client, publisher = network.client("c"), network.client("p")
        client.subscribe("t", qos=1)
        for _ in range(50):
            publisher.post("t", b"x", 1)
        publisher.wire.to_channel()
        assert [box for box in network.router.peers.touched if box is client.wire.send_buffer] == [
            client.wire.send_buffer
        ]
        network.settle()
        assert len(client.take()) == 50

    @pytest.mark.parametrize("how", ["cleared", "replaced", "expired", "refused"])
    def test_deep_topics_are_counted(self, how: str) -> None:
        """Levels that no other topic has count as bytes, and no more once they are gone."""
        network = Network(limits(max_retained_bytes=20_000))
        router = network.router
        deep = [f"{number}" + "/x" * 19 for number in range(10)]
        for topic in deep:
            router.retain(Message(topic.encode(), b"1", 0, True, b"", START + 5 if how == "expired" else 0.0, ""))
        assert len(router.retained) == 20_000 // (20 * NODE_BYTES + RETAINED_BYTES + 3 * 39 + 1) == 3
        assert router.counters.retained_refused == 7
        held = 3 * (20 * NODE_BYTES + RETAINED_BYTES + 3 * 39 + 1)
        if how == "expired":
            held += 3 * (EXPIRY_BYTES + 39)
        assert router.retained_bytes == held
        # One that shares all its levels but the last costs little.
        assert router.retain(Message(deep[0].encode()[:-1] + b"y", b"1", 0, True, b"", 0.0, ""))
        assert router.retained_bytes == held + NODE_BYTES + RETAINED_BYTES + 3 * 39 + 1
        router.retain(Message(deep[0].encode()[:-1] + b"y", b"", 0, True, b"", 0.0, ""))
        assert router.retained_bytes == held
        if how == "replaced":
            for size in (50, 1, 7, 0):
                for topic in deep[:3]:
                    router.retain(Message(topic.encode(), b"1" * size, 0, True, b"", 0.0, ""))
        elif how == "refused":  # and gone all the same
            assert router.retain(Message(b"another", b"1", 0, True, b"", 0.0, ""))
            for topic in deep[:3]:
                assert not router.retain(Message(topic.encode(), b"1" * 20_000, 0, True, b"", 0.0, ""))
            router.retain(Message(b"another", b"", 0, True, b"", 0.0, ""))
        elif how == "expired":
            network.advance(10)
        else:
            for topic in deep:
                router.retain(Message(topic.encode(), b"", 0, True, b"", 0.0, ""))
        assert (len(router.retained), router.retained.node_count, router.retained_bytes) == (0, 0, 0)

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

    def test_watcher(self) -> None:
        """Whoever watches is told of subscriptions and ended sessions."""

        class Notes(EventListener):
            def __init__(self) -> None:
                self.seen: list[tuple[object, ...]] = []

            def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
                self.seen.append(("+", client_id, topic_filter, qos))

            def unsubscribed(self, client_id: str, topic_filter: str) -> None:
                self.seen.append(("-", client_id, topic_filter))

            def session_ended(self, client_id: str) -> None:
                self.seen.append(("end", client_id))

        network = Network(limits(max_qos=1))
        notes = Notes()
        network.router.event_listener = notes
        client = network.client("c")
        client.subscribe("$share/g/t", qos=2)
        client.unsubscribe("$share/g/t", "none")
        client.cut()
        assert notes.seen == [("+", "c", "$share/g/t", 1), ("-", "c", "$share/g/t"), ("end", "c")]


class TestWills:
    """A will is published once, on every end but DISCONNECT 0x00."""

    def test_the_last_connect_counts(self) -> None:
        """Each CONNECT brings its own will, or none [MQTT-3.1.2-7] [MQTT3-3.1.2-12]."""
        network = Network()
        witness = listening(network)
        client = network.client("c", expiry=100, will=Will("will/c", b"one", delay=5))
        client.cut()
        client.connect(clean=False, expiry=100, will=Will("will/c", b"two"))
        client.cut()
        client.connect(clean=False, expiry=100)
        client.cut()
        network.advance(1_000)
        assert witness.payloads() == [b"two"]

    def test_expiry_counts_from_publication(self) -> None:
        """The will's message expiry begins when it is published, section 3.1.3.2.4."""
        network = Network()
        witness = listening(network)
        client = network.client("c", expiry=100, will=Will("will/c", b"gone", 1, False, 50, 20))
        client.cut()
        network.advance(50)
        assert [packet.message_expiry for packet in witness.take()] == [20]

    def test_to_itself(self) -> None:
        """A session that listens to its own will gets it when its client is back [MQTT3-3.1.2-5]."""
        network = Network()
        client = network.client("c", expiry=100, will=Will("will/c", b"gone", 1))
        client.subscribe("will/c", qos=1)
        client.cut()
        client.connect(clean=False, expiry=100)
        assert client.payloads() == [b"gone"]

    def test_two_who_hear_each_other(self) -> None:
        """Wills of connections that end together are all published, in a batch of events."""
        network = Network()
        witness = listening(network)
        clients = [network.client(f"c{number}", will=Will(f"will/{number}", b"%d" % number)) for number in range(5)]
        for client in clients:
            client.subscribe("will/#")
        for client in clients:
            network.router.peers.post(PeerDisconnected(client.session, client.wire.send_buffer, "stalled"))
        network.router.peers.drain(network.router, network.now)
        network.settle()
        assert network.router.peers.send_buffers.keys() == {network.session("witness")}
        assert sorted(witness.payloads()) == [b"%d" % number for number in range(5)]


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


def test_system_of_many_options() -> None:
    """Options of one filter do not leak into another of the same client."""
    network = Network()
    client, publisher = network.client("c", properties=bag(i={0x22: 5})), network.client("p")
    client.subscribe(Request("a", 2, retain_as_published=True), Request("b", 0), identifier=3)
    publisher.publish("a", b"", 2)
    publisher.publish("b", b"x", 2, retain=True)
    assert [(one.topic, one.qos, one.retain, one.subscription_ids) for one in client.take()] == [
        (b"a", 2, False, (3,)),
        (b"b", 0, False, (3,)),
    ]
