"""Explain first, publish then: what each client gets is what was said, and asking has changed nothing.

A machine of random clients with random queues, rules, share groups, No Local, mounts and limits. Before each publish an
explainer says who gets the message, with which QoS and RETAIN, who does not and why, and what is not certain. Then it
is published, and looked for.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from canopy_mqtt.core.codec.packets import PUBACK, PUBREC, V5, V311, Subscribe
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.hooks import AccessControl
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import DROPPED, Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import DISCONNECT, DROP_NEWEST, DROP_OLDEST, LATEST, QueueRule
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.observe.explain.answer import Answer, Receiver
from tests.core.harness import Client, Network, bag
from tests.core.receivers import NAMES, Receivers, names
from tests.core.recount import user_wish
from tests.observe.explain.asking import explain, traces
from tests.support.losses import dropped_by_cause
from tests.support.runs import examples

FILTERS = ("t/#", "t/1", "t/+", "+/1", "$share/g/t/+", "$share/h/t/1", "$share/g/t/1")
INNER = ("#", "1", "+", "$share/g/+")
WISHES: tuple[list[tuple[str, str]], ...] = (
    [],
    [],
    [],
    user_wish("latest"),
    user_wish("latest", "2"),
    user_wish("drop-oldest", depth="2"),
    user_wish("disconnect", depth="3"),
    user_wish("drop-newest", depth="1"),
    user_wish(max_age="1"),
)
RULES = (
    QueueRule(client_id="[ab]", policy=DROP_OLDEST),
    QueueRule(client_id="a", policy=LATEST, live_messages=3),
    QueueRule(client_id="b", max_age=3.0, session_messages=3, session_bytes=1_800),
    QueueRule(client_id="b", policy=DISCONNECT, live_bytes=1_400),
    QueueRule(topic_filter="t/#", policy=LATEST, depth=2),
    QueueRule(topic_filter="t/+", client_id="c", policy=DROP_OLDEST, depth=3),
)

TOPICS = ("t/1", "t/2", "t", "x/1")
PUBLISHERS = ("old", "new", *NAMES)

qualities = st.sampled_from((0, 1, 2))
few = st.sampled_from((0, 1, 2, 3, 5, 8))
some_bytes = st.sampled_from((0, 600, 1_500, 4_000))


class Asked(AccessControl):
    """Says what it was told to say."""

    def __init__(self) -> None:
        self.epoch = 0
        self.filters_deliveries = True
        self.receives: dict[tuple[str, str], int] = {}
        self.silenced: set[tuple[str, str]] = set()

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del qos, retain
        return (principal.client_id, topic) not in self.silenced

    def receive_qos(self, principal: Principal, topic: str) -> int:
        return self.receives.get((principal.client_id, topic), 2)


def copies(session: Session, payload: bytes) -> list[tuple[int, bool]]:
    """QoS and RETAIN of all copies of a message that stand in a session's queues."""
    send_buffer = session.send_buffer
    live = [] if send_buffer is None else send_buffer.items
    found = [(0, False) for item in live if isinstance(item, bytes) and payload in item]
    for item in (*live, *(session.queue.pending or ())):
        if isinstance(item, Delivery) and item.state != DROPPED and item.message.payload() == payload:
            found.append((item.qos, item.retain))
    return found


class Explained(Receivers):
    """See the top of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.publishers: list[Client] = []
        self.asked: Asked | None = None
        self.number = 0

    @initialize(
        bounds=st.tuples(few, some_bytes, few, some_bytes),
        total=st.tuples(st.sampled_from((0, 0, 0, 12)), st.sampled_from((0, 0, 0, 6_000))),
        policy=st.sampled_from((DROP_NEWEST, DROP_OLDEST, DISCONNECT, LATEST)),
        max_age=st.sampled_from((0.0, 0.0, 2.0)),
        window=st.integers(1, 3),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
        retained=st.sampled_from(((0, 0), (0, 0), (1, 0), (0, 1_200))),
        rules=st.lists(st.sampled_from(RULES), max_size=3),
        access=st.booleans(),
        payload=st.sampled_from((0, 0, 200)),
        first=st.fixed_dictionaries(dict.fromkeys(NAMES, st.sampled_from(("", "t/1", "t/#", "$share/g/t/+")))),
    )
    def begin(
        self,
        bounds: tuple[int, int, int, int],
        total: tuple[int, int],
        policy: int,
        max_age: float,
        window: int,
        flags: tuple[bool, bool, bool, bool],
        retained: tuple[int, int],
        rules: list[QueueRule],
        access: bool,
        payload: int,
        first: dict[str, str],
    ) -> None:
        """Two publishers that nobody disturbs, and three receivers; the last is mounted."""
        given = Limits()
        given.live_messages, given.live_bytes, given.session_messages, given.session_bytes = bounds
        given.total_messages, given.total_bytes = total
        given.queue_policy, given.queue_max_age = policy, max_age
        given.max_inflight = window
        given.queue_qos0, given.tell_publisher, aliases, upgrade = flags
        given.upgrade_outgoing_qos = upgrade and aliases
        given.topic_alias_outbound = 2 if aliases else 0
        given.max_retained_messages, given.max_retained_bytes = retained
        given.rules = tuple(rules)
        given.max_payload_size = payload
        given.any_user_takes_over = True
        self.network = Network(given)
        if access:
            self.network.router.access_control = self.asked = Asked()
        self.publishers = [self.network.client("old", V311), self.network.client("new", V5)]
        for name in NAMES:
            client = self.network.idle(name, mount="t/" if name == "c" else "")
            self.clients[name] = client
            client.judge.enabled = False
            self.connect(name, 0, 0, False, 1_000)
            topic_filter = first[name]
            if topic_filter:
                client.subscribe(topic_filter if name != "c" else topic_filter.replace("t/", ""), qos=1)

    @rule(
        name=names,
        number=st.integers(0, 6),
        qos=qualities,
        options=st.sampled_from(WISHES),
        flags=st.tuples(st.booleans(), st.booleans()),
        identifier=st.sampled_from((0, 0, 7)),
    )
    def subscribe(
        self,
        name: str,
        number: int,
        qos: int,
        options: list[tuple[str, str]],
        flags: tuple[bool, bool],
        identifier: int,
    ) -> None:
        """Another subscription, or the same again with other terms."""
        client = self.clients[name]
        if not self._up(client):
            return
        filters = INNER if name == "c" else FILTERS
        topic_filter = filters[number % len(filters)]
        v5 = client.version == V5
        shared = topic_filter.startswith("$share")
        request = Request(topic_filter, qos, flags[0] and v5 and not shared, flags[1] and v5, 2 if v5 else 0)
        properties = bag(*(options if v5 else ()))
        if identifier and v5:
            properties.integers[0x0B] = identifier
        client.send(Subscribe(client.take_id(), [request], properties))
        self.network.settle()

    @rule(name=names, number=st.integers(0, 6))
    def unsubscribe(self, name: str, number: int) -> None:
        """One less."""
        client = self.clients[name]
        filters = INNER if name == "c" else FILTERS
        if self._up(client) and not client.wire.frozen:
            client.unsubscribe(filters[number % len(filters)])

    @rule(name=names, topic=st.sampled_from(TOPICS), most=st.sampled_from((-1, 0, 1, 2)), silent=st.booleans())
    def change_rules(self, name: str, topic: str, most: int, silent: bool) -> None:
        """Access control says something else."""
        if self.asked is not None:
            self.asked.receives[name, topic] = most
            (self.asked.silenced.add if silent else self.asked.silenced.discard)((name, topic))
            self.asked.epoch += 1

    @rule(seconds=st.sampled_from((0.5, 1.0, 2.5, 1_001.0)))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.network.advance(seconds)

    @rule(
        who=st.sampled_from(PUBLISHERS),
        topic=st.sampled_from(TOPICS),
        size=st.sampled_from((8, 100, 300, 900)),
        qos=qualities,
        retain=st.booleans(),
        times=st.integers(1, 4),
    )
    def publish(self, who: str, topic: str, size: int, qos: int, retain: bool, times: int) -> None:
        """It is said what will happen, and then it happens."""
        client = {"old": self.publishers[0], "new": self.publishers[1], **self.clients}[who]
        for _ in range(times):
            self.network.settle()
            router, now = self.network.router, self.network.now
            router.peers.drain(router, now)
            self.network.settle()
            if not self._up(client) or client.wire.frozen or client.wire.send_buffer.closed:
                return
            router.counters.totals.now = now
            if client.mount and not topic.startswith(client.mount):
                return
            before = traces(router)
            answer = explain(router, now, topic, publisher=who, qos=qos, retain=retain, size=size)
            again = explain(router, now, topic, publisher=who, qos=qos, retain=retain, size=size)
            assert traces(router) == before
            assert again == answer
            self._happens(client, answer, qos, size)

    def _happens(self, client: Client, answer: Answer, qos: int, size: int) -> None:
        router = self.network.router
        self.number += 1
        payload = b"%08d" % self.number
        payload += b"p" * (size - len(payload))
        # The queue of a group may be made for the message: it is looked at by itself.
        sessions = {name: session for name, session in router.sessions.items() if not name.startswith("$share/")}
        offered = {name: session.offered for name, session in sessions.items()}
        send_buffers = {name: session.send_buffer for name, session in sessions.items()}
        lost = {name: dropped_by_cause(session) for name, session in sessions.items()}
        old = router.retained.get(answer.topic)
        client.post(answer.publisher.topic, payload, qos, answer.retain)
        client.wire.to_channel()
        gains = {name: session.offered - offered[name] for name, session in sessions.items()}
        if not answer.publisher.accepted:
            assert not any(gains.values())
            assert answer.receivers == []
            assert answer.groups == []
            self.network.settle()
            if client.version == V5 and qos and not answer.publisher.disconnected:
                ack = client.acks(PUBACK if qos == 1 else PUBREC)[-1]
                assert ack.reason_code == answer.publisher.reason_code
            return
        chosen = [group.next for group in answer.groups if group.next is not None]
        for receiver in chosen:
            queue = router.sessions.get(receiver.client_id)
            if receiver.client_id.startswith("$share/") and receiver.certain:
                found = [] if queue is None else copies(queue, payload)
                assert found == ([(receiver.qos, receiver.retain)] if receiver.gets else [])
        chosen = [receiver for receiver in chosen if not receiver.client_id.startswith("$share/")]
        doubtful: set[str] = set()
        if not all(receiver.certain for receiver in chosen):
            # What comes to it before may have the turn be another member's.
            doubtful = {name for name, session in sessions.items() if session.memberships}
        expected = dict.fromkeys(sessions, 0)
        for receiver in [*answer.receivers, *chosen]:
            if receiver.outcome not in ("denied", "own", "gone"):
                expected[receiver.client_id] += 1
        if not doubtful:
            assert gains == expected
        for receiver in [*answer.receivers, *chosen]:
            if receiver.client_id not in doubtful and receiver.certain and expected[receiver.client_id] == 1:
                session = sessions[receiver.client_id]
                if router.sessions.get(receiver.client_id) is session:
                    send_buffer = send_buffers[receiver.client_id]
                    assert receiver.disconnects == (send_buffer is not None and send_buffer.closed)
                    self._is_as_said(receiver, session, payload, lost[receiver.client_id])
        for name, count in expected.items():
            if count == 0 and not doubtful:
                assert copies(sessions[name], payload) == []
        if answer.retained is not None:
            kept = router.retained.get(answer.topic)
            assert answer.retained.present == (old is not None)
            assert answer.retained.stored == (isinstance(kept, Message) and kept.payload() == payload)
            if not answer.retained.stored:
                assert kept is None

    def _is_as_said(self, said: Receiver, session: Session, payload: bytes, before: list[int]) -> None:
        got = copies(session, payload)
        lost = [now - then for now, then in zip(dropped_by_cause(session), before, strict=True)]
        if not said.gets:
            assert got == []
            assert lost[DROP_CAUSES.index(said.cause)] >= 1
            return
        assert got == [(said.qos, said.retain)]


TestExplained = Explained.TestCase
TestExplained.settings = settings(
    max_examples=examples(50), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
