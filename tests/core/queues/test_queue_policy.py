"""What a full queue does, held against a list: what stays, in which order, and under which cause the rest is counted.

The model is a plain list for each queue. A frozen receiver fills its live queue, an absent one or one that does not
acknowledge its session's; what it gets in the end is what the model kept. Also here: what `disconnect` does to the
client and to nobody else, and what a publisher is told (`limits.tell_publisher`).
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.causes import QUEUE_FULL
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import PUBACK, PUBREC, V5
from canopy_mqtt.core.queues.message import OVERHEAD
from canopy_mqtt.core.queues.queue_terms import DISCONNECT, DROP_NEWEST, DROP_OLDEST, LATEST
from canopy_mqtt.core.queues.send_window import COMMIT
from tests.core.harness import Client, Network, limits
from tests.core.recount import VERSIONS, ask, burst, check, losses, numbers, user_wish
from tests.support.runs import examples, for_each

TOPICS = ("t/a", "t/b", "t/c", "t/d")
HOUR = 3_600

policies = st.sampled_from((DROP_NEWEST, DROP_OLDEST))
versions = st.sampled_from(VERSIONS)


class Queue:
    """A naive queue: topic and payload of each message, oldest first. Bounds of 0: none."""

    def __init__(self, policy: int, max_messages: int, max_bytes: int, overhead: int) -> None:
        self.policy = policy
        self.max_messages = max_messages or 1 << 40
        self.max_bytes = max_bytes or 1 << 40
        # Bytes that a message counts for beyond its payload.
        self.overhead = overhead
        # Messages larger than the queue that were lost.
        self.oversize = 0
        self.waiting: list[tuple[str, bytes]] = []
        self.lost: Counter[str] = Counter()

    def size(self) -> int:
        return sum(len(payload) + self.overhead for _, payload in self.waiting)

    def full(self, payload: bytes) -> str:
        """Why a message does not fit now; empty when it does."""
        if len(self.waiting) + 1 > self.max_messages:
            return "full-messages"
        # One fits an empty queue, whatever its size.
        return "full-bytes" if self.waiting and self.size() + len(payload) + self.overhead > self.max_bytes else ""

    def offer(self, topic: str, payload: bytes) -> None:
        if self.policy == LATEST:
            for at, (other, _) in enumerate(self.waiting):
                if other == topic:
                    self.waiting[at] = (topic, payload)
                    self.lost["replaced-by-latest"] += 1
                    return
        cause = self.full(payload)
        self.oversize += bool(cause) and len(payload) + self.overhead > self.max_bytes
        if cause and self.policy == DROP_OLDEST and len(payload) + self.overhead <= self.max_bytes:
            while self.full(payload):
                self.waiting.pop(0)
                self.lost[cause] += 1
        elif cause:
            self.lost[cause] += 1
            return
        self.waiting.append((topic, payload))


def same_losses(found: dict[str, int], expected: Counter[str]) -> None:
    """Compare; where a burst ran into both bounds at once, only their sum is fixed."""
    wanted = {name: count for name, count in expected.items() if count}
    assert _joined(found) == _joined(wanted)


def _joined(lost: dict[str, int]) -> Counter[str]:
    found = Counter(lost)
    found["full"] = found.pop("full-messages", 0) + found.pop("full-bytes", 0)
    return +found


def arrived(client: Client) -> list[tuple[str, bytes]]:
    return [(packet.topic.decode(), packet.payload) for packet in client.take()]


class TestLiveQueue:
    """QoS 0 to a client that does not read."""

    @given(
        policy=policies,
        max_messages=st.sampled_from((0, 1, 2, 3, 10, 100)),
        max_bytes=st.sampled_from((0, 0, 60, 300, 2_000)),
        steps=st.lists(
            st.one_of(
                # Messages in one read, all of the same size; the sizes of several; a partial take.
                st.tuples(st.integers(1, 80), st.sampled_from((0, 9, 40))),
                st.lists(st.integers(0, 90), min_size=1, max_size=12),
                st.integers(1, 500),
            ),
            max_size=6,
        ),
        sender=versions,
        receiver=versions,
    )
    @settings(max_examples=examples(150), deadline=None)
    def test_against_the_model(
        self,
        policy: int,
        max_messages: int,
        max_bytes: int,
        steps: list[tuple[int, int] | list[int] | int],
        sender: int,
        receiver: int,
    ) -> None:
        network = Network(limits(queue_policy=policy, live_messages=max_messages, live_bytes=max_bytes))
        publisher, client = network.client("p", sender), network.client("c", receiver)
        client.subscribe("t/#")
        client.wire.frozen = True
        # A frame: two bytes of fixed header, the topic with its length, in 5.0 the length of no properties.
        model = Queue(policy, max_messages, max_bytes, 2 + 2 + 3 + (receiver == V5))
        count = 0
        for step in steps:
            if isinstance(step, int):
                client.wire.frozen, client.wire.batch = False, step
                client.wire.flush(1)
                client.wire.frozen = True
                client.wire.to_client()
                got = arrived(client)
                assert got == model.waiting[: len(got)]
                assert got or not model.waiting
                del model.waiting[: len(got)]
                continue
            sizes = [step[1]] * step[0] if isinstance(step, tuple) else step
            for size in sizes:
                count += 1
                payload = b"%04d" % count + b"x" * size
                topic = TOPICS[count // 7 % 2]
                publisher.post(topic, payload)
                model.offer(topic, payload)
            network.settle()
            same_losses(losses(client.session), model.lost)
            check(network, network.router.sessions.values())
        client.wire.frozen, client.wire.batch = False, 1 << 30
        network.settle()
        assert arrived(client) == model.waiting

    @for_each("receiver", VERSIONS)
    @for_each("sender", VERSIONS)
    @for_each(("policy", "kept"), [(DROP_NEWEST, (0, 100)), (DROP_OLDEST, (28, 128)), (LATEST, (127, 128))])
    def test_a_run_is_split_exactly(self, policy: int, kept: tuple[int, int], sender: int, receiver: int) -> None:
        """Bursts of 64 to a queue of 100: none too many stays, and none too few."""
        network = Network(limits(queue_policy=policy, live_messages=100))
        publisher, client = network.client("p", sender), network.client("c", receiver)
        client.subscribe("t")
        client.wire.frozen = True
        sent = numbers(128)
        burst(publisher, "t", sent[:64])
        burst(publisher, "t", sent[64:])
        assert losses(client.session) == ({"replaced-by-latest": 127} if policy == LATEST else {"full-messages": 28})
        client.wire.frozen = False
        network.settle()
        assert client.payloads() == sent[slice(*kept)]

    def test_nothing_is_shed_for_what_does_not_fit_anyway(self) -> None:
        """Next to what is in flight there is no room: one message is lost then, and not all of them."""
        network = Network(limits(queue_policy=DROP_OLDEST, live_bytes=1_000))
        publisher, client = network.client("p"), network.client("c")
        client.subscribe("t", qos=1)
        client.wire.frozen = True
        publisher.publish("t", b"x" * 500, 1)
        burst(publisher, "t", numbers(3))
        publisher.publish("t", b"y" * 400)
        assert losses(client.session) == {"full-bytes": 1}


class TestSessionQueue:
    """QoS 1 and 2 to a client that is away, or does not acknowledge."""

    @given(
        policy=st.sampled_from((DROP_NEWEST, DROP_OLDEST, LATEST)),
        max_messages=st.sampled_from((0, 1, 3, 10)),
        max_bytes=st.sampled_from((0, 0, OVERHEAD + 56, 6 * OVERHEAD, 15 * OVERHEAD)),
        online=st.booleans(),
        messages=st.lists(
            st.tuples(st.sampled_from(TOPICS), st.sampled_from((0, 0, 0, 50, 500)), st.integers(1, 2)), max_size=30
        ),
        receiver=versions,
    )
    @settings(max_examples=examples(150), deadline=None)
    def test_against_the_model(
        self,
        policy: int,
        max_messages: int,
        max_bytes: int,
        online: bool,
        messages: list[tuple[str, int, int]],
        receiver: int,
    ) -> None:
        if policy == LATEST:
            # What happens to a newer one that is too large for the place is another test's.
            messages = [(topic, 0, qos) for topic, _, qos in messages]
        network = Network(
            limits(queue_policy=policy, session_messages=max_messages, session_bytes=max_bytes, max_inflight=1)
        )
        publisher = network.client("p")
        client = network.client("c", receiver, clean=False, expiry=HOUR if receiver == V5 else None)
        client.subscribe("t/#", qos=2)
        if online:
            client.answering = False
            publisher.publish("t/first", b"", 1)
            assert arrived(client) == [("t/first", b"")]
        else:
            client.cut()
        model = Queue(policy, max_messages, max_bytes, 3 + OVERHEAD)
        for number, (topic, size, qos) in enumerate(messages):
            payload = b"%04d" % number + b"x" * size
            publisher.publish(topic, payload, qos)
            model.offer(topic, payload)
        expected = model.lost
        if online and policy != DROP_OLDEST:
            # It reads, and does not acknowledge; but for what is larger than the queue.
            full = expected.pop("full-messages", 0) + expected.pop("full-bytes", 0)
            expected["no-quota"], expected["full-bytes"] = full - model.oversize, model.oversize
        same_losses(losses(network.session("c")), expected)
        check(network, network.router.sessions.values())
        client.answering = True
        if online:
            client.answer()
        else:
            client.connect(clean=False, expiry=HOUR if receiver == V5 else None)
        network.settle()
        assert arrived(client) == model.waiting

    def test_no_quota_is_of_qos_1_and_2(self) -> None:
        """A QoS 0 message needs no quota: where it waits behind others (kept while away), the bound is its cause."""
        network = Network(limits(session_messages=3, queue_qos0=True))
        publisher, client = network.client("p"), network.client("c", clean=False, expiry=HOUR)
        client.subscribe("t", qos=1)
        client.cut()
        for qos in (1, 1, 0):
            publisher.publish("t", b"", qos)
        client.answering = False
        client.connect(clean=False, expiry=HOUR, receive_maximum=1)
        assert client.session.queued() == 2
        for _ in range(3):
            publisher.publish("t", b"", 0)
        assert losses(client.session) == {"full-messages": 2}
        publisher.publish("t", b"", 1)
        assert losses(client.session) == {"full-messages": 2, "no-quota": 1}


class TestLatest:
    """Of each topic only the newest waits, where its first one stood."""

    def network(self, **changes: int) -> tuple[Network, Client]:
        """Under `latest` for everybody, and a publisher."""
        network = Network(limits(queue_policy=LATEST, **changes))
        return network, network.client("p")

    @given(
        max_messages=st.sampled_from((0, 1, 2, 3)),
        topics=st.lists(st.sampled_from(TOPICS), max_size=40),
        receiver=versions,
        by_wish=st.booleans(),
    )
    @settings(max_examples=examples(80), deadline=None)
    def test_live_against_the_model(self, max_messages: int, topics: list[str], receiver: int, by_wish: bool) -> None:
        by_wish = by_wish and receiver == V5
        network = Network(limits(live_messages=max_messages, queue_policy=DROP_NEWEST if by_wish else LATEST))
        publisher, client = network.client("p"), network.client("c", receiver)
        ask(client, "t/#", user=user_wish("latest") if by_wish else ())
        client.wire.frozen = True
        model = Queue(LATEST, max_messages, 0, 0)
        for number, topic in enumerate(topics):
            payload = b"%04d" % number
            publisher.post(topic, payload)
            model.offer(topic, payload)
        network.settle()
        same_losses(losses(client.session), model.lost)
        client.wire.frozen = False
        network.settle()
        assert arrived(client) == model.waiting

    def test_little_is_put_in_flight_ahead_of_one_who_lags(self) -> None:
        """Of a client that does not read, at most so many messages are committed; the rest can be replaced."""
        network, publisher = self.network()
        client = network.client("c")
        client.subscribe("t/#", qos=1)
        client.wire.frozen = True
        for _ in range(3):
            for number in range(40):
                publisher.publish(f"t/{number}", b"", 1)
        assert len(client.session.inflight) == COMMIT
        assert client.session.queued() == COMMIT + 40
        client.wire.frozen = False
        network.settle()
        assert len(client.take()) == COMMIT + 40

    def test_overlapping_subscriptions_deliver_once(self) -> None:
        """With different terms, on those of the one without its own, or of the first filter [MQTT-3.3.4-2]."""
        network = Network()
        publisher, client = network.client("p"), network.client("c")
        ask(client, "t/#", user=user_wish("latest"), identifier=1)
        ask(client, "t/+", user=user_wish(depth="2"), identifier=2)
        client.wire.frozen = True
        burst(publisher, "t/a", numbers(4))
        client.wire.frozen = False
        network.settle()
        # "t/#" sorts before "t/+".
        found = client.take()
        assert [packet.payload for packet in found] == [b"0003"]
        assert set(found[0].subscription_ids) == {1, 2}
        ask(client, "t/a", identifier=3)
        client.wire.frozen = True
        burst(publisher, "t/a", numbers(4))
        client.wire.frozen = False
        network.settle()
        assert [packet.payload for packet in client.take()] == numbers(4)
        assert losses(client.session) == {"replaced-by-latest": 3}


class TestDisconnect:
    """A client whose queue runs over is told and disconnected."""

    def test_in_one_burst(self) -> None:
        """The rest of the burst goes nowhere, and everything is counted."""
        network = Network(limits(queue_policy=DISCONNECT, live_messages=10))
        publisher, client = network.client("p"), network.client("c")
        client.subscribe("t")
        session = client.session
        client.wire.frozen = True
        burst(publisher, "t", numbers(64))
        assert client.wire.protocol.close_cause == QUEUE_FULL
        assert session.offered == 64
        assert sum(losses(session).values()) == 64
        assert losses(session)["full-messages"] >= 1
        check(network, [*network.router.sessions.values(), session])

    def test_its_own_publisher(self) -> None:
        """A client that fills its own queue is disconnected when the read is over, and not in the midst of it."""
        network = Network(limits(queue_policy=DISCONNECT, live_messages=3))
        client = network.client("c")
        client.subscribe("t")
        client.wire.frozen = True
        burst(client, "t", numbers(10))
        assert client.wire.protocol.close_cause == QUEUE_FULL
        assert "c" not in network.router.sessions
        load = network.router.counters.load
        assert (load.messages, load.bytes) == (0, 0)

    def test_from_a_shared_subscription(self) -> None:
        """What it did not finish goes to another member (section 4.8.2)."""
        network = Network(limits(max_inflight=1))
        publisher = network.client("p")
        slow, quick = network.client("slow", clean=False, expiry=HOUR), network.client("quick")
        slow.judge.enabled = quick.judge.enabled = False
        ask(slow, "$share/g/t", qos=1, user=user_wish("disconnect", depth="2"))
        slow.answering = False
        sent = numbers(4)
        for payload in sent:
            publisher.publish("t", payload, 1)
        assert slow.wire.protocol.close_cause == QUEUE_FULL
        assert quick.subscribe("$share/g/t", qos=1) == [1]
        slow.connect(clean=False, expiry=HOUR)
        slow.cut()
        network.settle()
        assert set(quick.payloads()) == set(sent[:3])
        check(network, network.router.sessions.values())


class TestTellPublisher:
    """A 5.0 publisher of QoS 1 or 2 is told 0x97 when every queue was full, and in no other case."""

    def world(self, told: bool = True) -> tuple[Network, Client, Client]:
        """A network, a publisher that knows the topics, and a subscriber to `t/#` with a used-up queue of one."""
        network = Network(limits(tell_publisher=told, session_messages=1, live_messages=1))
        publisher = network.client("p")
        client = network.client("c", receive_maximum=1)
        client.subscribe("t/#", qos=2)
        client.answering = False
        self.send(publisher, "t/a", 1)
        self.send(publisher, "t/a", 1)
        assert client.session.queued() == 1
        return network, publisher, client

    def send(self, publisher: Client, topic: str, qos: int, retain: bool = False) -> int:
        """The reason code of the answer."""
        before = len(publisher.acks(PUBACK if qos == 1 else PUBREC))
        publisher.publish(topic, b"x", qos, retain)
        answers = publisher.acks(PUBACK if qos == 1 else PUBREC)
        assert len(answers) == before + 1
        return answers[-1].reason_code

    @for_each("qos", [1, 2])
    def test_the_total(self, qos: int) -> None:
        """As full as any queue."""
        network = Network(limits(tell_publisher=True, total_messages=1))
        publisher, client = network.client("p"), network.client("c")
        client.answering = False
        client.subscribe("t", qos=2)
        answers = [self.send(publisher, "t", qos) for _ in range(2)]
        assert answers == [reason_codes.SUCCESS, reason_codes.QUOTA_EXCEEDED]

    def test_each_message_by_itself(self) -> None:
        """In one read, of different topics and QoS: each gets the answer that is its own."""
        network, publisher, _ = self.world()
        other = network.client("other")
        other.subscribe("u", qos=1)
        publisher.packets.clear()
        for topic in ("t/a", "u", "t/a", "nobody", "u"):
            publisher.post(topic, b"x", 1)
            publisher.post(topic, b"x", 0)
        network.settle()
        assert [ack.reason_code for ack in publisher.acks(PUBACK)] == [
            reason_codes.QUOTA_EXCEEDED,
            reason_codes.SUCCESS,
            reason_codes.QUOTA_EXCEEDED,
            reason_codes.NO_MATCHING_SUBSCRIBERS,
            reason_codes.SUCCESS,
        ]
