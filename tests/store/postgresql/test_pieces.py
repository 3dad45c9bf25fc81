"""The sessions of a dead node's schema, read some at a time."""

from __future__ import annotations

import asyncio

import pytest

from broker.store import StoreError
from broker.store.postgresql import copying, pieces, reading
from tests.store.postgresql.nodes import Start, fill, hold
from tests.store.postgresql.place import ask


async def test_it_is_read_a_few_rows_at_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a statement ends, what is behind it follows."""
    for module, name in ((pieces, "TURN"), (reading, "TURN"), (pieces, "INDEXED"), (copying, "COPIED")):
        monkeypatch.setattr(module, name, 2)
    dead, node = await start(), await start()
    flight = await fill(dead)
    await dead.die()
    await dead.expire()
    await node.adopt(dead)
    await hold(node, *flight)


@pytest.mark.parametrize("known", [False, True])
async def test_of_a_session_with_very_much_the_others_cost_nothing(start: Start, known: bool) -> None:
    """Whatever the database knows of its tables, each row is read a few times at most."""
    rows = 20_000
    dead, node = await start(), await start()
    await (await dead.peer("c")).subscribe(("t", 1))
    await dead.die()
    await dead.expire()
    await ask(
        dead.name,
        "INSERT INTO session SELECT id + n, 'c' || n, principal, 3600 FROM session, generate_series(1, 300) AS n",
    )
    await ask(
        dead.name,
        "INSERT INTO delivery (number, session, qos, topic, payload, publish_qos, size)"
        f" SELECT n, id, 1, 't', 'text', 1, 8 FROM session, generate_series(1, {rows}) AS n WHERE client_id = 'c'",
    )
    if known:
        await ask(dead.name, "ANALYZE")
    estate = await node.take(dead)
    found = [record for _, record in estate.sessions] if await estate.more() else []
    assert len(found) == 301
    assert sum(page.messages for record in found for page in record.pages) == rows
    await estate.close()
    statement = (
        f"SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = '{dead.name}.delivery'::regclass"
    )
    read = 0
    async with asyncio.timeout(60):
        while read < 2 * rows:  # the database tells of it a little later
            [[read]] = await ask(dead.name, statement)
    assert read < 5 * rows


@pytest.mark.parametrize(("rows", "size"), [(4, 1 << 20), (1 << 20, 40)])
async def test_what_is_in_memory_of_a_dead_node_is_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch, rows: int, size: int
) -> None:
    """In rows and in bytes, payloads of messages that several sessions share among them: one session has more, perhaps.
    Those that follow are read when these have come."""
    monkeypatch.setattr(pieces, "MOST_ROWS", rows)
    monkeypatch.setattr(pieces, "MOST_BYTES", size)
    dead, node = await start(memory_messages=100), await start()
    for number in range(6):
        peer = await dead.peer(f"c{number}")
        await peer.subscribe(("t", 1), ("large", 1) if number == 0 else ("other", 1))
        await peer.disconnect()
    publisher = await dead.peer("publisher")
    await publisher.publish("t", b"x" * 20, qos=1)
    await publisher.publish("large", b"x" * 100, qos=1)
    await publisher.publish("large", b"x", qos=1)
    await dead.die()
    await dead.expire()
    estate = await node.take(dead)
    assert estate.count == 7
    read: list[list[str]] = []
    while await estate.more():
        read.append([record.client_id for _, record in estate.sessions])
        while estate.sessions:
            node.adopter.adopt(estate, 1)
    expected = [["c0"], ["c1"], ["c2"], ["c3"], ["c4"], ["c5", "publisher"]]
    assert read == (expected if rows == 4 else [["c0"], ["c1", "c2"], ["c3", "c4"], ["c5", "publisher"]])
    await estate.kept()
    await estate.close()
    for number in range(6):
        peer = await node.peer(f"c{number}", present=True)
        found = [(await peer.message()).payload for _ in range(3 if number == 0 else 1)]
        assert [len(each) for each in found] == ([20, 100, 1] if number == 0 else [20])


async def test_messages_on_their_way_to_very_many_come_to_those_that_had_them_not(start: Start) -> None:
    dead, node = await start(), await start()
    for client_id in ("had", "not", "neither"):
        await (await dead.peer(client_id)).subscribe(("news" if client_id != "neither" else "other", 1))
    await dead.die()
    await ask(dead.name, "INSERT INTO broadcast VALUES (1000000, 'news', 'text', 1, false, NULL, 'p', NULL);")
    await ask(dead.name, "INSERT INTO passed SELECT 1000000, id FROM session WHERE client_id = 'had'")
    await dead.expire()
    await node.adopt(dead)
    assert await (await node.peer("had", present=True)).fence() == []
    assert await (await node.peer("neither", present=True)).fence() == []
    assert (await (await node.peer("not", present=True)).message()).payload == b"text"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE session SET principal = '{}' WHERE client_id = 'bad'",
        (
            "INSERT INTO delivery (number, session, qos, identifiers, topic, payload, publish_qos)"
            " SELECT 1000000, id, 1, 'none', 't', 'text', 1 FROM session WHERE client_id = 'bad'"
        ),
    ],
)
async def test_rows_that_no_broker_wrote_are_told_of(start: Start, change: str) -> None:
    """The sessions before them have come, and nobody holds the store."""
    dead, node = await start(), await start()
    for client_id in ("good", "bad"):
        await (await dead.peer(client_id)).subscribe(("t", 1))
    await dead.die()
    await dead.expire()
    await ask(dead.name, change)
    estate = await node.take(dead)
    with pytest.raises(StoreError, match=f"schema {dead.name} is damaged: restore it from a backup"):
        await node.put(estate)
    await estate.close()
    assert await node.sees(dead)
