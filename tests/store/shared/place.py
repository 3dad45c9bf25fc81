"""What tests write into a shared store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from canopy_mqtt.store.shared.calls import Ask, Claimed, Group, Publish, Subscribe, Waiting, Written
from canopy_mqtt.store.shared.database import SharedDatabase


async def claim(node: SharedDatabase, client: str, *, clean: bool = False, expiry: int = 300) -> Claimed:
    claimed = await node.claim(client, clean=clean, expiry=expiry, principal="{}")
    assert isinstance(claimed, Claimed)
    return claimed


async def subscribe(node: SharedDatabase, client: str, *filters: str, qos: int = 2, **options: Any) -> Claimed:
    """Claim a session that has subscriptions."""
    owner = await claim(node, client)
    wanted = [Subscribe(owner.session, owner.epoch, each, qos, **options) for each in filters]
    assert not (await node.write(Group(subscribes=wanted))).lost
    return owner


def message(payload: bytes, filters: Iterable[int], **options: Any) -> Publish:
    terms: dict[str, Any] = {
        "session": None, "epoch": None, "packet_id": 0, "topic": "a", "qos": 1, "retain": False, "properties": None,
        "publisher": "p", "expiry": None, **options,
    }  # fmt: skip
    return Publish(payload=payload, filters=list(filters), **terms)


async def publish(node: SharedDatabase, payload: bytes, *names: str, **options: Any) -> Written:
    """Write a message for the sessions behind filters."""
    await node.feed()
    rows = await node._reads.fetch("SELECT id FROM filter WHERE name = ANY ($1)", names)
    assert len(rows) == len(names)
    written = await node.write(Group(publishes=[message(payload, [row["id"] for row in rows], **options)]))
    assert not written.rematch
    return written


async def waiting(node: SharedDatabase, session: int) -> list[Waiting]:
    [page] = await node.read([Ask(session, 0, 100)])
    return list(page.waiting)
