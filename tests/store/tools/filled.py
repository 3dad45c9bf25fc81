"""A store with something of everything in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from canopy_mqtt.core.codec.packets import SubscriptionRequest, Will
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import SENT, Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store.sqlite import SqliteStore
from tests.store.sqlite.place import delivery, message, opened
from tests.support.sessions import any_session

if TYPE_CHECKING:
    from canopy_mqtt.store.postgresql import PostgresStore


async def fill(directory: Path) -> SqliteStore:
    """An open store with two sessions, one of them away."""
    store = await opened(directory)
    await fill_in(store)
    return store


async def fill_in(store: SqliteStore | PostgresStore) -> None:
    """Store these in an open store."""
    journal = store.journal
    journal.session_kept("away", Principal("u", ("g",), {"room": "7"}), 300, store_now(store))
    journal.session_kept("da 'n\" é", Principal(None), 0xFFFF_FFFF, 0.0)
    journal.will_set("away", Will("w/é", b"\x00gone", 1, True, 5, 60, b"\x01\x01"), store_now(store) + 5.0)
    for name, qos in (("a/+", 1), ("$share/s/b/#", 2)):
        one = Subscription(any_session(), name)
        one.agree(SubscriptionRequest(name, qos, False, True, 1), 7, 2)
        journal.subscribed("away", one, qos == 1)
    journal.received("da 'n\" é", 9)
    shared = Message(b"shared/\xc3\xa9", b"\xff" * 300, 2, True, b"\x01\x00", store_now(store) + 100.0, "p")
    for client_id in ("away", "da 'n\" é"):
        journal.queued(client_id, Delivery(shared, 2, False, (), None))
    for number in range(3):
        journal.queued("away", delivery(b"%d" % number))
    sent = Delivery(message(b"sent"), 2, False, (), None)
    released = Delivery(message(b"released"), 2, False, (), None)
    for packet_id, one_sent in enumerate((sent, released), 1):
        one_sent.packet_id, one_sent.state = packet_id, SENT
        journal.in_flight("away", one_sent)
    journal.released("away", released)
    journal.retained_set(message(b"kept", b"r/1"))
    journal.retained_set(message(b"soon", b"r/2", store_now(store) + 50.0))
    number = journal.broadcast(Message(b"many/\xc3\xa9", b"\x00to all", 1, False, b"", store_now(store) + 90.0, "p"))
    journal.passed(number, "away")
    await store.flush()


def store_now(store: SqliteStore | PostgresStore) -> float:
    loop = store._loop
    assert loop is not None
    return loop.time()
