"""The wills of a worker's clients, where the broker has no store: they are published when the worker is killed."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack

from tests.e2e import wire
from tests.e2e.wire import SESSION_EXPIRY, Will
from tests.workers.crew import HOUR, Crew, accepted

GRACE = ("--set", "store.will_grace=2")
"""What it takes a client that waits for its worker to be served, once that is back, on a busy machine."""


async def told(crew: Crew) -> None:
    """The supervisor has been told of what the clients of worker 1 did: that came before this one's."""
    peer = await crew.join(next(crew.names(1, "told")))
    assert await peer.fence() == []
    await peer.disconnect()


async def test_a_killed_worker_has_its_wills_published_once(stack: AsyncExitStack) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.1.2-14] [MQTT-3.1.2-15]"""
    crew = await Crew.started(stack, 2, *GRACE)
    watcher = await crew.join(next(crew.names(0)), ("will/#", 1))
    clean, durable, delayed, back, gone = (next(crew.names(1, kind)) for kind in ("cl", "du", "de", "ba", "go"))
    await crew.join(clean, will=Will(f"will/{clean}", b"\0\xff", qos=1, retain=True))
    await crew.join(durable, clean=False, props=((SESSION_EXPIRY, HOUR),), will=Will(f"will/{durable}", b"x"))
    late = ((wire.WILL_DELAY, HOUR),)
    peer = await crew.join(delayed, props=((SESSION_EXPIRY, HOUR),), will=Will(f"will/{delayed}", properties=late))
    peer.abort()
    await crew.join(back, will=Will(f"will/{back}"))
    leaving = await crew.join(gone, will=Will(f"will/{gone}"))
    await leaving.disconnect()
    await told(crew)
    await crew.kill(1)
    returned = await crew.knock(back, will=Will(f"will/{back}", b"another"))
    await accepted(returned)
    await crew.line("worker serves again", worker="w1")
    await told(crew)
    # Before they are due: what is known of them is kept.
    await crew.restarted(1)
    found = sorted([await watcher.message() for _ in range(4)], key=lambda each: each.topic)
    assert [(each.topic, each.payload) for each in found] == [
        (f"will/{back}", b"another"),
        (f"will/{clean}", b"\0\xff"),
        (f"will/{delayed}", b"gone"),
        (f"will/{durable}", b"x"),
    ]
    await crew.restarted(1)
    # One that was published is not published again: this one comes behind it.
    last = await crew.join(next(crew.names(1, "la")), will=Will("will/last"))
    last.abort()
    assert (await watcher.message()).topic == "will/last"
    assert await watcher.fence() == []
    looker = await crew.join(next(crew.names(0, "lo")), ("will/#", 1))
    assert (await looker.message()).topic == f"will/{clean}"
    assert await looker.fence() == []


async def test_very_many_wills_come_back(stack: AsyncExitStack) -> None:
    """They do in several turns, and each is of its client."""
    crew = await Crew.started(stack, 2, "--set", "store.will_grace=0")
    watcher = await crew.join(next(crew.names(0)), ("will/#", 1))
    names = crew.names(1)
    topics = {f"will/{next(names)}" for _ in range(600)}
    for topic in topics:
        await crew.join(topic.removeprefix("will/"), will=Will(topic))
    await told(crew)
    await crew.kill(1)
    assert {(await watcher.message()).topic for _ in topics} == topics


async def test_a_will_with_a_delay_outlives_a_rolling_restart(stack: AsyncExitStack) -> None:
    """[MQTT-3.1.3-9] The session of its client ends with the worker."""
    crew = await Crew.started(stack, 2, *GRACE)
    peer = await crew.join(
        next(crew.names(1)),
        props=((SESSION_EXPIRY, HOUR),),
        will=Will("late", retain=True, properties=((wire.WILL_DELAY, HOUR),)),
    )
    peer.abort()
    crew.daemon.process.send_signal(signal.SIGUSR2)
    for worker in ("w0", "w1"):
        await crew.line("worker serves again", worker=worker)
    watcher = await crew.join(next(crew.names(0)), ("late", 1))
    assert (await watcher.message()).topic == "late"
