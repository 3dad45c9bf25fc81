"""The ledger is exact: whatever happens, each session's offered = delivered + dropped (by cause) + queued.

A Hypothesis machine over random loads: sizes, QoS, tiny limits in messages and bytes, receivers that read, read a
little or do not read, are away, come back with another Maximum Packet Size, are taken over, or end; messages that
expire; retained messages; shared subscriptions.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from broker.core.codec.packets import V5, V311, Subscribe
from broker.core.codec.packets import SubscriptionRequest as Request
from tests.core.harness import Client, Network, limits
from tests.core.receivers import NAMES, Receivers, names

FILTERS = ("t/#", "t/1", "$share/g/t/+", "$share/h/t/1")

qualities = st.sampled_from((0, 1, 2))


class Ledger(Receivers):
    """See the top of this file."""

    @initialize(
        live_messages=st.integers(1, 6),
        live_bytes=st.integers(200, 1_500),
        session_messages=st.integers(1, 6),
        session_bytes=st.integers(200, 1_500),
        window=st.integers(1, 3),
        queue_qos0=st.booleans(),
    )
    def begin(
        self,
        live_messages: int,
        live_bytes: int,
        session_messages: int,
        session_bytes: int,
        window: int,
        queue_qos0: bool,
    ) -> None:
        """A publisher that nobody disturbs, and three receivers."""
        self.network = Network(
            limits(
                live_messages=live_messages,
                live_bytes=live_bytes,
                session_messages=session_messages,
                session_bytes=session_bytes,
                max_inflight=window,
                queue_qos0=queue_qos0,
            )
        )
        self.publisher = self.network.client("publisher")
        for name in NAMES:
            self.clients[name] = self.network.idle(name)
            # What a share group takes back from a member is not sent to it again; the judge does not know of groups.
            self.clients[name].judge.enabled = False
            self.connect(name, 0, 0, False, 1_000)
            self.clients[name].subscribe("t/#", qos=1)
        self._meet()

    @rule(
        name=names,
        max_packet=st.sampled_from((0, 0, 60, 400)),
        version=st.integers(0, 2),
        frozen=st.booleans(),
        expiry=st.sampled_from((1_000, 1_000, 0)),
        receive=st.integers(1, 3),
    )
    def connect(self, name: str, max_packet: int, version: int, frozen: bool, expiry: int, receive: int = 3) -> None:
        """A receiver connects: back, or in place of its own connection, with or without the session."""
        client = self.clients[name]
        client.version = V311 if version == 2 else V5
        v5 = client.version == V5
        client.connect(
            clean=expiry == 0,
            expiry=expiry if v5 else None,
            max_packet=max_packet if v5 and max_packet else None,
            receive_maximum=receive if v5 else None,
            frozen=frozen,
        )
        self._meet()

    @rule(name=names, topic_filter=st.sampled_from(FILTERS), qos=qualities, handling=st.integers(0, 2))
    def subscribe(self, name: str, topic_filter: str, qos: int, handling: int) -> None:
        """Another subscription, or the same again."""
        client = self.clients[name]
        if self._up(client):
            given = handling if client.version == V5 else 0
            client.send(_subscribe(client, Request(topic_filter, qos, retain_handling=given)))
            self.network.settle()

    @rule(name=names, topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        """One less."""
        client = self.clients[name]
        if self._up(client) and not client.wire.frozen:
            client.unsubscribe(topic_filter)

    @rule(
        topic=st.sampled_from(("t/1", "t/2")),
        sizes=st.lists(st.sampled_from((0, 10, 100, 300, 2_000)), min_size=1, max_size=8),
        qos=qualities,
        retain=st.booleans(),
        expiry=st.sampled_from((-1, -1, 0, 5)),
    )
    def publish(self, topic: str, sizes: list[int], qos: int, retain: bool, expiry: int) -> None:
        """Several messages in one read."""
        for size in sizes:
            self.publisher.post(topic, b"x" * size, qos, retain, expiry=expiry)
        self.publisher.wire.to_channel()
        self.network.settle()

    @rule(seconds=st.sampled_from((1, 6, 600, 1_001)))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        self.network.advance(seconds)

    @invariant()
    def adds_up(self) -> None:
        """For each session, those that ended included."""
        for session in self.known:
            dropped = session.dropped_by_cause()
            assert min(dropped) >= 0
            found = (session.delivered_in_all(), dropped, session.queued())
            assert session.offered == found[0] + sum(dropped) + found[2], f"{session.client_id}: {found}"

    @invariant()
    def totals_agree(self) -> None:
        """The broker's counters are the sum of what each session dropped."""
        if self.clients:
            total = [sum(column) for column in zip(*(each.dropped_by_cause() for each in self.known), strict=True)]
            assert self.network.router.counters.dropped == total

    @invariant()
    def limits_hold(self) -> None:
        """Neither queue is ever above its bounds."""
        if not self.clients:
            return
        given = self.network.router.limits
        for name in NAMES:
            outbox = self.clients[name].wire.outbox
            assert 0 <= outbox.messages <= given.live_messages
            assert 0 <= outbox.bytes <= given.live_bytes
            assert outbox.offered >= outbox.taken
        for session in self.known:
            assert len(session.pending or ()) <= given.session_messages
            assert 0 <= session.pending_bytes <= given.session_bytes
            assert session.pending_bytes == sum(one.message.size() for one in session.pending or ())


def _subscribe(client: Client, request: Request) -> Subscribe:
    return Subscribe(client.take_id(), [request])


TestLedger = Ledger.TestCase
TestLedger.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
