"""Requests under every order of asking, answering, shedding and going: a stateful Hypothesis machine.

Two requesters, three links with small queues (one of QoS 2) and an ordinary subscriber come and go; links
acknowledge what they owe with 0x00 or 0x10. A model that knows only the rules says what each requester must have been
told after every step, and which deliveries are still to tell; the broker must have told just that, nobody may wait when
all links have answered or gone, and the ledgers must add up.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import Ack
from canopy_mqtt.core.codec.properties import encode_forward
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.delivery import DROPPED
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, DROP_OLDEST
from canopy_mqtt.core.routing.links import LINK
from tests.core.harness import Client, Network, bag, limits, total_ledger
from tests.support.runs import examples

PATIENCE = Limits().answer_timeout
TOPICS = ("q/a", "q/b")
LINKS = {"l1": 1, "l2": 2, "l3": 1}
SUBSCRIBER = "s"
REQUESTERS = ("p1", "p2")
ASKS = encode_forward(response_topic="r")

links = st.sampled_from(sorted(LINKS))
requesters = st.sampled_from(REQUESTERS)
topics = st.sampled_from(TOPICS)


class Connected:
    """One connection of a link, in the model. Silent: it was waited for in vain, and has not answered since."""

    def __init__(self) -> None:
        self.silent = False


class Asked:
    """A request that waits, in the model."""

    def __init__(self, requester: str, packet_id: int, qos: int, since: float) -> None:
        self.since = since
        self.requester = requester
        self.packet_id = packet_id
        self.qos = qos
        self.left = 0
        self.told = False
        # The connections of links that have it and have not acknowledged it.
        self.awaited: list[Connected] = []


class Sent:
    """A message on its way to a link, in the model."""

    def __init__(self, payload: bytes, qos: int, expires_at: float, asked: Asked | None) -> None:
        self.payload = payload
        self.qos = qos
        self.expires_at = expires_at
        self.asked = asked
        # Whether it takes part in the send quota of the present connection.
        self.counted = False


class Queue:
    """A link's session, in the model: what is in flight, and what waits."""

    def __init__(self) -> None:
        self.connected = False
        self.connection = Connected()
        self.topics: set[str] = set()
        self.flight: list[Sent] = []
        self.waiting: list[Sent] = []


class Requests(RuleBasedStateMachine):
    """See the top of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Network
        self.clients: dict[str, Client] = {}
        self.queues = {name: Queue() for name in LINKS}
        self.listening: set[str] = set()
        # What each requester must have been told on its present connection, and its requests that wait.
        self.expected: dict[str, list[tuple[int, int]]] = {name: [] for name in REQUESTERS}
        self.waiting: dict[str, list[Asked]] = {name: [] for name in REQUESTERS}
        self.number = 0

    @initialize(
        window=st.integers(1, 3),
        depth=st.integers(1, 3),
        policy=st.sampled_from((DROP_NEWEST, DROP_OLDEST)),
        pace=st.sampled_from((0, 1)),
        wanted=st.tuples(*[st.sets(topics) for _ in LINKS]),
    )
    def begin(self, window: int, depth: int, policy: int, pace: int, wanted: tuple[set[str], ...]) -> None:
        """Everybody connects, and the links ask for what they begin with."""
        self.window, self.depth, self.policy = window, depth, policy
        self.network = Network(limits(session_messages=depth, queue_policy=policy, link_client_ids=("l*",)), pace=pace)
        for name in (*LINKS, SUBSCRIBER, *REQUESTERS):
            self.clients[name] = self.network.idle(name)
            self._connect(name)
        for name, begins in zip(sorted(LINKS), wanted, strict=True):
            for topic in sorted(begins):
                self.subscribe(name, topic)

    def _connect(self, name: str) -> None:
        client = self.clients[name]
        client.answering = name not in LINKS
        client.connect(
            clean=False,
            expiry=10_000,
            receive_maximum=self.window if name in LINKS else None,
            properties=bag((LINK, "id")) if name in LINKS else None,
        )
        if name in LINKS:
            self.queues[name].connected = True
            self.queues[name].connection = Connected()

    # -- the model -------------------------------------------------------------------------------------------------

    def _settle(self, asked: Asked | None, reached: bool) -> None:
        """What a delivery of a request has come to."""
        if asked is None or asked.told:
            return
        asked.left -= 1
        if reached or asked.left == 0:
            self._tell(asked, 0x00 if reached else 0x10)

    def _tell(self, asked: Asked, code: int) -> None:
        asked.told = True
        if asked in self.waiting[asked.requester]:
            self.waiting[asked.requester].remove(asked)
            self.expected[asked.requester].append((asked.packet_id, code))

    def _end(self, sent: Sent, reached: bool) -> None:
        asked, sent.asked = sent.asked, None
        self._settle(asked, reached)

    def _has_quota(self, queue: Queue) -> bool:
        """Whether one more may be sent (section 4.9): what was sent again counts, a PUBREL as well."""
        return sum(each.counted for each in queue.flight) < self.window

    def _send(self, queue: Queue, sent: Sent) -> None:
        sent.counted = True
        queue.flight.append(sent)

    def _pump(self, queue: Queue) -> None:
        """Something is written to the link: what waits moves up while the window has room."""
        while queue.waiting and queue.connected:
            first = queue.waiting[0]
            if first.expires_at <= self.network.now:
                queue.waiting.pop(0)
                self._end(first, True)
            elif self._has_quota(queue):
                self._send(queue, queue.waiting.pop(0))
            else:
                return

    def _take(self, queue: Queue, sent: Sent) -> bool:
        """A queue is offered a message: whether it has taken it."""
        if queue.connected and not queue.waiting and self._has_quota(queue):
            self._send(queue, sent)
            return True
        if len(queue.waiting) >= self.depth:
            while queue.waiting and queue.waiting[0].expires_at <= self.network.now:
                self._end(queue.waiting.pop(0), True)
        if len(queue.waiting) >= self.depth:
            if self.policy == DROP_NEWEST:
                return False
            self._end(queue.waiting.pop(0), True)
        queue.waiting.append(sent)
        return True

    def _route(
        self, requester: str, packet_id: int, qos: int, topic: str, payload: bytes, expires_at: float, request: bool
    ) -> None:
        """A publish has come that is routed: what its publisher is told, or waits for."""
        asked = Asked(requester, packet_id, qos, self.network.now)
        others = 1 if topic in self.listening else 0
        count = 0
        for name, queue in self.queues.items():
            if topic not in queue.topics:
                continue
            connection = queue.connection
            owes = bool(queue.flight or queue.waiting)
            asks = request and queue.connected and not (connection.silent and owes)
            sent = Sent(payload, min(qos, LINKS[name]), expires_at, asked if asks else None)
            if not self._take(queue, sent) or not asks:
                others += 1
            else:
                count += 1
                connection.silent = False
                asked.awaited.append(connection)
        asked.left = count
        if count and not others:
            self.waiting[requester].append(asked)
        else:
            asked.told = True
            self.expected[requester].append((packet_id, 0x00 if others else 0x10))

    # -- rules -----------------------------------------------------------------------------------------------------

    @rule(
        name=requesters,
        topic=topics,
        qos=st.sampled_from((1, 2)),
        expiry=st.sampled_from((-1, 3)),
        request=st.sampled_from((True, True, True, False)),
        count=st.integers(1, 3),
    )
    def ask(self, name: str, topic: str, qos: int, expiry: int, request: bool, count: int) -> None:
        """A requester asks, or publishes something else."""
        client = self.clients[name]
        for _ in range(count):
            if client.wire.cut:
                return
            self.number += 1
            payload = b"%d" % self.number
            packet = client.post(topic, payload, qos, expiry=expiry, properties=ASKS if request else b"")
            expires_at = self.network.now + expiry if expiry >= 0 else float("inf")
            self._route(name, packet.packet_id, qos, topic, payload, expires_at, request)
        self.network.settle()

    @rule(name=links, code=st.sampled_from((0x00, 0x10, 0x10, 0x10, 0x87)), count=st.integers(1, 3))
    def answer(self, name: str, code: int, count: int) -> None:
        """A link acknowledges the oldest that it owes."""
        client, queue = self.clients[name], self.queues[name]
        for _ in range(count):
            if not client.unanswered or client.wire.cut:
                return
            owed = client.unanswered[0]
            assert isinstance(owed, Ack)
            at = [each.packet_id for each in client.session.inflight.values()].index(owed.packet_id)
            if owed.kind != p.PUBCOMP:
                owed.reason_code = code
                asked = queue.flight[at].asked
                if asked is not None:
                    queue.connection.silent = False
                    if queue.connection in asked.awaited:
                        asked.awaited.remove(queue.connection)
                self._end(queue.flight[at], code != 0x10)
            client.answer(1)
            if owed.kind != p.PUBREC or code >= 0x80:
                del queue.flight[at]
            self._pump(queue)

    @rule(name=links, clean=st.booleans())
    def go_or_come_back(self, name: str, clean: bool) -> None:
        """A link goes, and with `clean` ends its session; or comes back, and is sent again what it owes."""
        client, queue = self.clients[name], self.queues[name]
        if client.wire.cut:
            self._connect(name)
            for sent in queue.flight:
                sent.counted = True
            self._pump(queue)
            return
        if clean:
            client.disconnect(0, bag(i={0x11: 0}))
        client.cut()
        queue.connected = False
        for sent in [*queue.flight, *queue.waiting]:
            self._end(sent, True)
        if clean:
            self.queues[name] = Queue()
        self.network.settle()

    @rule(name=links, topic=topics)
    def subscribe(self, name: str, topic: str) -> None:
        """A link asks for a topic, or does not any more."""
        client, queue = self.clients[name], self.queues[name]
        if client.wire.cut:
            return
        if topic in queue.topics:
            client.unsubscribe(topic)
        else:
            client.subscribe(topic, qos=LINKS[name])
        queue.topics ^= {topic}
        self._pump(queue)

    @rule(topic=topics, qos=st.integers(0, 2))
    def listen(self, topic: str, qos: int) -> None:
        """An ordinary subscriber comes or goes."""
        client = self.clients[SUBSCRIBER]
        if topic in self.listening:
            client.unsubscribe(topic)
        else:
            client.subscribe(topic, qos=qos)
        self.listening ^= {topic}

    @rule(name=requesters)
    def requester_goes_or_returns(self, name: str) -> None:
        """A requester is gone before its answers; or returns and sends again: QoS 1 anew, while QoS 2 is known."""
        client = self.clients[name]
        if not client.wire.cut:
            client.cut()
            self.waiting[name] = []
            return
        self.expected[name] = []
        for packet_id, packet in client.outgoing.items():
            assert packet is not None
            if packet.qos == 2:
                self.expected[name].append((packet_id, 0x00))
            else:
                expires_at = self.network.now + packet.message_expiry if packet.message_expiry >= 0 else float("inf")
                self._route(name, packet_id, 1, packet.topic.decode(), packet.payload, expires_at, True)
        self._connect(name)

    @rule(seconds=st.sampled_from((1, 4, 11)))
    def wait(self, seconds: int) -> None:
        """Time passes; what expired is found when somebody looks."""
        self.network.advance(seconds)
        for name in REQUESTERS:
            for asked in list(self.waiting[name]):
                if self.network.now >= asked.since + PATIENCE:
                    for connection in asked.awaited:
                        connection.silent = True
                    self._tell(asked, 0x00)

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def told_what_the_model_says(self) -> None:
        """Everybody, and nothing else."""
        for name in REQUESTERS if self.clients else ():
            client = self.clients[name]
            if client.wire.cut:
                continue
            told = [(each.packet_id, each.reason_code) for each in client.got(Ack) if each.kind in (p.PUBACK, p.PUBREC)]
            assert sorted(told) == sorted(self.expected[name]), name
            waiting = self.waiting[name]
            assert sorted(client.outgoing) == sorted(each.packet_id for each in waiting), name
            send_buffer = client.wire.send_buffer
            assert send_buffer.unqueued == sum(each.qos == 1 for each in waiting)
            assert send_buffer.unwritten == 0
            unreleased = {each.packet_id for each in waiting if each.qos == 2}
            assert (client.session.received_qos2 or set()) == unreleased

    @invariant()
    def only_what_is_not_settled_asks(self) -> None:
        """Each link's deliveries are the model's, and ask as these do; of a request that was told, too."""
        for name, queue in self.queues.items() if self.clients else ():
            session = self.network.router.sessions.get(name)
            if session is None:
                assert not queue.flight
                continue
            deliveries = [
                *session.inflight.values(),
                *(each for each in session.queue.pending or () if each.state != DROPPED),
            ]
            found = sorted((each.message.payload(), each.on_settled is not None) for each in deliveries)
            wanted = [*queue.flight, *queue.waiting]
            assert found == sorted((each.payload, each.asked is not None) for each in wanted), name

    @invariant()
    def the_ledger_adds_up(self) -> None:
        """At every moment."""
        if self.clients:
            assert total_ledger(self.network.router.sessions.values()) == []

    def teardown(self) -> None:
        """All links answer that they reached nobody, or go: nobody waits any more."""
        if not self.clients:
            return
        for name in LINKS:
            for _ in range(100):
                if not self.clients[name].unanswered or self.clients[name].wire.cut:
                    break
                self.answer(name, 0x10, 1)
        for name in REQUESTERS:
            assert self.waiting[name] == []
        self.told_what_the_model_says()
        self.only_what_is_not_settled_asks()


TestRequests = Requests.TestCase
TestRequests.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
