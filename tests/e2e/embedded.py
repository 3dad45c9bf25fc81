"""Brokers of this process with small buffers, so that queues and ledgers can be looked at; all else goes over sockets.

Owns: the fixture `embed`, clients that behave (`join`) and that do not read (`froze`), and floods of messages for them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from broker.core.queues.live.outbox import Outbox
from broker.core.session.session import Session
from canopy import Broker, Settings
from tests.e2e import wire
from tests.e2e.clients.frozen import Frozen
from tests.e2e.wire import Packet, Peer
from tests.support.losses import dropped_by_cause

NEVER_STALLED = 600.0
"""A stall time-out in seconds that no test reaches."""


PAYLOAD = bytes(16_384)


KEPT = 3600


Embed = Callable[..., Awaitable[Broker]]


opened: list[Peer] = []
"""Connections of the test that runs."""


@pytest.fixture
async def embed() -> AsyncIterator[Embed]:
    """Start brokers; sections of settings as keywords. Clients are cut off before the brokers stop."""
    async with AsyncExitStack() as stack:

        async def start(*, small: bool = True, **sections: Any) -> Broker:
            # Nobody waits at the end for clients that do not read.
            sections.setdefault("shutdown", {"flush_timeout": 0.0})
            settings = Settings(listen=("mqtt://127.0.0.1:0",), **sections)
            broker = await stack.enter_async_context(Broker(settings))
            if small:
                _small_buffers(broker)
            return broker

        try:
            yield start
        finally:
            for peer in opened:
                peer.abort()
            opened.clear()
            Frozen.close_all()


def _small_buffers(broker: Broker, *options: int) -> None:
    """Connections inherit the listener's: the system would otherwise hold megabytes that the broker does not see."""
    for place in broker.listeners.open:
        for listener in place.sockets:
            with socket.socket(fileno=os.dup(listener.fileno())) as same:
                for option in options or (socket.SO_SNDBUF, socket.SO_RCVBUF):
                    same.setsockopt(socket.SOL_SOCKET, option, 16_384)


async def join(broker: Broker, client_id: str, *filters: str | tuple[str, int], **options: Any) -> Peer:
    """A client that behaves."""
    opened.append(await Peer.join(broker.ports[0], client_id, *filters, **options))
    return opened[-1]


def outbox_of(broker: Broker, client_id: str) -> Outbox:
    """The queue of a connected client."""
    outbox = broker.router.sessions[client_id].outbox
    assert outbox is not None
    return outbox


def balance(broker: Broker, client_id: str) -> tuple[int, int]:
    """Both sides of a session's ledger: offered; delivered, dropped and queued."""
    session = broker.router.sessions[client_id]
    return session.offered, session.delivered_in_all() + sum(dropped_by_cause(session)) + session.queued()


DEPTH: Final = 20
"""Messages that fit into the queue."""


WINDOW: Final = 5
"""The receive maximum of those who do not acknowledge."""


ENOUGH: Final = 1000
"""Messages with which the system's buffers are full at the latest."""


def queue(**settings: Any) -> dict[str, Any]:
    """A `[queue]` that nobody is evicted from, and nothing is told of in band."""
    return {"stall_timeout": NEVER_STALLED, "live_messages": DEPTH, "session_messages": DEPTH, **settings}


def numbers(packets: list[Packet]) -> list[int]:
    return [int(packet.payload.split(b" ", 1)[0]) for packet in packets if packet.kind == wire.PUBLISH]


def dropped(session: Session, *causes: int) -> int:
    """Messages dropped; all of them for one of these causes."""
    by_cause = dropped_by_cause(session)
    assert sum(by_cause) == sum(by_cause[cause] for cause in causes)
    return sum(by_cause)


async def flood(session: Session, publisher: Peer, losses: int) -> tuple[int, list[int]]:
    """Publish until so many messages are lost. How many were published, and the numbers at which one was lost."""
    count = 0
    at: list[int] = []
    while len(at) < losses:
        count += 1
        assert count < ENOUGH, "the queue is never full"
        before = sum(dropped_by_cause(session))
        await publisher.publish("load", b"%d " % count + PAYLOAD)
        rise = sum(dropped_by_cause(session)) - before
        assert rise in (0, 1)
        at += [count] * rise
    return count, at


async def stuck(session: Session, publisher: Peer, topic: str) -> int:
    """Publish until the system takes nothing more for a frozen client; how many messages that took."""
    count = still = 0
    while still < 2 * DEPTH:
        count += 1
        assert count < ENOUGH, "the system's buffers are never full"
        taken = session.delivered_in_all()
        await publisher.publish(topic, b"%d " % count + PAYLOAD)
        still = still + 1 if session.queued() and session.delivered_in_all() == taken else 0
    return count


async def froze(broker: Broker, **connect: Any) -> tuple[Frozen, Session]:
    """A subscriber to everything under `load`, with QoS 0, that does not read."""
    version = connect.get("version", 5)
    frozen = await Frozen.join(
        broker.ports[0], wire.connect("frozen", keep_alive=0, **connect), ("load/#", 0), version=version
    )
    return frozen, broker.router.sessions["frozen"]


async def fenced(broker: Broker, frozen: Frozen) -> list[Packet]:
    """All that a client finds when it reads again: what the ledger says it was given, and then nothing waits."""
    thawed = await frozen.thaw()
    found = await thawed.fence()
    session = broker.router.sessions["frozen"]
    assert session.delivered_in_all() == len(found)
    assert session.queued() == 0
    offered, accounted = balance(broker, "frozen")
    assert offered == accounted
    return found
