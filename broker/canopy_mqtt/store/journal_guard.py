"""The guard around a store's journal: an error in it releases no acknowledgement.

Owns the calls of the journal that have failed, and all later ones. Promises: it repeats all of them in their order as
soon as the journal takes them again. The broker sends no acknowledgement that depends on one of them before all are
repeated and committed. The postponed calls are bounded in bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.persistence.commits import Commits
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.disk_queue import Fetch, Page
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.subscription import Subscription

LATE_CALL: Final = 256
"""Bytes that each postponed call of the journal counts, besides its message."""

MAX_LATE_BYTES: Final = 64 * 1024 * 1024
"""The default of `GuardedJournal.max_late_bytes`."""


class LateCall:
    """A postponed call of the journal. `number`: the number that its delivery or broadcast gets, 0: a new one."""

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.number: i64 = 0


class GuardedJournal(Journal):
    """Passes each call to the journal. It postpones a call that raises, and all later ones until `retry` repeats them.

    Each postponed call counts in `commits.journal_position`. `commits` releases no waiter for one of them before all of
    them are repeated and committed. A journal without commits gets some here.
    """

    def __init__(
        self, hook: Journal, failed: Callable[[Exception], None], mended: Callable[[], None] = lambda: None
    ) -> None:
        """`failed` is called with each exception, `mended` when all postponed calls were repeated with success."""
        super().__init__()
        self._hook = hook
        self._failed = failed
        self._mended = mended
        self._own_commits = hook.commits is None
        self._commits = hook.commits or Commits()
        self.commits = self._commits
        self.pages = hook.pages
        self._late: deque[LateCall] = deque()
        self._late_bytes: i64 = 0
        # Beyond this many bytes of postponed calls, publishes of QoS 1 and 2 are refused. At twice as many the guard
        # gives up: until a restart the broker acknowledges nothing that has to be stored.
        self.max_late_bytes: i64 = MAX_LATE_BYTES
        # The postponed calls were too many to keep; only a restart helps.
        self._given_up = False

    def retry(self) -> None:
        if not self._late or self._given_up:
            return
        # A repeated call counts in `commits.journal_position` again; waiters are released when all that is committed.
        try:
            while self._late:
                self._repeat(self._late[0])
                self._late.popleft()
        except Exception as error:
            self._failed(error)
            return
        self._late_bytes = 0
        self._commits.complete()
        self._mended()
        if self._own_commits:
            self._commits.advance(self._commits.journal_position)

    def _repeat(self, call: LateCall) -> None:
        number = call.number
        if number > 0:
            delivery = call.arguments[-1]
            if not isinstance(delivery, Delivery) or delivery.record in (0, number):
                self._hook.placed(number)
        getattr(self._hook, call.name)(*call.arguments)

    def _postpone(self, name: str, arguments: tuple[object, ...], size: i64 = 0) -> LateCall:
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
                self._failed(RuntimeError("too many changes wait for the journal: restart the broker"))
        return call

    def _tell(self, name: str, arguments: tuple[object, ...], size: i64 = 0) -> LateCall | None:
        """Make a call, or postpone it. Those that each message of QoS 1 causes are spelled out, and make no tuple."""
        if not self._commits.incomplete:
            try:
                getattr(self._hook, name)(*arguments)
                return None
            except Exception as error:
                self._failed(error)
        return self._postpone(name, arguments, size)

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
        call = self._postpone("queued", (client_id, delivery), delivery.message.size)
        # Its page and its place in the order need the number now.
        call.number = delivery.record = self._hook.place()

    def paged(self, client_id: str, delivery: Delivery) -> None:
        call = self._tell("paged", (client_id, delivery), delivery.message.size)
        if call is not None:
            call.number = delivery.record = self._hook.place()

    def unpaged(self, client_id: str, page: Page) -> None:
        self._tell("unpaged", (client_id, page))

    def fetch(self, client_id: str, fetch: Fetch) -> None:
        self._tell("fetch", (client_id, fetch))

    def read_back(self, client_id: str, number: int) -> None:
        self._tell("read_back", (client_id, number))

    def renewed(self, client_id: str, delivery: Delivery) -> None:
        self._tell("renewed", (client_id, delivery), delivery.message.size)

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.in_flight(client_id, delivery)
                return
            except Exception as error:
                self._failed(error)
        call = self._postpone("in_flight", (client_id, delivery), delivery.message.size)
        if delivery.record == 0:
            call.number = self._hook.place()

    def unsent(self, client_id: str, delivery: Delivery) -> None:
        self._tell("unsent", (client_id, delivery))

    def released(self, client_id: str, delivery: Delivery) -> None:
        self._tell("released", (client_id, delivery))

    def finished(self, client_id: str, delivery: Delivery) -> None:
        if not self._commits.incomplete:
            try:
                self._hook.finished(client_id, delivery)
                return
            except Exception as error:
                self._failed(error)
        self._postpone("finished", (client_id, delivery))

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:
        self._tell("restored", (client_id, delivery, number))

    def received(self, client_id: str, packet_id: int) -> None:
        self._tell("received", (client_id, packet_id))

    def completed(self, client_id: str, packet_id: int) -> None:
        self._tell("completed", (client_id, packet_id))

    def broadcast(self, message: Message) -> int:
        if not self._commits.incomplete:
            try:
                return self._hook.broadcast(message)
            except Exception as error:
                self._failed(error)
        call = self._postpone("broadcast", (message,), message.size)
        call.number = self._hook.place()
        return call.number

    def passed(self, number: int, client_id: str) -> None:
        self._tell("passed", (number, client_id))

    def broadcast_over(self, number: int) -> None:
        self._tell("broadcast_over", (number,))

    def will_set(self, client_id: str, will: Will, due: float) -> None:
        self._tell("will_set", (client_id, will, due))

    def will_alone(self, name: str, principal: Principal, will: Will, due: float) -> None:
        self._tell("will_alone", (name, principal, will, due), len(will.payload))

    def will_cleared(self, client_id: str) -> None:
        self._tell("will_cleared", (client_id,))

    def retained_set(self, message: Message) -> None:
        self._tell("retained_set", (message,), message.size)

    def retained_cleared(self, topic: str) -> None:
        self._tell("retained_cleared", (topic,))
