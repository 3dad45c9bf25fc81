"""CONNECT where brokers share sessions: it waits for its claim, and its session comes and goes with the connection."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.core.causes import TAKEN_OVER
from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import PUBCOMP, PUBREL, Ack, Disconnect, Publish, SubscriptionRequest, Will
from canopy_mqtt.core.hooks import LATER, AccessControl, NodeDoor, Origin
from canopy_mqtt.core.persistence.journal import DeliveryRecord, MessageRecord, SubscriptionRecord
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import RELEASED, SENT
from tests.core.harness import bag, total_ledger
from tests.core.shared_store import SharedNetwork, record
from tests.support.gate import Gate


def subscription(topic_filter: str, qos: int = 2, identifier: int = 0) -> SubscriptionRecord:
    return SubscriptionRecord(SubscriptionRequest(topic_filter, qos), identifier, False)


def in_flight(number: int, payload: bytes, packet_id: int, state: int = SENT) -> DeliveryRecord:
    message = None if state == RELEASED else MessageRecord(b"a", payload, 2, False, b"", None, "p")
    made = DeliveryRecord(number, message, 2, False, (), "")
    made.packet_id, made.state, made.attempts = packet_id, state, 1
    return made


class MayNotPublish(AccessControl):
    """Lets nobody publish."""

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del principal, topic, qos, retain
        return False


class Door(NodeDoor):
    """Lets each node in."""

    def check(self, connect: p.Connect, origin: Origin) -> list[tuple[str, str]]:
        del connect, origin
        return [("canopy-node", "a")]


# -- the claim ---------------------------------------------------------------------------------------------------------


def test_nothing_is_read_before_the_claim_is_answered() -> None:
    net = SharedNetwork(at_once=False)
    client = net.waiting("c")
    client.send(p.Pingreq())
    net.settle()
    [attempt] = net.store.attempts
    assert (attempt.client_id, attempt.clean, attempt.expiry) == ("c", False, 100)
    assert client.packets == []
    assert net.router.sessions == {}
    attempt.opened(None)
    net.settle()
    assert [type(each) for each in client.packets] == [p.Connack, p.Pingresp]
    assert not client.connack.session_present
    assert attempt.session is net.session("c")
    assert net.store.over == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_clean_session_is_claimed_too(clean: bool) -> None:
    """It may end a durable one of its client identifier."""
    net = SharedNetwork()
    client = net.idle("c")
    client.connect(clean=clean)
    [attempt] = net.store.attempts
    assert (attempt.clean, attempt.expiry) == (clean, 0)
    client.disconnect()
    assert net.store.over == [attempt]
    assert net.router.sessions == {}


def test_a_claim_may_be_answered_at_once() -> None:
    net = SharedNetwork(at_once=True)
    client = net.waiting("c")
    assert client.connack.reason_code == 0


def test_access_control_answers_once_and_before_the_claim() -> None:
    net = SharedNetwork(at_once=False)
    asked = Gate(LATER)
    net.router.access_control = asked
    client = net.waiting("c")
    assert net.store.attempts == []
    for _ in range(2):
        asked.tickets[0].answer(0)
        net.settle()
    assert client.packets == []
    [attempt] = net.store.attempts
    attempt.opened(None)
    net.settle()
    assert client.connack.reason_code == 0


def test_a_claim_that_is_refused_refuses_the_client() -> None:
    net = SharedNetwork(at_once=False)
    client = net.waiting("c")
    net.store.attempts[0].refused(reason_codes.SERVER_UNAVAILABLE, "the database is away")
    net.settle()
    assert client.connack.reason_code == reason_codes.SERVER_UNAVAILABLE
    assert client.closed
    assert net.store.waiting == {}
    assert net.store.over == []


def test_a_client_that_leaves_while_it_waits_is_gone() -> None:
    net = SharedNetwork(at_once=False)
    client = net.waiting("c")
    [attempt] = net.store.attempts
    client.cut()
    assert attempt.is_gone
    assert net.store.waiting == {}
    attempt.refused(reason_codes.SERVER_UNAVAILABLE, "too late")
    net.settle()
    assert net.router.sessions == {}


def test_a_later_connect_of_the_client_ends_one_that_waits() -> None:
    net = SharedNetwork(at_once=False)
    first = net.waiting("c")
    second = net.waiting("c")
    earlier, later = net.store.attempts
    net.settle()
    assert earlier.is_gone
    assert first.closed
    later.opened(None)
    net.settle()
    assert second.connack.reason_code == 0
    assert net.store.waiting == {}


@pytest.mark.parametrize("any_user", [False, True])
def test_a_later_connect_of_another_user_ends_none_that_waits(any_user: bool) -> None:
    """Nobody knows yet whose the session is. With `session.takeover = "any-user"` it does not matter."""
    net = SharedNetwork(at_once=False, any_user_takes_over=any_user)
    first = net.waiting("c", user_name="ann")
    second = net.waiting("c", user_name="bob")
    net.settle()
    assert first.closed == any_user
    assert second.closed != any_user
    if not any_user:
        assert second.connack.reason_code == reason_codes.SERVER_UNAVAILABLE
    net.store.attempts[-1].opened(None)
    net.settle()
    assert (second if any_user else first).connack.reason_code == 0
    assert net.session("c").user_name == ("bob" if any_user else "ann")


def test_a_second_connect_takes_over_when_its_claim_is_answered() -> None:
    net = SharedNetwork(at_once=False)
    first = net.durable("c")
    second = net.waiting("c")
    earlier, later = net.store.attempts
    first.ping()
    later.opened(record("c"))
    net.settle()
    assert [each.reason_code for each in first.got(Disconnect)] == [reason_codes.SESSION_TAKEN_OVER]
    assert second.connack.session_present
    assert net.store.over == [earlier]
    assert net.session("c").claim is later


def test_the_connection_of_a_session_that_is_claimed_elsewhere_ends() -> None:
    net = SharedNetwork()
    client = net.durable("c")
    [attempt] = net.store.attempts
    attempt.end(TAKEN_OVER, reason_codes.SESSION_TAKEN_OVER, "elsewhere", net.now)
    net.settle()
    assert [each.reason_code for each in client.got(Disconnect)] == [reason_codes.SESSION_TAKEN_OVER]
    assert net.store.over == [attempt]
    assert net.router.sessions == {}


def test_a_node_of_the_cluster_claims_nothing() -> None:
    net = SharedNetwork(at_once=False)
    client = net.idle("$node/b")
    client.dial()
    client.wire.protocol.origin.door = Door()
    client.send(p.Connect("$node/b", p.V5, False, 0, None, None, None, bag()))
    net.settle()
    assert client.connack.reason_code == 0
    assert net.store.attempts == []


# -- the session -------------------------------------------------------------------------------------------------------


def test_a_session_has_what_the_record_says() -> None:
    net = SharedNetwork()
    kept = record("c", subscription("a/#", 1, 7), received=[5], deliveries=[in_flight(3, b"x", 9)])
    kept.deliveries.append(in_flight(4, b"", 11, RELEASED))
    client = net.durable("c", kept)
    assert client.connack.session_present
    session = net.session("c")
    assert [(each.qos, each.identifier) for each in session.subscriptions.values()] == [(1, 7)]
    # What was in flight is sent again, in its order, and is known to the store by its numbers.
    assert [(each.payload, each.packet_id, each.dup) for each in client.got(Publish)] == [(b"x", 9, True)]
    assert [each.packet_id for each in client.got(Ack) if each.kind == PUBREL][:1] == [11]
    assert [told for told in net.journal.told if told[0] == "restored"] == [("restored", "c", 3), ("restored", "c", 4)]
    # A QoS 2 publish that came before is not routed again, and can be released.
    client.send(Publish(b"a", b"again", 2, False, True, 5))
    client.send(Ack(PUBREL, 5))
    net.settle()
    net.commit()
    assert net.store.kept == []
    assert ("completed", "c", 5) in net.journal.told
    assert [each.packet_id for each in client.got(Ack) if each.kind == PUBCOMP] == [5]


def test_a_clean_start_takes_nothing_from_a_record() -> None:
    net = SharedNetwork()
    client = net.durable("c", record("c", subscription("a")), clean=True)
    assert not client.connack.session_present
    assert net.session("c").subscriptions == {}


def test_a_session_goes_with_its_connection_and_stays_in_the_store() -> None:
    net = SharedNetwork()
    client = net.subscriber("c", "a")
    session = net.session("c")
    client.cut()
    net.advance(200.0)
    assert net.router.sessions == {}
    assert net.router.table.count == 0
    assert [(each.client_id, each.expiry) for each in net.store.over] == [("c", 100)]
    assert ("gone", "c") not in net.journal.told
    assert ("unsubscribed", "c", "a") not in net.journal.told
    assert total_ledger([session]) == []
    assert net.router.counters.sessions_expired == 0


def test_what_waits_when_a_connection_ends_is_not_lost() -> None:
    net = SharedNetwork()
    client = net.durable("c", receive_maximum=1)
    session = net.session("c")
    client.answering = False
    net.take("c", b"1", b"2", b"3")
    assert (session.in_flight_messages(), session.waiting_messages()) == (1, 2)
    client.cut()
    assert total_ledger([session]) == []
    assert net.router.counters.totals.messages == 0
    assert not any(net.router.counters.dropped)


def test_a_disconnect_that_ends_the_session_is_told() -> None:
    net = SharedNetwork()
    client = net.subscriber("c", "a")
    client.disconnect(properties=bag(i={0x11: 0}))
    assert [(each.client_id, each.expiry) for each in net.store.over] == [("c", 0)]
    assert net.journal.told[-1] == ("gone", "c")


def test_a_disconnect_may_change_how_long_the_session_stays() -> None:
    net = SharedNetwork()
    net.durable("c").disconnect(properties=bag(i={0x11: 7}))
    assert [each.expiry for each in net.store.over] == [7]


def test_a_session_that_ends_with_its_next_connection_is_shared_until_then() -> None:
    """Its subscriptions are in the store, and what they match comes from there."""
    net = SharedNetwork()
    client = net.durable("c", record("c", subscription("a")), expiry=0)
    net.client("p").publish("a", b"live", 1)
    assert client.inbox == []
    net.take("c", b"stored")
    assert [each.payload for each in client.inbox] == [b"stored"]
    assert ("gone", "c") not in net.journal.told
    client.disconnect()
    assert ("gone", "c") in net.journal.told


# -- who may come ------------------------------------------------------------------------------------------------------


def test_no_other_user_takes_over_whatever_the_store_says() -> None:
    """It may not have asked whose the session is: it cannot reach its database."""
    net = SharedNetwork()
    client = net.durable("c", user_name="alice")
    other = net.waiting("c", user_name="bob", clean=True, expiry=0)
    net.settle()
    assert other.connack.reason_code == reason_codes.CLIENT_IDENTIFIER_NOT_VALID
    assert not client.closed
    assert net.session("c").user_name == "alice"
    assert len(net.store.over) == 1


def test_a_session_of_another_user_is_given_back() -> None:
    net = SharedNetwork(at_once=False, any_user_takes_over=False)
    client = net.waiting("c", user_name="mallory")
    [attempt] = net.store.attempts
    attempt.opened(record("c", subscription("a"), principal=Principal(client_id="c", user_name="alice")))
    net.settle()
    assert client.connack.reason_code == reason_codes.CLIENT_IDENTIFIER_NOT_VALID
    assert net.store.over[-1] is attempt
    assert net.router.sessions == {}
    assert net.router.table.count == 0
    assert ("gone", "c") not in net.journal.told


@pytest.mark.parametrize(
    ("limit", "code"),
    [("max_sessions", reason_codes.QUOTA_EXCEEDED), ("max_connections", reason_codes.SERVER_BUSY)],
)
def test_limits_hold_for_sessions_that_come(limit: str, code: int) -> None:
    bounds: dict[str, Any] = {limit: 1}
    net = SharedNetwork(**bounds)
    net.durable("a")
    net.store.at_once = False
    client = net.waiting("b")
    attempt = net.store.attempts[-1]
    attempt.opened(record("b", subscription("x")))
    net.settle()
    assert client.connack.reason_code == code
    assert net.store.over == [attempt]
    assert set(net.router.sessions) == {"a"}


# -- wills -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_a_will_goes_live_when_the_store_has_published_it(qos: int) -> None:
    """The store knows whether another broker has, which took this one for dead."""
    net = SharedNetwork()
    watcher = net.client("w")
    watcher.subscribe("will", qos=1)
    client = net.durable("c", will=Will("will", b"gone", qos))
    client.cut()
    [(kept, message, live)] = net.store.published_wills
    assert (kept, message.payload(), message.qos) == ("the will of c", b"gone", qos)
    assert watcher.inbox == []
    live()
    net.settle()
    assert [each.payload for each in watcher.inbox] == [b"gone"]
    assert net.store.kept == []


@pytest.mark.parametrize("cause", ["lost", "taken over"])
def test_a_will_with_a_delay_waits_in_the_store(cause: str) -> None:
    """Also of a client that is elsewhere by now: the store knows whether its session has ended."""
    net = SharedNetwork()
    client = net.durable("c", will=Will("will", b"gone", 0, False, 10))
    if cause == "lost":
        client.cut()
    else:
        net.store.attempts[-1].end(TAKEN_OVER, reason_codes.SESSION_TAKEN_OVER, "elsewhere", net.now)
    net.advance(20.0)
    assert net.store.ended_wills == [("the will of c", 10)]
    assert net.store.published_wills == []


def test_a_goodbye_leaves_the_will_to_the_store_which_forgets_it() -> None:
    net = SharedNetwork()
    client = net.durable("c", will=Will("will", b"gone", 0, False, 10))
    client.disconnect()
    [attempt] = net.store.over
    assert attempt.kept_will == "the will of c"
    assert (net.store.ended_wills, net.store.published_wills) == ([], [])


def test_a_will_that_its_client_may_not_publish_any_more_is_forgotten() -> None:
    net = SharedNetwork()
    client = net.durable("c", will=Will("will", b"gone"))
    net.router.access_control = MayNotPublish()
    client.cut()
    assert net.store.ended_wills == [("the will of c", -1)]
    assert net.store.published_wills == []


def test_a_will_that_is_due_is_published_whose_client_is_not_here() -> None:
    net = SharedNetwork()
    net.router.wills.submit(Will("will", b"gone", 1), "c", None, Principal(), net.now, "another")
    [(kept, message, _)] = net.store.published_wills
    assert (kept, message.publisher) == ("another", "c")
