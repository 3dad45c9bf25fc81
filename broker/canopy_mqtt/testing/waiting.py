"""Waiting for something in the broker's thread, from another thread or from another event loop.

Owns the conditions that are waited for. Each is looked at in the broker's thread when something has happened there; the
time limit runs where the test waits, in real time, so that a jump of the broker's clock does not end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from typing import Any, Final, Generic, Protocol, TypeVar

from canopy_mqtt.testing.checks import check_expected
from canopy_mqtt.testing.failure_texts import Payload, misses, seen, wanted
from canopy_mqtt.testing.record import Message, Record

T = TypeVar("T")


class WaitableBroker(Protocol):
    """The part of a `RunningBroker` that waiting needs."""

    @property
    def record(self) -> Record:
        """The published messages, for conditions."""

    def begin_wait(self, waiter: Waiter[Any]) -> None:
        """Look whether it holds, before this returns and whenever something has happened."""

    def state_of(self, text: Callable[[], str]) -> str:
        """Words about the broker, from its thread."""

    def coroutine(self, work: str, **options: Any) -> Any:
        """Start `start`, `stop` and the like in the broker's thread, for the twins."""

    def check_connected(self, client_id: str, wanted: bool) -> Waiter[bool]:
        """For `assert_connected` and its twin."""

    def check_subscribed(self, client_id: str, topic_filter: str) -> Waiter[bool]:
        """For `assert_subscribed` and its twin. Raises ValueError: no client can subscribe to this filter."""


LOOK: Final = 0.01
"""Seconds between two looks at what announces no change: a condition of the test's, a retained message's end."""


class Waiter(Generic[T]):
    """A condition and what is said when it does not come about. The condition's value is what waiting returns."""

    def __init__(self, condition: Callable[[], T], text: Callable[[], str]) -> None:
        self.condition = condition
        self.text = text
        self.answer: Future[T] = Future()

    def look(self) -> bool:
        """Look at the condition, in the broker's thread. True if the wait is over."""
        # The caller may have given up meanwhile, in another thread.
        with contextlib.suppress(InvalidStateError):
            try:
                value = self.condition()
            except Exception as error:
                self.answer.set_exception(error)
            else:
                if value:
                    self.answer.set_result(value)
        return self.answer.done()

    def wait(self, broker: WaitableBroker, within: float) -> T:
        """Wait in a thread. Raises AssertionError."""
        __tracebackhide__ = True
        broker.begin_wait(self)
        wait([self.answer], within)
        return self._found(broker, within)

    async def wait_async(self, broker: WaitableBroker, within: float) -> T:
        """Wait in an event loop. Raises AssertionError."""
        __tracebackhide__ = True
        await self._looked_at(broker, within)
        return self._found(broker, within)

    def refute(self, broker: WaitableBroker, within: float) -> None:
        """Wait that it does not come about. Raises AssertionError."""
        __tracebackhide__ = True
        broker.begin_wait(self)
        wait([self.answer], within)
        self._refuted(broker)

    async def refute_async(self, broker: WaitableBroker, within: float) -> None:
        """The same, awaited."""
        __tracebackhide__ = True
        await self._looked_at(broker, within)
        self._refuted(broker)

    async def _looked_at(self, broker: WaitableBroker, within: float) -> None:
        broker.begin_wait(self)
        waiting = asyncio.wrap_future(self.answer)
        try:
            await asyncio.wait([waiting], timeout=within)
        finally:
            if waiting.done() and not waiting.cancelled():
                # The answer raises it; asyncio need not report that its future was not awaited.
                waiting.exception()
            else:
                self.answer.cancel()

    def _found(self, broker: WaitableBroker, within: float) -> T:
        __tracebackhide__ = True
        if self.answer.cancel():
            raise AssertionError(f"{broker.state_of(self.text)}\n(within {within:g} s)")
        return self.answer.result()

    def _refuted(self, broker: WaitableBroker) -> None:
        __tracebackhide__ = True
        if not self.answer.cancel():
            # What the condition raised is more than that it holds.
            self.answer.result()
            raise AssertionError(broker.state_of(self.text))

    @staticmethod
    def poll(condition: Callable[[], object], what: str, within: float) -> None:
        """Look at a condition in this thread until it holds. Raises AssertionError."""
        __tracebackhide__ = True
        until = time.monotonic() + within
        while not condition():
            if time.monotonic() >= until:
                raise AssertionError(f"not within {within:g} s: {what or condition}")
            time.sleep(LOOK)


class Waiters:
    """Everything that is waited for. In the broker's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Waiter[Any]] = []
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiter[Any]) -> None:
        """Look now, and later."""
        if not waiter.look():
            self._waiting.append(waiter)
            self._again()

    def changed(self) -> None:
        """Something has happened: look when it is through."""
        if self._waiting and not self._soon:
            self._soon = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._soon = False
        self._waiting = [waiter for waiter in self._waiting if not waiter.look()]
        self._again()

    def _again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LOOK, self._look) if self._waiting else None


class MessageSearch:
    """The messages that are as expected. Each is looked at once, however often `found` is called."""

    def __init__(
        self, record: Record, topic_filter: str, payload: Payload | None, qos: int | None, retain: bool | None
    ) -> None:
        self.record = record
        self.topic_filter = topic_filter
        self._payload = payload
        self._qos = qos
        self._retain = retain
        self._found: list[Message] = []
        self._seen = 0

    def why(self, message: Message) -> list[str]:
        """Return the differences between a message, whose topic is right, and the expected one."""
        return misses(message, self._payload, self._qos, self._retain)

    def found(self) -> list[Message]:
        """Those that are as expected, up to now."""
        new = self.record.newest(self.topic_filter, self._seen)
        self._seen = self.record.added
        self._found += [message for message in new if not self.why(message)]
        return self._found

    def wanted(self) -> str:
        """Describe the expected messages in words."""
        return wanted(self.topic_filter, self._payload, self._qos, self._retain)

    def seen(self, topical_only: bool) -> str:
        """Describe the messages that came, in words."""
        record = self.record
        topical = record.messages(self.topic_filter)
        everything = topical if topical_only else record.messages("#")
        return seen(everything, topical, self.why, record.clients(), record.forgotten)


def published(
    record: Record, topic_filter: str, payload: Payload | None, qos: int | None, retain: bool | None, count: int | None
) -> Waiter[list[Message]]:
    """For `assert_published`. Raises ValueError or TypeError: no message can be as expected."""
    check_expected(topic_filter, payload, qos, retain)
    search = MessageSearch(record, topic_filter, payload, qos, retain)

    def enough() -> list[Message]:
        found = search.found()
        if count is not None and len(found) > count:
            raise AssertionError(text())
        return found if len(found) >= (1 if count is None else count) else []

    def text() -> str:
        line = f"expected {search.wanted()}"
        if count is not None:
            line = f"{line}, {count} of them; there are {len(search.found())}"
        return f"{line}\n{search.seen(False)}"

    if count is not None and count < 1:
        raise ValueError("count is 1 or more; assert_not_published says that there is none")
    return Waiter(enough, text)


def not_published(
    record: Record, topic_filter: str, payload: Payload | None, qos: int | None, retain: bool | None
) -> Waiter[list[Message]]:
    """For `assert_not_published`: what must not come about. Raises ValueError or TypeError: it never can."""
    check_expected(topic_filter, payload, qos, retain)
    search = MessageSearch(record, topic_filter, payload, qos, retain)
    return Waiter(search.found, lambda: f"did not expect {search.wanted()}\n{search.seen(True)}")


class Aio:
    """The waiting calls as coroutines: for tests in whose event loop the program under test runs too."""

    def __init__(self, broker: WaitableBroker) -> None:
        self._broker = broker

    async def start(self) -> None:
        """See `RunningBroker.start`."""
        await asyncio.wrap_future(self._broker.coroutine("start"))

    async def stop(self, *, abrupt: bool = False) -> None:
        """See `RunningBroker.stop`."""
        await asyncio.wrap_future(self._broker.coroutine("stop", abrupt=abrupt))

    async def restart(self, *, keep_store: bool = True, down_for: float = 0.0, abrupt: bool = False) -> None:
        """See `RunningBroker.restart`."""
        work = self._broker.coroutine("restart", keep_store=keep_store, down_for=down_for, abrupt=abrupt)
        await asyncio.wrap_future(work)

    async def assert_published(
        self,
        topic_filter: str,
        payload: Payload | None = None,
        *,
        qos: int | None = None,
        retain: bool | None = None,
        count: int | None = None,
        within: float = 5.0,
    ) -> list[Message]:
        """See `RunningBroker.assert_published`."""
        __tracebackhide__ = True
        waiter = published(self._broker.record, topic_filter, payload, qos, retain, count)
        return await waiter.wait_async(self._broker, within)

    async def assert_not_published(
        self,
        topic_filter: str,
        payload: Payload | None = None,
        *,
        qos: int | None = None,
        retain: bool | None = None,
        within: float = 0.0,
    ) -> None:
        """See `RunningBroker.assert_not_published`."""
        __tracebackhide__ = True
        waiter = not_published(self._broker.record, topic_filter, payload, qos, retain)
        await waiter.refute_async(self._broker, within)

    async def assert_connected(self, client_id: str, *, within: float = 5.0) -> None:
        """See `RunningBroker.assert_connected`."""
        __tracebackhide__ = True
        await self._broker.check_connected(client_id, True).wait_async(self._broker, within)

    async def assert_disconnected(self, client_id: str, *, within: float = 5.0) -> None:
        """See `RunningBroker.assert_disconnected`."""
        __tracebackhide__ = True
        await self._broker.check_connected(client_id, False).wait_async(self._broker, within)

    async def assert_subscribed(self, client_id: str, topic_filter: str, *, within: float = 5.0) -> None:
        """See `RunningBroker.assert_subscribed`."""
        __tracebackhide__ = True
        await self._broker.check_subscribed(client_id, topic_filter).wait_async(self._broker, within)

    async def wait_for(self, condition: Callable[[], object], what: str = "", *, within: float = 5.0) -> None:
        """See `RunningBroker.wait_for`; the condition is looked at in this event loop."""
        __tracebackhide__ = True
        until = time.monotonic() + within
        while not condition():
            if time.monotonic() >= until:
                raise AssertionError(f"not within {within:g} s: {what or condition}")
            await asyncio.sleep(LOOK)

    async def wait_until(self, condition: Callable[[], object], within: float, text: Callable[[], str]) -> None:
        """See `RunningBroker.wait_until`."""
        __tracebackhide__ = True
        await Waiter(condition, text).wait_async(self._broker, within)
