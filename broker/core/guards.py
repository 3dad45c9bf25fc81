"""Guards around the hooks (`core.hooks`, `Journal`): an exception of a hook does not leave its guard.

Each guard wraps one hook and is called instead. It reports the exception to a `HookReporter` and answers for the hook:
access is refused, an authentication exchange fails, a listener or journal has not been told. Hooks that decide about a
client are timed too, if a clock is given, because the event loop waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.core.codec import reasons
from broker.core.codec.packets import Connect, Will
from broker.core.hooks import (
    FORBIDDEN,
    AccessControl,
    AuthExchange,
    AuthMethod,
    EventListener,
    Origin,
    SubscriptionListener,
    Ticket,
)
from broker.core.persistence.journal import Fetch, Journal
from broker.core.persistence.pages import Page
from broker.core.principal import Principal
from broker.core.queues.delivery import Delivery
from broker.core.queues.message import Message
from broker.core.topics.subscription import Subscription

ACCESS_CONTROL: Final = "access-control"
AUTH_METHOD: Final = "auth-method"
EVENT_LISTENER: Final = "event-listener"
SUBSCRIPTION_LISTENER: Final = "subscription-listener"
JOURNAL: Final = "journal"

HOOKS: Final = (ACCESS_CONTROL, AUTH_METHOD, EVENT_LISTENER, SUBSCRIPTION_LISTENER, JOURNAL)

SLOW: Final = 0.1
"""Seconds that one call of a hook may keep the event loop; a longer one is reported by the hook's name."""

SAMPLE: Final = 64
"""`may_publish` and `may_receive` are timed once in so many calls: they are on the path of every message."""


@mypyc_attr(allow_interpreted_subclasses=True)
class HookReporter:
    """Receives the exceptions that guards catch. Must not raise."""

    def failed(self, hook: str, error: Exception) -> None:
        """A call of the hook has raised."""

    def slow(self, hook: str, call: str, seconds: float) -> None:
        """A call of the hook has kept the event loop for longer than `SLOW`."""


class GuardedAccessControl(AccessControl):
    """Fails closed: a CONNECT is answered 0x88 (3.1.1: 3); publish, subscription and delivery are not authorized."""

    def __init__(self, hook: AccessControl, reporter: HookReporter, clock: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter
        self._clock = clock
        self._calls: i64 = 0

    def source(self) -> AccessControl:
        return self._hook.source()

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        began = self._began()
        try:
            answer = self._hook.admit(connect, origin, ticket)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            answer = reasons.SERVER_UNAVAILABLE
        self._timed("admit", began)
        return answer

    def bars(self, connect: Connect, origin: Origin) -> int:
        try:
            return self._hook.bars(connect, origin)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            return reasons.SERVER_UNAVAILABLE

    def method_refused(self, connect: Connect, origin: Origin, reason_code: int) -> None:
        try:
            self._hook.method_refused(connect, origin, reason_code)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        began = self._sampled()
        try:
            answer = self._hook.may_publish(principal, topic, qos, retain)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            answer = False
        if began > 0.0:
            self._timed("may_publish", began)
        return answer

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        began = self._began()
        try:
            answer = min(self._hook.may_subscribe(principal, topic_filter, qos), qos)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            answer = FORBIDDEN
        self._timed("may_subscribe", began)
        return answer

    def may_receive(self, principal: Principal, topic: str) -> bool:
        began = self._sampled()
        try:
            answer = self._hook.may_receive(principal, topic)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            answer = False
        if began > 0.0:
            self._timed("may_receive", began)
        return answer

    def receive_qos(self, principal: Principal, topic: str) -> int:
        began = self._sampled()
        try:
            answer = self._hook.receive_qos(principal, topic)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            answer = FORBIDDEN
        if began > 0.0:
            self._timed("receive_qos", began)
        return answer

    def said(self, principal: Principal, action: str, topic: str, qos: int, retain: bool) -> tuple[bool, str]:
        began = self._began()
        try:
            answer = self._hook.said(principal, action, topic, qos, retain)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            answer = (False, "access control has failed; the log has the error")
        self._timed("said", began)
        return answer

    def _sampled(self) -> float:
        self._calls += 1
        return self._began() if self._calls % SAMPLE == 0 else 0.0

    def _began(self) -> float:
        return 0.0 if self._clock is None else self._clock()

    def _timed(self, call: str, began: float) -> None:
        if self._clock is not None:
            seconds = self._clock() - began
            if seconds > SLOW:
                self._reporter.slow(ACCESS_CONTROL, call, seconds)


class GuardedEventListener(EventListener):
    """Continues as if the listener had been told."""

    def __init__(self, hook: EventListener, reporter: HookReporter) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        try:
            self._hook.subscribed(client_id, topic_filter, qos)
        except Exception as error:
            self._reporter.failed(EVENT_LISTENER, error)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        try:
            self._hook.unsubscribed(client_id, topic_filter)
        except Exception as error:
            self._reporter.failed(EVENT_LISTENER, error)

    def session_ended(self, client_id: str) -> None:
        try:
            self._hook.session_ended(client_id)
        except Exception as error:
            self._reporter.failed(EVENT_LISTENER, error)


class GuardedSubscriptionListener(SubscriptionListener):
    """Continues as if the listener had been told."""

    def __init__(self, hook: SubscriptionListener, reporter: HookReporter) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter

    def wanted(self, topic_filter: str) -> None:
        try:
            self._hook.wanted(topic_filter)
        except Exception as error:
            self._reporter.failed(SUBSCRIPTION_LISTENER, error)

    def unwanted(self, topic_filter: str) -> None:
        try:
            self._hook.unwanted(topic_filter)
        except Exception as error:
            self._reporter.failed(SUBSCRIPTION_LISTENER, error)


class GuardedAuthMethod(AuthMethod):
    """An exchange that cannot be made, or that fails, ends with 0x83 for the client."""

    def __init__(self, hook: AuthMethod, reporter: HookReporter, clock: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter
        self._clock = clock

    def begin(self) -> AuthExchange:
        try:
            exchange = self._hook.begin()
        except Exception as error:
            self._reporter.failed(AUTH_METHOD, error)
            exchange = _Broken()
        return GuardedAuthExchange(exchange, self._reporter, self._clock)


class _Broken(AuthExchange):
    """In the place of an exchange that could not be made."""

    def __init__(self) -> None:
        super().__init__()
        self.reason_code = reasons.IMPLEMENTATION_SPECIFIC_ERROR


_START: Final = 0
_PROCEED: Final = 1
_AGAIN: Final = 2
_CALLS: Final = ("start", "proceed", "again")


class GuardedAuthExchange(AuthExchange):
    """One run of a method. It copies the hook's answer after each call, if AUTH can carry it."""

    def __init__(self, hook: AuthExchange, reporter: HookReporter, clock: Callable[[], float] | None) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter
        self._clock = clock

    def start(self, connect: Connect, data: bytes | None) -> None:
        self._call(_START, connect, data)

    def proceed(self, data: bytes | None) -> None:
        self._call(_PROCEED, None, data)

    def again(self, data: bytes | None) -> None:
        self._call(_AGAIN, None, data)

    def _call(self, call: int, connect: Connect | None, data: bytes | None) -> None:
        hook = self._hook
        clock = self._clock
        began = 0.0 if clock is None else clock()
        try:
            if connect is not None:
                hook.start(connect, data)
            elif call == _PROCEED:
                hook.proceed(data)
            else:
                hook.again(data)
            code = hook.reason_code
            if code < 0x80 and code not in (reasons.SUCCESS, reasons.CONTINUE_AUTHENTICATION):
                raise ValueError(f"an authentication exchange answers with reason code {code:#04x}")
            self.reason_code = code
            self.data = hook.data
            self.principal = hook.principal
        except Exception as error:
            self._reporter.failed(AUTH_METHOD, error)
            self.reason_code = reasons.IMPLEMENTATION_SPECIFIC_ERROR
            self.data = None
            self.principal = None
        if clock is not None:
            seconds = clock() - began
            if seconds > SLOW:
                self._reporter.slow(AUTH_METHOD, _CALLS[call], seconds)


class GuardedJournal(Journal):
    """Continues after a failed call: its change is missing or stale in the store, all others are kept."""

    def __init__(self, hook: Journal, reporter: HookReporter) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter
        self.commits = hook.commits
        self.pages = hook.pages

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        try:
            self._hook.session_kept(client_id, principal, expiry_interval, disconnected_at)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def session_gone(self, client_id: str) -> None:
        try:
            self._hook.session_gone(client_id)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        try:
            self._hook.subscribed(client_id, subscription, streaming)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def streamed(self, client_id: str, topic_filter: str) -> None:
        try:
            self._hook.streamed(client_id, topic_filter)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        try:
            self._hook.unsubscribed(client_id, topic_filter)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def queued(self, client_id: str, delivery: Delivery) -> None:
        try:
            self._hook.queued(client_id, delivery)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def paged(self, client_id: str, delivery: Delivery) -> None:
        try:
            self._hook.paged(client_id, delivery)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def unpaged(self, client_id: str, page: Page) -> None:
        try:
            self._hook.unpaged(client_id, page)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def fetch(self, client_id: str, fetch: Fetch) -> None:
        try:
            self._hook.fetch(client_id, fetch)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def read_back(self, client_id: str, number: int) -> None:
        try:
            self._hook.read_back(client_id, number)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def renewed(self, client_id: str, delivery: Delivery) -> None:
        try:
            self._hook.renewed(client_id, delivery)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        try:
            self._hook.in_flight(client_id, delivery)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def unsent(self, client_id: str, delivery: Delivery) -> None:
        try:
            self._hook.unsent(client_id, delivery)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def released(self, client_id: str, delivery: Delivery) -> None:
        try:
            self._hook.released(client_id, delivery)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def finished(self, client_id: str, delivery: Delivery) -> None:
        try:
            self._hook.finished(client_id, delivery)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:
        try:
            self._hook.restored(client_id, delivery, number)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def received(self, client_id: str, packet_id: int, number: int = 0) -> None:
        try:
            self._hook.received(client_id, packet_id, number)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def confirmed(self, client_id: str, packet_id: int) -> None:
        try:
            self._hook.confirmed(client_id, packet_id)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def completed(self, client_id: str, packet_id: int) -> None:
        try:
            self._hook.completed(client_id, packet_id)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def broadcast(self, message: Message) -> int:
        try:
            return self._hook.broadcast(message)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)
            return 0

    def passed(self, number: int, client_id: str) -> None:
        try:
            self._hook.passed(number, client_id)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def broadcast_over(self, number: int) -> None:
        try:
            self._hook.broadcast_over(number)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def will_set(self, client_id: str, will: Will, due: float) -> None:
        try:
            self._hook.will_set(client_id, will, due)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def will_alone(self, name: str, principal: Principal, will: Will, due: float) -> None:
        try:
            self._hook.will_alone(name, principal, will, due)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def will_cleared(self, client_id: str) -> None:
        try:
            self._hook.will_cleared(client_id)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def retained_set(self, message: Message) -> None:
        try:
            self._hook.retained_set(message)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)

    def retained_cleared(self, topic: str) -> None:
        try:
            self._hook.retained_cleared(topic)
        except Exception as error:
            self._reporter.failed(JOURNAL, error)
