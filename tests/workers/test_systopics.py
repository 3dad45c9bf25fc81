"""`$SYS` with several workers: each client reads the figures of all, wherever it is."""

from __future__ import annotations

import os
import signal

from tests.e2e.wire import Peer
from tests.workers.crew import Crew

BELOW = "$SYS/broker/"
FLAGS = ("--set", "sys.interval=0.1")


async def until_told(peer: Peer, topic: str, payload: bytes) -> list[bytes]:
    """Wait until a topic has this payload; returns all that it had."""
    found: list[bytes] = []
    while payload not in found:
        message = await peer.message()
        if message.topic == BELOW + topic:
            found.append(message.payload)
    return found


async def test_clients_of_each_worker_read_the_figures_of_all(crew: Crew) -> None:
    peers = [await crew.join(next(crew.names(worker)), f"{BELOW}clients/connected") for worker in range(3)]
    for peer in peers:
        told = await until_told(peer, "clients/connected", b"3")
        # Each change once, and never the figure of a single worker again and again.
        assert told == sorted(set(told))
    await peers[0].disconnect()
    for peer in peers[1:]:
        await until_told(peer, "clients/connected", b"2")


async def test_another_worker_makes_them_once_the_first_hangs_or_is_gone(crew: Crew) -> None:
    peer = await crew.join(next(crew.names(2)), f"{BELOW}workers/+/up")
    await until_told(peer, "workers/w0/up", b"1")
    os.kill(crew.pids["w0"], signal.SIGSTOP)
    await until_told(peer, "workers/w0/up", b"0")
    await crew.kill(0)
    await until_told(peer, "workers/w0/up", b"1")


async def test_a_client_that_comes_later_finds_them_retained(crew: Crew) -> None:
    for worker in range(3):
        first = await crew.join(next(crew.names(worker)), f"{BELOW}version")
        await first.message()
        late = await crew.join(next(crew.names(worker, "late")), f"{BELOW}version")
        message = await late.message()
        assert message.retain
        assert message.payload.startswith(b"canopy ")
