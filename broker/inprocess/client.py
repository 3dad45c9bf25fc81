"""Publishing and subscribing by the embedding program, on the event loop of its broker.

Owns the subscriptions, and fairness for a program that publishes in a loop: other tasks get their turns, and a
subscription that reads gets every message. Not thread-safe.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from broker.core.causes import CLIENT_DISCONNECT
from broker.core.codec.errors import ProtocolError
from broker.core.codec.packets import SubscriptionRequest
from broker.core.codec.topic_names import is_system, is_within, parse_shared, validate_filter
from broker.core.connection.publish.holding import Hold
from broker.core.counters import DROP_CAUSES
from broker.core.persistence.commits import Commits, Waiter
from broker.core.queues.delivery import SubscriptionQueue
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import Message as Routed
from broker.core.queues.policies.queue_policy import DROP_NEWEST, LATEST, POLICIES
from broker.core.routing.loop_detection import PROGRAM
from broker.core.routing.peers import PeerConnected, PeerDisconnected
from broker.inprocess.checks import Payload, check_properties, check_topic, payload_bytes
from broker.inprocess.inbox import Inbox, Message, ProgramSession
from broker.inprocess.properties import Properties

if TYPE_CHECKING:
    from types import TracebackType

    from broker.net.server import Server

QOS: Final = (0, 1, 2)

BATCH: Final = 256
"""Messages that a subscription takes at a time; then others have a turn."""


class QueueFullError(Exception):
    """A subscription with the policy `disconnect` did not keep up. It has ended, and its queue is lost."""


class RefusedError(Exception):
    """A message of QoS 1 or 2 was not accepted: the store cannot be written, and `store.on_failure` is `refuse`."""


class InProcessClient:
    """Implements `Broker.publish` and `Broker.subscribe`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.running = False
        """Whether the broker runs; set by the broker."""
        self._flushing = False
        self._made = 0
        self._hold: Hold | None = None
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
        """See `Broker.publish`."""
        server = self._server
        self._check_running()
        router = server.router
        load = router.counters.load
        message = self._message(topic, payload, qos, retain, properties)
        while router.fanout.broadcasting:  # noqa: ASYNC110 (each round of the event loop works some of it off)
            await asyncio.sleep(0)
        now = load.now = server.loop.time()
        commits = router.commits
        if qos > 0 and commits is not None:
            if commits.refuses(router.limits.store_refuses):
                raise RefusedError("the store cannot be written")
            commits.begin()
        crowds = load.crowds
        before = router.work
        count = router.publish(message, None)
        if not self._flushing:
            self._flushing = True
            server.loop.call_soon(self._flush)
        turns = server.hub.turns
        turns.did(router.work - before + 1)
        if load.crowds != crowds:
            await self._give_way(now)
        elif turns.spent:
            await asyncio.sleep(0)
        if commits is not None and (qos > 0 or retain) and commits.pending():
            await _committed(commits)
        return max(count, 0)

    def _flush(self) -> None:
        """Once for all that was published in one turn of the program."""
        self._flushing = False
        self._server.after_batch()

    async def _give_way(self, now: float) -> None:
        """Somebody has more than half of a queue before it: others have turns, and it has time to read (`holding`)."""
        router = self._server.router
        loop = self._server.loop
        await asyncio.sleep(0)
        most = router.limits.hold_publishers
        if most <= 0.0 and router.counters.load.crowded_record is None:
            return
        hold = self._hold
        if hold is None:
            hold = self._hold = Hold(most, 0, now)
        if hold.meet(router.counters.load, None, 0, 1, 0, loop.time()):
            # Nobody tells when a queue has become shorter.
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
        if not router.cache.knows(name):
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
        """See `Broker.subscribe`."""
        group, inner = _parsed(topic_filter, self._server.router.limits.max_topic_levels)
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}; one of {', '.join(POLICIES)}")
        if min(max_messages, max_bytes, max_age) < 0:
            raise ValueError("max_messages, max_bytes and max_age are 0 (unlimited) or more")
        self._made += 1
        terms = Terms(POLICIES.index(policy), max_messages, max_bytes, max_age)
        request = SubscriptionRequest(topic_filter, 0, False, True, 0 if retained else 2)
        return Subscription(self, f"{PROGRAM}{self._made}", request, group, inner, terms)

    def open(
        self, subscription: Subscription, inbox: Inbox, request: SubscriptionRequest, group: str, inner: str
    ) -> None:
        """Have what is published from now on wait in the inbox."""
        self._check_running()
        router = self._server.router
        now = self._server.loop.time()
        router.adopt(inbox.session)
        router.peers.post(PeerConnected(inbox.session, inbox.outbox))
        router.peers.drain(router, now)
        router.subscribe(inbox.session, group, inner, request, 0)
        self._server.after_batch()
        self.subscriptions.add(subscription)

    def close(self, subscription: Subscription, inbox: Inbox) -> None:
        """Nothing more comes for it."""
        self.subscriptions.discard(subscription)
        router = self._server.router
        router.peers.post(PeerDisconnected(inbox.session, inbox.outbox, CLIENT_DISCONNECT))
        router.peers.drain(router, self._server.loop.time())
        self._server.after_batch()

    def stop(self) -> None:
        """The broker stops: whoever iterates over messages gets what waits, and then comes to the end."""
        self.running = False
        for subscription in list(self.subscriptions):
            subscription.end()

    def inbox(self, client_id: str, terms: Terms, subscription: Subscription) -> Inbox:
        """A queue on these terms."""
        router = self._server.router
        session = ProgramSession(client_id, terms.max_messages, terms.max_bytes, router.counters)
        outbox = Outbox(router.peers.touched, router.counters, terms.max_messages, terms.max_bytes)
        policy = DROP_NEWEST if terms.policy == LATEST else terms.policy
        fresh = terms.policy == LATEST or terms.max_age > 0.0
        queue = SubscriptionQueue(session, terms.policy, terms.max_age, 0) if fresh else None
        session.limit(policy, queue, terms.max_messages, terms.max_bytes)
        outbox.limit(policy, terms.max_messages, terms.max_bytes)
        outbox.keep_fresh(fresh)
        outbox.v5 = True
        return Inbox(session, outbox, subscription.told)

    @property
    def now(self) -> float:
        """The time of the event loop."""
        return self._server.loop.time()

    def _check_running(self) -> None:
        if not self.running:
            raise RuntimeError("the broker does not run")


@dataclass(frozen=True, slots=True)
class Terms:
    """What the queue of a subscription keeps to; see `Broker.subscribe`."""

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
        inner: str,
        terms: Terms,
    ) -> None:
        self._client = client
        self._request = request
        self._group = group
        self._inner = inner
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
        self._client.open(self, self._inbox, self._request, self._group, self._inner)
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
            # Whoever reads without an end lets others have their turns.
            self._at = 0
            self._batch = []
            await asyncio.sleep(0)
        inbox = self._inbox
        while True:
            self._batch = inbox.take(BATCH, self._client.now)
            if self._batch:
                self._at = 1
                return self._batch[0]
            if inbox.outbox.closed and self._open:
                self.end()
                raise QueueFullError("the subscription did not keep up with what was published")
            if self._ended:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    def told(self) -> None:
        """There is something to take."""
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
            self.told()

    @property
    def waiting(self) -> int:
        """The number of messages in its queue."""
        return int(self._inbox.outbox.messages) + len(self._batch) - self._at

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped messages, by cause (docs/overload.md)."""
        lost = self._inbox.session.ledger.dropped
        return {} if lost is None else {DROP_CAUSES[cause]: count for cause, count in enumerate(lost) if count}


class _Committed(Waiter):
    """Somebody who waits until what he published is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self, number: int) -> int:
        """It is."""
        del number
        if not self.done.done():
            self.done.set_result(None)
        return 1


async def _committed(commits: Commits) -> None:
    waiter = _Committed()
    commits.wait(waiter)
    try:
        await waiter.done
    finally:
        commits.leave(waiter)


def _check_topic(topic: str, name: bytes, server: Server) -> None:
    """Raises ValueError: no client could publish there."""
    limits = server.router.limits
    check_topic(topic, limits.max_topic_levels)
    if is_system(name) or (limits.presence_topic and is_within(name, limits.presence_topic)):
        raise ValueError(f"topic {topic!r}: the broker alone publishes there")


def _parsed(topic_filter: str, max_levels: int) -> tuple[str, str]:
    """The share name, empty where there is none, and the filter. Raises TypeError or ValueError."""
    if not isinstance(topic_filter, str):
        raise TypeError(f"topic_filter is a {type(topic_filter).__name__}; a topic filter is text")
    try:
        group, inner = parse_shared(topic_filter)
        validate_filter(inner, max_levels)
    except ProtocolError as error:
        raise ValueError(f"topic filter {topic_filter!r}: {error}") from None
    return group, inner
