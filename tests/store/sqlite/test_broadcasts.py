"""A message that goes to many sessions over several turns, and a broker that is killed between two of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.store.sqlite import SqliteStore
from tests.store.sqlite.place import opened

SESSIONS = 40


def made(store: SqliteStore) -> Router:
    """A broker whose sessions all listen to everything, and which hands a message to one of them in a turn."""
    router = Router(Limits())
    router.journal = store.journal
    router.fanout.at_once = 1
    for number in range(SESSIONS):
        session = Session(f"c{number}", 100, 1_000_000, router.counters)
        session.expiry_interval = 1_000
        router.session_table.add(session)
        session.keep(store.journal)
        for name in ("#", "t"):
            router.subscribe(session, "", name, Request(name, 2), 0)
    return router


async def test_numbers_go_on_above_those_of_what_was_on_its_way(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    for _ in range(3):
        number = store.journal.broadcast(Message(b"t", b"x", 1, False, b"", 0.0, "p"))
    await store.close()
    again = await opened(tmp_path)
    await again.load()
    assert again.journal.broadcast(Message(b"t", b"y", 1, False, b"", 0.0, "p")) > number
    await again.close()


async def test_many_groups_while_one_goes_on(tmp_path: Path) -> None:
    """A group ends between two turns, so that nobody else's acknowledgement waits for the last of many sessions."""
    store = await opened(tmp_path, commit_window=0.0)
    commits = store.journal.commits
    assert commits is not None
    router = made(store)
    router.publish(Message(b"t", b"x", 1, False, b"", 0.0, "p"), None)
    told = commits.journal_position
    groups = int(str(dict(store.figures())["groups"]))
    while router.fanout.broadcasting:
        router.budget.begin(1)
        router.fanout.broadcasts.step(router.budget)
        await store.flush()
        assert commits.committed == commits.journal_position > told
        await asyncio.sleep(0)
    assert int(str(dict(store.figures())["groups"])) >= groups + SESSIONS
    await store.close()
