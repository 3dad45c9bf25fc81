"""Connections for the black-box tests.

- `opened`: a TCP connection on which nothing was said yet; `joined`: one whose CONNECT was accepted.
- `version`: the tests that use it run once with 3.1.1 and once with 5.0.
- `elapse`: lets whole seconds pass at the broker, by a delayed Will: an event to wait for, and no guess.
- `unique`: names (client identifiers, topics) that no other test has.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import pytest

from tests.e2e import wire
from tests.e2e.conftest import SCHEME, Address, StartBroker, default_broker
from tests.e2e.wire import Peer, Properties, Will
from tests.net.websocket.peer import WebPeer

Unique = Callable[[str], str]
Elapse = Callable[[int], Awaitable[None]]


class Opened(Protocol):
    """Open a TCP connection to the broker, or to another one."""

    async def __call__(self, version: int = 5, *, at: Address | None = None) -> Peer: ...


class Joined(Protocol):
    """Open a connection and have its CONNECT accepted."""

    async def __call__(
        self,
        client_id: str | None = None,
        *,
        version: int = 5,
        clean: bool = True,
        keep_alive: int = 0,
        props: Properties = (),
        will: Will | None = None,
        at: Address | None = None,
    ) -> Peer: ...


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5.0"])
def version(request: pytest.FixtureRequest) -> int:
    """The protocol level of the connection under test."""
    level: int = request.param
    return level


@pytest.fixture
def unique() -> Unique:
    """Names that no other test has: letters and digits only, 23 bytes at most."""
    run = uuid.uuid4().hex[:8]
    numbers = itertools.count(1)
    return lambda stem: f"{stem[:11]}{run}{next(numbers)}"


@pytest.fixture
async def opened(start_broker: StartBroker) -> AsyncIterator[Opened]:
    """Open TCP connections; they are cut after the test. A default broker is started by the first without `at`."""
    peers: list[Peer] = []
    default: list[Address] = []

    async def open_one(version: int = 5, *, at: Address | None = None) -> Peer:
        if at is None:
            if not default:
                default.append(await default_broker(start_broker))
            at = default[0]
        peer = await (WebPeer if SCHEME == "ws" else Peer).open(at.host, at.port, version)
        peers.append(peer)
        return peer

    yield open_one
    for peer in peers:
        peer.abort()


@pytest.fixture
async def joined(opened: Opened, unique: Unique) -> Joined:
    """Open connections whose CONNECT is accepted."""

    async def join(
        client_id: str | None = None,
        *,
        version: int = 5,
        clean: bool = True,
        keep_alive: int = 0,
        props: Properties = (),
        will: Will | None = None,
        at: Address | None = None,
    ) -> Peer:
        peer = await opened(version, at=at)
        await peer.send(
            wire.connect(
                unique("c") if client_id is None else client_id,
                version=version,
                clean=clean,
                keep_alive=keep_alive,
                props=props,
                will=will,
            )
        )
        peer.connack = await peer.expect(wire.CONNACK)
        assert peer.connack.code == 0, peer.connack
        return peer

    return join


@pytest.fixture
async def elapse(joined: Joined, unique: Unique) -> Elapse:
    """Wait until so many seconds have passed at the broker, by its own clock."""

    async def wait(seconds: int) -> None:
        topic = unique("elapsed")
        watcher = await joined()
        await watcher.subscribe(topic)
        will = Will(topic, properties=[(wire.WILL_DELAY, seconds)])
        clock = await joined(props=[(wire.SESSION_EXPIRY, seconds + 60)], will=will)
        clock.abort()
        await watcher.expect(wire.PUBLISH)

    return wait
