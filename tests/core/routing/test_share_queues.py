"""The queue of a share group: what waits for whoever connects first, and what a member that leaves gives back."""

from __future__ import annotations

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.ledger import FULL_MESSAGES
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.queues.queue_terms import LATEST, QueueRule
from canopy_mqtt.store.memory import MemoryStore
from tests.core.harness import Client, Network, limits, total_ledger
from tests.core.recount import losses
from tests.core.routing.test_permissions import Rules
from tests.support.losses import dropped_by_cause
from tests.support.restored import restore

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
    assert network.router.counters.totals.messages == sum(
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


# -- members that leave ------------------------------------------------------------------------------------------------


def test_what_has_no_room_stays_with_the_member() -> None:
    """No message is dropped since its member leaves; the member has it again when it is back."""
    network = Network(limits(session_messages=4))
    (member,) = away(network, "a")
    publish(network, range(4))
    member.answering = False
    back(member, receive_maximum=2)
    publish(network, range(4, 6))
    assert network.session(SHARED).waiting_messages() == 4
    member.cut()
    network.settle()
    assert (network.session(SHARED).waiting_messages(), member.session.in_flight_messages()) == (4, 2)
    member.answering = True
    back(member)
    assert sorted(set(numbers(member))) == list(range(6))
    ledgers(network)


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


def test_the_latest_of_a_topic_is_what_came_last_wherever_it_was() -> None:
    """With a member that left first or last, and with more than one of them."""
    network = Network()
    network.router.limits.rules = (QueueRule(topic_filter="t", policy=LATEST),)
    members = [durable(network, name) for name in "abc"]
    for member in members:
        member.answering = False
    publish(network, range(8))
    assert sum(member.session.in_flight_messages() for member in members) == 8
    for member in (members[1], members[0], members[2]):
        member.cut()
    network.settle()
    assert [each.message.payload() for each in network.session(SHARED).queue.waiting()] == [b"7"]
    publish(network, range(8, 9))
    back(members[0])
    assert members[0].inbox[-1].payload == b"8"
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


# -- stores ------------------------------------------------------------------------------------------------------------


async def restarted(store: MemoryStore, network: Network) -> Network:
    made = Network(network.router.limits)
    made.now = network.now
    made.router.journal = store.journal
    restore(made.router, await store.load(), made.now)
    made.settle()
    return made


async def test_it_is_back_after_a_restart() -> None:
    """With what members had in flight, QoS 1, and each message at its place."""
    store, network = MemoryStore(), Network()
    await store.open(lambda: network.now)
    network.router.journal = store.journal
    first, _ = away(network, "a", "b")
    publish(network, range(4))
    first.answering = False
    back(first, receive_maximum=2)
    assert len(first.inbox) == 2
    again = await restarted(store, network)
    queue = again.session(SHARED)
    assert [int(each.message.payload()) for each in queue.queue.waiting()] == [0, 1, 2, 3]
    member = again.idle("b")
    back(member)
    assert numbers(member) == [0, 1, 2, 3]
    assert [(each.client_id, each.deliveries) for each in (await store.load()).sessions] == [("a", []), ("b", [])]
    assert SHARED not in again.router.sessions
    ledgers(again)


async def test_a_queue_with_subscriptions_of_its_own_is_gone() -> None:
    """It would be a client that is never there."""
    store, network = MemoryStore(), Network()
    await store.open(lambda: network.now)
    network.router.journal = store.journal
    (member,) = away(network, "a")
    publish(network, range(2))
    store.journal.subscribed(SHARED, member.session.subscriptions[SHARED], False)
    again = await restarted(store, network)
    assert SHARED not in again.router.sessions
    assert again.router.table.count == 1


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
