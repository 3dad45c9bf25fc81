"""Settings about single messages: the size of a payload, the bytes in flight, the QoS that messages go out with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import PUBACK, PUBREC, V5, V311, Will
from canopy_mqtt.core.queues.message import OVERHEAD, Message
from tests.core.harness import Network, limits, total_ledger
from tests.support.runs import for_each

HOUR = 3600
MOST = 10


class TestPayload:
    """`max_payload_size`: what is larger goes nowhere."""

    @for_each("version", [V311, V5])
    @for_each("qos", [0, 1, 2])
    @for_each("retain", [False, True])
    def test_a_larger_one_is_refused(self, version: int, qos: int, retain: bool) -> None:
        """0x97, an administrative limit, where there is an answer; nobody hears of it, and the connection stays."""
        network = Network(limits(max_payload_size=MOST))
        witness = network.client("w")
        witness.subscribe("#", qos=2)
        client = network.client("c", version)
        # The topic's route is known from the first on.
        for size in (MOST, MOST + 1, MOST, MOST + 1, 0):
            client.publish("t", b"x" * size, qos, retain=retain and size > MOST)
        assert [len(payload) for payload in witness.payloads()] == [MOST, MOST, 0]
        assert len(network.router.retained) == 0
        assert network.router.counters.oversized == 2
        bad = 0x97 if version == V5 else 0
        codes = [ack.reason_code for ack in client.acks(PUBACK if qos == 1 else PUBREC)]
        assert codes == ([0, bad, 0, bad, 0] if qos else [])
        assert client.outgoing == {}
        assert not client.session.received_qos2
        client.ping()

    def test_what_was_retained_stays(self) -> None:
        """It is refused like any other, and replaces nothing."""
        network = Network(limits(max_payload_size=MOST))
        client = network.client("c")
        client.publish("t", b"small", retain=True)
        client.publish("t", b"x" * 11, retain=True)
        kept = network.router.retained.get("t")
        assert isinstance(kept, Message)
        assert kept.payload() == b"small"

    @given(sizes=st.lists(st.integers(0, 2 * MOST), min_size=1, max_size=40), pace=st.sampled_from((0, 7)))
    def test_in_a_burst(self, sizes: list[int], pace: int) -> None:
        """Many in one read, which the broker takes together where it can: each is judged by itself."""
        network = Network(limits(max_payload_size=MOST), pace)
        witness, client = network.client("w"), network.client("c")
        witness.subscribe("t/+")
        for topic in ("t/a", "t/b"):
            client.publish(topic)
        witness.take()
        for at, size in enumerate(sizes):
            client.post("t/a" if at % 3 else "t/b", b"x" * size)
        network.settle()
        assert [len(payload) for payload in witness.payloads()] == [size for size in sizes if size <= MOST]
        assert network.router.counters.oversized == sum(size > MOST for size in sizes)

    @for_each(("version", "code"), [(V311, 3), (V5, 0x97)])
    def test_wills(self, version: int, code: int) -> None:
        """The CONNECT is refused."""
        network = Network(limits(max_payload_size=MOST))
        assert network.idle("c", version).connect(will=Will("t", b"x" * (MOST + 1))).reason_code == code
        assert network.idle("c", version).connect(will=Will("t", b"x" * MOST)).reason_code == 0


class TestBytesInFlight:
    """`max_inflight_bytes`: what is unacknowledged towards one client."""

    @for_each("qos", [1, 2])
    def test_no_more_than_that(self, qos: int) -> None:
        """The rest waits in the session, and goes on as acknowledgements come; nothing is lost."""
        most = 3 * (1 + 900 + OVERHEAD) + 100
        network = Network(limits(max_inflight_bytes=most))
        publisher, client = network.client("p"), network.client("c", clean=False, expiry=HOUR)
        client.subscribe("t", qos=qos)
        client.answering = False
        for number in range(10):
            publisher.publish("t", bytes((number,)) * 900, qos)
        session = client.session
        got = [payload[0] for payload in client.payloads()]
        assert got == [0, 1, 2]
        assert session.window.bytes <= most
        while len(got) < 10:
            client.answer(1)
            assert session.window.bytes <= most
            got += [payload[0] for payload in client.payloads()]
        assert got == list(range(10))
        assert total_ledger(network.router.sessions.values()) == []

    def test_one_may_always_be(self) -> None:
        """However large."""
        network = Network(limits(max_inflight_bytes=100))
        publisher, client = network.client("p"), network.client("c")
        client.subscribe("t", qos=1)
        client.answering = False
        for _ in range(2):
            publisher.publish("t", b"x" * 900, 1)
        assert len(client.payloads()) == 1
        client.answer(1)
        assert len(client.payloads()) == 1


class TestUpgrade:
    """`upgrade_outgoing_qos`: each subscriber gets the QoS that it was granted."""

    @for_each("version", [V311, V5])
    @for_each("sent", [0, 1, 2])
    def test_live(self, version: int, sent: int) -> None:
        """One filter, several at once, shared ones; the first message to a topic, and those after it."""
        network = Network(limits(upgrade_outgoing_qos=True))
        publisher = network.client("p", version)
        clients = [network.client(f"c{qos}", version) for qos in range(3)]
        for qos, client in enumerate(clients):
            client.subscribe("one", "several/+", "several/#", f"$share/g{qos}/shared", qos=qos)
        for topic in ("one", "several/x", "shared"):
            for payload in (b"1", b"2", b"3"):
                publisher.publish(topic, payload, sent)
        for qos, client in enumerate(clients):
            assert [(each.payload, each.qos) for each in client.take()] == [
                (payload, qos) for _ in range(3) for payload in (b"1", b"2", b"3")
            ]
        assert total_ledger(network.router.sessions.values()) == []

    def test_retained_and_wills(self) -> None:
        """Theirs too."""
        network = Network(limits(upgrade_outgoing_qos=True))
        witness = network.client("w")
        witness.subscribe("will", qos=1)
        publisher = network.client("p", will=Will("will", b""))
        publisher.publish("kept", b"x", retain=True)
        publisher.cut()
        network.settle()
        witness.subscribe("kept", qos=2)
        assert [(each.topic, each.qos) for each in witness.take()] == [(b"will", 1), (b"kept", 2)]

    def test_for_a_client_that_is_away(self) -> None:
        """A publish of QoS 0 waits for it."""
        network = Network(limits(upgrade_outgoing_qos=True))
        publisher, client = network.client("p"), network.client("c", clean=False, expiry=HOUR)
        client.subscribe("t", qos=1)
        client.cut()
        publisher.publish("t", b"x")
        client.connect(clean=False, expiry=HOUR)
        assert [(each.payload, each.qos) for each in client.take()] == [(b"x", 1)]

    def test_the_publisher_is_acknowledged_as_it_published(self) -> None:
        """By the QoS of its packet."""
        network = Network(limits(upgrade_outgoing_qos=True))
        network.client("c").subscribe("t", qos=2)
        publisher = network.client("p")
        for qos in (0, 1, 2):
            publisher.publish("t", b"x", qos)
        assert [ack.kind for ack in publisher.got(p.Ack)] == [PUBACK, PUBREC, p.PUBCOMP]
