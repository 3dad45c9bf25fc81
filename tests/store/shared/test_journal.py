"""What the core tells of a session becomes changes of the shared store, and comes back as the core had it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from canopy_mqtt.core.codec.packets import SubscriptionRequest
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.persistence.commits import Waiter
from canopy_mqtt.core.persistence.journal import DeliveryRecord, Journal, MessageRecord, SessionRecord
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues import delivery as states
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store.memory import MemoryStore
from canopy_mqtt.store.shared.calls import (
    ACKNOWLEDGED,
    RELEASED,
    SENT,
    Change,
    Completion,
    Empty,
    End,
    Group,
    Noted,
    Owner,
    Subscribe,
)
from canopy_mqtt.store.shared.journal import FULL, Kept, Row, SharedJournal
from canopy_mqtt.store.shared.records import delivery_record, publish, session_record
from tests.store.shared import place
from tests.store.shared.nodes import Nodes
from tests.store.shared.place import claim, waiting

ID, SLOT, PACKET = 7, 2, 5
OWNER = Owner(3, 4)


def message(payload: bytes = b"x", qos: int = 2) -> Message:
    return Message(b"t/\xc3\xa4", payload, qos, True, b"\x03\x00\x01y", 0.0, "p")


def a_delivery(record: int = ID, qos: int = 2) -> Delivery:
    made = Delivery(message(qos=qos), qos, False, (), None)
    made.record, made.packet_id = record, PACKET
    return made


def subscription(topic_filter: str = "a/+") -> Subscription:
    made = Subscription(Session("s", 0, 0, Counters()), topic_filter)
    made.agree(SubscriptionRequest(topic_filter, 1, True, True, 2), 9, 2)
    return made


TOLD: dict[str, tuple[Callable[[Journal], object], list[Noted]]] = {
    "subscribed": (
        lambda journal: journal.subscribed("s", subscription(), False),
        [Subscribe(*OWNER, "a/+", 1, True, True, 2, 9)],
    ),
    "unsubscribed": (lambda journal: journal.unsubscribed("s", "a"), [Subscribe(*OWNER, "a", None), End("a")]),
    "queued": (lambda journal: journal.queued("s", a_delivery()), []),
    "renewed": (lambda journal: journal.renewed("s", a_delivery()), []),
    "in flight": (
        lambda journal: journal.in_flight("s", a_delivery()),
        [Change(*OWNER, 0, ID, SLOT, SENT, PACKET)],
    ),
    "in flight with QoS 1": (lambda journal: journal.in_flight("s", a_delivery(qos=1)), []),
    "in flight, of no row": (lambda journal: journal.in_flight("s", a_delivery(0)), []),
    "unsent": (lambda journal: journal.unsent("s", a_delivery()), []),
    "released": (lambda journal: journal.released("s", a_delivery()), [Change(*OWNER, 0, ID, SLOT, RELEASED)]),
    "finished": (
        lambda journal: journal.finished("s", a_delivery()),
        [Change(OWNER.session, None, 0, ID, SLOT, ACKNOWLEDGED)],
    ),
    "finished, of no row": (lambda journal: journal.finished("s", a_delivery(0)), []),
    "received": (lambda journal: journal.received("s", PACKET), []),
    "completed": (lambda journal: journal.completed("s", PACKET), [Completion(*OWNER, PACKET)]),
    "kept": (lambda journal: journal.session_kept("s", Principal(), 300, 0.0), []),
    "retained": (lambda journal: journal.retained_set(message()), []),
    "of a session that is elsewhere": (lambda journal: journal.completed("t", PACKET), []),
}


def kept() -> Kept:
    made = Kept(OWNER, True, lambda: None)
    made.rows[ID] = Row(SLOT, 0, ID)
    return made


@pytest.mark.parametrize("name", TOLD)
def test_what_is_told_is_noted(name: str) -> None:
    tell, expected = TOLD[name]
    noted: list[Noted] = []
    journal = SharedJournal(lambda what, _: noted.append(what))
    journal.kept["s"] = kept()
    tell(journal)
    assert noted == expected
    assert journal.commits_kept.journal_position == sum(map(journal.has_position, expected))


class Waiting(Waiter):
    """Hears of commits."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[int] = []

    def committed(self, number: Any) -> Any:
        self.heard.append(number)
        return 1


def test_changes_are_committed_with_their_groups() -> None:
    """A group has a prefix of what was noted, and besides what the node notes by itself."""
    noted: list[Noted] = []
    journal = SharedJournal(lambda what, _: noted.append(what))
    journal.kept["s"] = kept()
    waiters = []
    for packet_id in (1, 2, 3):
        journal.completed("s", packet_id)
        waiters.append(Waiting())
        journal.commits_kept.wait(waiters[-1])
    group = [Empty(), *noted[:2]]
    journal.written(sum(map(journal.has_position, group)))
    assert [each.heard for each in waiters] == [[2], [2], []]
    journal.written(0)
    assert journal.commits_kept.committed == 2


def test_what_waits_while_the_database_is_away_is_bounded() -> None:
    journal = SharedJournal(lambda *_: None)
    commits = journal.commits_kept
    large = place.message(bytes(FULL // 4), ())
    for _ in range(4):
        journal.note(large)
    assert not commits.refuses(False)
    commits.fail()
    journal.note(large)
    assert commits.refuses(False)
    journal.written(5)
    commits.recover()
    commits.fail()
    journal.note(large)
    assert not commits.refuses(False)


def plain(record: SessionRecord) -> dict[str, Any]:
    """What a record says."""

    def of(delivery: DeliveryRecord) -> tuple[Any, ...]:
        kept = delivery.message
        return (
            None if kept is None else fields(kept), delivery.qos, delivery.retain, delivery.identifiers,
            delivery.packet_id, delivery.state, delivery.attempts,
        )  # fmt: skip

    def fields(kept: MessageRecord) -> tuple[Any, ...]:
        return kept.topic, kept.payload, kept.qos, kept.retain, kept.properties, kept.expires_in, kept.publisher

    return {
        "client": record.client_id,
        "expiry": record.expiry_interval,
        "user": record.principal.user_name,
        "subscriptions": sorted(
            (
                each.request.topic_filter, each.request.qos, each.request.no_local, each.request.retain_as_published,
                each.request.retain_handling, each.identifier, each.streaming,
            )
            for each in record.subscriptions
        ),
        "received": sorted(record.received),
        "deliveries": [of(each) for each in record.deliveries],
    }  # fmt: skip


async def test_a_session_comes_back_as_a_store_of_one_broker_has_it(nodes: Nodes) -> None:
    """Subscriptions, packet identifiers, and deliveries in each state."""
    node = await nodes.open("a")
    owner = await claim(node, "s")
    noted: list[Noted] = []
    journal, memory = SharedJournal(lambda what, _: noted.append(what)), MemoryStore()
    await memory.open(lambda: 1.0)
    keys = journal.kept["s"] = Kept(Owner(owner.session, owner.epoch), True, lambda: None)

    async def write() -> None:
        await node.feed()
        written = await node.write(Group.of(noted))
        noted.clear()
        assert not written.rematch
        assert not written.failed | written.lost

    both: tuple[Journal, ...] = (journal, memory.journal)
    memory.journal.session_kept("s", Principal("u", client_id="s"), 300, 0.0)
    wanted = Subscription(Session("s", 0, 0, Counters()), "t/#")
    wanted.agree(SubscriptionRequest("t/#", 2, False, True, 1), 9, 2)
    for each in both:
        each.subscribed("s", subscription(), False)
        each.subscribed("s", wanted, False)
        each.subscribed("s", subscription("b"), False)
    await write()
    for each in both:
        each.unsubscribed("s", "b")
        each.received("s", 11)
        each.received("s", 12)
    for packet_id in (11, 12):
        journal.note(publish(message(), keys.owner, packet_id, 0.0))
    await write()

    # Messages for it, as they are read, and as another broker's session has them.
    [[number]] = await nodes.ask("SELECT id FROM filter WHERE name = 't/#'")
    sent = [message(b"%d" % each, qos) for each, qos in enumerate((2, 2, 2, 1))]
    for each_message in sent:
        journal.note(publish(each_message, None, 0, 0.0)._replace(filters=[number]))
    await write()
    deliveries: list[list[Delivery]] = [[], []]
    for row in await waiting(node, owner.session):
        for told, made in zip(both, deliveries, strict=True):
            made.append(delivery_record(row, keys.number(row)).queued(1.0))
            told.restored("s", made[-1], row.id) if told is journal else told.queued("s", made[-1])
    for told, (first, second, third, last) in zip(both, deliveries, strict=True):
        for packet_id, each_delivery in enumerate((first, second, third), 1):
            each_delivery.packet_id, each_delivery.state = packet_id, states.SENT
            told.in_flight("s", each_delivery)
        told.finished("s", last)
    await write()
    for told, (_, second, third, _) in zip(both, deliveries, strict=True):
        told.completed("s", 11)
        told.released("s", second)
        told.released("s", third)
    await write()
    for told, (_, _, third, _) in zip(both, deliveries, strict=True):
        told.finished("s", third)
    await write()

    [expected] = (await memory.load()).sessions
    found = session_record(
        "s", 300, Principal("u", client_id="s"), (await node.content([owner.session]))[owner.session], keys.number
    )
    assert plain(found) == plain(expected)
    assert [each.state for each in found.deliveries] == [states.SENT, states.RELEASED]
    await memory.close()
