"""A publisher that is too fast for a subscriber who reads: when it is held back, for how long, and when it is not."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_mqtt.core.protocol.backpressure import STEP
from canopy_mqtt.core.queues.queue_terms import DROP_OLDEST, LATEST
from tests.core.harness import Client, Network, limits
from tests.support.runs import for_each

ROOM = 64
"""Messages that may wait for a client."""

MOST = 1.0
"""Seconds for which a publisher may be held."""

STANDSTILL = 0.3
"""Seconds after which a client that takes nothing does not read."""


class Scene:
    """A publisher, and a subscriber that reads when it is told to. Its queue has room for `ROOM` messages."""

    def __init__(self, qos: int = 0, **options: Any) -> None:
        bounds: dict[str, float] = {"live_messages": ROOM, "session_messages": ROOM, "max_inflight": 1}
        bounds |= {"hold_publishers": MOST, "standstill": STANDSTILL}
        self.network = Network(limits(**{**bounds, **options}))
        self.network.router.runs.most = ROOM // 8  # as the server does
        self.qos = qos
        self.subscriber = self.network.client("subscriber")
        self.subscriber.subscribe("t", qos=qos)
        self.publisher = self.network.client("publisher")
        self.publisher.publish("t", b"before", qos)
        self.subscriber.take()
        self.sent = 0
        self.stop()

    def stop(self) -> None:
        """The subscriber stands still."""
        self.subscriber.wire.frozen = True

    def read(self) -> None:
        """It reads all that waits for it."""
        self.subscriber.wire.frozen = False
        self.network.settle()
        self.stop()

    def burst(self, count: int, publisher: Client | None = None) -> None:
        """So many messages come in one piece."""
        for _ in range(count):
            (publisher or self.publisher).post("t", b"%d" % self.sent, self.qos)
            self.sent += 1
        self.network.settle()

    def held(self) -> bool:
        """Whether the publisher is not read from, for some time to come."""
        protocol = self.publisher.wire.protocol
        assert protocol.unfinished or protocol.held_until == 0.0
        return protocol.held_until > self.network.now

    @property
    def dropped(self) -> int:
        """Messages that the subscriber has lost."""
        return self.network.router.counters.dropped_in_all()


@for_each("qos", [0, 1, 2])
def test_one_who_pauses_loses_nothing(qos: int) -> None:
    """For less than `standstill`: on a busy machine a client that reads has no processor for a while."""
    scene = Scene(qos)
    scene.burst(500)
    scene.network.advance(STANDSTILL * 0.9)
    assert scene.held()
    while scene.sent > len(scene.subscriber.inbox):
        scene.read()
        scene.network.advance(STEP)
    assert scene.subscriber.payloads() == [b"%d" % number for number in range(500)]
    assert scene.dropped == 0


@pytest.mark.crowd
@pytest.mark.parametrize("pause", [0.005, 0.05])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscriber_that_is_always_behind_delays_no_steady_publisher(qos: int, pause: float) -> None:
    """200 messages a second, one by one or ten at a time: it is not this publisher that fills a queue of 10,000."""
    scene = Scene(qos, live_messages=10_000, session_messages=10_000, hold_publishers=5.0)
    flood = scene.network.client("flood")
    for _ in range(7):
        scene.burst(1_000, flood)
    # The one that fills it is held.
    assert flood.wire.protocol.held_until > scene.network.now
    scene.subscriber.wire.batch = 1
    for number in range(int(2.0 / pause)):
        scene.network.advance(pause)
        if number % round(0.05 / pause) == 0:
            # It reads a little all the time, and its queue stays more than half full.
            scene.subscriber.wire.frozen = False
            scene.subscriber.wire.flush(1)
            scene.stop()
        scene.burst(round(200 * pause))
        assert not scene.held()
    send_buffer = scene.subscriber.wire.send_buffer
    assert send_buffer.messages + scene.subscriber.session.queue.messages > 5_000


LARGE = b"x" * 100_000


def large_scene(qos: int) -> Scene:
    """With the default bounds of the queues."""
    return Scene(
        qos,
        live_messages=10_000,
        session_messages=10_000,
        live_bytes=8 << 20,
        session_bytes=32 << 20,
        max_inflight=1_024,
        hold_publishers=5.0,
        standstill=0.5,
    )


@for_each("qos", [0, 1])
@for_each("away", [0.4, 1.2])
def test_a_subscriber_that_reads_in_bursts_delays_no_steady_publisher(qos: int, away: float) -> None:
    """200 messages a second of 100 kB: also where the broker is late, and several have come meanwhile."""
    scene = large_scene(qos)
    sent = 0
    while sent < 600:
        late = 10 if sent % 40 == 0 else 1
        scene.network.advance(0.005 * late)
        for _ in range(late):
            scene.publisher.post("t", LARGE, qos)
        sent += late
        scene.network.settle()
        assert not scene.held()
        if sent % round(away / 0.005) < late:
            scene.read()
    assert scene.network.router.counters.totals.over_half > 0
    assert scene.subscriber.inbox


def test_one_whose_next_message_has_always_begun_is_in_full_flight() -> None:
    """On a slow network nothing but that shows it: what it adds each second is little."""
    scene = large_scene(0)
    protocol = scene.publisher.wire.protocol
    whole = b"\x30\xa4\x8d\x06\0\1t\0" + LARGE
    protocol.receive(whole[:1], scene.network.now)
    rounds = 0
    while not scene.held():
        rounds += 1
        assert rounds < 80, "the queue has no room for more"
        protocol.receive(whole[1:] + whole[:1], scene.network.now)
        scene.network.advance(0.01)
        if rounds % 10 == 9:
            # It reads, but less than comes.
            scene.subscriber.wire.batch = 1
            scene.subscriber.wire.frozen = False
            scene.subscriber.wire.flush(1)
            scene.stop()
    assert scene.dropped == 0


def test_one_message_at_a_time() -> None:
    """Who comes again at once is in full flight as well, also with nothing more to read: each PUBACK asks for more."""
    scene = Scene(1)
    while not scene.held():
        assert scene.sent < ROOM
        scene.burst(1)
    assert scene.sent < ROOM * 3 // 4
    scene.read()
    scene.network.advance(STEP)
    assert not scene.held()
    assert scene.dropped == 0


@for_each(
    "options",
    [{"hold_publishers": 0.0}, {"queue_policy": DROP_OLDEST}, {"queue_policy": LATEST}, {"queue_max_age": 10.0}],
    ids=["off", "drop-oldest", "latest", "max_age"],
)
def test_where_nobody_is_held(options: dict[str, Any]) -> None:
    """Where the operator has said so, and for clients who want what is new rather than all."""
    scene = Scene(**options)
    scene.burst(500)
    assert not scene.held()


def test_not_for_its_own_queue() -> None:
    scene = Scene()
    scene.subscriber.cut()
    scene.publisher.subscribe("t")
    scene.publisher.wire.frozen = True
    scene.burst(500)
    assert not scene.held()


def test_not_while_others_wait_for_its_acknowledgements() -> None:
    """Two who send to each other would wait for each other."""
    scene = Scene(1)
    scene.publisher.subscribe("own", qos=1)
    scene.publisher.answering = False
    scene.network.client("other").publish("own", b"x", 1)
    scene.burst(500)
    assert not scene.held()
