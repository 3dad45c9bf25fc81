"""The promises of the store in memory alone."""

from __future__ import annotations

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.store import MemoryStore
from tests.store.observed import at_once
from tests.store.places import Clock


def test_a_retained_message_is_that_of_the_deliveries() -> None:
    """Payloads stand once."""
    store = MemoryStore()
    at_once(store.open(Clock(1.0)))
    shared = Message(b"a", b"1", 1, True, b"", 0.0, "p")
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    store.journal.queued("c", Delivery(shared, 1, False, (), None))
    store.journal.retained_set(shared)
    saved = at_once(store.load())
    assert saved.sessions[0].deliveries[0].message is saved.retained[0]
