"""Publishes and subscribes for the embedding program, on the event loop of its broker.

Owns the subscriptions, and fairness for a program that publishes in a loop: other tasks get their turns, and a
subscription that is read gets every message. Not thread-safe.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from canopy_mqtt.core.causes import CLIENT_DISCONNECT
from canopy_mqtt.core.codec.packets import SubscriptionRequest
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import parse_shared, validate_filter
from canopy_mqtt.core.ledger import by_cause
from canopy_mqtt.core.persistence.commits import Commits, Waiter
from canopy_mqtt.core.protocol.backpressure import PublisherHold
from canopy_mqtt.core.protocol.publish import topic_refusal
from canopy_mqtt.core.queues.message import Message as Routed
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, LATEST, POLICIES, MessageTerms, SubscriptionTerms
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.links import PROGRAM
from canopy_mqtt.core.routing.peers import PeerConnected, PeerDisconnected
from canopy_mqtt.inprocess.checks import Payload, check_properties, check_topic, payload_bytes
from canopy_mqtt.inprocess.inbox import Inbox, Message, ProgramSession
from canopy_mqtt.inprocess.properties import Properties

if TYPE_CHECKING:
    from types import TracebackType

    from canopy_mqtt.net.server import Server

QOS: Final = (0, 1, 2)

BATCH: Final = 256
"""Messages that a subscription takes at a time; then other tasks have a turn."""


class QueueFullError(Exception):
    """A subscription with the policy `disconnect` did not keep up. It has ended, and its queue is lost."""


class RefusedError(Exception):
    """A message of QoS 1 or 2 was not accepted: the store cannot be written, and `store.on_failure` is `refuse`."""


class InProcessClient:
    """Implements `Broker.publish` and `Broker.subscribe`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.running = False
        """True while the broker runs; the broker sets it."""
        self._flushing = False
        self._made = 0
        self._hold: PublisherHold | None = None
        self.subscriptions: set[Subscription] = set()
        """The open subscriptions."""

    # -- publishing ----------------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        properties: Properties | None,
    ) -> int:
        server = self._server
        self._check_running()
        router = server.router
        totals = router.counters.totals
        message = self._message(topic, payload, qos, retain, properties)
        while router.fanout.broadcasting:  # noqa: ASYNC110 (each round of the event loop works some of it off)
            await asyncio.sleep(0)
        now = totals.now = server.loop.time()
        commits = router.commits
        if qos > 0 and commits is not None:
            if commits.refuses(router.limits.store_refuses):
                raise RefusedError("the store cannot be written")
            commits.begin()
        over_half = totals.over_half
        count = router.publish(message, None)
        router.budget.used += 1
        if not self._flushing:
            self._flushing = True
            server.loop.call_soon(self._flush)
        rounds = server.rounds
        rounds.charge()
        if totals.over_half != over_half:
            await self._give_way(now)
        elif rounds.spent:
            await asyncio.sleep(0)
        if commits is not None and (qos > 0 or retain) and commits.pending():
            await _committed(commits)
        return max(count, 0)

    def _flush(self) -> None:
        """Wake the writers, once for all messages of one turn of the program."""
        self._flushing = False
        self._server.after_batch()

    async def _give_way(self, now: float) -> None:
        """Let other tasks run, and give a receiver whose queue is more than half full time to read (`holding`)."""
        router = self._server.router
        loop = self._server.loop
        await asyncio.sleep(0)
        most = router.limits.hold_publishers
        if most <= 0.0 and router.counters.totals.over_half_recorder is None:
            return
        hold = self._hold
        if hold is None:
            hold = self._hold = PublisherHold(most, 0, now)
        if hold.should_wait(router.counters.totals, None, 0, 1, 0, loop.time()):
            # There is no event for a queue that has become shorter.
            while (until := hold.until(loop.time())) > 0.0:  # noqa: ASYNC110
                await asyncio.sleep(until - loop.time())

    def _message(
        self,
        topic: str,
        payload: Payload,
        qos: int,
        retain: bool,
        properties: Properties | None,
    ) -> Routed:
        router = self._server.router
        limits = router.limits
        try:
            name = topic.encode()
        except AttributeError:
            check_topic(topic)
            raise
        if name not in router.cache.routes:
            _check_topic(topic, name, self._server)
        if qos not in QOS:
            raise ValueError(f"qos is {qos!r}; 0, 1 or 2")
        data = payload if isinstance(payload, bytes) else payload_bytes(payload)
        most = limits.max_payload_size or limits.max_packet_size
        if len(data) > most:
            raise ValueError(f"the payload has {len(data)} bytes; a message may have {most}")
        if properties is None:
            return Routed(name, data, qos, retain, b"", 0.0, "")
        check_properties(properties)
        encoded = properties.encoded()
        expiry = properties.message_expiry_interval
        expires_at = 0.0 if expiry is None else self._server.loop.time() + expiry
        return Routed(name, data, qos, retain, encoded, expires_at, "")

    # -- subscribing ---------------------------------------------------------------------------------------------------

    def subscribe(
        self, topic_filter: str, policy: str, max_messages: int, max_bytes: int, max_age: float, retained: bool
    ) -> Subscription:
        group, unshared = _parsed(topic_filter, self._server.router.limits.max_topic_levels)
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}; one of {', '.join(POLICIES)}")
        if min(max_messages, max_bytes, max_age) < 0:
            raise ValueError("max_messages, max_bytes and max_age are 0 (unlimited) or more")
        self._made += 1
        terms = Terms(POLICIES.index(policy), max_messages, max_bytes, max_age)
        request = SubscriptionRequest(topic_filter, 0, False, True, 0 if retained else 2)
        return Subscription(self, f"{PROGRAM}{self._made}", request, group, unshared, terms)

    def open(
        self, subscription: Subscription, inbox: Inbox, request: SubscriptionRequest, group: str, unshared: str
    ) -> None:
        """Subscribe: messages go into the inbox from now on."""
        self._check_running()
        router = self._server.router
        now = self._server.loop.time()
        router.adopt(inbox.session)
        router.peers.events.append(PeerConnected(inbox.session, inbox.send_buffer))
        router.peers.drain(router, now)
        router.subscribe(inbox.session, group, unshared, request, 0)
        self._server.after_batch()
        self.subscriptions.add(subscription)

    def close(self, subscription: Subscription, inbox: Inbox) -> None:
        """Unsubscribe: no more messages go into the inbox."""
        self.subscriptions.discard(subscription)
        router = self._server.router
        router.peers.events.append(PeerDisconnected(inbox.session, inbox.send_buffer, CLIENT_DISCONNECT))
        router.peers.drain(router, self._server.loop.time())
        self._server.after_batch()

    def stop(self) -> None:
        """End all subscriptions when the broker stops: their iterators return the queued messages and end."""
        self.running = False
        for subscription in list(self.subscriptions):
            subscription.end()

    def inbox(self, client_id: str, terms: Terms, subscription: Subscription) -> Inbox:
        router = self._server.router
        session = ProgramSession(client_id, terms.max_messages, terms.max_bytes, router.counters)
        send_buffer = SendBuffer(router.peers.touched, router.counters, terms.max_messages, terms.max_bytes)
        policy = DROP_NEWEST if terms.policy == LATEST else terms.policy
        fresh = terms.policy == LATEST or terms.max_age > 0.0
        queue = MessageTerms(session, SubscriptionTerms(terms.policy, terms.max_age)) if fresh else None
        session.limit(policy, queue, terms.max_messages, terms.max_bytes)
        send_buffer.limit(policy, terms.max_messages, terms.max_bytes)
        send_buffer.low_latency(fresh)
        send_buffer.v5 = True
        return Inbox(session, send_buffer, subscription.messages_came)

    @property
    def now(self) -> float:
        return self._server.loop.time()

    def _check_running(self) -> None:
        if not self.running:
            raise RuntimeError("the broker does not run")


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a subscription's queue; see `Broker.subscribe`."""

    policy: int
    max_messages: int
    max_bytes: int
    max_age: float


class Subscription:
    """Messages of one topic filter: ``async with broker.subscribe("a/#") as messages: async for message in messages``.

    It is subscribed from the beginning to the end of the block. When the broker stops, the iteration ends after the
    messages that were waiting.
    """

    def __init__(
        self,
        client: InProcessClient,
        client_id: str,
        request: SubscriptionRequest,
        group: str,
        unshared: str,
        terms: Terms,
    ) -> None:
        self._client = client
        self._request = request
        self._group = group
        self._unshared = unshared
        self._inbox = client.inbox(client_id, terms, self)
        self._batch: list[Message] = []
        self._at = 0
        self._waiting: asyncio.Future[None] | None = None
        self._open = False
        self._ended = False

    async def __aenter__(self) -> Self:
        """Raises RuntimeError: the broker does not run, or it is entered again."""
        if self._open or self._ended:
            raise RuntimeError("a subscription is entered once; make another")
        self._client.open(self, self._inbox, self._request, self._group, self._unshared)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message. Raises QueueFullError (policy `disconnect`), and RuntimeError outside the block."""
        at = self._at
        if at < len(self._batch):
            self._at = at + 1
            return self._batch[at]
        return await self._next()

    async def _next(self) -> Message:
        if not self._open and not self._ended:
            raise RuntimeError("messages can be read only within `async with`")
        if self._at > 0:
            # An endless reader gives other tasks their turns.
            self._at = 0
            self._batch = []
            await asyncio.sleep(0)
        inbox = self._inbox
        while True:
            self._batch = inbox.take(BATCH, self._client.now)
            if self._batch:
                self._at = 1
                return self._batch[0]
            if inbox.send_buffer.closed and self._open:
                self.end()
                raise QueueFullError("the subscription did not keep up with what was published")
            if self._ended:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    def messages_came(self) -> None:
        """Note that there are messages to take."""
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def end(self) -> None:
        """Unsubscribe. Messages that were already taken can still be read."""
        if self._open:
            self._open = False
            self._ended = True
            now = self._client.now
            while more := self._inbox.take(BATCH, now):
                self._batch += more
            self._client.close(self, self._inbox)
            self.messages_came()

    @property
    def waiting(self) -> int:
        """The number of messages in its queue."""
        return int(self._inbox.send_buffer.messages) + len(self._batch) - self._at

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped messages, by cause (docs/overload.md)."""
        return by_cause(self._inbox.session.ledger.dropped)


class _CommitWaiter(Waiter):
    """A publisher that waits until the store has committed its message."""

    def __init__(self) -> None:
        super().__init__()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self, number: int) -> int:
        del number
        if not self.done.done():
            self.done.set_result(None)
        return 1


async def _committed(commits: Commits) -> None:
    waiter = _CommitWaiter()
    commits.wait(waiter)
    try:
        await waiter.done
    finally:
        commits.leave(waiter)


def _check_topic(topic: str, name: bytes, server: Server) -> None:
    """Raise ValueError for a topic to which no client could publish."""
    check_topic(topic, server.router.limits.max_topic_levels)
    reason, why = topic_refusal(server.router, name, False)
    if reason > 0:
        raise ValueError(f"topic {topic!r}: {why}")


def _parsed(topic_filter: str, max_levels: int) -> tuple[str, str]:
    """Split off the share name (empty if there is none) and the filter. Raises TypeError or ValueError."""
    if not isinstance(topic_filter, str):
        raise TypeError(f"topic_filter is a {type(topic_filter).__name__}; a topic filter is text")
    try:
        group, unshared = parse_shared(topic_filter)
        validate_filter(unshared, max_levels)
    except ProtocolError as error:
        raise ValueError(f"topic filter {topic_filter!r}: {error}") from None
    return group, unshared
