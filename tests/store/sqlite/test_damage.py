"""Bytes that change on the disk: each costs the row that it is in alone, and nothing is given out that differs."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.core.codec.packets import SubscriptionRequest, Will
from broker.core.principal import Principal
from broker.core.queues.delivery import Delivery
from broker.core.queues.message import Message
from broker.core.topics.subscription import Subscriber, Subscription
from broker.store.base import StoreError
from broker.store.groups.principals import Principals
from broker.store.sqlite.opening import FILE, open_store
from broker.store.sqlite.reading import discard, read, read_on_disk
from broker.store.tools.verifying import verify
from tests.store.sqlite.place import opened
from tests.support.runs import examples

SESSIONS = 12


class Content(NamedTuple):
    """What a broker would find in a store."""

    sessions: dict[str, str]
    wills: dict[str, bytes]
    subscriptions: set[tuple[str, str]]
    deliveries: dict[str, list[tuple[bytes, int, int]]]
    received: set[tuple[str, int]]
    retained: dict[bytes, bytes]


def payload(name: str, size: int = 0) -> bytes:
    """One that no other message has."""
    return name.encode() + bytes(range(1, 200)) * size


async def fill(directory: Path) -> None:
    store = await opened(directory, synchronous="off")
    journal = store.journal
    for at in range(SESSIONS):
        name = f"client-{at}"
        journal.session_kept(name, Principal(f"user-{at}"), 300, 0.0 if at % 2 else 1.0)
        if at % 3 == 0:
            journal.will_set(name, Will(f"will/{at}", payload(f"will {at}"), 1, False, 0, -1, b""), 0.0)
        for number in range(3):
            request = SubscriptionRequest(f"filter/{at}/{number}/+", 1, False, False, 0)
            one = Subscription(Subscriber(), request.topic_filter)
            one.agree(request, 0, 2)
            journal.subscribed(name, one, number == 0)
        for number in range(4):
            journal.queued(name, delivery(f"queued {at} {number}", 7 if number == 0 and at == 5 else 0))
        sent, released = delivery(f"sent {at}", qos=2), delivery(f"released {at}", qos=2)
        for number, each in enumerate((sent, released), 1):
            each.packet_id = number
            journal.in_flight(name, each)
        await store.flush()
        journal.released(name, released)
        for number in range(6):
            journal.paged(name, delivery(f"paged {at} {number}"))
        for number in range(3):
            journal.received(name, 100 + number)
    shared = Message(b"shared", payload("shared by all"), 1, False, b"", 0.0, "p")
    for at in range(SESSIONS):
        journal.queued(f"client-{at}", Delivery(shared, 1, False, (), None))
    for number in range(60):
        body = payload(f"retained {number}", 100 if number == 7 else 0)
        journal.retained_set(Message(b"retained/%d" % number, body, 1, True, b"", 0.0, "p"))
    await store.close()


def delivery(name: str, size: int = 0, qos: int = 1) -> Delivery:
    return Delivery(
        Message(b"t/" + name.encode(), payload(name, size), qos, False, b"", 0.0, "p"), qos, False, (), None
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "s"
    asyncio.run(fill(folder))
    return folder


def copy(whole: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    shutil.copyfile(whole / FILE, to / FILE)
    (to / FILE).chmod(0o600)
    return to


def look(directory: Path) -> tuple[Content, dict[str, int]]:
    """What a broker finds that sets damaged files aside, with what waits on disk alone; and what it tells of damage."""
    store = open_store(directory, "off", "set-aside")
    try:
        loaded = read(store.db, 0.0, Principals())
        discard(store.db, loaded)
        told = dict(loaded.damages.counts)
        if store.rebuilt is not None:
            told |= {"aside": 1, **store.rebuilt.lost}
        content = Content({}, {}, set(), {}, set(), {each.topic: each.payload for each in loaded.saved.retained})
        for number, session in loaded.sessions.items():
            name = session.client_id
            content.sessions[name] = str(session.principal.user_name)
            if session.will is not None:
                content.wills[name] = session.will.will.payload
            content.subscriptions.update((name, each.request.topic_filter) for each in session.subscriptions)
            content.received.update((name, each) for each in session.received)
            found = list(session.deliveries)
            for page in session.pages:
                records, damages = read_on_disk(store.db, number, page.first, page.last, 0.0)
                found += records
                for what, count in damages.counts.items():
                    told[what] = told.get(what, 0) + count
            content.deliveries[name] = [
                (b"" if each.message is None else each.message.payload, each.state, each.packet_id)
                for each in sorted(found, key=lambda each: each.number)
            ]
        return content, told
    finally:
        store.close()


def check(before: Content, after: Content) -> None:
    """Nothing came, nothing changed, and what is lost was in one row."""
    assert after.sessions.items() <= before.sessions.items()
    assert after.wills.items() <= before.wills.items()
    assert after.subscriptions <= before.subscriptions
    assert after.received <= before.received
    assert after.retained.items() <= before.retained.items()
    gone = before.sessions.keys() - after.sessions.keys()
    lost: list[object] = [*gone]
    lost += [name for name in before.wills.keys() - after.wills.keys() if name not in gone]
    lost += [each for each in before.subscriptions - after.subscriptions if each[0] not in gone]
    lost += [each for each in before.received - after.received if each[0] not in gone]
    lost += before.retained.keys() - after.retained.keys()
    payloads = set()
    for name, found in after.deliveries.items():
        there = iter(before.deliveries[name])
        # In their order, and each once.
        assert all(each in there for each in found), name
        payloads.update(set(before.deliveries[name]) - set(found))
    lost += payloads
    assert len(lost) <= 1, lost


def flips() -> list[int]:
    return list(range(examples(600)))


def test_any_byte_costs_one_row_at_most(whole: Path, tmp_path: Path) -> None:
    """All over the file: rows, heads and pointers of pages, roots of trees, indexes, maps, schema, the first page."""
    before, _ = look(copy(whole, tmp_path / "s"))
    data = (whole / FILE).read_bytes()
    chosen = random.Random(29)
    for _ in flips():
        at, bit = chosen.randrange(len(data)), chosen.choice([0x01, 0x02, 0x04, 0x10, 0x40, 0x80, 0xFF])
        copy(whole, tmp_path / "s")
        hurt(tmp_path / "s", at, bit)
        faults = faults_of(tmp_path / "s")
        after, told = look(tmp_path / "s")
        try:
            check(before, after)
            # A byte that nothing uses may be any.
            assert faults or after == before
            assert told or after == before
            assert not faults_of(tmp_path / "s")
        except AssertionError as error:
            raise AssertionError(
                f"byte {at} (page {at // 4096 + 1}, {at % 4096}) ^ {bit:#x}: {faults[:3]} {told}"
            ) from error


def hurt(directory: Path, at: int, bit: int) -> None:
    data = bytearray((directory / FILE).read_bytes())
    data[at] ^= bit
    (directory / FILE).write_bytes(data)


def faults_of(directory: Path) -> list[str]:
    try:
        return list(verify(directory))
    except StoreError as error:
        return [str(error)]
