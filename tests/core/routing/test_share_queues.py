"""The queue of a share group: what waits for whoever connects first, and what a member that leaves gives back."""

from __future__ import annotations

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.ledger import FULL_MESSAGES, NOT_AUTHORIZED
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.queues.queue_terms import LATEST, QueueRule
from tests.core.harness import Client, Network, limits, total_ledger
from tests.core.recount import losses
from tests.core.routing.test_permissions import Rules
from tests.support.losses import dropped_by_cause

HOUR = 3_600
SHARED = "$share/g/t"


def durable(network: Network, name: str, qos: int = 2, topic_filter: str = SHARED) -> Client:
    """A member whose session stays; it is connected."""
    member = network.client(name, clean=False, expiry=HOUR)
    member.subscribe(topic_filter, qos=qos)
    # The judge awaits everything again that was in flight: here the first member that connects gets it.
    member.judge.enabled = False
    return member


def away(network: Network, *names: str) -> list[Client]:
    """Members whose sessions stay, and who have left."""
    members = [durable(network, name) for name in names]
    for member in members:
        member.disconnect()
    return members


def back(member: Client, receive_maximum: int | None = None, expiry: int = HOUR) -> None:
    assert member.connect(clean=False, expiry=expiry, receive_maximum=receive_maximum).session_present


def publish(network: Network, numbers: range, qos: int = 1, topic: str = "t") -> None:
    publisher = network.client("p")
    for number in numbers:
        publisher.publish(topic, b"%d" % number, qos)


def numbers(client: Client) -> list[int]:
    return [int(each.payload) for each in client.inbox]


def ledgers(network: Network) -> None:
    """All accounts are right."""
    assert total_ledger(network.router.sessions.values()) == []
    sessions = network.router.sessions.values()
    assert network.router.counters.load.messages == sum(
        each.waiting_messages() + each.in_flight_messages() for each in sessions
    )


def test_its_bounds_are_those_of_a_session() -> None:
    network = Network(limits(session_messages=3, tell_publisher=True))
    (member,) = away(network, "a")
    publisher = network.client("p")
    codes = []
    for number in range(5):
        publisher.publish("t", b"%d" % number, 1)
        codes.append(publisher.got(p.Ack)[-1].reason_code)
    queue = network.session(SHARED)
    assert dropped_by_cause(queue)[FULL_MESSAGES] == 2
    assert codes == [0, 0, 0, 0x97, 0x97]
    back(member)
    assert numbers(member) == [0, 1, 2]


def test_a_rule_about_its_filter_holds() -> None:
    """With `latest` a newer message takes the place of the older one of its topic."""
    network = Network()
    network.router.limits.rules = (QueueRule(topic_filter="t", policy=LATEST),)
    (member,) = away(network, "a")
    publish(network, range(4))
    assert network.session(SHARED).waiting_messages() == 1
    back(member)
    assert numbers(member) == [3]


# -- clients that take no large messages ------------------------------------------------------------------------------

LARGE = bytes(1_000)


def small(member: Client) -> None:
    """It is there, and takes only small packets."""
    member.connect(clean=False, expiry=HOUR, max_packet=200)


def test_what_is_too_large_for_one_member_goes_to_another() -> None:
    """Of what waited as of what comes; the others are shared as ever."""
    network = Network()
    first, second = away(network, "a", "b")
    publisher = network.client("p")
    for payload in (LARGE, b"0", LARGE, b"1"):
        publisher.publish("t", payload, 1)
    small(first)
    assert first.payloads() == [b"0", b"1"]
    publisher.publish("t", LARGE, 1)
    assert SHARED not in network.router.sessions
    back(second)
    assert second.payloads() == [LARGE] * 3
    for payload in (b"2", LARGE, b"3", LARGE, LARGE):
        publisher.publish("t", payload, 1)
    assert sorted(first.payloads() + second.payloads()) == [LARGE] * 3 + [b"2", b"3"]
    assert losses(first.session) == losses(second.session) == {}
    ledgers(network)


def test_what_is_too_large_for_all_members_is_dropped_and_counted() -> None:
    network = Network()
    (member,) = away(network, "a")
    publisher = network.client("p")
    for payload in (LARGE, b"0"):
        publisher.publish("t", payload, 1)
    small(member)
    publisher.publish("t", LARGE, 1)
    assert member.payloads() == [b"0"]
    assert losses(member.session) == {"too-large": 2}
    ledgers(network)


# -- members that leave ------------------------------------------------------------------------------------------------


def test_what_is_in_flight_and_has_no_room_elsewhere_is_not_lost_with_the_connection() -> None:
    """Also where the member's own queue has room for less than its window has."""
    network = Network(limits(session_messages=4))
    member = durable(network, "a")
    member.answering = False
    publish(network, range(20))
    member.cut()
    network.settle()
    assert (network.session(SHARED).waiting_messages(), member.session.in_flight_messages()) == (4, 16)
    member.answering = True
    back(member)
    assert set(numbers(member)) == set(range(20))
    assert losses(member.session) == {}
    ledgers(network)


def test_a_message_is_as_old_as_it_is_wherever_it_was() -> None:
    """`max_age` counts from when it came to the group."""
    network = Network()
    network.router.limits.rules = (QueueRule(topic_filter="t", max_age=10.0),)
    (member,) = away(network, "a")
    publish(network, range(2))
    member.answering = False
    for _ in range(3):
        network.advance(3)
        back(member)
        member.cut()
    publish(network, range(2, 3))
    queue = network.session(SHARED)
    assert queue.waiting_messages() == 3
    network.advance(2)
    network.router.sweep(network.now)
    assert (queue.waiting_messages(), losses(queue)) == (1, {"age": 2})
    ledgers(network)


# -- whose it is -------------------------------------------------------------------------------------------------------


def test_without_room_for_another_session_a_member_has_it() -> None:
    """As many groups as a client may have make no more sessions than the settings allow."""
    network = Network(limits(max_sessions=2))
    (member,) = away(network, "a")
    publish(network, range(2))
    assert SHARED not in network.router.sessions
    assert member.session.waiting_messages() == 2
    back(member)
    assert numbers(member) == [0, 1]


def test_no_client_can_connect_as_it() -> None:
    network = Network()
    away(network, "a")
    publish(network, range(1))
    assert network.idle(SHARED).connect(clean=False).reason_code == 0x85
    assert network.session(SHARED).waiting_messages() == 1


# -- access control ----------------------------------------------------------------------------------------------------


def test_a_message_that_the_first_member_may_not_have_holds_up_no_other() -> None:
    """It is for a member that may have it, also one that is away; where there is none it is refused, and counted."""
    network, rules = Network(), Rules()
    network.router.access_control = rules
    first, second = (durable(network, name, topic_filter="$share/g/#") for name in "ab")
    for member in (first, second):
        member.disconnect()
    rules.no_receive.update({("a", "b"), ("a", "none"), ("b", "none")})
    publisher = network.client("p")
    for topic in ("b", "a", "b", "a"):
        publisher.publish(topic, topic.encode(), 1)
    assert network.session("$share/g/#").waiting_messages() == 4
    publisher.publish("none", b"none", 1)
    back(first)
    assert first.payloads() == [b"a", b"a"]
    assert second.session.waiting_messages() == 2
    assert "$share/g/#" not in network.router.sessions
    back(second)
    assert second.payloads() == [b"b", b"b"]
    ledgers(network)


def test_rules_that_have_changed_hold_for_what_waits() -> None:
    network, rules = Network(), Rules()
    network.router.access_control = rules
    (member,) = away(network, "a")
    publish(network, range(3))
    queue = network.session(SHARED)
    rules.no_receive.add(("a", "t"))
    rules.change()
    back(member)
    assert member.payloads() == []
    assert dropped_by_cause(queue)[NOT_AUTHORIZED] == 3
    assert SHARED not in network.router.sessions
    ledgers(network)


# -- stores ------------------------------------------------------------------------------------------------------------


def test_a_message_is_nobodys_at_no_moment() -> None:
    """A move ends one delivery and begins another in the same call: the journal hears of nothing in between."""
    network, heard = Network(), Heard()
    (member,) = away(network, "a")
    network.router.journal = heard
    network.router.session_table.sessions["a"].keep_in(heard)
    publish(network, range(2))
    heard.notes.clear()
    back(member)
    names = [note for note in heard.notes if note[0] in ("finished", "in_flight")]
    assert names[:4] == [("finished", SHARED), ("in_flight", "a"), ("finished", SHARED), ("in_flight", "a")]


class Heard(Journal):
    """Writes down who was named."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[str, str]] = []

    def finished(self, client_id: str, delivery: object) -> None:
        del delivery
        self.notes.append(("finished", client_id))

    def in_flight(self, client_id: str, delivery: object) -> None:
        del delivery
        self.notes.append(("in_flight", client_id))
