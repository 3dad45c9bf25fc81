"""Workers are one broker: whichever a client comes to, it gets what others publish."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.daemon import Daemon
from tests.workers.test_serving import LONG

CLIENTS: Final = 8
"""So many that each worker has some: that all come to one of two happens once in a hundred times, and fails nothing."""

KEPT: Final = [(wire.SESSION_EXPIRY, 3_600)]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon("--workers", "2", "--set", "workers.drain_timeout=1", patience=LONG) as running:
        yield running


@pytest.fixture
async def peers(daemon: Daemon) -> AsyncIterator[list[Peer]]:
    """Clients with sessions that outlive their connections, subscribed to `t/<their number>` and `all`."""
    joined = [
        await Peer.join(daemon.port, f"client-{at}", ("all", 1), (f"t/{at}", 1), props=KEPT) for at in range(CLIENTS)
    ]
    yield joined
    for peer in joined:
        peer.abort()


async def publisher(daemon: Daemon) -> Peer:
    return await Peer.join(daemon.port, "")


async def test_what_one_publishes_each_gets_once(daemon: Daemon, peers: list[Peer]) -> None:
    for number in range(4):
        source = await publisher(daemon)
        await source.publish("all", str(number).encode(), qos=1)
        await source.disconnect()
    for peer in peers:
        assert [(await peer.message()).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        assert await peer.fence() == []


async def test_a_retained_message_is_every_workers(daemon: Daemon) -> None:
    source = await publisher(daemon)
    await source.publish("kept", b"x", qos=1, retain=True)
    for at in range(CLIENTS):
        peer = await Peer.join(daemon.port, f"reader-{at}", "kept")
        assert (await peer.message()).payload == b"x"
        await peer.disconnect()
    await source.publish("kept", b"", qos=1, retain=True)
    await source.disconnect()
