"""The changes that must outlive a connection or the process, and the records that they become.

`Journal` is told of changes in their order, and a store keeps them. A store returns `Saved`, and `restore.restore`
builds a router from it. Without a journal nothing here is called: a session or a router reads one attribute, and QoS 0
to a connected client does not even do that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from canopy_mqtt.core.codec.packets import SubscriptionRequest, Will
from canopy_mqtt.core.persistence.commits import Commits, Waiter
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import QUEUED, Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import RequestedTerms
from canopy_mqtt.core.topics.subscription import Subscription

if TYPE_CHECKING:
    from canopy_mqtt.core.queues.message_queue import DiskQueue

PAGE: Final = 256
PAGE_BYTES: Final = 262_144
"""Messages of a page, and the bytes that they count for, at most; a longer message is a page of its own. Where the
oldest are dropped, a page goes at once: an eighth of the disk's work, and no more of a queue than a few per cent."""

FETCHED: Final = 1_024
FETCHED_BYTES: Final = 524_288
"""Deliveries that are read back at a time, where that is more than a page: some milliseconds. The
next is read when less than a page is left."""

UNBOUNDED: Final = 1 << 60


@mypyc_attr(allow_interpreted_subclasses=True)
class Journal:
    """Is told of every change of what a store keeps. The default ignores it.

    Promises to an implementation:
    - It is told only of sessions with a Session Expiry Interval above 0: first `session_kept` for a client
      identifier, and after `session_gone` nothing until the next `session_kept`. `session_gone` ends everything that
      belongs to the session. Of other clients it is told of their wills (`will_alone`), while they have no session.
    - All changes of one call of the core (a read of a connection, a tick) are told without interruption: a store that
      commits only between two such calls never keeps half of them, such as the identifier of a QoS 2 publish without
      the message.
    - A `Delivery` is the same object from `queued` or `in_flight` to `finished`, so it can be the key of a
      dictionary; a `Message` is one object for all its deliveries of one fanout. A restored delivery is a new object:
      see `restored`.

    `commits` says which changes are committed; None: every change is, as soon as it is told. Acknowledgements wait
    for it (`commits`).

    The core knows only the caller's monotonic clock. The methods get times of that clock; records have seconds
    relative to the moment of loading. The store measures the time between two processes (by a wall clock). The
    methods must not block, because they are called during a fanout; the store reports what it cannot write. A method
    that raises should have changed nothing: it is called again with the same arguments (`journal_guard`), and
    until that has succeeded nothing is acknowledged.
    """

    commits: Commits | None = None
    pages: Pages | None = None
    """The limits for messages that wait on disk only; None: there are no such messages."""

    def retry(self) -> None:
        """About once a second: repeat the calls that failed, if there are any."""

    def place(self) -> int:
        """Set aside the next number of a delivery or broadcast, for a call that was postponed. 0: it needs none."""
        return 0

    def placed(self, number: int) -> None:
        """The next call that gives a delivery or broadcast a new number has this one, which was set aside."""

    # -- sessions ------------------------------------------------------------------------------------------------------

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        """A session was created, resumed, or its connection ended (section 4.1). It belongs to the principal's
        user, who must be stored too, because it decides what an absent client may receive.

        `expiry_interval` in seconds, above 0, `packets.NEVER`: does not expire. It counts from `disconnected_at`; 0.0
        while the client is connected: if the broker dies then, it counts from the next start.
        """

    def session_gone(self, client_id: str) -> None:
        """A session ended with everything in it; or it will end with its connection, because its expiry is 0 now."""

    # -- subscriptions -------------------------------------------------------------------------------------------------

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        """A subscription was made, or replaced the one of the same `topic_filter` (as it was sent: `$share/name/…`).

        `streaming`: retained messages are being sent for it, until `streamed`. After a restart they are sent
        again from the first: none is lost, and some may be delivered twice.
        """

    def streamed(self, client_id: str, topic_filter: str) -> None:
        """All retained messages for this subscription have been delivered or put in flight."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """A subscription was removed."""

    # -- deliveries to the client --------------------------------------------------------------------------------------

    def queued(self, client_id: str, delivery: Delivery) -> None:
        """A message was added to the session's queue: QoS 1, 2, or 0 if sessions keep that (`session.queue_qos0`)."""

    def paged(self, client_id: str, delivery: Delivery) -> None:
        """The same for one that waits on disk only: it gets its number (`Delivery.record`), and the object is freed."""

    def unpaged(self, client_id: str, page: Page) -> None:
        """All messages of a page have been dropped or have expired."""

    def fetch(self, client_id: str, fetch: Fetch) -> None:
        """Messages on disk are needed in memory. They stay on disk too, as if `queued` and `restored`."""

    def read_back(self, client_id: str, number: int) -> None:
        """Messages up to that number are in memory again; higher ones are on disk only."""

    def renewed(self, client_id: str, delivery: Delivery) -> None:
        """A queued delivery got a newer message, and keeps its place (policy `latest`)."""

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        """A delivery has its packet identifier and may be written from now on.

        It was `queued` before and keeps its place in the order, or is new and the last; or it was `unsent`.
        """

    def unsent(self, client_id: str, delivery: Delivery) -> None:
        """The connection ended before this in-flight delivery was written: its next sending is the first."""

    def released(self, client_id: str, delivery: Delivery) -> None:
        """QoS 2: PUBREC was received; only PUBREL may be sent now [MQTT-4.3.3-5]. The message is no longer needed."""

    def finished(self, client_id: str, delivery: Delivery) -> None:
        """A delivery ended: acknowledged, dropped, expired, or given to another member of a shared subscription."""

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:
        """`delivery` is from now on the object for the record with that number: while a router is restored, or when it
        was fetched."""

    # -- publishes of the client ---------------------------------------------------------------------------------------

    def received(self, client_id: str, packet_id: int) -> None:
        """A QoS 2 publish was routed; its packet identifier is in use until `completed` [MQTT-4.3.3-10]."""

    def completed(self, client_id: str, packet_id: int) -> None:
        """Its PUBREL was received: the identifier is free."""

    # -- messages for very many ----------------------------------------------------------------------------------------

    def broadcast(self, message: Message) -> int:  # noqa: ARG002 (the interface)
        """A message of QoS 1 or 2 goes to very many, over several calls, until `broadcast_over`: its number.

        It is acknowledged when this is kept: a broker that dies meanwhile goes on with it after its next start
        (`Saved.broadcasts`).
        """
        return 0

    def passed(self, number: int, client_id: str) -> None:
        """A session got the message of that number, or will not get it. Told in the call in which it got it."""

    def broadcast_over(self, number: int) -> None:
        """All receivers have had it."""

    # -- wills ---------------------------------------------------------------------------------------------------------

    def will_set(self, client_id: str, will: Will, due: float) -> None:
        """The session has a will: 0.0 while its client is connected, later the time at which it will be published.

        It is told of before it is due, so that a broker that dies can publish it after its next start (section
        3.1.2.5).
        """

    def will_alone(self, name: str, principal: Principal, will: Will, due: float) -> None:
        """The will of a client without a session to keep is set, or has another time; `due` as in `will_set`.

        `name`: the client identifier, or `WAITING` with a number, "/" and it, if the will is due and waits for its
        turn while the client may have another. `principal` decides what may be published when it is due.
        """

    def will_cleared(self, client_id: str) -> None:
        """The will was published, or will not be. Also of one that is alone, by its name."""

    # -- retained messages ---------------------------------------------------------------------------------------------

    def retained_set(self, message: Message) -> None:
        """The topic's retained message was set or replaced."""

    def retained_cleared(self, topic: str) -> None:
        """The topic's retained message was cleared, or has expired."""


WAITING: Final = "$will/"
"""The beginning of the names of wills that wait for their turn. No client has such an identifier."""


def share_name(delivery: Delivery) -> str:
    """The shared subscription that a delivery was chosen for, as a topic filter with `$share/name/`; or empty."""
    group = delivery.group
    return "" if group is None else f"$share/{group.name}/{group.entry.topic_filter}"


class MessageRecord:
    """A message as it was accepted (`message.Message`). Records of the same message share one object of this class.

    `expires_in`: seconds left; 0 and less: it has expired; None: it does not.
    """

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes,
        expires_in: float | None,
        publisher: str,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_in = expires_in
        self.publisher = publisher
        # Of a retained message: the name of the account that holds it (`core.accounts`).
        self.account = ""

    def message(self, now: float) -> Message:
        """Return the message. `now`: the caller's monotonic clock, above 0, from which the record counts.

        What has expired does so now: the clock may not reach back that far.
        """
        expires_at = 0.0 if self.expires_in is None else now + max(self.expires_in, 0.0)
        return Message(self.topic, self.payload, self.qos, self.retain, self.properties, expires_at, self.publisher)


class SubscriptionRecord:
    """A subscription (`topics.subscription`) with the QoS that was granted; `streaming`: see `Journal.subscribed`."""

    def __init__(self, request: SubscriptionRequest, identifier: int, streaming: bool) -> None:
        self.request = request
        self.identifier = identifier
        self.streaming = streaming
        # What the subscriber asked of its queue, if anything.
        self.options: RequestedTerms | None = None


class DeliveryRecord:
    """A message on its way to a session (`queues.delivery.Delivery`): queued, in flight, released.

    `number` is the store's own name for it. `message` None: it was released, and needs none. `share`: see `share_name`.
    `attempts` 1: it was in flight, and may have been written; 0: it was not (`unsent`).
    """

    def __init__(
        self,
        number: int,
        message: MessageRecord | None,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        share: str,
    ) -> None:
        self.number = number
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.share = share
        self.packet_id = 0
        self.state = QUEUED
        self.attempts = 0

    def queued(self, now: float) -> Delivery:
        """The delivery that waits; `now`: see `MessageRecord.message`."""
        kept = self.message
        assert kept is not None
        return Delivery(kept.message(now), self.qos, self.retain, self.identifiers, None)


@mypyc_attr(allow_interpreted_subclasses=True)
class Fetch(Waiter):
    """A request for messages on disk: those of a session with numbers from `first` to `last`.

    The store puts what it finds into `records`, and calls `Commits.hand`. It waits until all `messages` are committed;
    fewer come where rows are missing from the file.
    """

    def __init__(self, first: i64, last: i64, messages: i64) -> None:
        super().__init__()
        self.first: i64 = first
        self.last: i64 = last
        self.messages: i64 = messages
        self.records: list[DeliveryRecord] = []
        # They are not waited for any more.
        self.over = False


class WillRecord:
    """A will. `due_in`: seconds until it is published; None: the client was connected when the broker died."""

    def __init__(self, will: Will, due_in: float | None) -> None:
        self.will = will
        self.due_in = due_in


class LoneWillRecord(WillRecord):
    """A will without a session (`Journal.will_alone`)."""

    def __init__(self, name: str, principal: Principal, will: Will, due_in: float | None) -> None:
        super().__init__(will, due_in)
        self.name = name
        self.principal = principal


class SessionRecord:
    """One session. `disconnected_for`: seconds since its connection ended; None: it was connected when the broker died.

    `deliveries` are in the order in which they were queued, those in flight and those waiting alike; `pages`, oldest
    first, stand among them by their numbers; `received` are the packet identifiers of unreleased QoS 2 publishes of the
    client; `principal` is whose it is.
    """

    def __init__(
        self, client_id: str, expiry_interval: int, disconnected_for: float | None, principal: Principal | None = None
    ) -> None:
        self.client_id = client_id
        self.principal = Principal(client_id=client_id) if principal is None else principal
        self.expiry_interval = expiry_interval
        self.disconnected_for = disconnected_for
        self.subscriptions: list[SubscriptionRecord] = []
        self.deliveries: list[DeliveryRecord] = []
        self.pages: list[Page] = []
        self.received: list[int] = []
        self.will: WillRecord | None = None


class BroadcastRecord:
    """A broadcast in progress (`Journal.broadcast`). `passed`: the clients that do not get it."""

    def __init__(self, number: int, message: MessageRecord) -> None:
        self.number = number
        self.message = message
        self.passed: set[str] = set()


class Saved:
    """Everything in a store at the moment of loading."""

    def __init__(self) -> None:
        self.sessions: list[SessionRecord] = []
        self.wills: list[LoneWillRecord] = []
        self.retained: list[MessageRecord] = []
        self.broadcasts: list[BroadcastRecord] = []


class Page:
    """Consecutive messages of one session that are on disk only.

    `first`, `last`: the store's numbers of the deliveries; `expires_at`: when all of them have expired (s, monotonic);
    0.0: never, or unknown; `held`: some of them are `Message.held`. All are when they are read back, and so stay behind
    those in memory.
    """

    def __init__(self, first: int, last: int, messages: int, size: int) -> None:
        self.first: i64 = first
        self.last: i64 = last
        self.messages: i64 = messages
        self.bytes: i64 = size
        self.expires_at = 0.0
        self.held = False


class Pages:
    """The limits, and the sums over all sessions.

    `max_messages`, `max_bytes`: of what waits for one session in memory; what comes beyond waits on disk alone.
    `total_bytes`: of all queues in memory, beyond which whatever comes to a session waits so. `disk_bytes`: of what
    waits so, of all sessions. Bytes as queues count them. 0: unlimited; `max_messages` 0: nothing waits on disk alone.
    """

    def __init__(self, max_messages: int, max_bytes: int, total_bytes: int, disk_bytes: int) -> None:
        self.max_messages: i64 = max_messages if max_messages > 0 else UNBOUNDED
        self.max_bytes: i64 = max_bytes if max_bytes > 0 and max_messages > 0 else UNBOUNDED
        self.total_bytes: i64 = total_bytes if total_bytes > 0 and max_messages > 0 else UNBOUNDED
        self.disk_bytes: i64 = disk_bytes if disk_bytes > 0 else UNBOUNDED
        self.page: i64 = PAGE
        self.fetched: i64 = FETCHED
        # What waits on disk alone, of all sessions, and who waits for room in memory.
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self.starved: dict[DiskQueue, None] = {}

    def beyond(self, messages: i64, waiting: i64, size: i64, total: i64) -> bool:
        """Return whether one more of `size` bytes waits on disk alone, beside `messages` of `waiting` bytes in memory.

        `total`: bytes in all queues. The disk has to have room for it.
        """
        return (
            messages >= self.max_messages or waiting + size > self.max_bytes or total + size > self.total_bytes
        ) and self.bytes + size <= self.disk_bytes

    def retry(self) -> None:
        """Let all queues that found no room in memory try again: to be called every second or so."""
        if self.starved:
            starved, self.starved = self.starved, {}
            for each in starved:
                each.try_again()
