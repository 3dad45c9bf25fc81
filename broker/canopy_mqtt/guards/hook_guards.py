"""Guards around the hooks (`core.hooks`): an exception of a hook does not leave its guard.

Each guard wraps one hook and is called instead. It reports the exception to a `HookReporter` and answers for the hook:
access is refused, an authentication exchange fails, a listener misses an event. With a clock, a guard also measures the
calls of hooks that decide about a client, because the event loop waits for them. A store's journal has a guard of its
own (`canopy_mqtt.store.journal_guard`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.codec.primitives import string
from canopy_mqtt.core.hooks import (
    FORBIDDEN,
    AccessControl,
    AuthExchange,
    AuthMethod,
    Confirmed,
    EventListener,
    Origin,
    SubscriptionListener,
    Ticket,
)
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.topics.subscription import Subscription

ACCESS_CONTROL: Final = "access-control"
AUTH_METHOD: Final = "auth-method"
EVENT_LISTENER: Final = "event-listener"
SUBSCRIPTION_LISTENER: Final = "subscription-listener"
JOURNAL: Final = "journal"

HOOKS: Final = (ACCESS_CONTROL, AUTH_METHOD, EVENT_LISTENER, SUBSCRIPTION_LISTENER, JOURNAL)

SLOW: Final = 0.1
"""Seconds that one call of a hook may keep the event loop; a guard reports a longer call by the hook's name."""

SAMPLE: Final = 64
SAMPLED: Final = ("may_publish", "may_receive", "receive_qos")
"""One of `SAMPLE` of these calls is measured: each message may cause one."""

NOTHING_SAID: Final = (False, "access control has failed; the log has the error")
"""The answer to `said` for a hook that raises."""


@mypyc_attr(allow_interpreted_subclasses=True)
class HookReporter:
    """Receives the exceptions that guards catch. Must not raise."""

    def failed(self, hook: str, error: Exception) -> None:
        """Called when a hook has raised."""

    def slow(self, hook: str, call: str, seconds: float) -> None:
        """Called when a hook has kept the event loop for longer than `SLOW`."""


class GuardedAccessControl(AccessControl):
    """Fails closed: it answers a CONNECT with 0x88 (3.1.1: 3), and refuses publish, subscription and delivery."""

    def __init__(self, hook: AccessControl, reporter: HookReporter, clock: Callable[[], float] | None = None) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter
        self._clock = clock
        self._calls: i64 = 0

    def source(self) -> AccessControl:
        return self._hook.source()

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        answer: int = self._ask("admit", reason_codes.SERVER_UNAVAILABLE, connect, origin, ticket)
        return answer

    def bars(self, connect: Connect, origin: Origin) -> int:
        try:
            return self._hook.bars(connect, origin)
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            return reason_codes.SERVER_UNAVAILABLE

    def method_refused(self, connect: Connect, origin: Origin, reason_code: int) -> None:
        _tell(self._reporter, ACCESS_CONTROL, self._hook.method_refused, connect, origin, reason_code)

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        answer: bool = self._ask("may_publish", False, principal, topic, qos, retain)
        return answer

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        answer: int = self._ask("may_subscribe", FORBIDDEN, principal, topic_filter, qos)
        return min(answer, qos)

    def may_receive(self, principal: Principal, topic: str) -> bool:
        answer: bool = self._ask("may_receive", False, principal, topic)
        return answer

    def receive_qos(self, principal: Principal, topic: str) -> int:
        answer: int = self._ask("receive_qos", FORBIDDEN, principal, topic)
        return answer

    def said(self, principal: Principal, action: str, topic: str, qos: int, retain: bool) -> tuple[bool, str]:
        answer: tuple[bool, str] = self._ask("said", NOTHING_SAID, principal, action, topic, qos, retain)
        return answer

    def denies_part(self, principal: Principal, topic_filter: str) -> bool:
        answer: bool = self._ask("denies_part", False, principal, topic_filter)
        return answer

    def _ask(self, call: str, refusal: object, *arguments: object) -> Any:
        """Return the hook's answer, or the refusal if the hook raises or answers by a value of another type."""
        clock = self._clock
        if call in SAMPLED:
            self._calls += 1
            if self._calls % SAMPLE != 0:
                clock = None
        began = 0.0 if clock is None else clock()
        try:
            answer = getattr(self._hook, call)(*arguments)
            if not _has_type_of(answer, refusal):
                raise TypeError(f"{call} has answered by a value of type {type(answer).__name__}")
        except Exception as error:
            self._reporter.failed(ACCESS_CONTROL, error)
            answer = refusal
        if clock is not None:
            seconds = clock() - began
            if seconds > SLOW:
                self._reporter.slow(ACCESS_CONTROL, call, seconds)
        return answer


def _has_type_of(answer: object, refusal: object) -> bool:
    """Return whether an answer has the type of a refusal, and each of its items if it is a tuple."""
    if isinstance(answer, tuple) and isinstance(refusal, tuple):
        pairs = list(zip(answer, refusal, strict=False))
        return len(answer) == len(refusal) and all(isinstance(item, type(other)) for item, other in pairs)
    return isinstance(answer, type(refusal))


def _tell(reporter: HookReporter, hook: str, call: Callable[..., None], *arguments: object) -> None:
    """Inform a hook, and continue as if it had handled the event."""
    try:
        call(*arguments)
    except Exception as error:
        reporter.failed(hook, error)


class GuardedEventListener(EventListener):
    """Continues as if the listener had handled the event."""

    def __init__(self, hook: EventListener, reporter: HookReporter) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        _tell(self._reporter, EVENT_LISTENER, self._hook.subscribed, client_id, topic_filter, qos)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        _tell(self._reporter, EVENT_LISTENER, self._hook.unsubscribed, client_id, topic_filter)

    def session_ended(self, client_id: str) -> None:
        _tell(self._reporter, EVENT_LISTENER, self._hook.session_ended, client_id)


class GuardedSubscriptionListener(SubscriptionListener):
    """Continues as if the listener had handled the event."""

    def __init__(self, hook: SubscriptionListener, reporter: HookReporter) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter

    def wanted(self, topic_filter: str) -> None:
        _tell(self._reporter, SUBSCRIPTION_LISTENER, self._hook.wanted, topic_filter)

    def unwanted(self, topic_filter: str) -> None:
        _tell(self._reporter, SUBSCRIPTION_LISTENER, self._hook.unwanted, topic_filter)

    def subscribed(self, subscription: Subscription, topic_filter: str) -> None:
        _tell(self._reporter, SUBSCRIPTION_LISTENER, self._hook.subscribed, subscription, topic_filter)

    def unsubscribed(self, subscription: Subscription, topic_filter: str) -> None:
        _tell(self._reporter, SUBSCRIPTION_LISTENER, self._hook.unsubscribed, subscription, topic_filter)

    def waits(self, told: Confirmed, topic_filters: list[str]) -> bool:
        try:
            return self._hook.waits(told, topic_filters)
        except Exception as error:
            self._reporter.failed(SUBSCRIPTION_LISTENER, error)
            return False


class GuardedAuthMethod(AuthMethod):
    """Ends an exchange that cannot be made, or that fails, with 0x83 for the client."""

    def __init__(self, hook: AuthMethod, reporter: HookReporter, clock: Callable[[], float]) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter
        self._clock = clock

    def begin(self) -> AuthExchange:
        try:
            exchange = self._hook.begin()
        except Exception as error:
            self._reporter.failed(AUTH_METHOD, error)
            exchange = AuthExchange()
            exchange.reason_code = reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
        return GuardedAuthExchange(exchange, self._reporter, self._clock)


class GuardedAuthExchange(AuthExchange):
    """Runs one exchange of a method. It copies the hook's answer after each call, if AUTH can carry it."""

    def __init__(self, hook: AuthExchange, reporter: HookReporter, clock: Callable[[], float]) -> None:
        super().__init__()
        self._hook = hook
        self._reporter = reporter
        self._clock = clock

    def start(self, connect: Connect, data: bytes | None) -> None:
        self._call("start", connect, data)

    def proceed(self, data: bytes | None) -> None:
        self._call("proceed", data)

    def again(self, data: bytes | None) -> None:
        self._call("again", data)

    def _call(self, call: str, *arguments: object) -> None:
        hook = self._hook
        began = self._clock()
        try:
            getattr(hook, call)(*arguments)
            code = hook.reason_code
            if code not in (reason_codes.SUCCESS, reason_codes.CONTINUE_AUTHENTICATION) and not 0x80 <= code <= 0xFF:
                raise ValueError(f"an authentication exchange answers with reason code {code:#04x}")
            if hook.data is not None:
                string(hook.data)  # raises where no packet can carry it
            self.reason_code, self.data, self.principal = code, hook.data, hook.principal
        except Exception as error:
            self._reporter.failed(AUTH_METHOD, error)
            self.reason_code, self.data, self.principal = reason_codes.IMPLEMENTATION_SPECIFIC_ERROR, None, None
        seconds = self._clock() - began
        if seconds > SLOW:
            self._reporter.slow(AUTH_METHOD, call, seconds)
