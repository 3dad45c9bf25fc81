"""The slow truth about queues: everything that the core keeps count of, counted again by looking at each message.

Owns `check`, which holds every account of a broker's core against a walk over its queues: what stands in each buffer
and session, what each lane has waiting, what all queues hold together, and that offered = delivered + dropped + queued.
Also `Tally`, which counts what really went over a client's wire and what the client was told of its losses, and small
helpers that the tests of overload share. `Book` is a store's journal that can be held against the queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from canopy_mqtt.core.accounts import FILTERS, RETAINED, RETAINED_SIZE, ROOMS, SESSION_SIZE, SESSIONS
from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import Packet, Publish, Suback, Subscribe
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import decode_forward
from canopy_mqtt.core.ledger import DROP_CAUSES, property_of
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import DROPPED, QUEUED, RELEASED, SENT, Delivery
from canopy_mqtt.core.queues.queue_terms import LATEST, MessageTerms
from canopy_mqtt.core.routing.retained_shares import RetainedMessage
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.routing.session_table import bytes_of, is_empty, session_bytes
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import DELAY_BYTES, SUB_QUEUE_BYTES, SUBSCRIPTION_BYTES, group_bytes
from tests.core.harness import Client, Network, bag
from tests.core.judge import Judge
from tests.support.losses import dropped_by_cause

LOST: Final = "canopy-lost"

User = tuple[str, str]


def frames(piece: bytes) -> Iterator[bytes]:
    """The MQTT packets that stand side by side in some bytes."""
    at = 0
    while at < len(piece):
        size, shift, end = 0, 0, at + 1
        while True:
            byte = piece[end]
            end += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        end += size
        yield piece[at:end]
        at = end


def notes(lost: Iterable[int]) -> bytes:
    """The user properties that tell of losses, one number for each cause."""
    return b"".join([property_of(cause, count) for cause, count in enumerate(lost)])


class Found:
    """What a walk over the queues of one session finds."""

    def __init__(self, session: Session) -> None:
        # QoS 0 in the buffer, QoS 1 and 2 in the buffer, and what waits in the session: messages and bytes of each.
        self.live = self.live_bytes = 0
        self.in_flight_messages = self.in_flight_bytes = 0
        self.pending = self.pending_bytes = 0
        # Unfinished deliveries with a packet identifier, and those of them that were never written.
        self.inflight = self.inflight_bytes = self.unsent = 0
        # What waits on the account of a lane.
        self.waiting: list[tuple[MessageTerms, Delivery]] = []
        send_buffer = session.send_buffer
        if send_buffer is not None:
            for item in send_buffer.items:
                self._item(item)
        for delivery in session.queue.pending or ():
            if delivery.state != DROPPED:
                assert not delivery.live
                self.pending += 1
                self.pending_bytes += delivery.message.size
                self._wait(delivery)
        for delivery in session.inflight.values():
            assert delivery.state in (SENT, RELEASED)
            self.inflight += 1
            self.inflight_bytes += delivery.message.size
            self.unsent += delivery.state == SENT and delivery.attempts == 0

    def _item(self, item: object) -> None:
        if isinstance(item, bytes):
            for frame in frames(item):
                if frame[0] & 0xF0 == 0x30:
                    self.live += 1
                    self.live_bytes += len(frame)
        elif isinstance(item, Delivery) and item.state != DROPPED:
            if item.qos == 0:
                assert item.live
                self.live += 1
                self.live_bytes += item.message.size
                self._wait(item)
            else:
                self.in_flight_messages += 1
                self.in_flight_bytes += item.message.size

    def _wait(self, delivery: Delivery) -> None:
        if delivery.message_terms is not None:
            self.waiting.append((delivery.message_terms, delivery))

    @property
    def messages(self) -> int:
        """What the session holds of the room of all queues."""
        return self.live + self.pending + self.inflight

    @property
    def bytes(self) -> int:
        """The same in bytes."""
        return self.live_bytes + self.pending_bytes + self.inflight_bytes


def check(network: Network, known: Iterable[Session]) -> None:
    """Hold all accounts against a recount. `known`: every session there ever was, those that ended included."""
    router = network.router
    known = list(known)
    for session in known:
        dropped = dropped_by_cause(session)
        assert min(dropped) >= 0
        found = (session.delivered_in_all(), dropped, session.queued())
        assert session.offered == found[0] + sum(dropped) + found[2], f"{session.client_id}: {session.offered}, {found}"
        if session.ended:
            assert session.queued() == 0
    losses = [dropped_by_cause(each) for each in known]
    # A queue of a share group that has room for nothing is over before anybody sees it.
    ledgers = [each.ledger for each in known]
    losses += [each.dropped for each in router.counters.totals.unreported if each not in ledgers and each.dropped]
    total = [sum(column) for column in zip(*losses, strict=True)]
    assert router.counters.dropped == (total or [0] * len(DROP_CAUSES))
    messages = size = inflight = inflight_bytes = 0
    for session in router.sessions.values():
        here = Found(session)
        _one(session, here)
        messages += here.messages
        size += here.bytes
        inflight += here.inflight
        inflight_bytes += here.inflight_bytes
    check_accounts(router)
    totals = router.counters.totals
    assert (totals.messages, totals.bytes) == (messages, size)
    assert (totals.inflight, totals.inflight_bytes) == (inflight, inflight_bytes)


def check_accounts(router: Router) -> None:
    """Hold what each principal's account holds against a walk over sessions, subscriptions and retained messages."""
    accounts = router.accounts
    found: dict[str, list[int]] = {}
    queued: Counter[str] = Counter()
    queues: Counter[str] = Counter()

    def add(name: str, room: int, size: int) -> None:
        found.setdefault(name, [0] * len(ROOMS))[room] += size

    absent: dict[str, list[Session]] = {}
    for session in router.sessions.values():
        owner = session.account.owner
        assert owner is (accounts.internal if session.internal else accounts.of(session.principal)), session.client_id
        add(owner.name, SESSIONS, 1)
        add(owner.name, SESSION_SIZE, bytes_of(session))
        queued[owner.name] += int(session.queue.bytes_in_memory)
        queues[owner.name] += session.queue.messages > 0
        if session.send_buffer is None and not session.internal:
            absent.setdefault(owner.name, []).append(session)
    for session in (*router.sessions.values(), *router.table._leaving):
        for subscription in session.subscriptions.values():
            assert subscription.entry is not None
            size = SUBSCRIPTION_BYTES + int(subscription.entry.cost)
            if subscription.group is not None:
                size += group_bytes(subscription.topic_filter, subscription.group.name)
            size += SUB_QUEUE_BYTES if subscription.message_terms is not None else 0
            add(session.account.owner.name, FILTERS, size)
    for session in router.sessions.values():
        if session.requested_delays is not None:
            add(session.account.owner.name, FILTERS, DELAY_BYTES * len(session.requested_delays.of_filters))
    for lone in (*router.wills.held.values(), *router.wills.line):
        add(accounts.of(lone.principal).name, SESSION_SIZE, session_bytes(lone.client_id, lone.principal, lone.will))
    giving: Counter[str] = Counter()
    for node in [*router.retained.matching("#"), *router.retained_store.cleared.matching("#")]:
        message = node.value
        assert isinstance(message, RetainedMessage)
        assert message.account is not None
        add(message.account.name, RETAINED, 1)
        add(message.account.name, RETAINED_SIZE, int(message.charge))
        giving[message.account.name] += message.payload() == b"" or (message.qos == 0 and not message.account.internal)
    kept = {name: account.held for name, account in accounts.by_name.items()}
    inside = found.pop("internal", [0] * len(ROOMS))
    assert accounts.internal.held == inside
    assert kept == {name: held for name, held in found.items() if any(held)}
    for account in (accounts.internal, *accounts.by_name.values()):
        assert (int(account.queued), int(account.queues)) == (queued[account.name], queues[account.name])
    assert router.counters.totals.queue_holders == sum(bool(n) for name, n in queues.items() if name != "internal")
    for room in accounts.rooms:
        ranked = room.largest(1 << 30)
        assert [each.held[room.number] for each in ranked] == sorted(
            [held[room.number] for held in kept.values() if held[room.number]], reverse=True
        )
    table = router.session_table
    assert {each.name: set(some) for each, some in table._absent.items()} == {
        name: set(some) for name, some in absent.items()
    }
    empty = {each for each in router.sessions.values() if is_empty(each)}
    assert set(table._empty) == empty
    assert table.empty_bytes == sum(map(bytes_of, empty))
    shares = router.retained_store.shares
    shelves: Counter[str] = Counter()
    for each, some in shares._giving.items():
        assert some
        shelves[each.name] += len(some)
    for each, by_client in shares._clearings.items():
        assert by_client
        assert all(by_client.values())
        shelves[each.name] += sum(map(len, by_client.values()))
    assert shelves == +giving


def _one(session: Session, found: Found) -> None:
    """One living session."""
    assert (session.queue.messages, session.queue.bytes) == (found.pending, found.pending_bytes)
    assert 0 <= session.queue.messages <= session.queue.max_messages
    # One fits, whatever its size.
    assert 0 <= session.queue.bytes <= session.queue.max_bytes or session.queue.messages == 1
    assert session.window.bytes == found.inflight_bytes
    assert session.queued() == found.live + found.pending + found.unsent
    send_buffer = session.send_buffer
    if send_buffer is not None:
        assert send_buffer.messages == found.live + found.in_flight_messages
        assert send_buffer.bytes == found.live_bytes + found.in_flight_bytes
        assert (send_buffer.in_flight_messages, send_buffer.in_flight_bytes) == (
            found.in_flight_messages,
            found.in_flight_bytes,
        )
        assert 0 <= send_buffer.messages <= send_buffer.max_messages
        assert 0 <= send_buffer.bytes <= send_buffer.max_bytes or send_buffer.messages == 1
    waiting = Counter(message_terms for message_terms, _ in found.waiting)
    for message_terms in {*waiting, *_lanes(session)}:
        assert message_terms.waiting == waiting[message_terms], session.client_id
        assert message_terms.waiting <= message_terms.depth
    latest = Counter(
        (message_terms, delivery.message.topic)
        for message_terms, delivery in found.waiting
        if message_terms.policy == LATEST
    )
    for (_, topic), count in latest.items():
        assert count == 1, f"{count} messages of {topic!r} wait under `latest`"


def _lanes(session: Session) -> set[MessageTerms]:
    message_terms = {one.message_terms for one in session.subscriptions.values()} | {session.message_terms}
    return {each for each in message_terms if each is not None}


def allowed(session: Session) -> tuple[int, int]:
    """Messages and bytes that a session may hold whatever all queues together do.

    The first thing in its buffer, one message in flight, and what was read from the retained tree, so that its stream
    goes on.
    """
    messages = size = 0
    send_buffer = session.send_buffer
    for item in [] if send_buffer is None else send_buffer.items:
        if isinstance(item, bytes) and item[0] & 0xF0 == 0x30:
            messages, size = len(list(frames(item))), len(item)
            break
        if isinstance(item, Delivery) and item.state != DROPPED:
            messages, size = 1, item.message.size
            break
    found = {*session.inflight.values()}
    if send_buffer is not None:
        found |= {each for each in send_buffer.items if isinstance(each, Delivery) and each.retain}
    sizes = [each.message.size for each in found]
    if sizes:
        streamed = [each.message.size for each in found if each.retain]
        messages += 1 + len(streamed)
        size += max(sizes) + sum(streamed)
    return messages, size


def losses(session: Session) -> dict[str, int]:
    """What a session has lost, by the names of the causes."""
    return {name: count for name, count in zip(DROP_CAUSES, dropped_by_cause(session), strict=True) if count}


def told(packet: Publish) -> list[str]:
    """What a PUBLISH tells of losses: the values of `canopy-lost`."""
    return [value for name, value in decode_forward(packet.properties).user if name == LOST]


def told_in_all(packets: Iterable[Publish]) -> dict[str, int]:
    """The sum of what packets tell, by cause."""
    found: Counter[str] = Counter()
    for packet in packets:
        for value in told(packet):
            count, _, cause = value.partition(";")
            assert count == str(int(count))
            assert int(count) > 0
            assert cause in DROP_CAUSES
            found[cause] += int(count)
    return dict(found)


class Tally(Judge):
    """Counts the first deliveries on the wire, and what was told with them; the judge's other rules hold if enabled."""

    def __init__(self, enabled: bool = True) -> None:
        super().__init__()
        self.enabled = enabled
        self.delivered = 0
        self.told: Counter[str] = Counter()
        self.v5 = False

    def from_server(self, packet: Packet, size: int) -> None:
        """The server's writer wrote a packet."""
        # Whatever else is not looked at [MQTT-3.1.2-24].
        assert size <= self.max_packet
        super().from_server(packet, size)
        if isinstance(packet, Publish):
            self.delivered += not packet.dup
            if packet.properties:
                self.told.update(told_in_all([packet]))


class Book(Journal):
    """What a store would keep of the deliveries, in the order in which it was told of them."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[Delivery, None]] = {}

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        """From now on the session is kept."""
        del principal, expiry_interval, disconnected_at
        self.kept.setdefault(client_id, {})

    def session_gone(self, client_id: str) -> None:
        """All that was kept of it is gone."""
        del self.kept[client_id]

    def queued(self, client_id: str, delivery: Delivery) -> None:
        """The last in its queue."""
        assert delivery not in self.kept[client_id]
        self.kept[client_id][delivery] = None

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        """It keeps its place, or is the last."""
        self.kept[client_id].setdefault(delivery, None)

    def finished(self, client_id: str, delivery: Delivery) -> None:
        """It is over."""
        del self.kept[client_id][delivery]

    def check(self, network: Network) -> None:
        """What is kept is what there is, in its order; but what was renewed under `latest` may have lost its place."""
        for client_id, kept in self.kept.items():
            session = network.session(client_id)
            waiting = [one for one in session.queue.pending or () if one.state != DROPPED]
            queued = [one for one in kept if one.state == QUEUED]
            assert set(queued) == set(waiting), client_id
            assert list(filter(_keeps_its_place, queued)) == list(filter(_keeps_its_place, waiting)), client_id
            assert {one for one in kept if one.state != QUEUED} == set(session.inflight.values()), client_id


def _keeps_its_place(delivery: Delivery) -> bool:
    return delivery.message_terms is None or delivery.message_terms.policy != LATEST


def ask(
    client: Client, *filters: str | Request, qos: int = 0, user: Iterable[User] = (), identifier: int = 0
) -> Suback:
    """Subscribe with user properties, and settle; the SUBACK."""
    number = client.take_id()
    requests = [one if isinstance(one, Request) else Request(one, qos) for one in filters]
    client.send(Subscribe(number, requests, bag(*user, i={0x0B: identifier} if identifier else None)))
    client.network.settle()
    [answer] = [each for each in client.got(Suback) if each.packet_id == number]
    return answer


def burst(publisher: Client, topic: str, payloads: Iterable[bytes], qos: int = 0) -> None:
    """Publish several messages in one read, and settle."""
    for payload in payloads:
        publisher.post(topic, payload, qos)
    publisher.network.settle()


def numbers(count: int, size: int = 0) -> list[bytes]:
    """Payloads that can be told from each other: at least four digits each."""
    return [b"%04d" % number + b"x" * size for number in range(count)]


def user_wish(policy: str = "", max_age: str = "", depth: str = "") -> list[User]:
    """The user properties of a wish."""
    given = (("canopy-queue", policy), ("canopy-max-age", max_age), ("canopy-depth", depth))
    return [(name, value) for name, value in given if value]


VERSIONS: Final = (p.V311, p.V5)
