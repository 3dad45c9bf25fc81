"""What a full queue does, held against a list: what stays, in which order, and under which cause the rest is counted.

The model is a plain list for each queue. A frozen receiver fills its live queue, an absent one or one that does not
acknowledge its session's; what it gets in the end is what the model kept.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.causes import QUEUE_FULL
from canopy_mqtt.core.codec.packets import V5
from canopy_mqtt.core.queues.message import OVERHEAD
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, DROP_OLDEST, LATEST
from tests.core.harness import Client, Network, limits
from tests.core.recount import VERSIONS, ask, burst, check, losses, numbers, user_wish
from tests.support.runs import examples

TOPICS = ("t/a", "t/b", "t/c", "t/d")
HOUR = 3_600

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
def test_a_session_queue_against_the_model(
    policy: int,
    max_messages: int,
    max_bytes: int,
    online: bool,
    messages: list[tuple[str, int, int]],
    receiver: int,
) -> None:
    """QoS 1 and 2 to a client that is away, or does not acknowledge."""
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


class TestLatest:
    """Of each topic only the newest waits, where its first one stood."""

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


def test_a_full_queue_of_a_shared_subscription_disconnects() -> None:
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
