"""The longest names that a broker with a database takes fit into its indexes."""

from __future__ import annotations

import random

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.settings import MAX_STORED_NAME
from tests.store.postgresql.place import opened
from tests.store.sqlite.place import message
from tests.support.sessions import any_session

LONGEST = "".join(random.Random(1).choices("".join(map(chr, range(0x21, 0x7F))), k=MAX_STORED_NAME))
"""It cannot be compressed."""


async def test_the_longest_names_are_kept(name: str) -> None:
    store = await opened(name)
    store.journal.session_kept(LONGEST, Principal("u"), 300, 0.0)
    store.journal.subscribed(LONGEST, Subscription(any_session(), LONGEST, 1), False)
    store.journal.retained_set(message(topic=LONGEST.encode()))
    await store.close()
    store = await opened(name)
    saved = await store.load()
    await store.close()
    assert [each.client_id for each in saved.sessions] == [LONGEST]
    assert [each.request.topic_filter for each in saved.sessions[0].subscriptions] == [LONGEST]
    assert [each.topic for each in saved.retained] == [LONGEST.encode()]
