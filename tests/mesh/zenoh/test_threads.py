"""Zenoh's threads: which there are, and that Python keeps the state of those that call it."""

from __future__ import annotations

import threading
from pathlib import Path

from broker.mesh.zenoh.session import MeshSession
from broker.mesh.zenoh.threads import Callers
from broker.settings.brokers.mesh import Mesh
from tests.support.waiting import until

FRAMES = 20


async def test_python_keeps_the_state_of_threads_that_bring_frames(tmp_path: Path) -> None:
    state = threading.local()
    counts: list[int] = []

    def heard(key: str, payload: bytes) -> None:
        del key, payload
        state.count = getattr(state, "count", 0) + 1
        counts.append(state.count)

    def alive(key: str, whether: bool) -> None:
        del key, whether

    place = f"unixsock-stream/{tmp_path}/a"
    a = MeshSession(Mesh(name="test", node="a", listen=[place]), "a", 1, heard, alive)
    b = MeshSession(Mesh(name="test", node="b", listen=[f"{place}b"], connect=[place]), "b", 1, heard, alive)
    try:
        a.open()
        b.open()
        publisher = b.publisher("a")
        for _ in range(FRAMES):
            publisher.put(b"frame")
        await until(lambda: len(counts) >= FRAMES, f"{FRAMES} frames are there")
    finally:
        b.close()
        a.close()
    # What a thread has of its own goes with its state.
    assert max(counts) > 1


def test_no_more_threads_than_the_bound_are_kept() -> None:
    callers = Callers(2)
    kept: list[bool] = []

    def call() -> None:
        kept.extend((callers.keep(), callers.keep()))

    for _ in range(3):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert kept == [True, True, True, True, False, False]
