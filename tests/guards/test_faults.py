"""Hooks that raise, and faults of our own: each costs its own answer or connection, and nobody else notices."""

# Hooks have the arguments that they have.
# ruff: noqa: ARG002

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import (
    LATER,
    AccessControl,
    AuthExchange,
    AuthMethod,
    EventListener,
    Origin,
    SubscriptionListener,
    Ticket,
)
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.guards import hook_guards
from canopy_mqtt.guards.log import INTERVAL, TRACES, Faults
from canopy_mqtt.net.connections.time_limits import GRACE
from canopy_mqtt.settings import Shutdown, Sys
from canopy_mqtt.store import MemoryStore
from canopy_mqtt.store.journal_guard import GuardedJournal
from tests.e2e import wire
from tests.net.transports import Client, lose_all, rounds
from tests.support.waiting import until

MANY = 50


@asynccontextmanager
async def embedded(**hooks: Any) -> AsyncIterator[Broker]:
    settings = Settings(listen=["mqtt://127.0.0.1:0"], shutdown=Shutdown(flush_timeout=0.0), sys=Sys(interval=0.0))
    async with Broker(settings, **hooks) as broker:
        yield broker
        lose_all(broker)


async def healthy(broker: Broker) -> None:
    """Somebody new connects, subscribes, and hears what is published."""
    client = Client(broker, "healthy")
    client.connection.data_received(wire.subscribe(1, [("healthy", 0)]))
    await rounds()
    client.take()
    client.connection.data_received(wire.publish("healthy", b"x"))
    await rounds()
    assert client.take() == wire.publish("healthy", b"x")
    client.connection.connection_lost(None)


class FailingListener(EventListener):
    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        raise RuntimeError("subscribed")

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        raise RuntimeError("unsubscribed")

    def session_ended(self, client_id: str) -> None:
        raise RuntimeError("ended")


class FailingControl(AccessControl):
    """Raises in the calls that it is told to."""

    def __init__(self, *calls: str) -> None:
        super().__init__()
        self.calls = calls

    def admit(self, connect: Connect, origin: Origin, ticket: object) -> int:
        if "admit" in self.calls:
            raise RuntimeError("admit")
        return 0

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        if "may_publish" in self.calls:
            raise RuntimeError("may_publish")
        return "nothing" not in self.calls

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        if "may_subscribe" in self.calls:
            raise RuntimeError("may_subscribe")
        return qos


class FailingJournal(Journal):
    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        raise RuntimeError("subscribed")


async def test_a_listener_that_raises_at_the_end_of_sessions() -> None:
    """Every connection is forgotten, and everybody's timers go on."""
    async with embedded(event_listener=FailingListener()) as broker:
        clients = [Client(broker, f"c{number}") for number in range(MANY)]
        watched = Client(broker, "watched")
        for client in clients:
            client.connection.data_received(wire.subscribe(1, [("t", 0)]))
            client.connection.connection_lost(None)
        await until(lambda: not broker.rounds.waiting)
        assert broker.connections == {watched.connection}
        assert not [name for name in broker.router.sessions if name.startswith("c")]
        assert broker.faults.counts[hook_guards.EVENT_LISTENER] == 2 * MANY
        assert broker.faults.counts.get("connection", 0) == 0
        await healthy(broker)


@pytest.mark.parametrize("ending", ["lost", "disconnect", "keep alive", "taken over"])
async def test_a_fault_of_ours_ends_its_own_connection_alone(ending: str) -> None:
    """Whatever raises in the core, here at the end of each session: connections are forgotten, others are served."""
    async with embedded() as broker:
        other = Client(broker, "other")
        victims = [Client(broker, "", says=wire.connect(f"c{number}", keep_alive=10)) for number in range(MANY)]
        broker.router.event_listener = FailingListener()  # without its guard
        wheel = broker.rounds.wheel
        for number, victim in enumerate(victims):
            if ending == "disconnect":
                victim.connection.data_received(wire.disconnect())
            elif ending == "taken over":
                Client(broker, f"c{number}").connection.connection_lost(None)
            elif ending == "keep alive":
                victim.connection.protocol.last_received -= GRACE * 11
                wheel.remove(victim.connection)
                wheel.add(victim.connection, broker.loop.time())
        if ending == "keep alive":
            await until(lambda: all(victim.connection.protocol.close_cause for victim in victims))
        for victim in victims:
            victim.connection.connection_lost(None)
        await until(lambda: not broker.rounds.waiting)
        broker.router.event_listener = None
        assert broker.connections == {other.connection}
        assert broker.faults.counts["connection"] >= MANY
        await healthy(broker)


async def test_timers_go_on_after_a_check_that_raised() -> None:
    """Connect time-outs, keep alive and stalled writes of everybody else are looked after."""
    async with embedded() as broker:
        victim, other = (Client(broker, "", says=wire.connect(name, keep_alive=10)) for name in ("victim", "other"))
        await rounds()

        def fault() -> int:
            raise RuntimeError("a fault")

        victim.transport.get_write_buffer_size = fault  # type: ignore[method-assign]
        victim.connection.pause_writing()
        wheel = broker.rounds.wheel
        for client in (victim, other):
            wheel.remove(client.connection)
            wheel.add(client.connection, broker.loop.time())
        await until(lambda: victim.transport.aborted and other.connection.check_at > broker.loop.time())
        assert broker.faults.counts == {"connection": 1}


async def test_a_router_whose_tick_raises_is_called_again() -> None:
    """A session that has expired and cannot be ended: not in each round of the loop, and the others are ended."""
    async with embedded() as broker:
        broker.router.event_listener = FailingListener()  # without its guard
        for name in ("a", "b"):
            props = [(wire.SESSION_EXPIRY, 1)]
            Client(broker, "", says=wire.connect(name, props=props)).connection.connection_lost(None)
        await until(lambda: "router" in broker.faults.counts)
        broker.router.event_listener = None
        await until(lambda: not broker.router.sessions)
        assert broker.faults.counts["router"] <= 3


class Later(AccessControl):
    """Keeps the tickets; `early` is said by the ticket while it is still being asked."""

    def __init__(self, early: int = LATER) -> None:
        super().__init__()
        self.early = early
        self.tickets: list[Ticket] = []

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        self.tickets.append(ticket)
        if self.early != LATER:
            ticket.answer(self.early)
        return LATER


async def test_a_late_answer_that_makes_a_fault() -> None:
    """`Ticket.answer` is called by the program that embeds the broker: it hears of no fault of ours."""
    control = Later()
    async with embedded(access_control=control) as broker:
        Client(broker, "c")
        control.tickets[0].answer(0)
        second = Client(broker, "c")
        broker.router.event_listener = FailingListener()  # without its guard: the first one's session ends
        control.tickets[1].answer(0)
        assert second.transport.aborted
        assert broker.faults.counts["connection"] == 1


@pytest.mark.parametrize(
    ("reason_code", "version", "connack"), [(0, 4, b"\x20\x02\x00\x00"), (0x87, 4, b"\x20\x02\x00\x05")]
)
async def test_a_late_answer_over_a_socket(reason_code: int, version: int, connack: bytes) -> None:
    """The client has its CONNACK, and what it sent meanwhile is acted on, though nothing else happens in the broker."""
    control = Later()
    async with embedded(access_control=control) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.ports[0])
        writer.write(wire.connect("c", version=version) + b"\xc0\x00")
        await until(lambda: bool(control.tickets))
        await rounds()
        control.tickets[0].answer(reason_code)
        control.tickets[0].answer(0x80)
        async with asyncio.timeout(20.0):
            assert await reader.readexactly(4) == connack
            assert await reader.read(2) == (b"" if reason_code else b"\xd0\x00")
        writer.close()
        await until(lambda: not broker.connections)
        control.tickets[0].answer(0)
        assert broker.faults.counts.get("connection", 0) == 0


@pytest.mark.parametrize("early", [0, 0x87])
async def test_a_ticket_that_is_answered_while_it_is_asked_for(early: int) -> None:
    """As if it had been returned."""
    async with embedded(access_control=Later(early)) as broker:
        client = Client(broker, "c")
        await rounds()
        assert client.connection.protocol.accepted is (early == 0)
        assert client.take()[3] == early


@pytest.mark.parametrize(
    ("version", "code"), [(5, reason_codes.SERVER_UNAVAILABLE), (4, reason_codes.V3_SERVER_UNAVAILABLE)]
)
async def test_an_access_control_that_raises_lets_nobody_in(version: int, code: int) -> None:
    async with embedded(access_control=FailingControl("admit")) as broker:
        client = Client(broker, "c", says=wire.connect("c", version=version))
        await rounds()
        answer = client.take()
        assert answer[0] == 0x20
        assert answer[3] == code
        assert not broker.router.sessions
        assert broker.faults.counts == {hook_guards.ACCESS_CONTROL: 1}


async def test_an_access_control_that_raises_forbids() -> None:
    async with embedded(access_control=FailingControl("may_publish", "may_subscribe")) as broker:
        client = Client(broker, "c", says=wire.connect("c", version=5))
        await rounds()
        client.take()
        client.connection.data_received(wire.subscribe(1, [("t", 1)], version=5))
        client.connection.data_received(wire.publish("t", b"x", qos=1, packet_id=2, version=5))
        await rounds()
        assert client.take().count(bytes([reason_codes.NOT_AUTHORIZED])) == 2
        assert not client.transport.aborted
        assert broker.faults.counts[hook_guards.ACCESS_CONTROL] == 2


class FailingMethod(AuthMethod):
    """Makes exchanges that raise, or raises itself."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def begin(self) -> AuthExchange:
        if self.where == "begin":
            raise RuntimeError("begin")
        return FailingExchange(self.where)


class FailingExchange(AuthExchange):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.reason_code = reason_codes.CONTINUE_AUTHENTICATION

    def start(self, connect: Connect, data: bytes | None) -> None:
        if self.where == "start":
            raise RuntimeError("start")
        if self.where == "nonsense":
            self.reason_code = 0x17
        elif self.where == "no byte":
            self.reason_code = 0x187
        elif self.where == "too long":
            self.data = bytes(65_536)

    def proceed(self, data: bytes | None) -> None:
        raise RuntimeError("proceed")


@pytest.mark.parametrize("where", ["begin", "start", "proceed", "nonsense", "no byte", "too long"])
async def test_an_authentication_that_raises_lets_nobody_in(where: str) -> None:
    async with embedded(auth_methods={"M": FailingMethod(where)}) as broker:
        hello = wire.connect("c", version=5, props=[(wire.AUTH_METHOD, "M")])
        client = Client(broker, "c", says=hello)
        if where == "proceed":
            await rounds()
            client.take()
            client.connection.data_received(wire.auth(reason_codes.CONTINUE_AUTHENTICATION, [(wire.AUTH_METHOD, "M")]))
        await rounds()
        answer = client.take()
        assert answer[0] == 0x20
        assert answer[3] == reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
        assert not broker.router.sessions
        assert broker.faults.counts == {hook_guards.AUTH_METHOD: 1}


async def test_a_journal_that_raises_is_told_on() -> None:
    store = MemoryStore()
    store.journal = FailingJournal()
    async with embedded(store=store) as broker:
        client = Client(broker, "c", says=wire.connect("c", version=5, props=[(wire.SESSION_EXPIRY, 100)]))
        client.connection.data_received(wire.subscribe(1, [("t", 1)], version=5))
        await rounds()
        assert not client.transport.aborted
        assert broker.faults.counts == {hook_guards.JOURNAL: 1}
        await healthy(broker)


def test_every_call_of_a_hook_is_guarded() -> None:
    """A hook that gets another call gets another guard."""
    for hook, guard in (
        (AccessControl, hook_guards.GuardedAccessControl),
        (EventListener, hook_guards.GuardedEventListener),
        (SubscriptionListener, hook_guards.GuardedSubscriptionListener),
        (AuthMethod, hook_guards.GuardedAuthMethod),
        (AuthExchange, hook_guards.GuardedAuthExchange),
        (Journal, GuardedJournal),
    ):
        calls = {name for name, value in vars(hook).items() if callable(value) and not name.startswith("_")}
        assert calls
        assert calls <= set(vars(guard)), hook


async def test_errors_of_hooks_stand_in_sys() -> None:
    async with embedded(event_listener=FailingListener(), access_control=AccessControl()) as broker:
        Client(broker, "c").connection.connection_lost(None)
        values = dict(broker._sys.values(broker.loop.time()))
        assert values["hooks/event-listener/errors"] == "1"
        assert values["hooks/access-control/errors"] == "0"
        assert values["errors/internal"] == "0"
        assert "hooks/journal/errors" not in values


def test_an_answer_of_another_type_is_a_refusal() -> None:
    """As where the hook raises: what it means is unknown."""

    class Odd(AccessControl):
        def admit(self, connect: Connect, origin: Origin, ticket: object) -> int:
            return cast(int, None)

        def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
            return cast(bool, "yes")

        def said(self, principal: Principal, action: str, topic: str, qos: int, retain: bool) -> tuple[bool, str]:
            return cast("tuple[bool, str]", (True, None))

    failures: list[str] = []

    class Reporter(hook_guards.HookReporter):
        def failed(self, hook: str, error: Exception) -> None:
            failures.append(hook)

    guard = hook_guards.GuardedAccessControl(Odd(), Reporter())
    assert guard.admit(Connect("c"), Origin(), Ticket(lambda _: None)) == reason_codes.SERVER_UNAVAILABLE
    assert guard.may_publish(Principal(), "t", 0, False) is False
    assert guard.said(Principal(), "publish", "t", 0, False) == hook_guards.NOTHING_SAID
    assert failures == [hook_guards.ACCESS_CONTROL] * 3


async def test_a_slow_hook_is_told_by_its_name() -> None:
    clock = [0.0]

    class Slow(AccessControl):
        def admit(self, connect: Connect, origin: Origin, ticket: object) -> int:
            clock[0] += 10 * hook_guards.SLOW
            return 0

    class Reporter(hook_guards.HookReporter):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[tuple[str, str, float]] = []

        def slow(self, hook: str, call: str, seconds: float) -> None:
            self.told.append((hook, call, seconds))

    reporter = Reporter()
    guard = hook_guards.GuardedAccessControl(Slow(), reporter, lambda: clock[0])
    guard.may_subscribe(Principal(), "t", 0)
    assert not reporter.told
    guard.admit(Connect("c"), Origin(), Ticket(lambda _: None))
    assert reporter.told == [(hook_guards.ACCESS_CONTROL, "admit", 10 * hook_guards.SLOW)]


class TestFaults:
    """The log lines about faults."""

    def setup_method(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.now = 0.0
        self.faults = Faults(lambda: self, lambda: self.now)

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    def test_a_trace_once_then_a_number_now_and_then(self) -> None:
        error = RuntimeError("x")
        for _ in range(1000):
            self.faults.failed("journal", error)
        assert [fields["exc_info"] for _, fields in self.lines] == [error]
        self.now += INTERVAL
        self.faults.failed("journal", error)
        self.faults.failed("journal", error)
        assert len(self.lines) == 2
        assert self.lines[1][1]["count"] == 1000
        assert self.faults.counts == {"journal": 1001 + 1}

    def test_another_kind_has_its_own_trace(self) -> None:
        self.faults.failed("journal", RuntimeError("x"))
        self.faults.failed("journal", KeyError("x"))
        self.faults.broke("router", KeyError("x"))
        assert len(self.lines) == 3

    def test_kinds_are_bounded(self) -> None:
        for number in range(2 * TRACES):
            self.faults.failed("journal", type(f"Error{number}", (Exception,), {})())
        assert len(self.lines) == TRACES
        assert self.faults.counts["journal"] == 2 * TRACES

    def test_a_log_that_raises(self) -> None:
        faults = Faults(lambda: None, lambda: self.now)
        faults.failed("journal", RuntimeError("x"))
        assert faults.counts == {"journal": 1, "log": 1}
