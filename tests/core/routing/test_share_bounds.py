"""Whose the queue of a share group is, and what one client or user can have the broker keep in many of them."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.jobs import OBJECT_WORK, STEP_WORK
from canopy_mqtt.core.ledger import FULL_BYTES
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import LATEST, QueueRule
from canopy_mqtt.core.routing.share_queues import MAX_MADE
from canopy_mqtt.core.routing.unfinished import AT_ONCE
from canopy_mqtt.core.session.client_account import MESSAGE_ROOM
from canopy_mqtt.core.session.session import Session
from tests.core.harness import Client, Network, limits
from tests.core.routing.test_share_queues import HOUR, SHARED, away, back, durable, ledgers, numbers, publish
from tests.support.losses import dropped_by_cause

MIB = 1 << 20
PIECE = 100_000


def bounded(client: int = 2 * MIB, user: int = 0) -> Network:
    """A broker in which all that is kept for one client has a bound."""
    return Network(
        limits(
            session_bytes=client,
            max_client_bytes=client,
            max_filter_bytes_per_client=MIB,
            max_retained_bytes_per_client=MIB,
            max_user_bytes=user,
        )
    )


def member_of(network: Network, name: str, count: int, host: str = "") -> Client:
    """A client that is in this many groups, and away."""
    member = network.idle(name)
    member.host = host
    member.connect(clean=False, expiry=HOUR)
    for number in range(count):
        member.subscribe(f"$share/g/t/{number}", qos=1)
    member.disconnect()
    return member


def queues(network: Network) -> list[Session]:
    return [each for name, each in network.router.sessions.items() if name.startswith("$share/")]


def kept(network: Network) -> int:
    """Bytes that wait in all queues of groups."""
    return sum(int(each.waiting_bytes()) for each in queues(network))


def fill(network: Network, groups: int, messages: int) -> None:
    publisher = network.client("p")
    for _ in range(messages):
        for number in range(groups):
            publisher.publish(f"t/{number}", bytes(PIECE), 1)


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_many_groups_keep_no_more_for_a_client_than_one() -> None:
    network = bounded()
    member = member_of(network, "a", 10)
    fill(network, 10, 10)
    assert 2 * MIB - MESSAGE_ROOM < kept(network) <= 2 * MIB
    assert member.session.account.bytes <= 3 * MIB + 2 * PIECE  # with what waits in the session itself
    # What has gone makes room.
    member.answering = True
    back(member)
    assert kept(network) == 0
    assert member.session.account.shared == 0
    member.disconnect()
    fill(network, 10, 1)
    assert kept(network) == 10 * network.session("$share/g/t/0").waiting_bytes()
    ledgers(network)


def test_what_a_client_has_taken_it_can_give_back_though_it_has_no_room_for_more() -> None:
    network = bounded()
    member = member_of(network, "a", 2)
    fill(network, 2, 20)
    before = kept(network)
    member.answering = False
    back(member, receive_maximum=6)
    assert kept(network) == before - 6 * (before // 20)
    member.cut()
    network.settle()
    assert kept(network) == before
    assert member.session.in_flight_messages() == 0
    ledgers(network)


def test_whatever_else_a_client_has_some_waits_for_its_groups() -> None:
    """But no more than `MESSAGE_ROOM` in all of them together."""
    network = bounded()
    member = member_of(network, "a", 10)
    member.session.account.retained = 2 * MIB
    fill(network, 10, 10)
    assert MESSAGE_ROOM - 2 * PIECE < kept(network) <= MESSAGE_ROOM


def test_a_user_has_its_bound_at_every_message() -> None:
    network = bounded(16 * MIB, 2 * MIB)
    for name in ("a", "b"):
        member_of(network, name, 3)
    fill(network, 3, 10)
    assert kept(network) <= 2 * MIB
    assert sum(dropped_by_cause(network.session("$share/g/t/0"))) > 0


def test_the_client_of_a_member_that_stays_answers() -> None:
    """With the bytes that wait, and with its own bound for those that come."""
    network = bounded()
    first, second = (member_of(network, name, 2, f"192.0.2.{host}") for host, name in enumerate("ab"))
    fill(network, 2, 3)
    owning, other = first.session, second.session
    if owning.account.shared == 0:
        owning, other = other, owning
    moved = owning.account.shared + other.account.shared
    network.router.end_session(owning, network.now)
    assert (owning.account.shared, other.account.shared) == (0, moved)
    fill(network, 2, 20)
    assert kept(network) <= 2 * MIB
    assert sum(each[FULL_BYTES] for each in map(dropped_by_cause, queues(network))) > 0
    network.router.end_session(other, network.now)
    assert kept(network) == 0
    assert other.account.shared == 0


def test_a_client_that_comes_from_elsewhere_takes_its_queues_along() -> None:
    network = Network()
    member = durable(network, "a")
    member.disconnect()
    publish(network, range(5))
    queue = network.session(SHARED)
    before = queue.account.owner
    member.host, member.answering = "192.0.2.7", False
    back(member, receive_maximum=1)
    assert queue.waiting_messages() == 4
    assert queue.account.owner is member.session.account.owner is not before
    assert queue.principal.host == "192.0.2.7"
    assert before.queued == 0
    ledgers(network)


def test_a_clean_start_ends_the_queue_with_all_that_waits() -> None:
    """Also where the session had so many subscriptions that they go in turns."""
    network = Network()
    member = durable(network, "a")
    for number in range(100):
        member.subscribe(f"f/{number}")
    member.disconnect()
    publish(network, range(3))
    queue = network.session(SHARED)
    member.connect(clean=True, settle=False)
    member.subscribe(SHARED, qos=1)  # in the same read
    assert queue.ended
    assert member.payloads() == []
    assert SHARED not in network.router.sessions


def test_rules_that_are_reloaded_hold_for_a_queue_that_is_there() -> None:
    network = Network()
    (member,) = away(network, "a")
    publish(network, range(3))
    network.router.limits.rules = (QueueRule(topic_filter="t", policy=LATEST),)
    network.router.limits_changed()
    publish(network, range(3, 6))
    network.router.limits_changed()
    publish(network, range(6, 8))
    back(member)
    assert numbers(member) == [0, 1, 2, 7]
    ledgers(network)


# -- work --------------------------------------------------------------------------------------------------------------


def flood(network: Network, count: int) -> None:
    """Publish that many numbers without a client."""
    for number in range(count):
        network.router.publish(Message(b"t", b"%d" % number, 1, False, b"", 0.0, "p"), None)


def full_member(count: int) -> tuple[Network, Client, Client]:
    """A connected member with this many messages that it has not acknowledged or been sent, and one that is away."""
    network = Network(limits(session_messages=0, live_messages=0, live_bytes=0))
    (other,) = away(network, "other")
    member = durable(network, "member")
    member.answering = False
    flood(network, count)
    network.settle()
    return network, member, other


def test_what_a_member_gives_back_to_the_queue_goes_in_turns() -> None:
    """Every message is somewhere meanwhile, and a member that comes in between gets all in their order."""
    network, member, other = full_member(4 * AT_ONCE)
    before = network.router.budget.used
    member.wire.lose()
    network.router.peers.drain(network.router, network.now)
    assert network.session(SHARED).waiting_messages() == AT_ONCE
    assert (
        network.session(SHARED).queued() + member.session.queued() + member.session.in_flight_messages() >= 4 * AT_ONCE
    )
    assert network.router.budget.used - before < STEP_WORK
    back(other)
    assert numbers(other) == list(range(4 * AT_ONCE))
    assert member.session.in_flight_messages() == 0
    ledgers(network)


def test_a_member_that_comes_back_meanwhile_keeps_the_rest() -> None:
    network, member, other = full_member(4 * AT_ONCE)
    member.wire.lose()
    network.router.peers.drain(network.router, network.now)
    member.answering = True
    back(member)
    back(other)
    assert sorted(set(numbers(member) + numbers(other))) == list(range(4 * AT_ONCE))
    assert SHARED not in network.router.sessions
    ledgers(network)


def test_coming_and_going_costs_no_more_with_much_that_waits() -> None:
    """What comes back goes to the front."""
    work = []
    for waiting in (20, 9_000):
        network = Network()
        (member,) = away(network, "a")
        flood(network, waiting)
        member.answering = False
        before = network.router.budget.used
        for _ in range(4):
            back(member, receive_maximum=10)
            member.cut()
            network.settle()
        work.append(int(network.router.budget.used - before))
        assert network.session(SHARED).waiting_messages() == waiting
    assert work[1] < 1.1 * work[0]


def test_taking_from_a_queue_is_charged() -> None:
    network = Network()
    (member,) = away(network, "a")
    flood(network, 500)
    before = network.router.budget.used
    back(member)
    assert len(member.inbox) == 500
    assert network.router.budget.used - before >= 500 * OBJECT_WORK


@pytest.mark.parametrize("groups", [MAX_MADE, 2 * MAX_MADE])
def test_a_message_for_very_many_groups_makes_a_few_queues(groups: int) -> None:
    """What is for the others waits in the session of a member."""
    network = Network(limits(max_shared_subscriptions_per_client=0))
    member = network.client("a", clean=False, expiry=HOUR)
    for number in range(groups):
        member.subscribe(f"$share/{number}/t", qos=1)
    member.disconnect()
    publish(network, range(1))
    assert len(queues(network)) == MAX_MADE
    assert member.session.waiting_messages() == groups - MAX_MADE
