"""The guard around a store's journal: an error in it releases no acknowledgement.

Owns the calls of the journal that have failed, and those that came after them. Promises: the journal is told all of
them in their order, as soon as it can be; until then, and until that is committed, no acknowledgement leaves that
depends on one of them. What is postponed is bounded.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64

from broker.core.codec.packets import Will
from broker.core.guards import JOURNAL, HookReporter
from broker.core.persistence.commits import Commits
from broker.core.persistence.journal import Fetch, Journal
from broker.core.persistence.pages import Page
from broker.core.principal import Principal
from broker.core.queues.delivery import Delivery
from broker.core.queues.message import Message
from broker.core.topics.subscription import Subscription

LATE_CALL: Final = 256
"""Bytes that a postponed call of the journal counts for, besides its message."""

MAX_LATE_BYTES: Final = 64 * 1024 * 1024
"""The default of `GuardedJournal.max_late_bytes`."""


class LateCall:
    """A call of the journal that is postponed. `number`: what its delivery or broadcast is to have, 0: a new one."""

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.number: i64 = 0


class GuardedJournal(Journal):
    """Hands each call on. One that raises is postponed, and so is every later one until `retry` has repeated all.

    Each postponed call counts in `commits.told`; `commits` releases no waiter for one of them before all of them have
    been told and are committed. A journal without commits of its own gets some here.
    """

    def __init__(self, hook: Journal, reporter: HookReporter) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter
        self._own_commits = hook.commits is None
        self._commits = hook.commits or Commits()
        self.commits = self._commits
        self.pages = hook.pages
        self._late: deque[LateCall] = deque()
        self._late_bytes: i64 = 0
        # Bytes of postponed calls beyond which publishes of QoS 1 and 2 are refused. At twice as many the broker gives
        # up: it acknowledges nothing that has to be stored until it is restarted.
        self.max_late_bytes: i64 = MAX_LATE_BYTES
        # Too much is postponed to be kept in memory: only a restart helps.
        self._given_up = False

    def retry(self) -> None:
        if not self._late or self._given_up:
            return
        # A call repeated below counts what it tells; those who wait are released when all of it is committed.
        try:
            while self._late:
                self._repeat(self._late[0])
                self._late.popleft()
        except Exception as error:
            self._reporter.failed(JOURNAL, error)
            return
        self._late_bytes = 0
        self._commits.complete()
        self._reporter.mended(JOURNAL)
        if self._own_commits:
            self._commits.advance(self._commits.told)

    def _repeat(self, call: LateCall) -> None:
        number = call.number
        if number > 0:
            delivery = call.arguments[-1]
            if not isinstance(delivery, Delivery) or delivery.record in (0, number):
                self._hook.placed(number)
        getattr(self._hook, call.name)(*call.arguments)

    def _failed(self, error: Exception) -> None:
        self._reporter.failed(JOURNAL, error)

    def _postpone(self, name: str, arguments: tuple[object, ...], size: i64) -> LateCall:
        call = LateCall(name, arguments)
        self._commits.postpone()
        if self._given_up:
            return call
        self._late.append(call)
        self._late_bytes += LATE_CALL + size
        if self._late_bytes > self.max_late_bytes:
            self._commits.full = True
            if self._late_bytes > 2 * self.max_late_bytes:
                self._given_up = True
                self._late.clear()
                self._reporter.failed(
                    JOURNAL, RuntimeError("too many changes wait for the journal: restart the broker")
                )
        return call

    def _postpone_delivery(self, name: str, client_id: str, delivery: Delivery) -> LateCall:
        return self._postpone(name, (client_id, delivery), delivery.message.size())

    def _tell(self, name: str, arguments: tuple[object, ...], size: i64 = 0) -> None:
        """A call that does not come with each message; those that do are spelled out, and make no tuple."""
        if not self._commits.incomplete:
            try:
                getattr(self._hook, name)(*arguments)
                return
            except Exception as error:
                self._failed(error)
        self._postpone(name, arguments, size)

    def place(self) -> int:
        return self._hook.place()

    def placed(self, number: int) -> None:
        self._hook.placed(number)

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        self._tell("session_kept", (client_id, principal, expiry_interval, disconnected_at))

    def session_gone(self, client_id: str) -> None:
        self._tell("session_gone", (client_id,))

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        self._tell("subscribed", (client_id, subscription, streaming))

    def streamed(self, client_id: str, topic_filter: str) -> None:
        self._tell("streamed", (client_id, topic_filter))

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        self._tell("unsubscribed", (client_id, topic_filter))

    def queued(self, client_id: str, delivery: Delivery) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.queued(client_id, delivery)
                return
            except Exception as error:
                self._failed(error)
        call = self._postpone_delivery("queued", client_id, delivery)
        # Its page and its place in the order need the number now.
        call.number = delivery.record = self._hook.place()

    def paged(self, client_id: str, delivery: Delivery) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.paged(client_id, delivery)
                return
            except Exception as error:
                self._failed(error)
        call = self._postpone_delivery("paged", client_id, delivery)
        # Its page and its place in the order need the number now.
        call.number = delivery.record = self._hook.place()

    def unpaged(self, client_id: str, page: Page) -> None:
        self._tell("unpaged", (client_id, page))

    def fetch(self, client_id: str, fetch: Fetch) -> None:
        self._tell("fetch", (client_id, fetch))

    def read_back(self, client_id: str, number: int) -> None:
        self._tell("read_back", (client_id, number))

    def renewed(self, client_id: str, delivery: Delivery) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.renewed(client_id, delivery)
                return
            except Exception as error:
                self._failed(error)
        self._postpone_delivery("renewed", client_id, delivery)

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.in_flight(client_id, delivery)
                return
            except Exception as error:
                self._failed(error)
        call = self._postpone_delivery("in_flight", client_id, delivery)
        if delivery.record == 0:
            call.number = self._hook.place()

    def unsent(self, client_id: str, delivery: Delivery) -> None:
        self._tell("unsent", (client_id, delivery))

    def released(self, client_id: str, delivery: Delivery) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.released(client_id, delivery)
                return
            except Exception as error:
                self._failed(error)
        self._postpone("released", (client_id, delivery), 0)

    def finished(self, client_id: str, delivery: Delivery) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.finished(client_id, delivery)
                return
            except Exception as error:
                self._failed(error)
        self._postpone("finished", (client_id, delivery), 0)

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.restored(client_id, delivery, number)
                return
            except Exception as error:
                self._failed(error)
        self._postpone("restored", (client_id, delivery, number), 0)

    def received(self, client_id: str, packet_id: int) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.received(client_id, packet_id)
                return
            except Exception as error:
                self._failed(error)
        self._postpone("received", (client_id, packet_id), 0)

    def completed(self, client_id: str, packet_id: int) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.completed(client_id, packet_id)
                return
            except Exception as error:
                self._failed(error)
        self._postpone("completed", (client_id, packet_id), 0)

    def broadcast(self, message: Message) -> int:
        if not self._commits.incomplete:
            try:
                return self._hook.broadcast(message)
            except Exception as error:
                self._failed(error)
        call = self._postpone("broadcast", (message,), message.size())
        call.number = self._hook.place()
        return call.number

    def passed(self, number: int, client_id: str) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.passed(number, client_id)
                return
            except Exception as error:
                self._failed(error)
        self._postpone("passed", (number, client_id), 0)

    def broadcast_over(self, number: int) -> None:
        self._tell("broadcast_over", (number,))

    def will_set(self, client_id: str, will: Will, due: float) -> None:
        self._tell("will_set", (client_id, will, due))

    def will_alone(self, name: str, principal: Principal, will: Will, due: float) -> None:
        self._tell("will_alone", (name, principal, will, due), len(will.payload))

    def will_cleared(self, client_id: str) -> None:
        self._tell("will_cleared", (client_id,))

    def retained_set(self, message: Message) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.retained_set(message)
                return
            except Exception as error:
                self._failed(error)
        self._postpone("retained_set", (message,), message.size())

    def retained_cleared(self, topic: str) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.retained_cleared(topic)
                return
            except Exception as error:
                self._failed(error)
        self._postpone("retained_cleared", (topic,), 0)
