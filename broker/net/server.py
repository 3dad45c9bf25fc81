"""The asyncio server around one router: its connections, and the batch loop that they share.

Owns the event loop's part of a broker: its listeners (`listeners`), its connections (`connection_table`), their timers,
the timer for what is due in the router, and the one that checks the queues (`monitor`). A program embeds
`canopy.Broker`, which adds the reports about the broker.

Promises: it can be constructed without a running loop; `start` listens either on every address or on none, and says in
one line why not; `stop` accepts no more clients, lets queues drain within `shutdown.flush_timeout`, sends 5.0 clients
0x8B, and leaves no task behind.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from broker.core import guards
from broker.core.causes import SHUTDOWN
from broker.core.codec import reasons
from broker.core.hooks import AccessControl, AuthMethod, EventListener
from broker.core.journal_guard import GuardedJournal
from broker.core.persistence.journal import SessionRecord
from broker.core.persistence.restore import restore
from broker.core.routing.router import Router
from broker.net import sockets
from broker.net.connections.admission import admission
from broker.net.connections.client import Client
from broker.net.connections.connection_log import ConnectionLog
from broker.net.connections.connection_table import ConnectionTable
from broker.net.limits import change, limits
from broker.net.listening.handshakes import Handshakes
from broker.net.listening.listeners import Listeners, StartupError
from broker.net.log import Faults, JournalFaults, Log
from broker.net.monitor import LagMonitor, Monitor
from broker.net.refusal_log import RefusalLog
from broker.net.scheduling.hub import FlushScheduler
from broker.net.scheduling.steps import in_turns, without_collector
from broker.net.stream import LINGER
from broker.settings import Settings
from broker.store.base import Store, StoreError

STOP_TURN: Final = 128
"""Connections that are ended in one turn when the broker stops: some milliseconds."""


class _Subscriptions(EventListener):
    """Tells the log of subscriptions."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        self._log.debug("subscribed", client_id=client_id, topic_filter=topic_filter, qos=qos)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        self._log.debug("unsubscribed", client_id=client_id, topic_filter=topic_filter)

    def session_ended(self, client_id: str) -> None:
        self._log.debug("session ended", client_id=client_id)


def _nothing() -> None:
    """What a program that embeds the broker does before it listens."""


def _never() -> float:
    """How long the machine was suspended, where the event loop is not the broker's to keep the time of."""
    return 0.0


class Server:
    """Listeners and connections of one broker."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        access_control: AccessControl | None = None,
        event_listener: EventListener | None = None,
        auth_methods: dict[str, AuthMethod] | None = None,
        store: Store | None = None,
    ) -> None:
        """`access_control` decides who may do what, `auth_methods` are the 5.0 authentication methods by name
        (`core.hooks`).

        `store` keeps what outlives this object (`broker.store`); without one, sessions and retained messages live as
        long as it does.
        """
        self.settings = Settings() if settings is None else settings
        self.router = Router(limits(self.settings), self.settings.routing.trie, self.settings.routing.match_cache)
        self._most = self.settings.limits.max_connections or sockets.connections_that_fit()
        self.router.limits.max_connections = self._most
        self.router.broker_id = self.settings.federation.broker_id or secrets.token_hex(4)
        self.log: Any = Log()
        self.faults = Faults(self._current_log)
        self.connection_log = ConnectionLog(self._current_log, self.settings.log)
        self.store = store
        self._install(access_control, event_listener, auth_methods or {})
        self._restored = False
        # What a store kept of links, until there are some.
        self._kept_links: list[SessionRecord] = []
        self.listeners = Listeners(self)
        self.before_listening: Callable[[], None] = _nothing
        """Called when everything that a store kept is back, before the first client can connect. The daemon has the
        garbage collector pass over what is there: a search through millions of objects holds all clients up."""
        self.suspended: Callable[[], float] = _never
        """Called with each tick: for how many seconds the machine was suspended since the last one. The loop's clock
        counts them by then."""
        bounds = self.settings.limits
        # None: no limit asks for it.
        self.admission = admission(
            self._most, bounds.max_connections_per_address, bounds.max_connect_rate, self.listeners.limited
        )
        tune = None if sockets.INHERITED else self._tune
        self.connection_table = ConnectionTable(
            self.faults, tune, self._most, self.admission, self.report_open, self.report_end
        )
        self.connections = self.connection_table.connections
        self.log_changed()
        # From `start` on.
        self.loop: asyncio.AbstractEventLoop
        self.hub: FlushScheduler
        self.handshakes: Handshakes
        self.monitor: Monitor
        self.refusal_log: RefusalLog
        self.lag_monitor: LagMonitor
        self._stopping = False
        self._stopped: asyncio.Task[None] | None = None
        self._all_gone: asyncio.Future[None] | None = None

    def _current_log(self) -> Any:
        return self.log

    def _tune(self, accepted: Any) -> None:
        sockets.tune(accepted, self.settings)

    def _install(
        self,
        access_control: AccessControl | None,
        event_listener: EventListener | None,
        auth_methods: dict[str, AuthMethod],
    ) -> None:
        """Hand the hooks to the router, each behind its guard: none of them can harm more than its own answer."""
        router, faults = self.router, self.faults
        if access_control is not None:
            router.access_control = guards.GuardedAccessControl(access_control, faults, time.monotonic)
            faults.watch(guards.ACCESS_CONTROL)
        self._listened_to = event_listener is not None
        if event_listener is not None:
            router.event_listener = guards.GuardedEventListener(event_listener, faults)
            faults.watch(guards.EVENT_LISTENER)
        for name, method in auth_methods.items():
            router.auth_methods[name] = guards.GuardedAuthMethod(method, faults, time.monotonic)
            faults.watch(guards.AUTH_METHOD)
        store = self.store
        if store is not None:
            reporter = JournalFaults(faults, store.journal.commits, lambda: store.listener)
            router.journal = GuardedJournal(store.journal, reporter)
            faults.watch(guards.JOURNAL)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen on every address of the settings.

        Raises:
            StartupError: one of them cannot be listened on; then none is. Or the store cannot be read.
        """
        self.loop = asyncio.get_running_loop()
        self.hub = self.connection_table.hub = self._hub()
        if self.router.commits is not None:
            self.router.commits.wake = self.hub.committed
        self.handshakes = Handshakes(self.settings.limits.max_handshakes, self.loop)
        now = self.loop.time()
        self.monitor = Monitor(self.router, self.settings, self.log, now, self.admission)
        self.refusal_log = RefusalLog(self.router, self.settings, self.log, self.connection_log)
        self.lag_monitor = LagMonitor(self.loop, self.router.counters.load, self._look, self._slept)
        self._stopping = False
        self._stopped = None
        self.connection_table.closed = False
        self._hear()
        if self.admission is not None and not self.settings.limits.max_connections:
            self.log.info("connections are limited by file descriptors", max_connections=self._most)
        # Before the first client can come.
        with without_collector():
            await self._open_store()
            try:
                # Before anything is published, so that it waits for them too: wills fall due in the tick.
                links, self._kept_links = self._kept_links, []
                await self.prepare_links(links)
                if self._stopped is not None:
                    raise StartupError("the broker was stopped before it had started")
                if self.store is not None:
                    self.router.tick(self.loop.time())
                self.before_listening()
            except BaseException:  # given up, too: the next start is to find the store free
                await self._close_store()
                raise
        try:
            await self.listeners.start()
        except BaseException:
            await self._close_store()
            raise
        self.lag_monitor.start()
        # Sessions and delayed wills that a store brought fall due too.
        self.after_batch()

    async def _close_store(self) -> None:
        if self.store is not None:
            await self.store.close()

    async def _open_store(self) -> None:
        """Have the store back, and, the first time, everything that it kept."""
        store = self.store
        if store is None:
            return
        try:
            await store.open(self._time)
            if not self._restored:
                await self._restore(store)
        except StoreError as error:
            raise StartupError(str(error)) from error
        except Exception as error:
            self.faults.broke("store", error)
            raise StartupError(f"the store cannot be used: {type(error).__name__}: {error}") from error

    async def prepare_links(self, records: list[SessionRecord]) -> None:
        """Called when a store's sessions are back, and before anything is published: for whoever has links to others.

        `records`: what is kept of these.
        """

    async def _restore(self, store: Store) -> None:
        try:
            saved = await store.load()
            await in_turns(restore(self.router, saved, self.loop.time(), self._kept_links))
            self._restored = True
        except BaseException as error:  # see `start`
            self._restored = len(self.router.sessions) > 0 and isinstance(error, asyncio.CancelledError)
            await store.close()
            raise

    async def stop(self) -> None:
        """End in order: stop accepting, drain, send DISCONNECT. Returns when it is done, whoever called it first."""
        if self._stopped is None:
            if not hasattr(self, "loop"):
                return
            self._stopped = self.loop.create_task(self._stop())
        await asyncio.shield(self._stopped)

    async def _stop(self) -> None:
        self._stopping = self.connection_table.closed = True
        self.log.info("stopping", connections=len(self.connections))
        await self.listeners.close()
        self.handshakes.close()
        self.hub.turns.ending = True
        while self.router.fanout.broadcasting:  # noqa: ASYNC110 (each round of the event loop works some of it off)
            await asyncio.sleep(0)
        deadline = self.loop.time() + self.settings.shutdown.flush_timeout
        async for connection in self._in_turns():
            while self._has_to_drain(connection) and self.loop.time() < deadline:  # noqa: ASYNC110 (they tell nobody)
                await asyncio.sleep(0.01)
        async for connection in self._in_turns():
            try:
                connection.close(SHUTDOWN, reasons.SERVER_SHUTTING_DOWN, "the broker is stopping")
            except Exception as error:
                connection.broke(error)
        await self._gone()
        await self._abort()
        try:
            await self.emptied()
        except Exception as error:
            # What is left has to end in order all the same.
            self.faults.broke("stop", error)
        self.lag_monitor.close()
        self.monitor.finish(self.loop.time())
        self.refusal_log.finish()
        self.connection_log.finish()
        self.hub.close()
        if self.store is not None:
            # Last: the ends of the connections are kept too.
            if self.router.journal is not None:
                self.router.journal.retry()
            try:
                await self.store.close()
            except Exception as error:
                # Everything else has stopped in order, and there is nobody left who could do better.
                self.faults.broke("store", error)
        self.log.info("stopped")

    async def _abort(self) -> None:
        async for connection in self._in_turns():
            connection.stream.abort()
        await self._gone()

    async def _gone(self) -> None:
        """Wait until the connections have gone, but not for long."""
        if self.connections:
            self._all_gone = self.loop.create_future()
            self.connection_table.emptied = self._last_left
            await asyncio.wait([self._all_gone], timeout=LINGER)

    async def _in_turns(self) -> AsyncIterator[Client]:
        """All connections, of which some go meanwhile; the event loop has a turn now and then."""
        for number, connection in enumerate(list(self.connections), 1):
            if connection in self.connections:
                yield connection
            if number % STOP_TURN == 0:
                await asyncio.sleep(0)

    def _has_to_drain(self, connection: Client) -> bool:
        return not _drained(connection) and connection in self.connections

    def _last_left(self) -> None:
        if self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    async def emptied(self) -> None:
        """Called while it stops, when all clients are gone: for whoever has to hear of that, and disconnect too."""

    @property
    def listening(self) -> list[str]:
        return [listener.url() for listener in self.listeners.open]

    @property
    def ports(self) -> list[int]:
        """The ports that are listened on, in the order of the settings; 0 for a Unix socket."""
        return [listener.port for listener in self.listeners.open]

    # -- connections ---------------------------------------------------------------------------------------------------

    def after_batch(self) -> None:
        """After each batch that comes from no connection: see `FlushScheduler.after_batch`."""
        self.hub.after_batch()

    def _look(self, now: float) -> bool:
        again = False
        if self.admission is not None:
            self.admission.turned_away += self.handshakes.evicted
            self.handshakes.evicted = 0
        try:
            again = self.monitor.look(now)
            again = self.refusal_log.look(now) or again
        except Exception as error:
            self.faults.broke("monitor", error)
        self.connection_log.look(now)
        self._hear()
        self.hub.after_batch()
        return again

    def _slept(self) -> float:
        """See that the time in which the machine was suspended counts, but for what clients could not send in it."""
        passed = self.suspended()
        if passed > 0.0:
            self.hub.clock_moved()
            for connection in list(self.connections):
                connection.was_suspended()
            self.log.warning("machine was suspended", seconds=round(passed))
            self.hub.after_batch()
        return passed

    def _time(self) -> float:
        return self.loop.time()

    def _tick(self) -> None:
        self.router.tick(self.loop.time())

    def _hub(self) -> FlushScheduler:
        hub = FlushScheduler(self.router, self.loop, self._tick, self.faults.broke)
        _bound(hub, self.settings)
        return hub

    def apply_limits(self, settings: Settings) -> None:
        """Have these limits hold, of a broker that runs. Clients that are connected keep to what they were told.

        Of `limits`, `mqtt`, `session`, `queue`, `retained` and `federation`; what was made at the start and cannot be
        changed must be as it was (`broker.configuration.changeable`).
        """
        bounds = settings.limits
        change(self.router, settings)
        self._most = bounds.max_connections or sockets.connections_that_fit()
        self.router.limits.max_connections = self.connection_table.most = self._most
        if self.admission is not None:
            self.admission.change(
                self._most,
                bounds.max_connections_per_address,
                bounds.max_connect_rate,
                self.connection_table.counted(),
            )
        self.handshakes.limit = bounds.max_handshakes
        self.monitor.change(settings)
        self.refusal_log.change(settings)
        _bound(self.hub, settings)
        for listener in self.listeners.open:
            listener.limit(settings)

    # -- log -----------------------------------------------------------------------------------------------------------

    def log_changed(self) -> None:
        """The log has other settings: tell it of subscriptions where somebody hears that, and only then."""
        self.connection_log.bound(self.settings.log)
        self._hear()
        if not self._listened_to:
            heard = self.log.is_enabled_for(logging.DEBUG)
            listener = guards.GuardedEventListener(_Subscriptions(self.log), self.faults) if heard else None
            self.router.event_listener = listener

    @property
    def hears_of_clients(self) -> bool:
        """Whether anybody wants to hear of each client that comes, and of each that goes by itself."""
        return self.connection_log.informs

    def _hear(self) -> None:
        self.connection_table.reporting = self.hears_of_clients

    def report_open(self, connection: Client) -> None:
        self.connection_log.opened(connection)

    def report_end(self, connection: Client) -> None:
        """A connection's protocol is over, for the cause that it names."""
        self.connection_log.ended(connection, connection.stream.closing_at)


def _drained(connection: Client) -> bool:
    """Whether it has been written all that is for it; what waits for a commit is still to come."""
    outbox = connection.outbox
    return outbox.empty and outbox.receive_window.held_bytes == 0


def _bound(hub: FlushScheduler, settings: Settings) -> None:
    hub.connect_timeout = settings.limits.connect_timeout
    hub.packet_timeout = settings.limits.packet_timeout
    hub.partial.limit = settings.limits.max_partial_bytes
    hub.stall_timeout = settings.queue.stall_timeout
    hub.live_messages = settings.queue.live_messages
    hub.live_bytes = settings.queue.live_bytes
    hub.write_batch_bytes = settings.queue.write_batch_bytes
