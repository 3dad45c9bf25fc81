"""A subscriber whose policy is to be disconnected.

The broker is embedded, so that its ledgers can be held against what the clients counted; all else goes over sockets.
A message is lost when the ledger says so in the moment of its publish: how much the system's buffers take does not
matter. Sizes are such that a frozen client's buffers are full after a few dozen messages.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.counters import DISCONNECTED, FULL_MESSAGES, NO_QUOTA
from tests.e2e import wire
from tests.e2e.clients.frozen import until
from tests.e2e.embedded import (
    DEPTH,
    ENOUGH,
    KEPT,
    PAYLOAD,
    WINDOW,
    Embed,
    balance,
    dropped,
    froze,
    join,
    numbers,
    queue,
)
from tests.support.losses import dropped_by_cause

VERSIONS = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])


@VERSIONS
@pytest.mark.parametrize("expiry", [0, KEPT], ids=["session ends", "session kept"])
async def test_disconnect_ends_the_connection(embed: Embed, version: int, expiry: int) -> None:
    """0x97 in DISCONNECT (3.1.1: the end alone), behind a part without gaps; the Will is published."""
    broker = await embed(queue=queue(policy="disconnect"))
    will = wire.Will("wills", b"too slow")
    connect: dict[str, Any] = {"version": version, "clean": not expiry, "will": will}
    if version == 5:
        connect["props"] = [(wire.SESSION_EXPIRY, expiry)]
    frozen, session = await froze(broker, **connect)
    publisher = await join(broker, "publisher")
    watcher = await join(broker, "watcher", "wills")
    count = 0
    while not sum(dropped_by_cause(session)):
        count += 1
        assert count < ENOUGH
        await publisher.publish("load", b"%d " % count + PAYLOAD)
    thawed = await frozen.thaw()
    said = await thawed.closed()
    found = numbers(said)
    assert found == list(range(1, len(found) + 1))
    if version == 5:
        assert [(packet.kind, packet.code) for packet in said if packet.kind != wire.PUBLISH] == [
            (wire.DISCONNECT, 0x97)
        ]
        assert said[-1].kind == wire.DISCONNECT
    thawed.abort()
    assert (await watcher.message()).payload == b"too slow"
    await until("the socket is gone", lambda: len(broker.connections) == 2, publisher)
    assert dropped(session, FULL_MESSAGES, DISCONNECTED) == count - len(found)
    assert (session.offered, session.delivered_in_all(), session.queued()) == (count, len(found), 0)
    back = await join(broker, "frozen", **{**connect, "clean": False})
    assert back.connack.session_present is (expiry > 0)
    await publisher.publish("load", b"%d" % (count + 1))
    assert numbers(await back.fence()) == ([count + 1] if expiry else [])


async def test_disconnect_of_who_does_not_acknowledge(embed: Embed) -> None:
    """It is told 0x97; its session keeps what was in flight and what waited, and it gets them when it is back."""
    broker = await embed(queue=queue(policy="disconnect"))
    props = [(wire.RECEIVE_MAXIMUM, WINDOW), (wire.SESSION_EXPIRY, KEPT)]
    mute = await join(broker, "mute", ("load", 1), props=props)
    session = broker.router.sessions["mute"]
    publisher = await join(broker, "publisher")
    fits = WINDOW + DEPTH
    for number in range(1, fits + 1):
        await publisher.publish("load", b"%d" % number, qos=1)
    assert numbers(await mute.fence()) == list(range(1, WINDOW + 1))
    await publisher.publish("load", b"%d" % (fits + 1), qos=1)
    assert [(packet.kind, packet.code) for packet in await mute.closed()] == [(wire.DISCONNECT, 0x97)]
    back = await join(broker, "mute", clean=False, props=props)
    assert back.connack.session_present
    found = [await back.message() for _ in range(fits)]
    assert numbers(found) == list(range(1, fits + 1))
    assert [packet.dup for packet in found] == [True] * WINDOW + [False] * DEPTH
    assert await back.fence() == []
    assert dropped(session, NO_QUOTA, FULL_MESSAGES) == 1
    assert balance(broker, "mute") == (fits + 1, fits + 1)
