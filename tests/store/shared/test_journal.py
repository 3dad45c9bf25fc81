"""What the core tells of a session becomes changes of the shared store, and comes back as the core had it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from canopy_mqtt.core.codec.packets import SubscriptionRequest
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.persistence.commits import Waiter
from canopy_mqtt.core.persistence.journal import DeliveryRecord, Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues import delivery as states
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import Subscription
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


def subscription(topic_filter: str = "a/+", qos: int = 1) -> Subscription:
    made = Subscription(Session("s", 0, 0, Counters()), topic_filter)
    made.agree(SubscriptionRequest(topic_filter, qos, True, True, 2), 9, 2)
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


async def test_what_a_session_has_comes_back(nodes: Nodes) -> None:
    """Subscriptions with their options, packet identifiers, and deliveries in flight."""
    node = await nodes.open("a")
    owner = await claim(node, "s")
    noted: list[Noted] = []
    journal = SharedJournal(lambda what, _: noted.append(what))
    keys = journal.kept["s"] = Kept(Owner(owner.session, owner.epoch), True, lambda: None)

    async def write() -> None:
        written = await node.write(Group.of(noted))
        noted.clear()
        assert not written.rematch
        assert not written.failed | written.lost

    journal.subscribed("s", subscription("t/+", 2), False)
    await write()
    [known] = await node.feed()
    journal.note(publish(message(), keys.owner, PACKET, 0.0))
    for payload in (b"1", b"2"):
        journal.note(publish(message(payload), None, 0, 0.0)._replace(filters=[known.id]))
    await write()
    sent: list[Delivery] = []
    for packet_id, row in enumerate(await waiting(node, owner.session), 1):
        sent.append(delivery_record(row, keys.number(row)).queued(1.0))
        journal.restored("s", sent[-1], row.id)
        sent[-1].packet_id, sent[-1].state = packet_id, states.SENT
        journal.in_flight("s", sent[-1])
    await write()
    journal.released("s", sent[1])
    await write()
    content = (await node.content([owner.session]))[owner.session]
    found = session_record("s", 300, Principal("u"), content, keys.number)
    assert (found.client_id, found.expiry_interval, found.principal.user_name) == ("s", 300, "u")
    [one] = found.subscriptions
    asked = SubscriptionRequest("t/+", 2, True, True, 2)
    assert (one.request, one.identifier, one.streaming, found.received) == (asked, 9, False, [PACKET])
    flying = [(*of(each), each.packet_id, each.state, each.attempts) for each in found.deliveries]
    assert flying == [(b"1", 2, True, (9,), 1, states.SENT, 1), (None, 2, True, (9,), 2, states.RELEASED, 1)]
    kept = found.deliveries[0].message
    assert kept is not None
    assert (kept.topic, kept.qos, kept.retain) == (b"t/\xc3\xa4", 2, True)
    assert (kept.properties, kept.expires_in, kept.publisher) == (b"\x03\x00\x01y", None, "p")


def of(record: DeliveryRecord) -> tuple[bytes | None, int, bool, tuple[int, ...]]:
    return None if record.message is None else record.message.payload, record.qos, record.retain, record.identifiers
