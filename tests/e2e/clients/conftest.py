"""A broker in a process of its own for the real clients, and the event loops that the embedded broker is tested on.

- `daemon`: one `canopy serve` with its default settings for all tests of this folder, on a free port of 127.0.0.1.
  Tests keep out of each other's way by names: `unique`.
- `elapse`: lets seconds pass at a broker, by a delayed Will: an event to wait for, and no guess.
- The tests of restart embed the broker, and run on asyncio's own event loop and on uvloop.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

import pytest

pytest.register_assert_rewrite("tests.e2e.clients.python.contract")

from tests.e2e import wire  # noqa: E402  (assertions are rewritten from here on)
from tests.e2e.clients.python.drivers import PATIENCE, Driver, Opener  # noqa: E402
from tests.e2e.conftest import Address  # noqa: E402
from tests.support.daemon import Daemon  # noqa: E402

Unique = Callable[[str], str]
Elapse = Callable[[int], Awaitable[None]]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

EMBEDDED = "test_restart.py"
"""The module whose broker lives in the test's own event loop."""


def _loops() -> dict[str, LoopFactory]:
    found: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        return found
    return {**found, "uvloop": uvloop.new_event_loop}


LOOPS = _loops()
"""The event loops that a broker may be embedded in."""


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Which event loops a test runs on, one after the other."""
    del config
    return LOOPS if item.path.name == EMBEDDED else {"asyncio": asyncio.new_event_loop}


class Served(Daemon):
    """A daemon with default settings, over TCP and over WebSocket."""

    def __init__(self) -> None:
        super().__init__(environ={"CANOPY_LISTENER": '[{url = "ws://127.0.0.1:0", name = "web"}]'}, patience=PATIENCE)
        _, self.web_port = self.ports

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address("127.0.0.1", self.port)


def is_complaint(line: str) -> bool:
    """Return whether a line of a daemon's log is an error or a traceback."""
    if line.startswith("{"):
        return json.loads(line)["level"] in ("error", "critical")
    return "Traceback" in line or "Error" in line or "Exception" in line


@pytest.fixture(scope="session")
def daemon() -> Iterator[Served]:
    """The broker that the real clients talk to. It must have survived them all without an error of its own."""
    with Served() as running:
        yield running
        status, _ = running.end()
        assert (status, [line for line in running.lines if is_complaint(line)]) == (0, [])


@pytest.fixture
def unique() -> Unique:
    """Names that no other test has: letters and digits only, 23 bytes at most."""
    run = uuid.uuid4().hex[:8]
    numbers = itertools.count(1)
    return lambda stem: f"{stem[:11]}{run}{next(numbers)}"


@pytest.fixture
async def elapse(daemon: Served, unique: Unique) -> Elapse:
    """Let seconds pass at the broker: its clock runs when a delayed Will is due."""

    async def wait(seconds: int) -> None:
        topic = unique("clock")
        watcher = await wire.Peer.open("127.0.0.1", daemon.port)
        ticking = await wire.Peer.open("127.0.0.1", daemon.port)
        try:
            await watcher.send(wire.connect(unique("watch"), keep_alive=0))
            await watcher.expect(wire.CONNACK)
            await watcher.subscribe(topic)
            will = wire.Will(topic, b"now", properties=[(wire.WILL_DELAY, seconds)])
            await ticking.send(
                wire.connect(unique("tick"), keep_alive=0, will=will, props=[(wire.SESSION_EXPIRY, seconds + 60)])
            )
            await ticking.expect(wire.CONNACK)
            ticking.abort()
            assert (await watcher.expect(wire.PUBLISH)).payload == b"now"
        finally:
            ticking.abort()
            watcher.abort()

    return wait


@pytest.fixture
async def opener(daemon: Served) -> AsyncIterator[Opener]:
    """Connect clients; whatever state they are in, they are gone after the test."""
    opened: list[Driver] = []

    async def connect(kind: Callable[..., Driver], client_id: str, **options: object) -> Driver:
        client = kind(daemon.web_port if getattr(kind, "web", False) else daemon.port, client_id, **options)
        opened.append(client)
        await client.connect()
        return client

    yield connect
    for client in opened:
        await client.dispose()
