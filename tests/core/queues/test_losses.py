"""Whatever limits, policies and wishes come together: every account is exact, and every bound holds, after every step.

A Hypothesis machine over loads of all kinds: bursts in one read, QoS 0 to 2, sizes, retained and expiring messages,
shared and overlapping subscriptions with terms of their own, receivers of both versions that read, read a little or do
not read, acknowledge or not, are away, come back, are taken over, are evicted, or end; time that passes with and
without a sweep. After each step everything is counted again (`recount`), and held against the wire.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from canopy_mqtt.core.codec.packets import V5, V311, Subscribe
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.queue_terms import DISCONNECT, DROP_NEWEST, DROP_OLDEST, LATEST, QueueRule
from tests.core.harness import Client, Network, bag
from tests.core.receivers import NAMES, Receivers, names
from tests.core.recount import Book, Tally, allowed, check, user_wish
from tests.support.losses import dropped_by_cause
from tests.support.runs import examples

FILTERS = ("t/#", "t/1", "t/+", "$share/g/t/+", "$share/h/t/1")
WISHES: tuple[list[tuple[str, str]], ...] = (
    [],
    [],
    user_wish("latest"),
    user_wish("latest", "2"),
    user_wish("drop-oldest", depth="2"),
    user_wish("drop-oldest", "2.5"),
    user_wish("disconnect", depth="3"),
    user_wish("drop-newest", depth="1"),
    user_wish(max_age="1"),
    user_wish(max_age="500"),
    user_wish("latest", "1000"),
    user_wish("fastest"),
)
RULES = (
    QueueRule(client_id="[ab]", policy=DROP_OLDEST),
    QueueRule(client_id="a", policy=LATEST, live_messages=3),
    QueueRule(client_id="b", max_age=3.0, session_messages=3, session_bytes=400),
    QueueRule(user="u*", policy=DISCONNECT, live_bytes=400),
    QueueRule(topic_filter="t/#", policy=LATEST, depth=2),
    QueueRule(topic_filter="t/1", max_age=2.0),
    QueueRule(user="u*", topic_filter="t/+", policy=LATEST, max_age=500.0),
    QueueRule(topic_filter="t/+", client_id="c", policy=DROP_OLDEST, depth=3),
)

qualities = st.sampled_from((0, 1, 2))
policies = st.sampled_from((DROP_NEWEST, DROP_OLDEST, DISCONNECT, LATEST))
few = st.sampled_from((0, 1, 2, 3, 5, 8))
queue_options = st.sampled_from(WISHES)
some_bytes = st.sampled_from((0, 150, 400, 1_500))


class Overload(Receivers):
    """See the top of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.tallies: dict[str, Tally] = {}
        self.publishers: list[Client] = []
        self.book: Book

    @initialize(
        bounds=st.tuples(few, some_bytes, few, some_bytes),
        total=st.tuples(st.sampled_from((0, 0, 4, 12)), st.sampled_from((0, 0, 700, 2_500))),
        policy=policies,
        max_age=st.sampled_from((0.0, 0.0, 2.0)),
        window=st.integers(1, 3),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
        allowed=st.sampled_from(((0, 1, 2, 3), (0, 1, 2, 3), (1,), ())),
        rules=st.lists(st.sampled_from(RULES), max_size=3),
    )
    def begin(
        self,
        bounds: tuple[int, int, int, int],
        total: tuple[int, int],
        policy: int,
        max_age: float,
        window: int,
        flags: tuple[bool, bool, bool, bool],
        allowed: tuple[int, ...],
        rules: list[QueueRule],
    ) -> None:
        """A publisher of each version that nobody disturbs, and three receivers."""
        given = Limits()
        given.live_messages, given.live_bytes, given.session_messages, given.session_bytes = bounds
        given.total_messages, given.total_bytes = total
        given.queue_policy, given.queue_max_age = policy, max_age
        given.max_inflight = window
        given.queue_qos0, given.tell_loss, given.tell_publisher, aliases = flags
        given.topic_alias_outbound = 2 if aliases else 0
        given.subscriber_policies = allowed
        given.rules = tuple(rules)
        given.any_user_takes_over = True
        self.network = Network(given)
        self.network.router.journal = self.book = Book()
        self.publishers = [self.network.client("old", V311), self.network.client("new", V5)]
        for name in NAMES:
            client = self.network.idle(name)
            self.clients[name] = client
            # What a share group takes back from a member is not sent to it again; the judge does not know of groups.
            client.judge = self.tallies[name] = Tally(enabled=False)
            self.connect(name, 0, 0, False, 1_000)
            client.subscribe("t/#", qos=1)
        self._meet()

    @rule(
        name=names,
        topic_filter=st.sampled_from(FILTERS),
        qos=qualities,
        handling=st.integers(0, 2),
        options=queue_options,
    )
    def subscribe(self, name: str, topic_filter: str, qos: int, handling: int, options: list[tuple[str, str]]) -> None:
        """Another subscription, or the same again with other terms."""
        client = self.clients[name]
        if self._up(client):
            v5 = client.version == V5
            request = Request(topic_filter, qos, retain_handling=handling if v5 else 0)
            client.send(Subscribe(client.take_id(), [request], bag(*(options if v5 else ()))))
            self.network.settle()

    @rule(name=names, topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        """One less."""
        client = self.clients[name]
        if self._up(client) and not client.wire.frozen:
            client.unsubscribe(topic_filter)

    @rule(
        old=st.booleans(),
        topic=st.sampled_from(("t/1", "t/2", "t")),
        sizes=st.lists(st.sampled_from((0, 10, 100, 300, 2_000)), min_size=1, max_size=8),
        qos=qualities,
        retain=st.booleans(),
        expiry=st.sampled_from((-1, -1, 0, 5)),
    )
    def publish(self, old: bool, topic: str, sizes: list[int], qos: int, retain: bool, expiry: int) -> None:
        """Several messages in one read."""
        publisher = self.publishers[0 if old else 1]
        for size in sizes:
            publisher.post(topic, b"x" * size, qos, retain, expiry=-1 if old else expiry)
        publisher.wire.to_channel()
        self.network.settle()

    @rule(old=st.booleans(), count=st.integers(2, 40), size=st.sampled_from((0, 30)), mixed=st.booleans())
    def publish_run(self, old: bool, count: int, size: int, mixed: bool) -> None:
        """Many small QoS 0 messages in one read: they are taken as runs where they can be."""
        publisher = self.publishers[0 if old else 1]
        for number in range(count):
            publisher.post("t/2" if mixed and number % 3 == 0 else "t/1", b"y" * size)
        publisher.wire.to_channel()
        self.network.settle()

    @rule(seconds=st.sampled_from((0.5, 1.0, 2.0, 6.0, 600.0, 1_001.0)), sweeps=st.booleans())
    def wait(self, seconds: float, sweeps: bool) -> None:
        """Time passes; with a sweep, nothing that waits is older than it may be."""
        self.network.advance(seconds)
        if sweeps:
            now = self.network.now
            self.network.router.sweep(now)
            for session in self.network.router.sessions.values():
                send_buffer = session.send_buffer
                for delivery in [*(session.queue.pending or ()), *([] if send_buffer is None else send_buffer.items)]:
                    message_terms = delivery.message_terms if isinstance(delivery, Delivery) else None
                    if message_terms is not None and delivery.waits and message_terms.max_age:
                        assert now - delivery.since <= message_terms.max_age
            self.network.settle()

    @invariant()
    def adds_up(self) -> None:
        """All accounts, each queue's bounds, and the sums."""
        if self.clients:
            check(self.network, self.known)
            self.book.check(self.network)

    @invariant()
    def total_holds(self) -> None:
        """All queues together, but for what each client with nothing before it gets in any case (`allowed`).

        Where nothing else waits, one message of any size may.
        """
        if not self.clients:
            return
        router = self.network.router
        totals = router.counters.totals
        beyond = [allowed(session) for session in router.sessions.values()]
        others = totals.messages - sum(messages for messages, _ in beyond)
        assert totals.messages >= 0
        assert others <= totals.max_messages
        assert totals.bytes >= 0
        assert totals.bytes <= totals.max_bytes + sum(size for _, size in beyond) or others <= 1

    @invariant()
    def wire_agrees(self) -> None:
        """What was delivered is what was written, and each loss was told at most once."""
        for name, tally in self.tallies.items():
            mine = [session for session in self.known if session.client_id == name]
            assert tally.delivered == sum(session.delivered_in_all() for session in mine)
            lost: Counter[str] = Counter()
            for session in mine:
                untold = session.ledger.untold or [0] * len(DROP_CAUSES)
                for cause, dropped, left in zip(DROP_CAUSES, dropped_by_cause(session), untold, strict=True):
                    lost[cause] += dropped - left
            for cause in DROP_CAUSES:
                if cause == "expired":
                    # What expired is what its publisher wished.
                    assert tally.told[cause] == 0
                    continue
                # Of QoS 0 messages that came while it was away a client is not told.
                assert tally.told[cause] == lost[cause] or (cause == "disconnected" and tally.told[cause] < lost[cause])

    def teardown(self) -> None:
        """Everybody reads and acknowledges: all that waits arrives, and nothing is left anywhere."""
        if not self.clients:
            return
        for client in self.clients.values():
            client.answering = True
            if not self._up(client):
                client.connect(clean=False, expiry=1_000 if client.version == V5 else None)
            client.wire.frozen = False
            client.answer()
        self.network.settle()
        self._meet()
        self.adds_up()
        self.total_holds()
        self.wire_agrees()
        totals = self.network.router.counters.totals
        assert (totals.messages, totals.bytes) == (0, 0)
        for name, client in self.clients.items():
            assert self._up(client)
            assert self.network.session(name).queued() == 0
            assert not client.wire.send_buffer.messages
        for publisher in self.publishers:
            assert not publisher.outgoing


TestOverload = Overload.TestCase
TestOverload.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
