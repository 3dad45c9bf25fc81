"""What the queues of one session would do with a message: taken or dropped, why, and what makes room for it.

Owns `Forecast`. It reads what `Session.deliver`, `Outbox.offer`, `SessionQueue.add` and `subscription_room` decide by,
in their order, and changes nothing; tests/observe/explain/test_explain_machine.py holds it against what they do.
Promises: it looks at no more of a queue than they would. Where all queues together are full, others give first
(`session.global_limit`): that is said, and not worked out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.core.counters import (
    DISCONNECTED,
    DROP_CAUSES,
    FULL_BYTES,
    FULL_MESSAGES,
    GLOBAL,
    NO_QUOTA,
    NOT_AUTHORIZED,
    TOO_LARGE,
)
from broker.core.queues.delivery import DROPPED, Delivery, DeliveryRun, Place, SubscriptionQueue
from broker.core.queues.disk_queue import is_pageable
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import HEADROOM, Message
from broker.core.queues.policies.queue_policy import DISCONNECT, DROP_OLDEST
from broker.core.queues.session_queue import STALE
from broker.core.queues.windows.send_window import COMMIT
from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup

SENT: Final = "sent"
"""It is written as soon as the connection takes it."""
WAITS: Final = "waits"
"""It waits in the session: for the client's return, its acknowledgements, or room in its connection's queue."""
REPLACES: Final = "replaces"
"""It takes the place of an older message of its topic that waits."""
DROPPED_: Final = "dropped"
"""It is lost, and counted by its cause."""
GONE: Final = "gone"
"""The session is over."""
LINK: Final = "link"
"""The session is a link's to an upstream broker, which decides by more than this."""

FULL: Final = (DROP_CAUSES[FULL_MESSAGES], DROP_CAUSES[FULL_BYTES])
"""The causes that say that one queue was full."""

FOR_SURE: Final = tuple(DROP_CAUSES[cause] for cause in (DISCONNECTED, TOO_LARGE, NOT_AUTHORIZED))
"""The causes that no room anywhere changes."""

MOST_EXPIRED: Final = 16 * STALE
"""Messages that have expired and make room, at most (`SessionQueue`)."""


class Fate:
    """What becomes of one message at one session.

    `cause`: of the drop, as `counters.DROP_CAUSES` names it. `sheds`: messages that are dropped to make room for it, at
    least. `disconnects`: its client is disconnected for it. `certain`: False where all queues of the broker together
    are full, so that the fullest give first, and the message is dropped (`global`) where they cannot.
    """

    def __init__(self, outcome: str, cause: int = -1) -> None:
        self.outcome = outcome
        self.cause = "" if cause < 0 else DROP_CAUSES[cause]
        self.sheds = 0
        self.disconnects = False
        self.certain = True
        self.on_disk = False

    @property
    def taken(self) -> bool:
        """Whether the session takes it."""
        return self.outcome in (SENT, WAITS, REPLACES)


class Forecast:
    """One message, one session. Made for one question and used once."""

    def __init__(
        self,
        session: Session,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        sub_queue: SubscriptionQueue | None,
        group: SharedGroup | None,
        now: float,
        roomy: bool = True,
    ) -> None:
        """As `Session.deliver` takes them; `now`: when (s, monotonic).

        `roomy`: whether all queues together have room for the message at all of its receivers.
        """
        self._session = session
        self._message = message
        self._qos = qos
        self._retain = retain
        self._identifiers = identifiers
        self._own = session.sub_queue if sub_queue is None else sub_queue
        self._group = group
        self._now = now
        self._size: int = message.size()
        # What would be left once others have made room.
        outbox, queue, load = session.outbox, session.queue, session.totals
        self._live: int = 0 if outbox is None else outbox.messages
        self._live_bytes: int = 0 if outbox is None else outbox.bytes
        self._waiting: int = queue.messages
        self._waiting_bytes: int = queue.bytes
        self._qos0: int = queue.qos0
        self._load: int = load.messages
        self._load_bytes: int = load.bytes
        self._of_own: int = 0 if self._own is None else self._own.waiting
        self._gone: set[int] = set()
        # How far the order of the subscription queue has been looked through.
        self._by_age: Iterator[Place] | None = None
        self._first: Delivery | None = None
        # Messages that were looked at.
        self.looked = 0
        self._sheds = 0
        self._disconnects = False
        self._certain = roomy
        self._on_disk = False

    def fate(self) -> Fate:
        """What becomes of it. `Session.deliver` in its order."""
        made = self._fate()
        made.sheds = self._sheds
        made.disconnects = self._disconnects
        made.certain = self._certain or made.cause in FOR_SURE
        made.on_disk = self._on_disk
        return made

    def _fate(self) -> Fate:
        session, qos = self._session, self._qos
        outbox = session.outbox
        if outbox is None and session.ended:
            return Fate(GONE)
        if session.uplink:
            self._certain = False
            return Fate(LINK)
        own = self._own
        if qos == 0:
            if outbox is None:
                if not session.queue_qos0:
                    return Fate(DROPPED_, DISCONNECTED)
            elif own is None and self._qos0 == 0:
                if not self._retain and not self._identifiers and session.plain and self._message.sharable():
                    frame = self._message.frame_size(session.v5, 0, (), False)
                    return self._offer(outbox, frame, frame)
                return self._offer_late(outbox)
        if outbox is not None and outbox.too_long(self._message, qos, self._identifiers):
            return Fate(DROPPED_, outbox.why_not(self._message))
        if own is not None:
            fate = self._make_room_in(own, outbox)
            if fate is not None:
                return fate
            if qos == 0 and outbox is not None and self._qos0 == 0:
                return self._offer_live(own, outbox)
        if outbox is not None:
            fate = self._send_new(outbox)
            if fate is not None:
                return fate
        return self._wait(outbox)

    # -- the queue of the connection -----------------------------------------------------------------------------------

    def _offer_late(self, outbox: Outbox) -> Fate:
        names = outbox.names
        # Those of a mount share a frame (`PeerNames.shared_frame`), which is not made here.
        if (
            names is not None
            and names._maximum <= 0
            and not self._retain
            and not self._identifiers
            and self._own is None
        ):
            inner = names.inner(self._message)
            if inner is not None and inner.sharable():
                frame = inner.frame_size(self._session.v5, 0, (), False)
                return self._offer(outbox, frame, frame)
        if outbox.too_long(self._message, 0, self._identifiers):
            return Fate(DROPPED_, outbox.why_not(self._message))
        return self._offer(outbox, self._size, 0)

    def _offer(self, outbox: Outbox, size: int, largest: int) -> Fate:
        if largest > outbox.max_packet:
            return Fate(DROPPED_, TOO_LARGE)
        if outbox.closed:
            return Fate(DROPPED_, DISCONNECTED)
        most, most_bytes = outbox.max_messages, outbox.max_bytes
        if self._live >= most or self._live_bytes + size > most_bytes or not self._has_room(size):
            if outbox.queue.deferred > 0:
                self._shed_expired_live(outbox)
            messages = self._live + 1 - most
            beyond = self._live_bytes + size - most_bytes if size <= most_bytes else self._live_bytes
            if messages > 0 or beyond > 0:
                cause = FULL_MESSAGES if messages > 0 else FULL_BYTES
                if outbox.policy == DROP_OLDEST and size <= most_bytes:
                    sheddable = self._live - outbox.qos12_messages
                    if messages > sheddable or beyond > self._live_bytes - outbox.queue.qos12_bytes:
                        return Fate(DROPPED_, cause)
                    self._sheds += max(messages, 1)
                    self._live -= max(messages, 0)
                    self._load -= max(messages, 0)
                    self._load_bytes -= max(beyond, 0)
                else:
                    self._disconnects = outbox.policy == DISCONNECT and size <= most_bytes
                    return Fate(DROPPED_, cause)
            if self._live > 0 and not self._has_room(size):
                self._certain = False
        return Fate(SENT)

    def _offer_live(self, own: SubscriptionQueue, outbox: Outbox) -> Fate:
        size = self._size
        if own.policy == DROP_OLDEST and size <= outbox.max_bytes:
            while self._live >= outbox.max_messages or self._live_bytes + size > outbox.max_bytes:
                oldest = self._oldest(own)
                if oldest is None or not oldest.live:
                    break
                self._drop(oldest)
        fate = self._offer(outbox, size, 0)
        if own.policy == DISCONNECT and fate.cause in FULL and size <= outbox.max_bytes:
            self._disconnects = True
        return fate

    def _shed_expired_live(self, outbox: Outbox) -> None:
        queue = outbox.queue
        for item in queue.items[queue._head :]:
            self.looked += 1
            if isinstance(item, Delivery):
                if item.qos == 0 and item.state != DROPPED and id(item) not in self._gone:
                    if not item.message.expired(self._now):
                        return
                    self._drop(item)
            elif item is not None and not isinstance(item, DeliveryRun):
                return

    def _send_new(self, outbox: Outbox) -> Fate | None:
        """In flight at once; None: it has to wait."""
        session, size = self._session, self._size
        window, queue = session.window, session.queue
        held = 0 if window.held is None else window.held.count
        if (
            self._qos == 0
            or window.quota <= 0
            or (queue.pending is not None and (self._waiting > 0 or queue.messages == 0))
            or window.resend is not None
            or (self._own is not None and self._live + held >= COMMIT)
            or outbox.closed
            or self._live >= outbox.max_messages
            or not self._fits_live(size + HEADROOM, outbox)
        ):
            return None
        inflight = session.inflight
        idle = self._live == 0 and inflight.count == 0
        if not idle and not self._has_room(size):
            self._certain = False
        totals = session.totals
        if inflight.count > 0 and (
            window.bytes + size > window.max_bytes
            or not (totals.in_flight_room(size) or totals.is_little(inflight.count + 1, window.bytes + size))
        ):
            return None
        return None if inflight.count >= inflight.largest_id else Fate(SENT)

    # -- the session's queue -------------------------------------------------------------------------------------------

    def _wait(self, outbox: Outbox | None) -> Fate:
        session, size, own = self._session, self._size, self._own
        queue = session.queue
        # What its client's account leaves: worked out anew from what it has now, as before each message.
        session.account.fit()
        if self._waiting >= queue.max_messages or self._waiting_bytes + size > queue.max_bytes:
            self._shed_expired_waiting()
        messages = self._waiting + 1 - queue.max_messages
        beyond = self._waiting_bytes + size - queue.max_bytes if size <= queue.max_bytes else self._waiting_bytes
        if messages > 0 or beyond > 0:
            cause = FULL_MESSAGES if messages > 0 else FULL_BYTES
            if size > queue.max_bytes or not self._others_go(own, messages, beyond):
                if outbox is not None and size <= queue.max_bytes:
                    if queue.policy == DISCONNECT or (own is not None and own.policy == DISCONNECT):
                        self._disconnects = True
                    elif session.window.quota <= 0 and self._qos > 0:
                        cause = NO_QUOTA
                return Fate(DROPPED_, cause)
        if self._is_for_disk():
            pages = queue.pages
            assert pages is not None
            self._on_disk = True
            if pages.bytes + size > pages.disk_bytes and pages.messages > 0:
                if queue.policy != DROP_OLDEST or queue.disk is None:
                    return Fate(DROPPED_, GLOBAL)
                self._sheds += 1
            return Fate(WAITS)
        if not self._has_room(size):
            self._certain = False
        return Fate(WAITS)

    def _others_go(self, own: SubscriptionQueue | None, messages: int, beyond: int) -> bool:
        """`SessionQueue._make_room`."""
        queue = self._session.queue
        if own is not None and own.policy == DROP_OLDEST:
            while messages > 0 or beyond > 0:
                oldest = self._oldest(own)
                if oldest is None or oldest.live:
                    break
                messages -= 1
                beyond -= oldest.message.size()
                self._drop(oldest)
        if (messages > 0 or beyond > 0) and queue.policy == DROP_OLDEST:
            for delivery in self._in_line():
                if messages <= 0 and beyond <= 0:
                    break
                messages -= 1
                beyond -= delivery.message.size()
                self._drop(delivery)
            return True
        return messages <= 0 and beyond <= 0

    def _is_for_disk(self) -> bool:
        queue = self._session.queue
        pages = queue.pages
        if pages is None:
            return False
        delivery = Delivery(self._message, self._qos, self._retain, self._identifiers, self._group)
        delivery.sub_queue = self._own
        if not is_pageable(delivery):
            return False
        if queue.disk is None:
            return pages.beyond(self._waiting, self._waiting_bytes, self._size, self._load_bytes)
        return queue.pending is None or len(queue.pending) <= queue._ahead

    def _shed_expired_waiting(self) -> None:
        for number, delivery in enumerate(self._in_line()):
            if number >= MOST_EXPIRED or not delivery.message.expired(self._now):
                return
            self._drop(delivery)

    def _in_line(self) -> Iterator[Delivery]:
        """What waits in memory, the oldest first, without what would have gone by then."""
        for delivery in self._session.queue.pending or ():
            self.looked += 1
            if delivery.state != DROPPED and id(delivery) not in self._gone:
                yield delivery

    # -- the queue of a subscription -----------------------------------------------------------------------------------

    def _make_room_in(self, own: SubscriptionQueue, outbox: Outbox | None) -> Fate | None:
        """`subscription_room.make_room`; None: it goes on."""
        if own.max_age > 0.0:
            for _ in range(STALE):
                oldest = self._oldest(own)
                if oldest is None or not own.too_old(oldest, self._now):
                    break
                self._drop(oldest)
        same = own.of_topic(self._message.topic)
        if same is not None and id(same) not in self._gone:
            if (same.qos == 0) == (self._qos == 0):
                return self._renew(same, outbox)
            self._drop(same)
        while self._of_own >= own.depth:
            oldest = self._oldest(own) if own.policy == DROP_OLDEST else None
            if oldest is None:
                self._disconnects = own.policy == DISCONNECT and outbox is not None
                return Fate(DROPPED_, FULL_MESSAGES)
            self._drop(oldest)
        return None

    def _renew(self, waiting: Delivery, outbox: Outbox | None) -> Fate:
        grown = self._size - waiting.message.size()
        if waiting.live:
            assert outbox is not None
            fits = self._live_bytes + grown <= outbox.max_bytes or self._live == 1
        else:
            self._session.account.fit()
            fits = self._waiting_bytes + grown <= self._session.queue.max_bytes or self._waiting == 1
        if not fits:
            return Fate(DROPPED_, FULL_BYTES)
        totals = self._session.totals
        if grown > 0 and (self._load > totals.max_messages or self._load_bytes + grown > totals.max_bytes):
            self._certain = False
        self._sheds += 1
        return Fate(REPLACES)

    def _oldest(self, own: SubscriptionQueue) -> Delivery | None:
        """The first of the subscription queue that would still be there. What is gone is not looked at again."""
        if self._by_age is None:
            self._by_age = iter(own._by_age or ())
        while self._first is None or id(self._first) in self._gone:
            self.looked += 1
            place = next(self._by_age, None)
            if place is None:
                return None
            self._first = place.delivery
        return self._first

    # -- accounts ------------------------------------------------------------------------------------------------------

    def _has_room(self, size: int) -> bool:
        totals = self._session.totals
        return self._load + 1 <= totals.max_messages and (
            self._load_bytes + size <= totals.max_bytes or self._load == 0
        )

    def _fits_live(self, size: int, outbox: Outbox) -> bool:
        """One always fits a queue that is empty."""
        return self._live_bytes + size <= outbox.max_bytes or self._live == 0

    def _drop(self, delivery: Delivery) -> None:
        """One that waits would go."""
        size = delivery.message.size()
        self._gone.add(id(delivery))
        self._sheds += 1
        self._load -= 1
        self._load_bytes -= size
        if delivery.live:
            self._live -= 1
            self._live_bytes -= size
        else:
            self._waiting -= 1
            self._waiting_bytes -= size
            if delivery.qos == 0:
                self._qos0 -= 1
        if delivery.sub_queue is not None and delivery.sub_queue is self._own:
            self._of_own -= 1
