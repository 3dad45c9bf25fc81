"""Guards around the hooks (`core.hooks`): an exception of a hook does not leave its guard.

Each guard wraps one hook and is called instead. It reports the exception to a `HookReporter` and answers for the hook:
access is refused, an authentication exchange fails, a listener has not been told. Hooks that decide about a client are
timed too, if a clock is given, because the event loop waits for them. A store's journal has a guard of its own
(`journal_guard`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.core.codec import reasons
from broker.core.codec.packets import Connect
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
from broker.core.principal import Principal

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

    def mended(self, hook: str) -> None:
        """The calls of a journal that had failed were repeated, and succeeded."""

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

    def denies_part(self, principal: Principal, topic_filter: str) -> bool:
        began = self._began()
        try:
            answer = self._hook.denies_part(principal, topic_filter)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            answer = False
        self._timed("denies_part", began)
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
