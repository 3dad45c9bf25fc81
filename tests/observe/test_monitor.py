"""The monitor's lines: losses by client and cause, who is slow, how late the loop is; with the test's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from canopy_mqtt.core.accounts import MAX_TOLD, Accounts
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import AGE, DROP_CAUSES, FULL_MESSAGES, Ledger
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.net.connections.admission import Admission
from canopy_mqtt.net.lag import LOOK, TICK, LagMonitor
from canopy_mqtt.observe import monitor as module
from canopy_mqtt.observe.monitor import LINES, Monitor
from canopy_mqtt.settings import Queue, Settings
from tests.net.test_timers import Loop

NOW = 1_000.0


class Log:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(("warning", event, fields))

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(("info", event, fields))

    def take(self) -> list[tuple[str, str, dict[str, Any]]]:
        taken, self.lines = self.lines, []
        return taken


class Queued:
    """As much of a send buffer as the monitor looks at."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.high_water = 0


class Client:
    """As much of a session."""

    def __init__(self, client_id: str, counters: Counters) -> None:
        self.client_id = client_id
        self.ledger = Ledger(client_id, counters)
        self.principal = Principal("user", client_id=client_id, host="192.0.2.7")
        self.send_buffer: Queued | None = Queued()
        self.waiting = 0, 0
        self.delay = 0.0

    def waiting_messages(self) -> int:
        return self.waiting[0]

    def waiting_bytes(self) -> int:
        return self.waiting[1]

    def waited(self, now: float) -> float:
        del now
        return self.delay


class Peers:
    """The connected peers of a router."""

    def __init__(self) -> None:
        self.send_buffers: dict[Client, Queued] = {}


class Broker:
    """As much of a router; the queues are what the test says they are."""

    def __init__(self, **queue: Any) -> None:
        self.counters = Counters()
        self.peers = Peers()
        self.sessions: dict[str, Client] = {}
        self.accounts = Accounts(self.counters.totals.internal)
        self.swept: list[float] = []
        self.log = Log()
        self.admission = Admission(0, 1, 0.0)
        settings = Settings(queue=Queue(**queue))
        self.monitor = Monitor(cast(Router, self), settings, self.log, NOW, self.admission)
        self.now = NOW

    def sweep(self, now: float) -> None:
        self.swept.append(now)

    def client(self, client_id: str) -> Client:
        client = Client(client_id, self.counters)
        assert client.send_buffer is not None
        self.peers.send_buffers[client] = client.send_buffer
        self.sessions[client_id] = client
        return client

    def queue(self, client: Client, delay: float, messages: int = 5, size: int = 500) -> None:
        assert client.send_buffer is not None
        client.delay = delay
        client.send_buffer.messages = messages
        client.send_buffer.bytes = size
        self.counters.totals.messages = sum(each.messages for each in self.peers.send_buffers.values())

    def leave(self, client: Client) -> None:
        del self.peers.send_buffers[client]
        client.send_buffer = None

    def look(self, seconds: float = LOOK) -> list[tuple[str, str, dict[str, Any]]]:
        """A look later on; what it logged."""
        self.now += seconds
        self.monitor.look(self.now)
        return self.log.take()


class TestReports:
    """One line for each client and interval."""

    def test_every_cause_has_a_field(self) -> None:
        """Under its own name, with underscores."""
        broker = Broker(report_interval=1.0)
        client = broker.client("c")
        for cause in range(len(DROP_CAUSES)):
            client.ledger.lost(cause, cause + 1)
        [(_, _, fields)] = broker.look()
        causes = {name.replace("-", "_"): number + 1 for number, name in enumerate(DROP_CAUSES)}
        assert fields == {"client_id": "c", "total": sum(causes.values()), "interval": 1.0, **causes}

    def test_a_line_for_everybody_but_not_at_once(self) -> None:
        """Very many clients have their lines one look after the other; none is left out or told of twice."""
        broker = Broker(report_interval=1.0)
        for number in range(2 * LINES + 1):
            broker.client(f"c{number}").ledger.lost(FULL_MESSAGES, 1)
        told = [broker.look() for _ in range(3)]
        assert [len(lines) for lines in told] == [LINES, LINES, 1]
        assert len({fields["client_id"] for lines in told for _, _, fields in lines}) == 2 * LINES + 1

    def test_the_end(self) -> None:
        """When the broker stops, it reports all losses that no line has reported yet."""
        broker = Broker(report_interval=3_600.0)
        for number in range(LINES + 1):
            broker.client(f"c{number}").ledger.lost(FULL_MESSAGES, 2)
        assert broker.look() == []
        broker.monitor.finish(broker.now + 0.5)
        lines = broker.log.take()
        assert len(lines) == LINES + 1
        assert all(fields["total"] == 2 and fields["interval"] == 1.5 for _, _, fields in lines)

    def test_accounts_that_were_refused_room(self) -> None:
        """One line for each account, setting and interval; very many accounts share one."""
        broker = Broker(report_interval=10.0)
        accounts = broker.accounts
        filters = accounts.filters
        alice = accounts.named("user alice")
        filters.change(alice, 5_000)
        for _ in range(3):
            accounts.refuse(alice, filters, "limits.max_filter_bytes")
        accounts.give_way(alice, filters)
        assert broker.look(9.0) == []
        told = {"account": "user alice", "setting": "limits.max_filter_bytes", "held": 5_000, "interval": 10.0}
        assert broker.look() == [
            ("warning", "an account was refused room", {**told, "total": 3}),
            ("warning", "an account gave way to others", {**told, "total": 1}),
        ]
        assert broker.look(10.0) == []
        for number in range(MAX_TOLD + 20):
            for _ in range(2):
                accounts.refuse(accounts.named(f"address 10.0.0.{number}"), filters, "limits.max_filter_bytes")
        lines = broker.look(10.0)
        assert len(lines) == MAX_TOLD + 1
        more = ("warning", "more accounts were refused room, or gave way", {"total": 40, "interval": 10.0})
        assert lines[-1] == more
        assert (filters.refused, filters.gave_way) == (3 + 2 * (MAX_TOLD + 20), 1)
        assert (accounts.untold, accounts.untold_more) == ({}, 0)

    def test_connections_without_a_word(self) -> None:
        """A flood of connections that are closed at once is told as a number."""
        broker = Broker(report_interval=10.0)
        broker.admission.turned_away = 5_000
        assert broker.look(9.0) == []
        assert broker.look() == [("warning", "connections turned away", {"total": 5_000, "interval": 10.0})]
        assert broker.look(10.0) == []


class TestSlow:
    """Who is called slow, and for how long."""

    def test_there_and_back(self) -> None:
        """One line each way: at `slow_after`, and below half of it."""
        broker = Broker(slow_after=2.0, report_interval=0.0)
        client = broker.client("c")
        broker.queue(client, 1.9)
        assert broker.look() == []
        broker.queue(client, 2.0, 7, 700)
        told = {"client_id": "c", "delay": 2.0, "waiting": 7, "bytes": 700}
        assert broker.look() == [("warning", "subscriber is slow", told)]
        client.ledger.lost(FULL_MESSAGES, 30)
        for delay in (9.0, 1.5, 1.0, 2.5):
            broker.queue(client, delay)
            assert broker.look() == []
            assert broker.monitor.slow_count == 1
        broker.queue(client, 0.99)
        told = {"client_id": "c", "seconds": 5.0, "dropped": 30}
        assert broker.look() == [("info", "subscriber keeps up again", told)]
        assert (broker.monitor.slow_count, broker.monitor.slowest) == (0, [])
        broker.queue(client, 2.0)
        assert [line[1] for line in broker.look()] == ["subscriber is slow"]

    def test_who_does_not_acknowledge(self) -> None:
        """Its own queue may be empty: what waits for its window waits in the session."""
        broker = Broker(slow_after=2.0)
        client = broker.client("c")
        broker.queue(client, 5.0, 0, 0)
        client.waiting = 12, 3_000
        broker.counters.totals.messages = 12
        told = {"client_id": "c", "delay": 5.0, "waiting": 12, "bytes": 3_000}
        assert broker.look() == [("warning", "subscriber is slow", told)]

    @pytest.mark.parametrize("ended", [True, False])
    def test_a_connection_that_ends(self, ended: bool) -> None:
        """It keeps up no better, and that is what is said; nothing of it is kept."""
        broker = Broker(slow_after=2.0, report_interval=0.0)
        client = broker.client("c")
        broker.queue(client, 2.0)
        client.ledger.lost(AGE, 5)
        broker.look()
        client.ledger.lost(AGE, 3)
        broker.leave(client)
        if ended:
            del broker.sessions["c"]
        told = {"client_id": "c", "seconds": 1.0, "dropped": 3}
        assert broker.look() == [("info", "slow subscriber is gone", told)]
        assert broker.monitor.slow_count == 0

    def test_very_many_at_once(self) -> None:
        """All are counted; not all have a line, and that is said."""
        broker = Broker(slow_after=1.0)
        clients = [broker.client(f"c{number}") for number in range(LINES + 5)]
        for client in clients:
            broker.queue(client, 1.0)
        lines = broker.look()
        assert len(lines) == LINES + 1
        assert lines[-1] == ("warning", "more subscribers are slow", {"count": 5})
        assert (broker.monitor.slow_count, len(broker.monitor.slowest)) == (LINES + 5, module.LISTED)
        for client in clients:
            broker.queue(client, 0.1)
        lines = broker.look()
        assert len(lines) == LINES + 1
        assert lines[-1] == ("info", "more subscribers keep up again, or are gone", {"count": 5})

    def test_more_than_one_look_takes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Peers are looked at in turns; what is told is told of all of them together, and of nobody twice."""
        monkeypatch.setattr(module, "PEERS", 10)
        monkeypatch.setattr(module, "LISTED", 3)
        broker = Broker(slow_after=1.0)
        clients = [broker.client(f"c{number}") for number in range(25)]
        for number, client in enumerate(clients):
            broker.queue(client, 2.0 + number)
        assert broker.look() == []
        broker.leave(clients[20])
        assert broker.look(TICK) == []
        lines = broker.look(TICK)
        assert [fields["client_id"] for _, _, fields in lines] == [f"c{n}" for n in range(25) if n != 20]
        assert [client.client_id for client in broker.monitor.slowest] == ["c24", "c23", "c22"]
        for client in clients[:5]:
            broker.queue(client, 0.0)
        assert [broker.look(LOOK), broker.look(TICK)] == [[], []]
        lines = broker.look(TICK)
        assert [(event, fields["client_id"]) for _, event, fields in lines] == [
            ("subscriber keeps up again", f"c{number}") for number in range(5)
        ]
        assert broker.monitor.slow_count == 19
        assert broker.look() == []


class Timer(Loop):
    """The test's loop, with absolute times."""

    def call_at(self, when: float, callback: Callable[..., Any]) -> Loop:
        return self.call_later(when - self.now, callback)

    def block(self, seconds: float) -> None:
        """Something holds the loop up: what falls due is called when it is over."""
        self.now += seconds
        while self.due and self.due[0][0] <= self.now:
            _, callback = self.due.pop(0)
            callback()


def awake() -> float:
    """The machine is not suspended."""
    return 0.0


class TestPulse:
    """The timer, and the lag."""

    def test_looks_once_a_second(self) -> None:
        """Four beats to a look."""
        loop, totals, looks = Timer(), QueueTotals(), list[float]()

        def look(now: float) -> bool:
            looks.append(now)
            return False

        pulse = LagMonitor(cast(asyncio.AbstractEventLoop, loop), totals, look, awake)
        pulse.start()
        loop.pass_time(5 * LOOK + TICK / 2)
        assert looks == [100.0 + LOOK * (count + 1) for count in range(5)]
        assert totals.lag == 0.0
        pulse.close()
        loop.pass_time(100.0)
        assert len(looks) == 5
        assert totals.lag_at(loop.now) == 0.0

    def test_a_look_that_is_not_through_goes_on_with_the_next_beat(self) -> None:
        loop, looks = Timer(), list[float]()

        def look(now: float) -> bool:
            looks.append(now)
            return len(looks) < 3

        pulse = LagMonitor(cast(asyncio.AbstractEventLoop, loop), QueueTotals(), look, awake)
        pulse.start()
        loop.pass_time(2 * LOOK + 2 * TICK + TICK / 2)
        first = 100.0 + LOOK
        assert looks == [first, first + TICK, first + 2 * TICK, first + 2 * TICK + LOOK]
        pulse.close()

    def test_how_late(self) -> None:
        """The core can ask while the loop is held up, and until the beat after."""
        loop, totals = Timer(), QueueTotals()
        pulse = LagMonitor(cast(asyncio.AbstractEventLoop, loop), totals, lambda _: False, awake)
        pulse.start()
        loop.pass_time(1.0)
        assert totals.lag_at(loop.now + TICK) == 0.0
        assert totals.lag_at(loop.now + TICK + 3.0) == pytest.approx(3.0)
        loop.block(TICK + 3.0)
        assert totals.lag == pytest.approx(3.0)
        assert totals.lag_at(loop.now + 0.1) == pytest.approx(3.0)
        loop.pass_time(TICK)
        assert totals.lag_at(loop.now) == pytest.approx(0.0)
        # The worst is remembered for whoever asks seldom.
        assert pulse.take_worst(loop.now) == pytest.approx(3.0)
        assert pulse.take_worst(loop.now) == pytest.approx(0.0)
        loop.pass_time(10.0)
        assert pulse.take_worst(loop.now) == pytest.approx(0.0)

    def test_a_look_that_fails_is_not_the_last(self) -> None:
        """A fault in it must not silence everything else for ever."""
        loop, totals = Timer(), QueueTotals()

        def fail(now: float) -> bool:
            raise ArithmeticError(now)

        pulse = LagMonitor(cast(asyncio.AbstractEventLoop, loop), totals, fail, awake)
        pulse.start()
        with pytest.raises(ArithmeticError):
            loop.pass_time(2.0)
        assert loop.due
        pulse.close()


def test_fields_are_names() -> None:
    """Fields of a log line are keywords."""
    assert all(name.isidentifier() for name in module.FIELDS)
