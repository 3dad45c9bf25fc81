"""Share groups at another number of workers: each message once, what waits in the queue and what is on its way."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from canopy_mqtt.workers import crew as crews
from canopy_mqtt.workers.placing import worker_of
from tests.e2e import wire
from tests.e2e.store.test_live import GONE, Receiver
from tests.support.waiting import until
from tests.workers.crew import HOUR, Crew


def placed(text: str, *workers: int) -> str:
    """A text that belongs to the first of these among three workers, and to the second among two."""
    texts = (text.format(number) for number in range(1_000))
    return next(each for each in texts if (worker_of(each.encode(), 3), worker_of(each.encode(), 2)) == workers)


async def publish(crew: Crew, topic: str, numbers: range, qos: int) -> None:
    """Publish numbers, each at the next worker."""
    peers = [await crew.join(next(crew.names(worker, "sender"))) for worker in range(crew.workers)]
    for number in numbers:
        await peers[number % len(peers)].publish(topic, b"%d" % number, qos=qos)
    for peer in peers:
        await peer.disconnect()


@pytest.mark.parametrize("qos", [1, 2])
async def test_one_three_two_one(stack: AsyncExitStack, tmp_path: Path, qos: int) -> None:
    """Its home has no member of its own, neither of three workers nor of two."""
    group, store = placed("$share/g/jobs/{}", 0, 0), ("--store", str(tmp_path / "store"))
    topic = group.removeprefix("$share/g/")
    members = [placed("m-{}", 1, 1), placed("m-{}", 2, 1)]
    crew = await Crew.started(stack, 1, *store)
    for name in members:
        await (await crew.stay(name, (group, qos))).disconnect()
    await publish(crew, topic, range(10), qos)
    assert await crew.stop() == 0

    crew = await Crew.started(stack, 3, *store)
    await publish(crew, topic, range(10, 30), qos)
    slow = ((wire.SESSION_EXPIRY, HOUR), (wire.RECEIVE_MAXIMUM, 3))
    peer = await crew.join(members[0], clean=False, props=slow)
    for _ in range(3):
        await peer.expect(wire.PUBLISH)
    # The rest is in the queue, at the member, or in between: there it is in the session of a worker, which does not
    # move. The former workers bring it back to the queue first.
    crew.daemon.process.kill()
    await crew.gone()

    crew = await Crew.started(stack, 2, *store)
    await publish(crew, topic, range(30, 40), qos)
    assert await crew.stop() == 0

    crew = await Crew.started(stack, 1, *store)
    takers = [Receiver() for _ in members]
    tasks = []
    for name, taker in zip(members, takers, strict=True):
        tasks.append(asyncio.ensure_future(take(taker, await crew.stay(name, present=True))))
    try:
        found: Counter[int] = Counter()

        def all_there() -> bool:
            nonlocal found
            found = Counter(number for taker in takers for number in taker.received)
            return len(found) == 40

        await until(all_there, "each message")
        assert set(found.values()) == {1}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert await crew.stop() == 0


async def take(taker: Receiver, peer: wire.Peer) -> None:
    """Let a member take what comes."""
    with suppress(*GONE, TimeoutError):
        await taker.run(peer)


async def test_what_comes_back_from_a_worker_that_had_nothing_goes_on_before_the_move() -> None:
    """The second has said that nothing waits there; then what was on its way to members there comes, and goes back."""
    waiting = {"w0": 1, "w1": 0}
    quiet = asyncio.Event()

    async def first(*_: str) -> None:
        if waiting["w0"]:
            await quiet.wait()
            waiting.update(w0=0, w1=1)

    async def second(*_: str) -> None:
        waiting["w1"] = 0
        quiet.set()

    slots = [SimpleNamespace(process=SimpleNamespace(ask=ask)) for ask in (first, second)]
    crew: Any = crews.Crew.__new__(crews.Crew)
    crew.slots = slots
    await crew.drain()
    assert waiting == {"w0": 0, "w1": 0}
