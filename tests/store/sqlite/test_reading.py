"""Messages are read back from disk in one row for all, with the same result as one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.persistence.journal import DeliveryRecord
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.store.sqlite.reading import read_on_disk
from canopy_mqtt.store.tools.verifying import verify
from tests.store.sqlite.place import Listener, Wanted, count, message, opened
from tests.support.runs import examples, for_each
from tests.support.waiting import until

MESSAGES = st.builds(
    Message,
    st.sampled_from([b"t", "é/\U0001f600".encode(), b'"\\/\x7f']),
    st.binary(max_size=20) | st.just(b"\0\0"),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([b"", b"\x01\x00", b"\x26\x00\x01a\x00\x00"]),
    st.sampled_from([0.0, 70.0, 1_000.25]),
    st.sampled_from(["", "p", 'é"']),
)
PAGED = st.lists(
    st.tuples(MESSAGES, st.booleans(), st.integers(0, 2), st.booleans(), st.sampled_from([(), (1,), (3, 268_435_455)])),
    min_size=2,
    max_size=8,
)


def plain(record: DeliveryRecord) -> tuple[Any, ...]:
    one = record.message
    assert one is not None
    expires_in = None if one.expires_in is None else round(one.expires_in, 3)
    return (
        record.number, record.qos, record.retain, record.identifiers, record.share, record.packet_id, record.state,
        record.attempts, one.topic, one.payload, one.qos, one.retain, one.properties, one.publisher, expires_in,
    )  # fmt: skip


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(paged=PAGED)
def test_together_and_one_by_one(
    paged: list[tuple[Message, bool, int, bool, tuple[int, ...]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    asyncio.run(read_twice(paged, tmp_path_factory.mktemp("store")))


async def read_twice(paged: list[tuple[Message, bool, int, bool, tuple[int, ...]]], directory: Path) -> None:
    """`shared`: another session has the message too, so that it stands by itself."""
    store = await opened(directory, synchronous="off")
    for client_id in "cd":
        store.journal.session_kept(client_id, Principal("u"), 300, 0.0)
    numbers: list[int] = []
    for one, shared, qos, retain, identifiers in paged:
        for client_id in "cd" if shared else "c":
            delivery = Delivery(one, qos, retain, identifiers, None)
            store.journal.paged(client_id, delivery)
            if client_id == "c":
                numbers.append(delivery.record)
    await store.flush()
    opened_file = store._opened
    assert opened_file is not None
    db = opened_file.db
    together, damages = await store._call(lambda: read_on_disk(db, 1, numbers[0], numbers[-1], 0.0))
    singly = await store._call(lambda: [each for n in numbers for each in read_on_disk(db, 1, n, n, 0.0)[0]])
    assert not damages.counts
    assert [plain(record) for record in together] == [plain(record) for record in singly]
    assert [record.number for record in together] == numbers
    assert [record.message and record.message.payload for record in together] == [one[0].payload() for one in paged]
    await store.close()


@for_each(
    "damage",
    [
        "UPDATE delivery SET topic = NULL WHERE number = 2",
        "UPDATE delivery SET payload = NULL WHERE number = 2",
        "UPDATE delivery SET payload = 'é' WHERE number = 2",
        "UPDATE delivery SET identifiers = 'x' WHERE number = 2",
        "UPDATE delivery SET identifiers = x'ff' WHERE number = 2",
        "UPDATE delivery SET topic = CAST(x'ff' AS TEXT) WHERE number = 2",
        "UPDATE delivery SET payload = x'33' WHERE number = 2",
        "UPDATE delivery SET expires_at = 9e999 WHERE number = 2",
        "UPDATE delivery SET message = 1 WHERE number = 2",
    ],
)
async def test_a_damaged_row_costs_itself_alone(tmp_path: Path, damage: str) -> None:
    store = await opened(tmp_path, synchronous="off")
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    for number in range(3):
        store.journal.paged("c", Delivery(message(b"%d" % number), 1, False, (), None))
    await store.flush()
    opened_file = store._opened
    assert opened_file is not None
    db = opened_file.db
    await store._call(lambda: db.execute(damage))
    fetch = Wanted(1, 3, 3)
    store.journal.fetch("c", fetch)
    await until(lambda: fetch.records)
    assert [record.number for record in fetch.records] == [1, 3]
    assert isinstance(store.listener, Listener)
    assert store.listener.counts == {"delivery": 1}
    assert [each.client_id for each in store.listener.damages] == ["c"]
    await store.close()
    # The row is gone from the file, and it alone: the next broker finds nothing to tell.
    assert await asyncio.to_thread(lambda: list(verify(tmp_path))) == []
    assert count(tmp_path, "delivery") == 2


async def test_messages_behind_the_last_one(tmp_path: Path) -> None:
    store = await opened(tmp_path, synchronous="off")
    opened_file = store._opened
    assert opened_file is not None
    records, damages = await store._call(lambda: read_on_disk(opened_file.db, 1, 4, 9, 0.0))
    assert (records, damages.counts) == ([], {})
    await store.close()
