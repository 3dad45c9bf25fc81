"""What a running node asks of the database at once, and again, and where hints of other nodes are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest

from canopy_mqtt.store.shared.calls import Ask, DeliveryKey, General, Page, Terms, Written
from canopy_mqtt.store.shared.node import BYTES
from tests.core.harness import Client
from tests.store.shared.brokers import EXPIRY, Broker, client_of, publish, subscribe
from tests.store.shared.nodes import Nodes
from tests.store.shared.place import message
from tests.support.waiting import until


def got(client: Client) -> list[bytes]:
    return [each.payload for each in client.inbox]


async def test_messages_are_read_where_hints_are_missing(brokers: list[Broker]) -> None:
    here, there = brokers
    client, publisher = await client_of(there, "s"), await client_of(here, "p")
    await subscribe(client, "a")
    here.linked = there.linked = False
    for payload in (b"1", b"2"):  # the first one may come since all is read when another node is seen first
        await publish(publisher, payload)
        await until(lambda: client.inbox and client.inbox[-1].payload == payload)  # noqa: B023 (it is awaited here)


async def test_only_links_to_nodes_that_are_alive_are_missed(nodes: Nodes) -> None:
    """While one is down for maintenance, nobody reads for its hints."""
    broker, other = Broker([], await nodes.open("a")), await nodes.open("b")
    missed: list[set[str]] = []

    def linked(names: Collection[str]) -> bool:
        missed.append({*names})
        return True

    broker.store._is_linked = linked
    await broker.open()
    await until(lambda: {"b"} in missed)
    await other.leave()
    await until(lambda: missed[-1] == set())
    await broker.store.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_all_sessions_are_read_some_at_a_time(brokers: list[Broker], fails: bool) -> None:
    """Also where the database does not answer in between."""
    here, there = brokers
    here.store.node.page = 2
    clients = [await client_of(here, f"s{number}") for number in range(5)]
    for client in clients:
        await subscribe(client, "a")
    publisher = await client_of(there, "p")
    here.linked = there.linked = False
    here.store._is_linked = lambda _: True  # else all is read each second
    pages: list[int] = []
    database = here.store.running.database
    read = database.read

    async def reads(asks: Sequence[Ask], known: Iterable[DeliveryKey] = ()) -> list[Page]:
        pages.append(len(asks))
        if fails and len(pages) == 2:
            raise ConnectionError("lost")
        return await read(asks, known)

    database.read = reads  # type: ignore[method-assign]
    await publish(publisher, b"1")
    here.store.node.receive(General())
    here.store.node.receive(General())
    await until(lambda: all(got(client) == [b"1"] for client in clients))
    assert max(pages) == 2


async def test_what_was_to_be_asked_when_an_incarnation_ended_is_written_in_the_next(brokers: list[Broker]) -> None:
    """The group before it was written, and says nothing about it."""
    here, there = brokers
    client, publisher = await client_of(there, "s"), await client_of(here, "p")
    await subscribe(client, "a")
    await publish(publisher, b"1")
    node = here.store.node
    await until(lambda: got(client) == [b"1"] and node.flight is None and not node.notes)
    here.store.journal.note(message(b"2", []))
    node.close_group()
    node.over()  # before the call has its turn
    await until(lambda: got(client) == [b"1", b"2"])


async def test_sessions_are_claimed_and_read_together(brokers: list[Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is new takes a call of its own. Of two connections of a client the later one has the session."""
    here, there = brokers
    names = ["s1", "s2", "s3"]
    for name in names:
        await subscribe(await client_of(there, name), "a")
    publisher = await client_of(there, "p")
    database = here.store.running.database
    claimed: list[list[str]] = []
    claim_free = database.claim_free

    async def claims(client_ids: Sequence[str], terms: Sequence[Terms], **options: Any) -> Any:
        claimed.append(sorted(client_ids))
        return await claim_free(client_ids, terms, **options)

    monkeypatch.setattr(database, "claim_free", claims)
    new, first, replaced, third, second = [here.idle(name) for name in ("new", *names, "s2")]
    for client in (new, first, replaced, third, second):
        client.judge.enabled = False
        client.connect(clean=False, expiry=EXPIRY)
    await until(lambda: all(each.connack.reason_code == 0 for each in (new, first, second, third)))
    assert (claimed, replaced.closed) == ([names], True)
    node = here.store.node
    await until(lambda: not (node.unread or node.is_reading))
    here.reads.clear()
    await publish(publisher, b"1")
    await until(lambda: all(got(each) == [b"1"] for each in (first, second, third)))
    assert sorted(ask.session for ask in here.reads[0]) == sorted(node.by_client[name].id for name in names)


async def test_a_group_has_few_large_messages(brokers: list[Broker]) -> None:
    """PostgreSQL would refuse what is too much at once, again and again."""
    node, journal = brokers[0].store.node, brokers[0].store.journal
    await until(lambda: node.flight is None)
    written: list[Written] = []
    for _ in range(4):
        journal.note(message(bytes(BYTES // 2), []), written.append)
    node.close_group()
    assert len(node.flight or ()) == 2
    await until(lambda: len(written) == 4)
