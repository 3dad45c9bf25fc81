"""Workers are one broker: whichever a client comes to, it gets what others publish."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from tests.e2e import wire
from tests.e2e.wire import DISCONNECT, Peer
from tests.support.daemon import COMMAND, Daemon, environment
from tests.workers.live.test_serving import LONG

CLIENTS: Final = 8
"""So many that each worker has some: that all come to one of two happens once in a hundred times, and fails nothing."""

KEPT: Final = [(wire.SESSION_EXPIRY, 3_600)]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    sets = ("--set", "workers.drain_timeout=1", "--set", "http.listen=http://127.0.0.1:0")
    with Daemon("--workers", "2", *sets, patience=LONG) as running:
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


def test_the_mesh_of_the_workers_is_told_by_their_supervisor(daemon: Daemon) -> None:
    arguments = [*COMMAND, "ctl", "--url", daemon.started["http"][0], "mesh"]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=LONG, env=environment())
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert ["node", "all", "workers"] in lines
    assert [(line[0], line[1]) for line in lines[-2:]] == [("w0", "connected"), ("w1-0", "connected")]


async def test_a_retained_message_is_every_workers(daemon: Daemon) -> None:
    source = await publisher(daemon)
    await source.publish("kept", b"x", qos=1, retain=True)
    for at in range(CLIENTS):
        peer = await Peer.join(daemon.port, f"reader-{at}", "kept")
        assert (await peer.message()).payload == b"x"
        await peer.disconnect()
    await source.publish("kept", b"", qos=1, retain=True)
    await source.disconnect()


async def test_a_session_is_found_at_whichever_worker_its_client_comes_to(daemon: Daemon) -> None:
    """[MQTT-3.1.2-5] With what came meanwhile; the earlier connection ends with 0x8E [MQTT-3.1.4-3]."""
    first = await Peer.join(daemon.port, "wanders", ("w", 1), props=KEPT)
    source = await publisher(daemon)
    for number in range(CLIENTS):
        second = await Peer.join(daemon.port, "wanders", clean=False, props=KEPT)
        assert second.connack is not None
        assert second.connack.session_present
        assert (await first.expect(DISCONNECT)).code == 0x8E
        first.abort()
        await second.disconnect(props=KEPT)
        await source.publish("w", b"%d" % number, qos=1)
        first = await Peer.join(daemon.port, "wanders", clean=False, props=KEPT)
        assert (await first.message()).payload == b"%d" % number
    await first.disconnect()
    await source.disconnect()


async def test_sessions_outlive_a_rolling_restart(daemon: Daemon, peers: list[Peer]) -> None:
    """Also those whose clients are away, with what waits for them."""
    away = peers[::2]
    for peer in away:
        await peer.disconnect(props=KEPT)
    source = await publisher(daemon)
    await source.publish("all", b"before", qos=1)
    await source.disconnect()
    here = [await peer.message() for peer in peers[1::2]]
    assert {message.payload for message in here} == {b"before"}
    daemon.process.send_signal(signal.SIGUSR2)
    lines = await asyncio.to_thread(daemon.until, "rolling restart done")
    left = [(line["sessions"], line["messages"]) for line in lines if line["event"] == "worker leaves"]
    assert left == [(0, 0), (0, 0)]
    for at in range(CLIENTS):
        peer = await Peer.join(daemon.port, f"client-{at}", clean=False, props=KEPT)
        assert peer.connack is not None
        assert peer.connack.session_present
        assert [each.payload for each in await peer.fence()] == ([b"before"] if at % 2 == 0 else [])
        await peer.disconnect()
