"""The asyncio server around one router: its connections, and the batch loop that they share.

Owns the event loop's part of a broker: its listeners (`listeners`), its connections (`connection_table`), their timers,
the timer for what is due in the router, and `LagMonitor`, which checks the broker once a second. A program embeds
`canopy_mqtt.Broker`, which adds the reports about the broker.

Promises: it can be constructed without a running loop; `start` listens either on every address or on none, and says in
one line why not; `stop` accepts no more clients, lets queues drain within `shutdown.flush_timeout`, sends 5.0 clients
0x8B, and leaves no task behind.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from canopy_mqtt import sockets
from canopy_mqtt.core.causes import SHUTDOWN
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.hooks import AccessControl, AuthMethod, EventListener
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core_limits import change, limits
from canopy_mqtt.guards import hook_guards
from canopy_mqtt.guards.log import Faults, Log
from canopy_mqtt.net.connections.admission import admission
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.connection_log import ConnectionLog
from canopy_mqtt.net.connections.connection_table import ConnectionTable
from canopy_mqtt.net.connections.ends import ABORT, CLOSE
from canopy_mqtt.net.lag import LagMonitor
from canopy_mqtt.net.listening.handshakes import Handshakes
from canopy_mqtt.net.listening.listeners import Listeners, StartupError
from canopy_mqtt.net.rounds import Rounds
from canopy_mqtt.net.stream import LINGER
from canopy_mqtt.settings import Settings

STOP_TURN: Final = 128
"""Connections that are ended in one turn when the broker stops: some milliseconds."""


class Watch(Protocol):
    """A part of the broker that checks it once a second, from the server's start on."""

    def look(self, now: float) -> bool:
        """Check the broker. Returns True to be called again with the next tick."""

    def change(self, settings: Settings) -> None:
        """Take other settings."""

    def finish(self, now: float) -> None:
        """Report what was not reported yet, since the broker stops."""


class _Subscriptions(EventListener):
    """Logs subscriptions."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        self._log.debug("subscribed", client_id=client_id, topic_filter=topic_filter, qos=qos)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        self._log.debug("unsubscribed", client_id=client_id, topic_filter=topic_filter)

    def session_ended(self, client_id: str) -> None:
        self._log.debug("session ended", client_id=client_id)


class Server:
    """Listeners and connections of one broker."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        access_control: AccessControl | None = None,
        event_listener: EventListener | None = None,
        auth_methods: dict[str, AuthMethod] | None = None,
    ) -> None:
        """`access_control` decides who may do what, `auth_methods` are the 5.0 authentication methods by name
        (`core.hooks`)."""
        self.settings = Settings() if settings is None else settings
        self.router = Router(limits(self.settings), self.settings.routing.trie, self.settings.routing.match_cache)
        self._most = self.settings.limits.max_connections or sockets.connections_that_fit(
            sockets.of_http(self.settings)
        )
        self.router.limits.max_connections = self._most
        self.router.broker_id = self.settings.federation.broker_id or secrets.token_hex(4)
        self.log: Any = Log()
        self.faults = Faults(lambda: self.log)
        self.connection_log = ConnectionLog(lambda: self.log)
        self._install(access_control, event_listener, auth_methods or {})
        self.listeners = Listeners(self)
        self.before_listening: Callable[[], None] = lambda: None
        """Called when everything that a store kept is restored, before the first client can connect. The daemon makes
        the garbage collector ignore all of it: a search through millions of objects holds all clients up."""
        self.suspended: Callable[[], float] = lambda: 0.0
        """Returns for how many seconds the machine was suspended since the last call, one with each tick. The loop's
        clock counts them by then; an embedding program keeps the time of its loop itself."""
        bounds = self.settings.limits
        # None: no limit asks for it.
        self.admission = admission(
            self._most, bounds.max_connections_per_address, bounds.max_connect_rate, self.listeners.limited
        )
        tune = None if sockets.INHERITED else lambda accepted: sockets.tune(accepted, self.settings)
        self.connection_table = ConnectionTable(
            self.faults, tune, self._most, self.admission, self.report_open, self.report_end
        )
        self.connections: set[Connection] = self.connection_table.connections
        self.log_changed()
        # From `start` on.
        self.watches: Sequence[Watch] = ()
        self.loop: asyncio.AbstractEventLoop
        self.rounds: Rounds
        self.handshakes: Handshakes
        self.lag_monitor: LagMonitor
        self._stopping = False
        self._stopped: asyncio.Task[None] | None = None

    def _install(
        self,
        access_control: AccessControl | None,
        event_listener: EventListener | None,
        auth_methods: dict[str, AuthMethod],
    ) -> None:
        """Pass the hooks to the router, each behind its guard: none can affect more than its own answer."""
        router, faults = self.router, self.faults
        if access_control is not None:
            router.access_control = hook_guards.GuardedAccessControl(access_control, faults, time.monotonic)
            faults.watch(hook_guards.ACCESS_CONTROL)
        self._listened_to = event_listener is not None
        if event_listener is not None:
            router.event_listener = hook_guards.GuardedEventListener(event_listener, faults)
            faults.watch(hook_guards.EVENT_LISTENER)
        for name, method in auth_methods.items():
            router.auth_methods[name] = hook_guards.GuardedAuthMethod(method, faults, time.monotonic)
            faults.watch(hook_guards.AUTH_METHOD)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen on every address of the settings.

        Raises:
            StartupError: one of them cannot be listened on; then none is. Or the store cannot be read.
        """
        self.loop = asyncio.get_running_loop()
        self.rounds = self.connection_table.rounds = Rounds(self.router, self.loop, self._tick, self.faults.broke)
        self.router.budget.clock = time.perf_counter
        self._bound(self.settings)
        if self.router.commits is not None:
            self.router.commits.wake = self.rounds.committed
        self.handshakes = Handshakes(self.settings.limits.max_handshakes, self.loop)
        self.lag_monitor = LagMonitor(self.loop, self.router.counters.totals, self._look, self._slept)
        self._stopping = False
        self._stopped = None
        self.connection_table.closed = self.connection_table.door_closed = False
        self._hear()
        if self.admission is not None and not self.settings.limits.max_connections:
            self.log.info("file descriptors allow connections", max_connections=self._most)
        try:
            # Before the first client can come.
            with without_collector():
                await self.restore_state()
                if self._stopped is not None:
                    raise StartupError("the broker was stopped before it had started")
                if self.router.journal is not None:
                    self.router.tick(self.loop.time())
                self.before_listening()
            await self.before_clients()
            if self._stopped is not None:
                raise StartupError("the broker was stopped before it had started")
            await self.listeners.start()
        except BaseException:  # cancelled, too: the next start has to find the store closed
            await self.close_state()
            raise
        self.lag_monitor.start()
        # Sessions and delayed wills that a store brought fall due too.
        self.after_batch()

    async def restore_state(self) -> None:
        """Load what a store kept, before anything is published; a broker with a store or links overrides it.

        Raises:
            StartupError: the store cannot be used.
        """

    async def before_clients(self) -> None:
        """Do what has to be done before the listeners open; a node of a cluster overrides it."""

    async def close_state(self) -> None:
        """Close the store, as the last part; a broker with a store overrides it."""

    async def stop(self) -> None:
        """Stop in order: accept no more, drain, send DISCONNECT. Every caller waits until that is done."""
        if self._stopped is None:
            if not hasattr(self, "loop"):
                return
            self._stopped = self.loop.create_task(self._stop())
        await asyncio.shield(self._stopped)

    async def _stop(self) -> None:
        self._stopping = self.connection_table.closed = self.connection_table.door_closed = True
        self.log.info("stopping", connections=len(self.connections))
        await self.listeners.close()
        self.handshakes.close()
        self.rounds.ending = True
        while self.router.fanout.broadcasting:  # noqa: ASYNC110 (each round of the event loop works some of it off)
            await asyncio.sleep(0)
        deadline = self.loop.time() + self.settings.shutdown.flush_timeout
        # Other nodes last: they get what clients publish until then, wills among it.
        for nodes in (False, True):
            if nodes:
                await self.clients_ended()
            async for connection in self._in_turns(nodes):
                while self._has_to_drain(connection) and self.loop.time() < deadline:  # noqa: ASYNC110 (nothing tells when)
                    await asyncio.sleep(0.01)
            async for connection in self._in_turns(nodes):
                connection.end(CLOSE, SHUTDOWN, reason_codes.SERVER_SHUTTING_DOWN, "the broker is stopping")
        await self._gone()
        for nodes in (False, True):
            async for connection in self._in_turns(nodes):
                connection.end(ABORT)
        await self._gone()
        try:
            await self.emptied()
        except Exception as error:
            # The rest has to end in order all the same.
            self.faults.broke("stop", error)
        self.lag_monitor.close()
        for watch in self.watches:
            watch.finish(self.loop.time())
        self.connection_log.finish()
        self.rounds.close()
        await self.close_state()
        self.log.info("stopped")

    async def _gone(self) -> None:
        """Wait for a short time until the connections have gone."""
        if self.connections:
            gone = asyncio.Event()
            self.connection_table.emptied = gone.set
            with suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), LINGER)

    async def _in_turns(self, nodes: bool) -> AsyncIterator[Connection]:
        """Yield all connections of clients, or of other nodes, that still exist; the event loop gets a turn after each
        `STOP_TURN` of them."""
        wanted = [each for each in self.connections if (each.terms.door is not None) == nodes]
        for number, connection in enumerate(wanted, 1):
            if connection in self.connections:
                yield connection
            if number % STOP_TURN == 0:
                await asyncio.sleep(0)

    def _has_to_drain(self, connection: Connection) -> bool:
        """Return whether something waits for a connected client, besides what waits for a commit; or for another node,
        in its session as well: without a store that ends with this broker."""
        if connection not in self.connections:
            return False
        send_buffer = connection.send_buffer
        session = connection.protocol.session
        rest = connection.terms.door is not None and session is not None and session.backlog
        return not send_buffer.empty or send_buffer.held_bytes > 0 or rest

    async def clients_ended(self) -> None:
        """Called during the stop when the clients' connections have ended, and those to other nodes have not."""

    async def emptied(self) -> None:
        """Called during the stop after the last client has left; a broker with links disconnects them here."""

    @property
    def listening(self) -> list[str]:
        return [listener.url() for listener in self.listeners.open]

    @property
    def ports(self) -> list[int]:
        """The ports that are listened on, in the order of the settings; 0 for a Unix socket."""
        return [listener.port for listener in self.listeners.open]

    # -- connections ---------------------------------------------------------------------------------------------------

    def after_batch(self) -> None:
        """After each batch that comes from no connection: see `Rounds.after_batch`."""
        self.rounds.after_batch()

    def _look(self, now: float) -> bool:
        again = False
        if self.admission is not None:
            self.admission.turned_away += self.handshakes.evicted
            self.handshakes.evicted = 0
        try:
            for watch in self.watches:
                again = watch.look(now) or again
        except Exception as error:
            self.faults.broke("monitor", error)
        self.connection_log.look(now)
        self._hear()
        self.rounds.after_batch()
        return again

    def _slept(self) -> float:
        """Count the time in which the machine was suspended, but not for limits on clients, which could not send."""
        passed = self.suspended()
        if passed > 0.0:
            self.rounds.clock_moved()
            for connection in list(self.connections):
                connection.was_suspended()
            self.log.warning("machine was suspended", seconds=round(passed))
            self.rounds.after_batch()
        return passed

    def _tick(self) -> None:
        self.router.tick(self.loop.time())

    def _bound(self, settings: Settings) -> None:
        rounds = self.rounds
        rounds.connect_timeout = settings.limits.connect_timeout
        rounds.packet_timeout = settings.limits.packet_timeout
        rounds.stall_timeout = settings.queue.stall_timeout
        rounds.write_batch_bytes = settings.queue.write_batch_bytes
        self.connection_table.partial.limit = settings.limits.max_partial_bytes

    def apply_limits(self, settings: Settings) -> None:
        """Apply new limits to the running broker. Connected clients keep those of their CONNACK, and their queues.

        Of `limits`, `mqtt`, `session`, `queue`, `retained` and `federation`; what was made at the start and cannot be
        changed must be as it was (`canopy_mqtt.settings.reloadable`).
        """
        bounds = settings.limits
        rates = _rates(self.router.limits)
        change(self.router, settings)
        if _rates(self.router.limits) != rates:
            for connection in self.connections:
                connection.limit_publishes()
        self._most = bounds.max_connections or sockets.connections_that_fit(sockets.of_http(settings))
        self.router.limits.max_connections = self.connection_table.most = self._most
        if self.admission is not None:
            self.admission.change(
                self._most,
                bounds.max_connections_per_address,
                bounds.max_connect_rate,
                self.connection_table.counted(),
            )
        self.handshakes.limit = bounds.max_handshakes
        for watch in self.watches:
            watch.change(settings)
        self._bound(settings)
        for listener in self.listeners.open:
            listener.limit(settings)

    # -- log -----------------------------------------------------------------------------------------------------------

    def log_changed(self) -> None:
        """Called when the log has other settings: report subscriptions only if a line about them would be written."""
        self.connection_log.bound(self.settings.log)
        self._hear()
        if not self._listened_to:
            heard = self.log.is_enabled_for(logging.DEBUG)
            listener = hook_guards.GuardedEventListener(_Subscriptions(self.log), self.faults) if heard else None
            self.router.event_listener = listener

    @property
    def hears_of_clients(self) -> bool:
        """True if each client that connects, and each that disconnects by itself, has to be reported."""
        return self.connection_log.informs

    def _hear(self) -> None:
        self.connection_table.reporting = self.hears_of_clients

    def report_open(self, connection: Connection) -> None:
        self.connection_log.opened(connection)

    def report_end(self, connection: Connection) -> None:
        """Report that a connection's protocol is over."""
        self.connection_log.ended(connection, connection.ended_at)


def _rates(limits: Limits) -> tuple[float, int, float]:
    return limits.max_publish_rate, limits.max_publish_bytes, limits.publish_patience


@contextmanager
def without_collector() -> Iterator[None]:
    """Stop the garbage collector while millions of objects are made that are not garbage.

    Its searches, one each time their number has grown by a quarter, take two thirds of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
