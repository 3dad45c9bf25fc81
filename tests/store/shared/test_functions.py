"""What the functions of a shared store do with messages, subscriptions and sessions, one call after another."""

from __future__ import annotations

from typing import Final

import asyncpg

from canopy_mqtt.store.shared.calls import (
    ACKNOWLEDGED,
    SENT,
    Ask,
    Change,
    Claimed,
    Completion,
    DeliveryKey,
    EndedWill,
    Foreign,
    Group,
    Hint,
    NewWill,
    Page,
    Release,
    Subscribe,
)
from canopy_mqtt.store.shared.database import WRITE
from canopy_mqtt.store.shared.functions import PAGE_BYTES
from canopy_mqtt.store.shared.schema import LONG, NEVER, SLOTS
from tests.store.shared.nodes import Nodes
from tests.store.shared.place import claim, message, publish, subscribe, waiting


async def test_a_message_comes_as_it_was_published(nodes: Nodes) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a", qos=1, identifier=7)
    written = await publish(node, b"\x00payload", "a", qos=2, properties=b"\x01\x01", expiry=60, retain=True)
    [row] = await waiting(node, owner.session)
    assert written.hints == [Hint(owner.session, 1, row.id)]
    left = row.expiry
    assert left is not None
    assert 50 < left <= 60
    assert row == (0, 0, row.id, 1, 0, 0, False, [7], "a", b"\x00payload", b"\x01\x01", "p", left)


async def test_a_session_gets_a_message_once_by_several_filters(nodes: Nodes) -> None:
    """With the highest QoS, and all identifiers [MQTT-3.3.4-2] [MQTT-3.3.4-3]."""
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a", qos=1, identifier=9)
    await subscribe(node, "s", "+", qos=2, identifier=8, retain_as_published=True)
    await subscribe(node, "s", "#", qos=0)
    await publish(node, b"1", "a", "+", "#", qos=2, retain=True)
    [row] = await waiting(node, owner.session)
    assert (row.qos, row.identifiers, row.retain) == (2, [8, 9], True)


async def test_a_publisher_with_no_local_does_not_get_its_own(nodes: Nodes) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a", no_local=True)
    other = await subscribe(node, "t", "a", no_local=True)
    await publish(node, b"1", "a", session=owner.session, epoch=owner.epoch)
    await publish(node, b"2", "a")
    assert [row.payload for row in await waiting(node, owner.session)] == [b"2"]
    assert [row.payload for row in await waiting(node, other.session)] == [b"1", b"2"]


async def test_nothing_is_kept_for_a_subscription_of_qos_0(nodes: Nodes) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a", qos=0)
    assert (await publish(node, b"1", "a")).hints == []
    assert [each.qos for each in (await node.content([owner.session]))[owner.session].subscriptions] == [0]


async def test_qos_2_of_a_clean_session_is_not_fenced(nodes: Nodes) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    for _ in range(2):
        await publish(node, b"1", "a", qos=2, packet_id=7)
    assert len(await waiting(node, owner.session)) == 2


async def test_a_page_says_whether_there_is_more(nodes: Nodes) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    for number in range(3):
        await publish(node, b"%d" % number, "a")
    [page] = await node.read([Ask(owner.session, 0, 2)])
    assert ([row.payload for row in page.waiting], page.more, page.epoch) == ([b"0", b"1"], True, 1)
    known = [DeliveryKey(owner.session, row.source, row.id) for row in page.waiting]
    [page] = await node.read([Ask(owner.session, 0, 2)], known)
    assert ([row.payload for row in page.waiting], page.more) == ([b"2"], False)
    [page] = await node.read([Ask(owner.session, page.waiting[0].id, 2)])
    assert (page.waiting, page.more) == ([], False)
    [page] = await node.read([Ask(12345, 0, 2)])
    assert (page.epoch, page.waiting) == (None, [])


async def test_a_page_of_large_messages_has_few(nodes: Nodes) -> None:
    """The answer would be larger than PostgreSQL's can be, or the broker's memory."""
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    for size in (1, PAGE_BYTES - 2, 1, 1, PAGE_BYTES + 1, 1):
        await publish(node, bytes(size), "a")
    pages: list[Page] = []
    low = 0
    while low == 0 or pages[-1].more:
        pages += await node.read([Ask(owner.session, low, 100)])
        low = pages[-1].waiting[-1].id
    assert [len(page.waiting) for page in pages] == [3, 2, 1]


async def test_a_subscription_is_replaced_and_ends(nodes: Nodes) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a", "b", qos=1)
    await subscribe(node, "s", "a", qos=2, retain_handling=1, identifier=3)
    owner = await claim(node, "s")
    content = (await node.content([owner.session]))[owner.session]
    expected = [Subscribe(owner.session, None, "a", 2, False, False, 1, 3), Subscribe(owner.session, None, "b", 1)]
    assert sorted(content.subscriptions) == expected
    await node.write(Group(subscribes=[Subscribe(owner.session, owner.epoch, "a", None)], ends=["a", "b"]))
    assert [each.filter for each in (await node.content([owner.session]))[owner.session].subscriptions] == ["b"]
    assert {each.name: each.gone for each in await node.feed()} == {"a": True, "b": False}


async def test_a_session_expires_after_its_release(nodes: Nodes) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    for client, expiry in (("never", NEVER), ("at once", 0), ("later", 300)):
        other = await claim(node, client, expiry=expiry)
        await node.write(Group(releases=[Release(other.session, other.epoch)]))
    await publish(node, b"1", "a")
    assert await nodes.ask("SELECT expire_1(10)") == [(1,)]
    left = await nodes.ask("SELECT client_id, expires_at = 'infinity' FROM session ORDER BY 1")
    assert left == [("later", False), ("never", True), ("s", None)]
    again = await claim(node, "later")
    assert (again.present, again.epoch) == (True, 2)
    assert await nodes.ask("SELECT expires_at FROM session WHERE client_id = 'later'") == [(None,)]
    # A clean start leaves to the sweeper what the session had.
    anew = await claim(node, "s", clean=True)
    assert (anew.present, anew.session != owner.session) == (False, True)
    while (await nodes.ask("SELECT collect_1(100)"))[0][0]:
        pass
    assert await nodes.ask("SELECT count(*) FROM delivery") == [(0,)]
    assert await nodes.ask("SELECT count(*) FROM subscription") == [(0,)]


async def test_a_session_whose_time_is_over_has_ended_before_it_is_swept(nodes: Nodes) -> None:
    """Also if its client says so only when it leaves (3.14.2.2.2)."""
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    await node.write(Group(releases=[Release(owner.session, owner.epoch, expiry=600)]))
    kept = await claim(node, "s")
    assert (kept.session, kept.present) == (owner.session, True)
    await node.write(Group(releases=[Release(kept.session, kept.epoch, expiry=0)]))
    anew = await claim(node, "s")
    assert anew.present is False
    assert (await node.content([anew.session]))[anew.session].subscriptions == []


async def test_a_session_belongs_to_a_user(nodes: Nodes) -> None:
    """Nobody else claims it, unless the settings let any user, or its time is over; another mount has none of it."""
    node = await nodes.open("a")

    async def ask(principal: str, *, any_user: bool = False) -> Claimed | Foreign:
        return await node.claim("s", clean=True, expiry=300, principal=principal, any_user=any_user)

    made = await ask('{"user_name": "u"}')
    assert isinstance(made, Claimed)
    assert await ask('{"user_name": "other"}') == Foreign()
    assert await ask('{"user_name": null}') == Foreign()
    assert (await node.content([made.session]))[made.session].epoch == made.epoch
    mine = await ask('{"user_name": "u"}')
    assert isinstance(mine, Claimed)
    there = await node.claim("s", clean=False, expiry=300, principal='{"user_name": "u", "mount": "m/"}')
    assert isinstance(there, Claimed)
    assert (there.session != mine.session, there.present) == (True, False)
    assert isinstance(await ask('{"user_name": "other"}', any_user=True), Claimed)
    [[session, epoch]] = await nodes.ask("SELECT id, epoch FROM session")
    await node.write(Group(releases=[Release(session, epoch, expiry=0)]))
    assert isinstance(await ask('{"user_name": "u"}'), Claimed)


async def test_slots_are_written_in_turn_and_emptied(nodes: Nodes) -> None:
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    for number in range(3 * SLOTS):
        await publish(node, b"%d" % number, "a")
        await nodes.ask("SELECT change_slot_1(0)")
        old = (number + SLOTS - 1) % SLOTS
        assert await nodes.ask(f"SELECT empty_deliveries_1({old}::smallint)") == [(True,)]
        assert await nodes.ask(f"SELECT empty_messages_1({old}::smallint)") == [(True,)]
    rows = await waiting(node, owner.session)
    assert [row.payload for row in rows] == [b"%d" % number for number in range(3 * SLOTS)]
    assert [row.slot for row in rows] == [LONG] * (3 * SLOTS - 1) + [(3 * SLOTS - 1) % SLOTS]
    # What was read elsewhere is changed where it is.
    changes = [Change(owner.session, None, 0, row.id, 0, ACKNOWLEDGED) for row in rows]
    await node.write(Group(changes=changes[:-1]))
    assert [row.payload for row in await waiting(node, owner.session)] == [b"%d" % (3 * SLOTS - 1)]
    await nodes.ask("SELECT clean_long_1()")
    assert await nodes.ask("SELECT count(*) FROM message") == [(1,)]


async def test_the_current_slot_is_not_emptied(nodes: Nodes) -> None:
    node = await nodes.open("a")
    await subscribe(node, "s", "a")
    await publish(node, b"1", "a")
    for call in ("empty_deliveries_1(0::smallint)", "empty_messages_1(0::smallint)"):
        assert await nodes.ask(f"SELECT {call}") == [(False,)]
    assert await nodes.ask("SELECT move_1(0::smallint, 10)") == [(0,)]
    for _ in range(2 * SLOTS):
        await nodes.ask("SELECT change_slot_1(0)")
    # The slot that is not empty is not written into again.
    assert await nodes.ask("SELECT current FROM slots") == [(SLOTS - 1,)]


MANY: Final = 2_000
"""Sessions, filters, subscriptions, messages and retained messages of others."""

OTHERS: Final = f"""
INSERT INTO session SELECT -i, 'other ' || i, NULL, 1, 1, '{{}}', 300, 'infinity' FROM generate_series(1, {MANY}) i;
INSERT INTO filter (name, gone, node, grp) SELECT 'other/' || i, false, 1, 0 FROM generate_series(1, {MANY}) i;
INSERT INTO subscription SELECT -i, id, 1, false, false, 0, 0
    FROM filter JOIN generate_series(1, {MANY}) i ON name = 'other/' || i;
INSERT INTO message SELECT 1, -i, 'a', 'x', 1, false, NULL, NULL, NULL FROM generate_series(1, {MANY}) i;
INSERT INTO delivery SELECT 1, -i, 0, -i, 1, 0, 0, false, NULL FROM generate_series(1, {MANY}) i;
INSERT INTO received SELECT -i, 1 FROM generate_series(1, {MANY}) i;
INSERT INTO retained SELECT 'other/' || i, 'x', 1, NULL, NULL, NULL, 'infinity', -i, 1, 0
    FROM generate_series(1, {MANY}) i;
INSERT INTO will SELECT -i, 1, 1, 1, 'other ' || i, '{{}}', 'a', 'x', 1, false, NULL, NULL, 0, NULL
    FROM generate_series(1, {MANY}) i;
INSERT INTO progress SELECT 1, -i, 1, 0, '{{}}', '{{}}' FROM generate_series(1, {MANY}) i;
"""

ROWS_READ: Final = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"


async def test_a_call_reads_what_it_is_about_however_much_else_is_there(nodes: Nodes) -> None:
    """Also with plans that were made while the tables were empty."""
    node = await nodes.open("a")
    owner = await subscribe(node, "s", "a")
    written = await publish(node, b"1", "a", session=owner.session, epoch=owner.epoch, qos=2, packet_id=1)
    [key] = written.hints
    [[known]] = await nodes.ask("SELECT id FROM filter")
    group = Group(
        publishes=[
            message(b"2", [known], session=owner.session, epoch=owner.epoch, qos=2, packet_id=2, retained=True),
        ],
        completions=[Completion(owner.session, owner.epoch, 1)],
        subscribes=[Subscribe(owner.session, owner.epoch, "b", 1), Subscribe(owner.session, owner.epoch, "c", None)],
        ends=["c"],
        changes=[
            Change(owner.session, owner.epoch, 0, key.id, 0, SENT, 1),
            Change(owner.session, None, 0, 77, 0, ACKNOWLEDGED),
        ],
        releases=[Release(owner.session, owner.epoch)],
        reap=10,
        new_wills=[NewWill(owner.session, owner.epoch, "w", b"will", 1, False, None, None, 5)],
        ended_wills=[EndedWill(owner.session, 0, 5)],
    )

    def number() -> int:
        return node.grp + 1

    calls = (
        lambda: (
            WRITE, node.node, node.incarnation, number(), [node.node], [node.grp], [node.node], [node.grp],
            group.publishes, group.completions, group.subscribes, group.ends, group.changes, group.releases, group.reap,
            group.new_wills, group.ended_wills,
        ),
        lambda: ("SELECT claim_1($1, $2, 's', true, 300, '{}', true)", node.node, node.incarnation),
        lambda: (
            "SELECT claim_free_1($1, $2, '{s}', '{300}', '{\"{}\"}', true, '{\"\"}')", node.node,
            node.incarnation,
        ),
        lambda: ("SELECT * FROM content_1($1)", owner.session),
        lambda: ("SELECT * FROM read_1($1, $2, $3, $4)", [owner.session], [0], [10], [(owner.session, 0, key.id)]),
        lambda: ("SELECT * FROM feed_1($1, $2)", [node.node], [node.grp]),
        lambda: ("SELECT * FROM retained_1($1, $2, 10)", [node.node], [node.grp]),
        lambda: ("SELECT forget_retained_1(10)",),
        lambda: ("SELECT * FROM look_1()",),
        lambda: ("SELECT * FROM wills_1($1, $2, 10)", node.node, node.incarnation),
        lambda: ("SELECT expire_1(10)",),
        lambda: ("SELECT collect_1(10)",),
        lambda: ("SELECT * FROM bound_1($1, 1, 1, 10)", owner.session),
        lambda: ("SELECT move_1(2::smallint, 10)",),
    )  # fmt: skip
    connection = await asyncpg.connect(nodes.url, server_settings={"search_path": nodes.name, "jit": "off"})
    read = {}
    for others in ("SELECT 1", OTHERS):
        await connection.execute(others)
        for call in calls:
            transaction = connection.transaction()
            await transaction.start()
            before = await connection.fetchval(ROWS_READ) or 0
            statement, *values = call()
            await connection.fetch(statement, *values)
            read[statement] = (await connection.fetchval(ROWS_READ)) - before
            await transaction.rollback()
    await connection.close()
    assert {statement: rows for statement, rows in read.items() if rows > 100} == {}
    assert read[WRITE] > 5
