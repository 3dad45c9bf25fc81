"""A router with connected peers that have no sockets.

Owns: ``Stage``: a real ``Router``, sessions that subscribed to one filter, a buffer for each, and a stand-in for their
writers, which takes what waits and joins it, as the writer task does before it hands the bytes to the transport.

Promises: no event loop, no thread, no socket, no clock. What the writers got is counted, message by message.

It is QoS 0 only: what QoS 1 and 2 cost is the session's bookkeeping and not routing.
"""

from __future__ import annotations

from typing import Final

from benchmarks.routing.loops import WrongRoute
from benchmarks.routing.measure import Reading, Stopwatch
from canopy_mqtt.core.codec.packets import V311, SubscriptionRequest
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.router import Router

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
        self.send_buffers: list[SendBuffer] = []
        limits = self.router.limits
        for number in range(count):
            send_buffer = SendBuffer(
                self.router.peers.touched, self.router.counters, limits.live_messages, limits.live_bytes
            )
            session, _ = self.router.connect(f"peer-{number}", True, send_buffer, V311, WINDOW, True, NOW)
            self.router.subscribe(session, "", FILTER, SubscriptionRequest(FILTER), 0)
            self.send_buffers.append(send_buffer)

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
        for send_buffer in touched:
            written += len(send_buffer.take(BATCH, NOW))
            send_buffer.listed = False
        touched.clear()
        return written

    def send(self, bursts: int) -> tuple[Reading, Reading]:
        """The time of one delivery in so many bursts (at least 1): to route it, and to take it.

        Raises:
            WrongRoute: a peer did not get a message exactly once.
        """
        count = len(self.send_buffers)
        before = [send_buffer.taken for send_buffer in self.send_buffers]
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
        for send_buffer, taken in zip(self.send_buffers, before, strict=True):
            if send_buffer.taken - taken != bursts * BURST or send_buffer.dropped is not None or not send_buffer.empty:
                raise WrongRoute(f"a send buffer gave {send_buffer.taken - taken} messages instead of {bursts * BURST}")
        return routing.reading(deliveries), taking.reading(deliveries)

    def counts(self) -> dict[str, float]:
        """Count what a delivery, and a message, make the broker do, by its own counters."""
        self.send(1)
        cache, trie = self.router.cache, self.router.trie
        deliveries = BURST * len(self.send_buffers)
        offered, hits, probes = sum(send_buffer.offered for send_buffer in self.send_buffers), cache.hits, trie.probes
        self.publish(BURST)
        woken = len(self.router.peers.touched)
        self.write()
        return {
            "offers": (sum(send_buffer.offered for send_buffer in self.send_buffers) - offered) / deliveries,
            "wake-ups": woken / deliveries,
            "cache look-ups a message": (cache.hits - hits) / BURST,
            "trie probes a message": (trie.probes - probes) / BURST,
        }
