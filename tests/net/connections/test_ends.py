"""The end of a connection: every order of events, on transports of every kind, with and without room, and with faults.

The rules are those of `net.connections.ends`. The connection, its protocol and the router are the real ones; only the
transport is the test's, which calls back as asyncio's, uvloop's, TLS's and a WebSocket's do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic
from typing import ClassVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core import causes
from canopy_mqtt.core.hooks import EventListener
from canopy_mqtt.core.jobs import ROUND_WORK
from canopy_mqtt.net.connections import ends
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.connection_table import ConnectionObserver
from canopy_mqtt.net.connections.ends import (
    ABORT,
    ABORTED,
    CLOSE,
    CLOSING,
    FLUSHING,
    GONE,
    LINGERING,
    NEW,
    OPEN,
    PEER_CLOSED,
    SOCKET_LOST,
    STATES,
    TURN,
)
from canopy_mqtt.net.stream import LINGER
from canopy_mqtt.net.timers import RESOLUTION
from canopy_mqtt.settings import Sys
from tests.e2e import wire
from tests.net.transports import Client, Embed, Transport, rounds
from tests.support.runs import examples


class Socket(Transport):
    """A transport that is lost when its time has come, and not before `close` or `abort` made it certain.

    `half`: it can close its own half. `takes`: it has sent all at once, so that `close` alone brings the loss.
    """

    def __init__(self, half: bool, takes: bool) -> None:
        super().__init__()
        self.half = half
        self.takes = takes
        self.aborts = self.halves = 0
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborts += 1

    def write_eof(self) -> None:
        self.halves += 1

    def is_closing(self) -> bool:
        return self.closed or self.aborts > 0

    def get_write_buffer_size(self) -> int:
        return 0 if self.takes else 70_000

    @property
    def loss_is_certain(self) -> bool:
        """True if the event loop calls `connection_lost` by itself."""
        return self.aborts > 0 or (self.closed and self.takes)


class Sessions(EventListener):
    """Counts sessions that end, and raises then if it is told to: nothing guards the connection from it here."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.raises = raises
        self.ended = 0

    def session_ended(self, client_id: str) -> None:
        self.ended += 1
        if self.raises:
            raise RuntimeError(f"the end of {client_id}")


class Watch(ConnectionObserver):
    """Counts the connections that have a place in the table, and those that had one."""

    def __init__(self) -> None:
        super().__init__()
        self.here = self.gone = 0

    def joined(self, connection: Connection) -> None:
        del connection
        self.here += 1

    def left(self, connection: Connection) -> None:
        del connection
        self.here -= 1
        self.gone += 1


class Ends(RuleBasedStateMachine):
    """One connection, all events, against what a connection promises whatever comes in whatever order."""

    # One for all examples.
    loop: ClassVar[asyncio.AbstractEventLoop]
    broker: ClassVar[Broker]

    def __init__(self) -> None:
        super().__init__()
        self.faults = self.broker.faults.counts.get("connection", 0)
        self.ended = sum(self.broker.connection_table.ends.values())
        self.was_open = self.lost = self.faulty = False

    @initialize(half=st.booleans(), takes=st.booleans(), joins=st.booleans(), faulty=st.booleans(), waits=st.booleans())
    def begin(self, half: bool, takes: bool, joins: bool, faulty: bool, waits: bool) -> None:
        """`joins`: it has a place in the table; `faulty`: the end of its protocol raises; `waits`: not all is sent."""
        broker = self.broker
        self.socket = Socket(half, takes)
        table = broker.connection_table
        table.closed = not joins
        self.watch = table.observer = Watch()
        broker.router.event_listener = self.sessions = Sessions(faulty)
        self.connection = Connection(table, broker.listeners.all[0].terms)
        self.connection.connection_made(cast(asyncio.Transport, self.socket))
        table.closed = False
        assert self.connection.state == (OPEN if joins else ABORTED)
        self.was_open = joins
        self.connection.data_received(wire.connect("c", version=5))
        if waits:
            self.connection.pause_writing()
        self.faulty = joins and faulty
        self.check()

    # -- events --------------------------------------------------------------------------------------------------------

    def happen(self, event: int) -> None:
        self.connection.end(event, causes.ADMINISTRATIVE_ACTION, 0x98, "kicked")
        self.check()

    @rule(event=st.sampled_from([CLOSE, PEER_CLOSED, ABORT]), room=st.booleans())
    def ends(self, event: int, room: bool) -> None:
        if not room:
            self.broker.rounds.budget.used += ROUND_WORK
            self.broker.rounds.charge()
        self.happen(event)

    @rule(event=st.sampled_from([CLOSE, ABORT]))
    def ends_later(self, event: int) -> None:
        self.connection.end_later(event, causes.KEEP_ALIVE, 0x8D, "silent")
        self.check()

    @rule()
    def disconnect(self) -> None:
        if self.socket.reading and not self.lost:
            self.connection.data_received(wire.disconnect())
            self.check()

    @rule()
    def eof(self) -> None:
        if not self.lost and not self.socket.is_closing():
            assert self.connection.eof_received() is False
            self.socket.close()
            self.check()

    @rule()
    def drain(self) -> None:
        if not self.lost:
            self.socket.takes = True
            self.connection.resume_writing()
            self.turn()

    @rule(room=st.booleans())
    def lose(self, room: bool) -> None:
        """The peer resets the connection, or the transport has closed."""
        if not self.lost:
            if not room:
                self.broker.rounds.budget.used += ROUND_WORK
                self.broker.rounds.charge()
            self.lost = True
            self.connection.connection_lost(None)
            self.check()

    @rule()
    def turn(self) -> None:
        self.loop.run_until_complete(rounds(4))
        self.check()

    @precondition(lambda self: self.connection.state not in (OPEN, NEW))
    @rule()
    def linger_is_over(self) -> None:
        connection = self.connection
        if connection.check_at > 0.0:
            assert connection.check(connection.ended_at + LINGER) == 0.0
            self.check()

    # -- rules ---------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        connection, state = self.connection, self.connection.state
        past = state not in (NEW, OPEN)
        over = past and self.was_open
        counted = sum(self.broker.connection_table.ends.values()) - self.ended
        assert counted == over, "counted once, and only if it was open"
        assert self.sessions.ended == over, "the core has ended its session once"
        assert self.was_open == self.watch.here + self.watch.gone
        assert self.watch.gone == (self.was_open and state == GONE), "forgotten once, with its socket"
        assert self.socket.aborts <= 1
        assert state != GONE or self.lost
        assert not self.lost or state == GONE or (state == OPEN and connection.due == SOCKET_LOST)
        assert (connection in self.broker.connections) == (state != GONE)
        if state == LINGERING:
            assert self.socket.halves == 1
        if state == CLOSING:
            assert self.socket.is_closing()
        if state == ABORTED:
            assert self.socket.aborts == 1
        if state in (FLUSHING, LINGERING, CLOSING):
            assert 0.0 < connection.check_at <= connection.ended_at + LINGER + RESOLUTION, "the linger timer runs"
        faults = self.broker.faults.counts.get("connection", 0) - self.faults
        assert faults == (self.faulty and past), "the only fault is logged once"

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.certainly_ends()
            self.broker.connection_table.observer = self.broker.router.event_listener = None

    def certainly_ends(self) -> None:
        """What has begun to end reaches GONE by what comes in any case: its turn, the timer, the loss of the socket."""
        connection = self.connection
        if connection.state == OPEN and connection.due < 0:
            self.happen(CLOSE)
        self.turn()
        assert connection.state != OPEN
        if not self.lost and not self.socket.loss_is_certain:
            self.linger_is_over()
        if not self.lost:
            assert self.socket.loss_is_certain, f"{STATES[connection.state]}: nothing brings its end"
            self.lose(room=True)
        assert connection.state == GONE
        assert connection.send_buffer.owner is None
        assert connection.check_at == 0.0
        connection.end(TURN)
        assert connection.state == GONE


TestEnds = Ends.TestCase
TestEnds.settings = settings(max_examples=examples(400), stateful_step_count=12, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[None]:
    """Start the broker of the machine."""
    Ends.loop = asyncio.new_event_loop()
    Ends.broker = Broker(Settings(listen=["mqtt://127.0.0.1:0"], sys=Sys(interval=0.0)))
    Ends.loop.run_until_complete(Ends.broker.start())
    yield
    Ends.loop.run_until_complete(Ends.broker.stop())
    Ends.loop.close()


def test_each_state_has_all_events() -> None:
    assert len(ends.TABLE) == len(ends.STATES) * len(ends.EVENTS)


async def test_a_transport_that_is_lost_twice_is_a_fault(embed: Embed) -> None:
    broker = await embed()
    client = Client(broker, "c")
    client.connection.connection_lost(None)
    client.connection.connection_lost(None)
    assert broker.faults.counts == {"connection": 1}


@pytest.mark.parametrize("stronger", [PEER_CLOSED, SOCKET_LOST])
async def test_the_first_cause_and_the_strongest_event(embed: Embed, stronger: int) -> None:
    """A client whose keep alive is over and whose socket is lost before its turn: nothing is written to it."""
    broker = await embed()
    client = Client(broker, "c", says=wire.connect("c", version=5))
    client.take()
    client.connection.end_later(CLOSE, causes.KEEP_ALIVE, 0x8D, "silent")
    broker.rounds.budget.used += ROUND_WORK
    broker.rounds.charge()
    client.connection.end(stronger, causes.CONNECTION_LOST)
    client.connection.resume_writing()
    assert client.connection.protocol.close_cause == ""
    await rounds()
    assert client.connection.protocol.close_cause == causes.KEEP_ALIVE
    assert client.take() == b""


async def test_a_will_is_delayed_from_the_end_on(embed: Embed) -> None:
    """Section 3.1.3.2.2. The loop's clock has stood still since before it, as uvloop's does in a long round."""
    broker = await embed()
    will = wire.Will("gone", properties=[(wire.WILL_DELAY, 60)])
    client = Client(broker, "dying", says=wire.connect("dying", will=will, props=[(wire.SESSION_EXPIRY, 3_600)]))
    await rounds()
    before = monotonic()
    broker.connection_table.rounds.time = lambda: before - 5.0
    client.connection.connection_lost(None)
    assert before + 60.0 <= broker.router.sessions["dying"].will_due <= monotonic() + 60.0


async def test_a_client_that_leaves_before_its_turn_has_left(embed: Embed) -> None:
    """Its DISCONNECT says so, and its will is not published, though it would have been ended."""
    broker = await embed()
    client = Client(broker, "c", says=wire.connect("c", version=5))
    client.connection.end_later(CLOSE, causes.KEEP_ALIVE, 0x8D, "silent")
    client.connection.data_received(wire.disconnect())
    assert client.connection.protocol.close_cause == causes.CLIENT_DISCONNECT
    await rounds()
    assert client.connection.state == CLOSING
    assert not client.transport.reading
