"""A session that goes from one running router to another: for its client everything is as if it had stayed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.causes import CONNECTION_LOST
from broker.core.codec import packets as p
from broker.core.codec.packets import NEVER, V5, V311, Ack, Publish, SubscriptionRequest, Will
from broker.core.persistence.journal import SessionRecord
from broker.core.persistence.moving import record_of
from broker.core.persistence.restore import admit, append, subscribe
from broker.core.queues.delivery import QUEUED
from tests.core.harness import Client, Network, limits, total_ledger
from tests.core.persistence.test_journal import Notes
from tests.support.losses import dropped_by_cause
from tests.support.runs import examples


def move(source: Network, target: Network, client_id: str = "c") -> SessionRecord:
    """The session goes from one broker to the other; its client is away."""
    session = source.session(client_id)
    record = record_of(session, source.now)
    source.router.release(session, source.now)
    source.settle()
    assert session.offered == session.delivered_in_all() + sum(dropped_by_cause(session))
    assert total_ledger(source.router.sessions.values()) == []
    target.now = source.now
    admit(target.router, record, target.now)
    assert total_ledger(target.router.sessions.values()) == []
    return record


def follow(client: Client, target: Network) -> None:
    """From now on the client dials the other broker."""
    client.network = target
    client.judge.enabled = False


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 2), st.sampled_from(("a/1", "a/2", "b"))),
        st.tuples(st.just("answer"), st.integers(1, 3), st.just("")),
        st.tuples(st.just("send"), st.integers(0, 2), st.just("up")),
    ),
    max_size=25,
)


def script(network: Network, version: int, window: int, lost_after: int, before: list[tuple[str, int, str]]) -> Client:
    """A client that gets messages, acknowledges some of them, and is cut off while more come."""
    client = network.idle("c", version)
    client.connect(
        clean=False,
        expiry=500 if version == V5 else None,
        receive_maximum=window if version == V5 else None,
        will=Will("w", b"gone", 1, delay=60) if version == V5 else None,
    )
    client.subscribe(SubscriptionRequest("a/+", 2, False, True, 0), identifier=7 if version == V5 else 0)
    client.subscribe("b", "$share/g/b", qos=1)
    client.answering = False
    publisher = network.client("p")
    for number, (what, count, topic) in enumerate(before):
        if number == lost_after:
            client.cut()
        payload = b"%d" % number
        if what == "publish":
            publisher.publish(topic, payload, count, expiry=1_000 if number % 3 == 0 else -1)
        elif client.wire.cut:
            continue
        elif what == "answer":
            client.answer(count)
        else:
            client.publish(topic, payload, count)
    if not client.wire.cut:
        client.cut()
    return client


def later(client: Client, network: Network) -> list[p.Packet]:
    """The client comes back, and says what it owes; more is published. Everything that came."""
    client.answering = True
    # Nobody else is at the other broker.
    network.idle("p").connect()
    client.connect(clean=False, expiry=500 if client.version == V5 else None)
    publisher = network.client("later")
    for qos, topic in ((0, "a/1"), (1, "b"), (2, "a/2")):
        publisher.publish(topic, b"later", qos)
    return client.packets


def named(packets: list[p.Packet], in_flight: set[int]) -> list[str]:
    """The packets, with names for the identifiers that were not in flight: which ones are next does not go along."""
    names: dict[int, str] = {}
    made = 0
    left = set(in_flight)
    told: list[str] = []
    for packet in packets:
        if isinstance(packet, Publish) and packet.qos > 0:
            if packet.packet_id in left:
                names[packet.packet_id] = f"old {packet.packet_id}"
            else:
                made += 1
                names[packet.packet_id] = f"new {made}"
            left.discard(packet.packet_id)
            told.append(f"{names[packet.packet_id]} {packet.topic!r} {packet.payload!r} {packet.qos} {packet.dup}")
            told.append(f"{packet.retain} {packet.properties!r} {packet.message_expiry} {packet.subscription_ids}")
        elif isinstance(packet, Ack) and packet.kind == p.PUBREL:
            told.append(f"PUBREL {names.get(packet.packet_id, packet.packet_id)}")
        else:
            told.append(repr(packet))
    return told


@settings(max_examples=examples(150), deadline=None)
@given(
    before=steps,
    version=st.sampled_from((V311, V5)),
    window=st.integers(1, 4),
    lost_after=st.integers(0, 25),
    queue_qos0=st.booleans(),
)
def test_the_client_sees_no_difference(
    before: list[tuple[str, int, str]], version: int, window: int, lost_after: int, queue_qos0: bool
) -> None:
    """Messages, order, packet identifiers, DUP, PUBREL, what it has not released: all as if it had stayed.

    [MQTT-4.4.0-1] [MQTT-4.3.3-10] [MQTT-4.6.0-1]
    """
    given_limits = limits(queue_qos0=queue_qos0)
    stayed = Network(given_limits)
    at_home = script(stayed, version, window, lost_after, before)
    source, target = Network(given_limits), Network(given_limits)
    moved = script(source, version, window, lost_after, before)
    record = move(source, target)
    in_flight = {kept.packet_id for kept in record.deliveries if kept.state != QUEUED}
    follow(moved, target)
    assert named(later(moved, target), in_flight) == named(later(at_home, stayed), in_flight)
    assert [each.payload for each in moved.take()] == [each.payload for each in at_home.take()]
    assert source.router.subscription_count == 0
    assert len(source.router.trie) == 0
    load = source.router.counters.load
    assert (load.messages, load.bytes, load.inflight, load.inflight_bytes) == (0, 0, 0, 0)
    assert total_ledger(target.router.sessions.values()) == []
    assert not target.session("c").inflight


def waiting(network: Network, *payloads: bytes, expiry: int = 100) -> Client:
    """A client that is away, with messages that wait for it."""
    client = network.client("c", clean=False, expiry=expiry)
    client.subscribe("a", qos=1)
    client.cut()
    publisher = network.client("p")
    for payload in payloads:
        publisher.publish("a", payload, 1)
    return client


def test_nothing_moves_while_the_client_is_connected() -> None:
    network = Network()
    network.client("c")
    with pytest.raises(RuntimeError, match="away"):
        record_of(network.session("c"), network.now)


def test_a_session_is_admitted_once() -> None:
    network = Network()
    waiting(network)
    record = record_of(network.session("c"), network.now)
    with pytest.raises(RuntimeError, match="client identifier"):
        admit(network.router, record, network.now)


@pytest.mark.parametrize(("expiry", "left"), [(100, 60), (NEVER, None)])
def test_expiry_counts_on(expiry: int, left: int | None) -> None:
    """[MQTT-4.1.0-2]"""
    source, target = Network(), Network()
    waiting(source, expiry=expiry)
    source.advance(40)
    move(source, target)
    if left is None:
        target.advance(1e9)
        assert "c" in target.router.sessions
        return
    target.advance(left - 1)
    assert "c" in target.router.sessions
    target.advance(1)
    assert "c" not in target.router.sessions


def test_a_delayed_will_goes_along_and_is_published_once() -> None:
    """[MQTT-3.1.3-9]"""
    source, target = Network(), Network()
    witnesses = []
    for network in (source, target):
        witness = network.client("witness")
        witness.subscribe("w")
        witnesses.append(witness)
    client = source.client("c", clean=False, expiry=100, will=Will("w", b"gone", delay=30))
    client.wire.lose(CONNECTION_LOST)
    source.advance(10)
    move(source, target)
    source.advance(100)
    target.advance(19)
    assert [witness.payloads() for witness in witnesses] == [[], []]
    target.advance(1)
    assert [witness.payloads() for witness in witnesses] == [[], [b"gone"]]


def test_retained_messages_that_are_under_way_are_sent_from_the_first_on() -> None:
    """Both brokers have all retained messages."""
    source, target = Network(limits(live_messages=2)), Network()
    for network in (source, target):
        publisher = network.client("p")
        for number in range(9):
            publisher.publish(f"r/{number}", b"%d" % number, 1, retain=True)
    client = source.client("c", clean=False, expiry=100, receive_maximum=1)
    client.answering = False
    client.subscribe("r/#", qos=1)
    client.cut()
    move(source, target)
    follow(client, target)
    client.answering = True
    client.connect(clean=False, expiry=100)
    assert {each.payload for each in client.take()} == {b"%d" % number for number in range(9)}


def test_what_has_no_room_counts_as_lost() -> None:
    source, target = Network(), Network(limits(session_messages=2))
    client = waiting(source, b"1", b"2", b"3")
    move(source, target)
    follow(client, target)
    assert sum(dropped_by_cause(target.session("c"))) == 1
    client.connect(clean=False, expiry=100)
    assert client.payloads() == [b"1", b"2"]


def test_the_other_brokers_journal_is_told_all_of_it() -> None:
    source, target = Network(), Network()
    target.router.journal = notes = Notes()
    client = source.client("c", clean=False, expiry=100, receive_maximum=3, will=Will("w", b"x", delay=50))
    client.subscribe("a", qos=2)
    client.answering = False
    publisher = source.client("p")
    for payload in (b"released", b"sent", b"unsent", b"waiting"):
        if payload == b"unsent":
            client.wire.frozen = True
        publisher.publish("a", payload, 2)
    client.send(Publish(b"q", b"", 2, packet_id=9))
    client.answer(1)
    client.cut()
    move(source, target)
    calls = [line[:3] for line in notes.take()]
    assert calls[:3] == [("kept", "c", 100), ("received", "c", 9), ("subscribed", "c", "a")]
    assert [line for line in calls if line[0] not in {"kept", "received", "subscribed"}][:6] == [
        ("in flight", "c", b""),
        ("released", "c", b""),
        ("in flight", "c", b"sent"),
        ("in flight", "c", b"unsent"),
        ("unsent", "c", b"unsent"),
        ("queued", "c", b"waiting"),
    ]
    assert calls[-1][0] == "will"


def test_what_is_appended_reaches_a_client_that_is_there() -> None:
    """The rest of a session comes to one that is connected already: its subscriptions, and what waits."""
    source, target = Network(), Network()
    waiting(source, b"1", b"2")
    record = record_of(source.session("c"), source.now)
    client = target.client("c", clean=False, expiry=100)
    client.subscribe("b")
    subscribe(target.router, client.session, record.subscriptions)
    assert append(target.router, client.session, record.deliveries, target.now) == 0
    target.settle()
    target.client("p").publish("a", b"3", 1)
    assert client.payloads() == [b"1", b"2", b"3"]
    assert sorted(client.session.subscriptions) == ["a", "b"]
    assert [each.payload for each in client.got(Publish)] == [b"1", b"2", b"3"]
    assert total_ledger(target.router.sessions.values()) == []


def test_all_that_waits_can_be_taken_out() -> None:
    network = Network()
    client = waiting(network, b"1", b"2")
    session = network.session("c")
    taken = session.queue.take_all()
    session.offered -= len(taken)
    assert [each.message.payload() for each in taken] == [b"1", b"2"]
    load = network.router.counters.load
    assert (load.messages, load.bytes, session.queue.messages, session.queue.bytes) == (0, 0, 0, 0)
    assert total_ledger([session]) == []
    network.client("p").publish("a", b"3", 1)
    client.judge.enabled = False
    client.connect(clean=False, expiry=100)
    assert client.payloads() == [b"3"]
