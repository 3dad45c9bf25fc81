"""A router with connected peers and nobody behind them.

Owns: ``Stage``: a real ``Router``, sessions that subscribed to one filter, an outbox for each, and a stand-in for their
writers, which takes what waits and joins it, as the writer task does before it hands the bytes to the transport.

Promises: no event loop, no thread, no socket, no clock. What the writers got is counted, message by message.

It is QoS 0 only: what QoS 1 and 2 cost is the session's bookkeeping and not routing.
"""

from __future__ import annotations

from typing import Final

from benchmarks.routing.loops import WrongRoute
from benchmarks.routing.measure import Reading, Stopwatch
from broker.core.codec.packets import V311, SubscriptionRequest
from broker.core.limits import Limits
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import Message
from broker.core.routing.router import Router

TOPIC: Final = b"stage/temperature"
FILTER: Final = "stage/+"
PAYLOAD: Final = bytes(64)
BURST: Final = 32
"""Messages that come in one read, before the writers have their turn."""
NOW: Final = 1_000.0
WINDOW: Final = 1024
BATCH: Final = 65_536
"""Bytes that a writer takes at once; a burst is less."""


def publish_frame() -> bytes:
    """The QoS 0 PUBLISH that a publisher of 3.1.1 would have sent."""
    rest = len(TOPIC).to_bytes(2, "big") + TOPIC + PAYLOAD
    return bytes((0x30, len(rest))) + rest


FRAME: Final = publish_frame()


class Stage:
    """``count`` connected peers (at least 1), all subscribed to the filter that matches the topic."""

    def __init__(self, layout: str, count: int) -> None:
        self.router = Router(Limits(), layout)
        self.outboxes: list[Outbox] = []
        limits = self.router.limits
        for number in range(count):
            outbox = Outbox(self.router.peers.touched, self.router.counters, limits.live_messages, limits.live_bytes)
            session, _ = self.router.connect(f"peer-{number}", True, outbox, V311, WINDOW, True, NOW)
            self.router.subscribe(session, "", FILTER, SubscriptionRequest(FILTER), 0)
            self.outboxes.append(outbox)

    def publish(self, messages: int) -> int:
        """Route so many messages, as they would come in one read; how many deliveries the router counted."""
        publish = self.router.publish
        start = len(FRAME) - len(PAYLOAD)
        reached = 0
        for _ in range(messages):
            message = Message(TOPIC, b"", 0, False, b"", 0.0, "publisher")
            message.adopt_frame(FRAME, False, start)
            reached += publish(message, None)
        return reached

    def write(self) -> int:
        """The writers' turn: each that was touched takes what waits; how many bytes they got in all."""
        touched = self.router.peers.touched
        written = 0
        for outbox in touched:
            written += len(b"".join(outbox.take_batch(BATCH, NOW)))
            outbox.woken()
        touched.clear()
        return written

    def send(self, bursts: int) -> tuple[Reading, Reading]:
        """The time of one delivery in so many bursts (at least 1): to route it, and to take it.

        Raises:
            WrongRoute: a message did not come to everybody once.
        """
        count = len(self.outboxes)
        before = [outbox.taken for outbox in self.outboxes]
        routing, taking = Stopwatch(), Stopwatch()
        reached = written = 0
        for _ in range(bursts):
            with routing:
                reached += self.publish(BURST)
            with taking:
                written += self.write()
        deliveries = bursts * BURST * count
        if reached != deliveries or written != deliveries * len(FRAME):
            raise WrongRoute(f"{reached} deliveries were routed and {written} bytes taken, for {deliveries} deliveries")
        for outbox, taken in zip(self.outboxes, before, strict=True):
            if outbox.taken - taken != bursts * BURST or outbox.queue.dropped_in_all() or not outbox.empty:
                raise WrongRoute(f"an outbox gave {outbox.taken - taken} messages instead of {bursts * BURST}")
        return routing.reading(deliveries), taking.reading(deliveries)

    def counts(self) -> dict[str, float]:
        """What a delivery, and a message, make the broker do, by its own counters."""
        self.send(1)
        cache, trie = self.router.cache, self.router.trie
        deliveries = BURST * len(self.outboxes)
        offered, hits, probes = sum(outbox.queue.offered for outbox in self.outboxes), cache.hits, trie.probes
        self.publish(BURST)
        woken = len(self.router.peers.touched)
        self.write()
        return {
            "offers": (sum(outbox.queue.offered for outbox in self.outboxes) - offered) / deliveries,
            "wake-ups": woken / deliveries,
            "cache look-ups a message": (cache.hits - hits) / BURST,
            "trie probes a message": (trie.probes - probes) / BURST,
        }
