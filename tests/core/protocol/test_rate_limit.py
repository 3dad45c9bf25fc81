"""Rates: what a bucket lets through, what a client that publishes too fast has to put up with, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import V5
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.protocol.publish_limit import BREAK, PublishLimit, TokenBucket
from tests.core.harness import Client, Network, limits
from tests.support.gate import Gate
from tests.support.runs import for_each

NOW = 1_000.0


@given(
    rate=st.floats(0.1, 1e6),
    burst=st.floats(1.0, 1e6),
    steps=st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(1, 100)), max_size=60),
)
def test_the_rate_of_a_token_bucket_holds_over_any_time(
    rate: float, burst: float, steps: list[tuple[float, int]]
) -> None:
    """Who waits when told to has never taken more than the burst, the time's worth, and one take on credit."""
    bucket = TokenBucket(rate, burst)
    now = NOW
    taken = 0
    for pause, count in steps:
        now += pause + bucket.ready_in(now + pause)
        assert taken <= (burst + (now - NOW) * rate) * (1 + 1e-9) + 1e-3
        bucket.take(float(count), now)
        taken += count


class TestPublishLimit:
    """Held back, and for how long."""

    @for_each(("rate", "size", "code"), [(10.0, 0, 0x96), (0.0, 1_000, 0x97), (10.0, 1_000, 0x97)])
    def test_patience(self, rate: float, size: int, code: int) -> None:
        """Held back without a break until it is over: 0x96 for packets, 0x97 for bytes."""
        limit = PublishLimit(rate, size, 5.0)
        now = NOW
        error: ProtocolError | None = None
        while error is None:
            assert now < NOW + 8.0
            try:
                until = limit.published(10, 1_001, now)
                if until:
                    now = until + BREAK / 2
                    limit.released(now)
            except ProtocolError as raised:
                error = raised
        assert error.reason_code == code
        assert "PUBLISH packets a second for 5 s" in str(error)
        assert now >= NOW + 5.0

    def test_patience_ends_in_the_middle_of_a_long_hold(self) -> None:
        """Who owes an hour is not held for an hour."""
        limit = PublishLimit(10.0, 0, 5.0)
        assert limit.published(36_010, 1, NOW) == NOW + 5.0
        with pytest.raises(ProtocolError, match="more than 10 PUBLISH packets a second for 5 s"):
            limit.released(NOW + 5.0)

    def test_a_break_begins_anew(self) -> None:
        """A second without being held back, again and again: it may go on like that for ever."""
        limit = PublishLimit(10.0, 0, 5.0)
        now = NOW
        for _ in range(100):
            until = limit.published(40, 1, now)
            assert now < until < now + 5.0
            limit.released(until)
            now = until + BREAK + 0.01


class TestChannel:
    """A client's publishing, through the core."""

    def pair(self, version: int = V5, **changes: int) -> tuple[Network, Client, Client]:
        """A network, a publisher, and a subscriber that gets everything."""
        network = Network(limits(**changes))
        publisher, subscriber = network.client("p", version), network.client("s")
        subscriber.subscribe("t/#", qos=2)
        return network, publisher, subscriber

    def test_what_comes_while_it_is_held(self) -> None:
        """A read that the shell could not stop waits like the rest."""
        network, publisher, subscriber = self.pair(max_publish_rate=1, publish_patience=0)
        publisher.publish("t", b"1", 1)
        publisher.publish("t", b"2", 1)
        protocol = publisher.wire.protocol
        until = protocol.held_until
        assert until - network.now == pytest.approx(1.0)
        assert protocol.receive(b"\xc0\x00", network.now)
        network.settle()
        assert publisher.got(p.Pingresp) == []
        assert len(publisher.acks(p.PUBACK)) == 2
        assert (protocol.unfinished, protocol.held_until) == (True, until)
        network.advance(1.0)
        assert len(publisher.got(p.Pingresp)) == 1
        assert subscriber.payloads() == [b"1", b"2"]

    def test_held_with_nothing_left_to_read(self) -> None:
        """The last packet of a read was one too many: until its time has come the client is not read from."""
        network, publisher, subscriber = self.pair(max_publish_rate=2, publish_patience=0)
        for _ in range(3):
            publisher.publish("t", b"x", 1)
        protocol = publisher.wire.protocol
        assert (protocol.unfinished, protocol.held_until > network.now) == (True, True)
        network.advance(0.6)
        assert (protocol.unfinished, protocol.held_until) == (False, 0.0)
        publisher.publish("t", b"y", 1)
        assert subscriber.payloads() == [b"x", b"x", b"x", b"y"]

    def test_bytes(self) -> None:
        """Whole packets count, and nothing but publishes."""
        network, publisher, subscriber = self.pair(max_publish_bytes=1_000, publish_patience=0)
        for _ in range(30):
            publisher.send(p.Subscribe(publisher.take_id(), [p.SubscriptionRequest("u/" + "x" * 100, 0)]))
            publisher.ping()
        assert publisher.wire.protocol.held_until == 0.0
        for _ in range(4):
            publisher.post("t", b"x" * 494, 1)
        network.settle()
        assert len(subscriber.take()) == 2
        # 2 x 503 bytes.
        assert publisher.wire.protocol.held_until - network.now == pytest.approx(0.006)
        network.advance(0.01)
        assert len(subscriber.take()) == 1
        network.advance(0.5)
        assert len(subscriber.take()) == 1

    def test_a_connection_that_is_held_may_be_taken_over(self) -> None:
        """The end of a connection does not wait, and the next one begins without debt."""
        network, publisher, subscriber = self.pair(max_publish_rate=1, publish_patience=0)
        for _ in range(5):
            publisher.post("t", b"x", 1)
        network.settle()
        old = publisher.wire.protocol
        assert old.held_until > network.now
        publisher.outgoing.clear()
        publisher.connect()
        assert old.close_cause == "taken-over"
        subscriber.take()
        publisher.publish("t", b"new", 1)
        assert subscriber.payloads() == [b"new"]


def test_the_gate_is_not_asked_where_the_loop_lags() -> None:
    """What it does may be the most expensive part of a connect."""
    network = Network(limits(max_loop_lag=2))
    access_control = Gate()
    network.router.access_control = access_control
    network.router.counters.totals.lag = 3.0
    assert network.idle("c").connect().reason_code == 0x89
    assert access_control.tickets == []
    network.router.counters.totals.lag = 0.0
    network.client("c")
    assert len(access_control.tickets) == 1


@for_each(
    ("code", "host", "accepted"),
    [(0x97, "10.0.0.1", True), (0x97, "10.0.0.2", False), (0x9F, "10.0.0.1", False)],
)
def test_a_connection_in_place_of_its_own(code: int, host: str, accepted: bool) -> None:
    """Over the limit of its address, a client may still take over a connection of that address."""
    network = Network()
    client = network.idle("c")
    client.dial().protocol.origin.host = "10.0.0.1"
    client.send(p.Connect("c", V5))
    network.settle()
    old = client.wire
    client.dial().protocol.origin.host = host
    client.wire.protocol.refused = code
    client.send(p.Connect("c", V5))
    network.settle()
    assert client.connack.reason_code == (0 if accepted else code)
    assert old.protocol.close_cause == ("taken-over" if accepted else "")
