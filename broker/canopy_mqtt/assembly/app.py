"""The whole broker: the server and the parts around it. Embedding programs and the daemon run it.

Owns the composition only: it builds, starts and stops each part, in the order of their dependencies.

    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        port = broker.ports[0]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final

from canopy_mqtt.assembly.draining import Draining
from canopy_mqtt.assembly.process import Process
from canopy_mqtt.assembly.recording import recorder
from canopy_mqtt.assembly.reloading import Reloading
from canopy_mqtt.assembly.securing import Securing
from canopy_mqtt.assembly.storing import StoredState, in_turns, make
from canopy_mqtt.assembly.watching import FileWatcher
from canopy_mqtt.core.hooks import AccessControl, AuthMethod, EventListener
from canopy_mqtt.core.persistence.journal import SessionRecord
from canopy_mqtt.hooks.loading import load
from canopy_mqtt.hooks.running_hooks import RunningHooks
from canopy_mqtt.inprocess.checks import Payload
from canopy_mqtt.inprocess.client import InProcessClient, Subscription
from canopy_mqtt.inprocess.properties import Properties
from canopy_mqtt.links.filters.setting_warnings import warnings
from canopy_mqtt.links.manager import LinkManager
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.net.server import Server
from canopy_mqtt.observe.alarms.alarms import Alarms, alarms
from canopy_mqtt.observe.explain.explainer import Explainer
from canopy_mqtt.observe.figures.sources import Sources
from canopy_mqtt.observe.monitor import Monitor
from canopy_mqtt.observe.presence import Presence
from canopy_mqtt.observe.refusal_log import RefusalLog
from canopy_mqtt.observe.store_watch import StoreWatch
from canopy_mqtt.observe.systopics import SysTopics
from canopy_mqtt.observe.top import Top
from canopy_mqtt.observe.trace.otel import spans
from canopy_mqtt.observe.trace.traces import Traces
from canopy_mqtt.security.authenticator import Authenticator
from canopy_mqtt.security.bans import Bans
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.rules.claims import KeptRules
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.exposure import exposed
from canopy_mqtt.settings.ineffective import ineffective
from canopy_mqtt.settings.secret_files import open_to_others
from canopy_mqtt.store.base import Store
from canopy_mqtt.words import counted

if TYPE_CHECKING:
    from canopy_mqtt.admin.server import AdminServer
    from canopy_mqtt.assembly.sharing import Sharing
    from canopy_mqtt.cluster.cluster import Cluster
    from canopy_mqtt.net.connections.connection import Connection
    from canopy_mqtt.record.recorder import Recorder

__all__ = ["Broker", "StartupError"]

PUBLIC: Final = (
    "broken", "http", "listening", "not_ready", "ports", "publish", "reload", "settings", "start", "stop", "stopping",
    "subscribe",
)  # fmt: skip
"""The public attributes of a broker for programs (docs/embedding.md); all others may change."""


class Broker(Server):
    """An MQTT broker inside an asyncio program. Constructible without a running loop."""

    recorder: Recorder | None = None
    """Records the traffic, if the settings name a folder; from `start` on."""
    links: LinkManager | None = None
    """The links to upstream brokers; from `start` on."""
    cluster: Cluster | None = None
    """The other nodes of its cluster, if the settings name one; from `start` on."""
    bans: Bans
    """The bans of operators."""
    securing: Securing | None = None
    """Authentication and access rules of the settings; None if the program has its own access control."""
    presence: Presence | None = None
    """Publishes which clients are connected, if the settings name a topic; from `start` on."""
    admin: AdminServer | None = None
    """The HTTP server, if the settings name an address; from `start` on."""
    traces: Traces
    """Traces of the packets of clients; from `start` on."""
    explainer: Explainer
    """Answers what would happen to a message; from `start` on."""
    alarms: Alarms | None = None
    """The alarms; from `start` on."""
    monitor: Monitor
    """Reports losses and slow clients; from `start` on."""
    refusal_log: RefusalLog
    """Reports what clients were refused; from `start` on."""
    top: Top
    """The most expensive topics and clients; from `start` on."""
    figures: Sources
    """The sources of its figures (`canopy_mqtt.observe.figures`); from `start` on."""
    store: Store | None = None
    """Keeps what outlives this object; None: sessions and retained messages live as long as it does."""
    store_watch: StoreWatch | None = None
    """Reports the state of the store, if there is one."""
    draining: Draining
    """Moves its clients to other brokers on request."""
    process: Process
    """The process in which it runs: log level, reload, end."""
    hooks: RunningHooks
    """The plug-ins."""
    program: InProcessClient
    """Publishes and subscribes for the program in which it runs."""
    signals: Mapping[int, Callable[[], object]] = MappingProxyType({})
    """The handlers of signals that are ignored by default: a broker of one process has none."""
    among: tuple[int, int] = (1, 0)
    """The number of workers, and the index of this one."""
    _state: StoredState | None = None
    _sharing: Sharing | None = None
    _watcher: FileWatcher | None = None
    _reloading: Reloading | None = None
    _serving_since = 0.0
    _broken: asyncio.Future[str]
    _ending: asyncio.Task[None] | None = None

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        authenticators: Sequence[Authenticator] = (),
        access_control: AccessControl | None = None,
        event_listener: EventListener | None = None,
        auth_methods: dict[str, AuthMethod] | None = None,
        store: Store | None = None,
        hooks: Sequence[object] = (),
    ) -> None:
        """`authenticators` identify clients, before those of the settings (`canopy_mqtt.security`). `access_control`
        decides everything about clients, in place of both and of the rules of the settings. `store` replaces the store
        of the settings. `hooks` are plug-ins (`canopy_mqtt.hooks`), called after those of the settings. The other
        parameters are those of `Server`.

        Raises:
            ValueError: authenticators and an access control are given.
            PluginError: a plug-in defines no hook, or one that does not exist.
            StartupError: the store of the settings needs a package that is not installed.
        """
        if authenticators and access_control is not None:
            raise ValueError("authenticators or access_control, not both: the access control admits clients itself")
        settings = Settings() if settings is None else settings
        self._own_store = store is not None
        self.hooks = RunningHooks([*load(settings.hooks), *hooks])
        if access_control is not None:
            access_control = self.hooks.access(access_control)
        super().__init__(
            settings,
            access_control=access_control,
            event_listener=event_listener,
            auth_methods=auth_methods,
        )
        self.store = make(settings, KeptRules()) if store is None else store
        if self.store is not None:
            self._state = StoredState(self, self.store)
            self.store_watch = self.store.listener = StoreWatch(self, self.store, self._stop_serving)
            if store is None and settings.shares_sessions:
                self._sharing = self._share(self.store)
        self.bans = Bans()
        self.process = Process()
        self.program = InProcessClient(self)
        self.draining = Draining(self)
        self._authenticators = tuple(authenticators)
        self._own_access_control = access_control is not None
        # The program says who clients are.
        self._embedded = bool(authenticators or auth_methods)
        # From the beginning of `start` to the end of `stop`.
        self._begun = False

    async def start(self) -> None:
        """Listen, connect to upstream brokers, and begin to record, and to publish `$SYS` and presence.

        Raises:
            StartupError: it cannot, for a reason in one line.
            RuntimeError: it has been started, and has not stopped.
        """
        if self._begun:
            raise RuntimeError("the broker has been started already, and has not stopped")
        self._begun = True
        try:
            await self._begin_serving()
        except BaseException:
            self._begun = False
            raise

    async def _begin_serving(self) -> None:
        self.warn(self.settings)
        # In a thread, here and at a reload: with thousands of rules it takes a while.
        for line in await asyncio.to_thread(self.suspicious, self.settings):
            self.log.warning("suspicious setting", detail=line)
        # Before anything can happen that belongs into a record.
        self.recorder = recorder(self.settings.recorder, self.router, self.log, *self.among)
        self._broken = asyncio.get_running_loop().create_future()
        if self.recorder is not None:
            await self.recorder.start()
            if self.settings.recorder.required:
                if self.recorder.failure:
                    raise StartupError(f"recorder.required: {self.recorder.failure}")
                self.recorder.gave_up = self._stop_serving
        await self._make_observers()
        if self.settings.http.listen:
            # The import takes 20 MB and a quarter of a second: no client is to wait for that.
            import_module("canopy_mqtt.admin.server")
        try:
            await self.hooks.start(self)
            await self._read_access_control()
            await super().start()
        except BaseException:
            if self.cluster is not None and self.links is not None:
                await self.cluster.stop()
                await self.links.stop()
            await self.traces.close()
            await self.hooks.stop()
            if self.securing is not None:
                await self.securing.stop()
            if self.recorder is not None:
                await self.recorder.stop()
            raise
        self.program.running = True
        try:
            await self._start_parts()
        except BaseException:
            # The broker listens already, and the caller does not call `stop` after a failed start.
            await self.stop()
            raise

    async def _make_observers(self) -> None:
        """Make the parts that report on clients and messages: they see the first client."""
        self._serving_since = asyncio.get_running_loop().time()
        self.monitor = Monitor(self.router, self.settings, self.log, self._serving_since, self.admission)
        self.refusal_log = RefusalLog(self.router, self.settings, self.connection_log)
        self.watches = (self.monitor, self.refusal_log)
        presence = self.settings.presence
        self.presence = Presence(self, presence.topic, presence.delay) if presence.topic else None
        self.traces = Traces(self)
        self.explainer = Explainer(self.router)
        if self.settings.otel.endpoint:
            # In a thread: it loads much, and begins a thread of its own.
            self.traces.set_spans(await asyncio.to_thread(spans, self.settings.otel, self.router.broker_id, self.log))
        self.top = Top(self, self.settings.top)

    async def _start_parts(self) -> None:
        """Start the parts that need a listening server: links, figures, alarms, HTTP, watched files."""
        self._reloading = Reloading(self)
        assert self.links is not None
        self.links.start()
        self.figures = Sources(self, self.recorder, self.links, self.securing, self.store_watch)
        self.figures.monitor = self.monitor
        self.figures.top = self.top
        self.figures.of_program = lambda: len(self.program.subscriptions)
        self.figures.traces = self.traces
        self.top.start()
        self._sys = self.make_sys_topics()
        self._sys.start()
        self.hooks.follow(self.links)
        self.alarms = alarms(self, self.figures, self._sys.publish_now)
        self.alarms.start()
        if self.presence is not None:
            await self.presence.start()
        if self.settings.http.listen:
            admin = self.make_admin()
            await admin.start()
            admin.add_figures_to(self.figures)
            self.admin = admin
        await self.watch()

    def make_admin(self) -> AdminServer:
        from canopy_mqtt.admin.server import AdminServer

        return AdminServer(self, self.settings.http)

    def make_sys_topics(self) -> SysTopics:
        return SysTopics(self.figures, self.settings.sys.interval)

    def _files(self) -> list[Path]:
        """Return the files that are read again when they change."""
        named = [] if self.securing is None else list(self.securing.files())
        if self.admin is not None:
            named += [Path(name) for name in self.admin.files()]
        for listener in self.settings.listener:
            if listener.tls is not None:
                named += [Path(name) for name in listener.tls.files()]
        return named

    async def watch(self) -> None:
        """Watch files for changes, if there are any and the settings ask for it."""
        if not self.settings.security.watch_files:
            # A reload asks, and not the watcher, which goes by the settings in force.
            await self._unwatch()
        elif self._files() and self._watcher is None and not self.stopping:
            # A reload that was under way ends after the watching has.
            self._watcher = FileWatcher(self._files, self._read_again, self.faults.broke)
            await self._watcher.start()

    async def _unwatch(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            await watcher.stop()

    async def _read_again(self, changed: list[Path]) -> None:
        """Reload all files after a change, under the settings in force."""
        self.log.info("files have changed", files=[str(path) for path in changed])
        try:
            assert self._reloading is not None
            await self._reloading.reload(None)
        except SettingsError as error:
            for problem in error.problems:
                self.log.error("settings not reloaded", detail=problem)
        except RuntimeError:
            # The broker stops.
            return

    async def _read_access_control(self) -> None:
        """Read users and rules before the first client comes. Raises StartupError."""
        if self._own_access_control:
            return
        self.securing = Securing(self, self._authenticators, self.hooks)
        try:
            await self.securing.start()
        except SecurityError as error:
            raise StartupError(str(error)) from error

    async def restore_state(self) -> None:
        await self.prepare_links([] if self._state is None else await self._state.open())

    async def prepare_links(self, records: list[SessionRecord]) -> None:
        """End the sessions and wills of removed users, and make the links. `records`: what the store has of these."""
        if self.securing is not None and self.store is not None:
            await self.securing.dismiss_restored()
        self.cluster = None
        if self.settings.cluster.name:
            self.cluster = self.make_cluster()
            if self._sharing is not None:
                self._sharing.join(self.cluster)
        self.links = LinkManager(self) if self.cluster is None else self.cluster.links
        await in_turns(self.links.prepare(records))

    async def before_clients(self) -> None:
        if self.cluster is not None:
            await self.cluster.start()
            await self.meet_nodes(self.cluster)

    async def meet_nodes(self, cluster: Cluster) -> None:
        """Wait for the other nodes, but not for those that are known to be dead."""
        living = None if self._sharing is None else await self._sharing.living()
        await cluster.links.meet(living, lambda: self.stopping)

    def make_cluster(self) -> Cluster:
        """Make the part that a node has. It is loaded now: most brokers have no cluster."""
        from canopy_mqtt.cluster.cluster import Cluster

        store = "" if self._sharing is None else self._sharing.identity
        return Cluster(self, store=store, files=lambda: () if self.securing is None else self.securing.files())

    def _share(self, store: Store) -> Sharing:
        """Make the part that a node has whose sessions are in a database with those of the others. Loaded now, too."""
        from canopy_mqtt.assembly.sharing import Sharing
        from canopy_mqtt.store.shared.store import SharedStore

        assert isinstance(store, SharedStore)
        return Sharing(self, store)

    async def close_state(self) -> None:
        if self._state is not None:
            await self._state.close()

    async def stop(self) -> None:
        """End in order (see `Server.stop`)."""
        self.program.stop()
        if self.alarms is not None:
            self.alarms.cease()
        if hasattr(self, "_sys"):
            self._sys.stop()
        await self._unwatch()
        self.process.stop()
        self.draining.stop()
        try:
            await super().stop()
            if self.alarms is not None:
                await self.alarms.stop()
            if hasattr(self, "top"):
                self.top.stop()
            if hasattr(self, "traces"):
                # Requests that follow a trace end with it.
                await self.traces.close()
            admin, self.admin = self.admin, None
            if admin is not None:
                # Last: until then it says that the broker is not ready.
                await admin.stop()
            if self.securing is not None:
                await self.securing.stop()
            await self.hooks.stop()
        finally:
            if self.store_watch is not None:
                self.store_watch.stop()
            if self.recorder is not None:
                await self.recorder.stop()  # last: the ends of the connections are recorded too
            self._begun = False

    def _stop_serving(self, why: str) -> None:
        """Stop serving, because something without which this broker must not run is gone."""
        if not self._broken.done():
            self.log.error("the broker stops", reason=why)
            self._broken.set_result(why)
            self._ending = self.loop.create_task(self.stop())

    async def broken(self) -> str:
        """Wait until the started broker stops by itself, and return the reason in one line. It may never do so."""
        return await asyncio.shield(self._broken)

    async def _stop(self) -> None:
        # Also where it was being drained, which ended just now.
        self.connection_table.closed = True
        if self.presence is not None:
            # While there are links: an upstream broker shall hear of it.
            try:
                await self.presence.stop()
            except Exception as error:
                self.faults.broke("presence", error)
        if self.cluster is not None:
            await self.cluster.stop()
        await super()._stop()

    async def clients_ended(self) -> None:
        if self._sharing is not None:
            await self._sharing.write_wills()

    async def emptied(self) -> None:
        """End the links: the clients are gone, and their last messages are on their way to other brokers."""
        if self.links is not None and self._reloading is not None:
            async with self._reloading.turn:
                await self.links.stop()

    @property
    def http(self) -> list[str]:
        """The URLs of its HTTP server, with their real ports."""
        return [] if self.admin is None else self.admin.urls

    @property
    def uptime(self) -> float:
        """The seconds since it began to serve."""
        return self.loop.time() - self._serving_since

    @property
    def stopping(self) -> bool:
        """True while it stops and begins nothing new."""
        return self._stopped is not None

    def not_ready(self) -> list[str]:
        """Return the reasons why clients should go elsewhere, a line each; empty: they should come here."""
        if self.stopping:
            return ["the broker is stopping"]
        lines: list[str] = []
        if self.draining.active:
            lines.append(f"the broker is being drained; {counted(self.draining.left, 'connection')} left")
        if self.store_watch is not None and self.store_watch.failing:
            lines.append(f"the store cannot be written: {self.store_watch.state}")
        return lines

    # -- the program that it runs in -----------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Payload = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> int:
        """Publish a message, on the broker's event loop. Access rules do not apply. Text is sent in UTF-8.

        It returns when the message is routed; with a store, if it is retained or of QoS 1 or 2, when it is stored.
        A subscriber that reads and falls behind holds the program back, as it does clients (`queue.hold_publishers`).

        Returns:
            The number of sessions and shared subscriptions that it matched.

        Raises:
            TypeError: the topic is no text, the payload neither bytes nor text, or a property of another type.
            ValueError: the topic, payload or properties are invalid.
            RefusedError: the store cannot be written (`store.on_failure = "refuse"`).
            RuntimeError: the broker does not run.
        """
        return await self.program.publish(topic, payload, qos, retain, properties)

    def subscribe(
        self,
        topic_filter: str,
        *,
        policy: str = "drop-newest",
        max_messages: int = 10_000,
        max_bytes: int = 8_388_608,
        max_age: float = 0.0,
        retained: bool = True,
    ) -> Subscription:
        """Subscribe within a block: ``async with broker.subscribe("a/#") as messages``. Access rules do not apply.

        The messages wait in their own queue with these limits (0: unlimited) and one of the policies of
        `queue.policy`; `max_age` is in seconds (0: unlimited). `retained`: begin with the retained messages. A filter
        ``$share/name/filter`` gets its share of the messages of a shared subscription.

        Raises:
            ValueError: the topic filter, the policy or a limit is invalid.
        """
        return self.program.subscribe(topic_filter, policy, max_messages, max_bytes, max_age, retained)

    # -- settings ------------------------------------------------------------------------------------------------------

    async def reload(self, new: Settings) -> list[str]:
        """Apply the settings that can change while the broker runs, and read the files that they name again.

        These are links, log, limits (`changeable` lists them), authentication, access rules, added and removed
        listeners, and certificates.

        Returns:
            One line for each changed setting that needs a restart; the log has them as warnings, too. `settings` has
            what is in force.

        Raises:
            RuntimeError: the broker does not run.
            SettingsError: a file cannot be used; nothing has changed.
        """
        if self._reloading is None:
            raise RuntimeError("the broker does not run")
        return await self._reloading.reload(new)

    async def check_reload(self, new: Settings) -> None:
        """Find out whether these settings can be applied, and change nothing. Raises as `reload`."""
        if self._reloading is None:
            raise RuntimeError("the broker does not run")
        await self._reloading.check(new)

    async def apply(self, settings: Settings, asked: bool) -> None:
        """Put these settings in force, which `canopy_mqtt.assembly.reloading` has prepared. `asked`: an operator asked
        for it, not a changed file.
        """
        self.settings = settings
        self.apply_limits(settings)
        self._sys.change(settings.sys.interval)
        self.traces.change(settings.tracing)
        if self.alarms is not None:
            await self.alarms.change(settings.alarms)
        if asked:
            # Not where a file has changed: an operator may have set another level for a time.
            self.process.level(settings.log.level)
        self.log_changed()

    def suspicious(self, settings: Settings) -> list[str]:
        """Return warnings about probable mistakes in the settings of clients, a line each."""
        own = self._own_access_control
        embedded = own or self._embedded
        unused = ineffective(settings, embedded, own, self._own_store)
        return [*exposed(settings, embedded), *open_to_others(settings), *unused]

    def warn(self, settings: Settings) -> None:
        """Log warnings about probable mistakes in links."""
        for line in warnings(settings):
            self.log.warning("suspicious setting", detail=line)

    # -- connections ---------------------------------------------------------------------------------------------------

    @property
    def hears_of_clients(self) -> bool:
        """True if a listener wants to hear of each client that comes or leaves."""
        return super().hears_of_clients or self.presence is not None or self.hooks.hears_of_clients

    def report_open(self, connection: Connection) -> None:
        """Report an accepted client."""
        super().report_open(connection)
        if connection.protocol.node:
            return
        if self.presence is not None:
            self.presence.came(connection.protocol.client_id)
        self.hooks.opened(connection)

    def report_end(self, connection: Connection) -> None:
        """Report the end of a connection, with the cause that its protocol names."""
        super().report_end(connection)
        if connection.protocol.node:
            return
        if self.presence is not None and connection.protocol.accepted:
            self.presence.gone(connection.protocol.client_id)
        self.hooks.ended(connection)

    def __dir__(self) -> list[str]:
        """Return the public names: the completion of a prompt offers nothing else."""
        return list(PUBLIC)

    def __repr__(self) -> str:
        where = ", ".join(self.listening) if self.program.running else "not running"
        return f"<Broker {where}>"

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
