"""A whole broker: the server and what stands beside it. What an embedding program and the daemon run.

Owns the composition, and nothing else: each room is built, started and stopped here, in the order in which they need
each other.

    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        port = broker.ports[0]
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from broker.configuration import SettingsError, of_listeners
from broker.core.hooks import AccessControl, AuthMethod, EventListener
from broker.core.persistence.journal import SessionRecord
from broker.exposure import exposed
from broker.ineffective import ineffective
from broker.net.listening.listeners import StartupError
from broker.net.listening.tls import TlsError
from broker.net.listening.tls import files as certificate_files
from broker.net.server import Server
from broker.observe.presence import Presence
from broker.observe.systopics import SysTopics
from broker.securing import Securing
from broker.security.authenticator import Authenticator
from broker.security.errors import SecurityError
from broker.security.rules.kept import KeptRules
from broker.settings import Settings, flatten
from broker.store.base import Store
from broker.storing import StoreWatch, make
from broker.upstream.filters.suspicious import warnings
from broker.upstream.links.links import Links
from broker.watching import FileWatcher
from broker.wording import show

if TYPE_CHECKING:
    from broker.net.client import Client
    from broker.record.recorder import Recorder

__all__ = ["Broker", "StartupError"]


class Broker(Server):
    """An MQTT broker inside an asyncio program. Constructible without a running loop."""

    recorder: Recorder | None = None
    """Who records what goes through it, where the settings name a folder; from `start` on."""
    links: Links | None = None
    """The links to upstream brokers; from `start` on."""
    securing: Securing | None = None
    """Who may come in, and what, by the settings; None beside an access control of the program's own."""
    presence: Presence | None = None
    """Who tells which clients are connected, where the settings name a topic; from `start` on."""
    store_watch: StoreWatch | None = None
    """Who is told what happens to the store, where there is one."""
    _watcher: FileWatcher | None = None
    _reloading: asyncio.Lock | None = None
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
    ) -> None:
        """`authenticators` say who clients are, before those of the settings (`broker.security`); `access_control`
        decides everything about clients in place of both, and of the rules of the settings. `store` keeps what outlives
        this object, in place of the one that the settings name. The others are those of `Server`.

        Raises:
            ValueError: both are given.
        """
        if authenticators and access_control is not None:
            raise ValueError("authenticators or access_control, not both: the access control admits clients itself")
        settings = Settings() if settings is None else settings
        self._own_store = store is not None
        super().__init__(
            settings,
            access_control=access_control,
            event_listener=event_listener,
            auth_methods=auth_methods,
            store=make(settings, KeptRules()) if store is None else store,
        )
        if self.store is not None:
            self.store_watch = self.store.listener = StoreWatch(self)
        self._authenticators = tuple(authenticators)
        self._own_access_control = access_control is not None
        # The program says who clients are.
        self._embedded = bool(authenticators or auth_methods)

    async def start(self) -> None:
        """Listen, connect to upstream brokers, and begin to record and to publish `$SYS` and who is here.

        Raises StartupError in one line.
        """
        self._warn(self.settings)
        # In a thread, here and at a reload: with thousands of rules it takes a while.
        for line in await asyncio.to_thread(self._suspicious, self.settings):
            self.log.warning("suspicious setting", detail=line)
        # Before anything can happen that belongs into a record.
        self.recorder = self._recorder(self.settings)
        self._broken = asyncio.get_running_loop().create_future()
        if self.recorder is not None:
            await self.recorder.start()
            if self.settings.recorder.required:
                if self.recorder.failure:
                    raise StartupError(f"recorder.required: {self.recorder.failure}")
                self.recorder.gave_up = self._break
        topic = self.settings.presence.topic
        self.presence = Presence(self, topic) if topic else None
        try:
            await self._secure()
            await super().start()
        except BaseException:
            if self.securing is not None:
                await self.securing.stop()
            if self.recorder is not None:
                await self.recorder.stop()
            raise
        try:
            self._reloading = asyncio.Lock()
            assert self.links is not None
            self.links.start()
            self._sys = SysTopics(
                self,
                self.settings.sys.interval,
                self.recorder,
                self.links,
                None if self.securing is None else self.securing.counts,
                self.store_watch,
            )
            self._sys.start()
            if self.presence is not None:
                await self.presence.start()
            await self._watch()
        except BaseException:
            # It listens already, and nobody will stop what did not start.
            await self.stop()
            raise

    def _files(self) -> list[Path]:
        """The files that are read again when they change."""
        named = [] if self.securing is None else list(self.securing.files())
        for listener in self.settings.listener:
            if listener.tls is not None:
                named += [Path(name) for name in certificate_files(listener.tls)]
        return named

    async def _watch(self) -> None:
        """Have files looked at, where there are any and they are to be."""
        if not self.settings.security.watch_files:
            # It is not the watcher that asks: it goes by the settings in force, and these have changed.
            await self._unwatch()
        elif self._files() and self._watcher is None:
            self._watcher = FileWatcher(self._files, self._read_again, self.faults.broke)
            await self._watcher.start()

    async def _unwatch(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            await watcher.stop()

    async def _read_again(self, changed: list[Path]) -> None:
        """Files have changed: read everything that files say, as with a reload, under the settings in force."""
        self.log.info("files have changed", files=[str(path) for path in changed])
        try:
            await self._in_turn(None)
        except SettingsError as error:
            for problem in error.problems:
                self.log.error("settings not reloaded", detail=problem)
        except RuntimeError:
            # It stops.
            return

    async def _secure(self) -> None:
        """Read what says who may come in, before anybody can. Raises StartupError."""
        if self._own_access_control:
            return
        self.securing = Securing(self, self._authenticators)
        try:
            await self.securing.start()
        except SecurityError as error:
            raise StartupError(str(error)) from error

    def prepare_links(self, records: list[SessionRecord]) -> None:
        """Make the links of the settings (see `Server.prepare_links`)."""
        self.links = Links(self)
        self.links.prepare(records)

    async def stop(self) -> None:
        """End in order (see `Server.stop`)."""
        if hasattr(self, "_sys"):
            self._sys.stop()
        await self._unwatch()
        try:
            await super().stop()
            if self.securing is not None:
                await self.securing.stop()
        finally:
            if self.store_watch is not None:
                self.store_watch.stop()
            if self.recorder is not None:
                # Last: the ends of the connections are recorded too.
                await self.recorder.stop()

    def _break(self, why: str) -> None:
        """Something without which this broker must not serve is gone."""
        if not self._broken.done():
            self.log.error("the broker stops", reason=why)
            self._broken.set_result(why)
            self._ending = self.loop.create_task(self.stop())

    async def broken(self) -> str:
        """Wait until the broker, which was started, stops by itself; why, in one line. It may never do so."""
        return await asyncio.shield(self._broken)

    async def _stop(self) -> None:
        if self.presence is not None:
            # While there are links: an upstream broker shall hear of it.
            try:
                await self.presence.stop()
            except Exception as error:
                self.faults.broke("presence", error)
        await super()._stop()

    async def emptied(self) -> None:
        """The clients are gone, and what they left behind is on its way up: end the links."""
        if self.links is not None and self._reloading is not None:
            async with self._reloading:
                await self.links.stop()

    # -- settings ------------------------------------------------------------------------------------------------------

    async def reload(self, new: Settings) -> list[str]:
        """Apply those of these settings that can change while the broker runs, and read again the files that they name.

        Its links, its log (whoever set up logging changes its level first), who may come in and do what, and the
        certificates of its listeners.

        Returns:
            One line for each other setting that differs and takes a restart; they are logged as warnings as well.
            `settings` has what is in force.

        Raises:
            RuntimeError: the broker does not run.
            SettingsError: a file cannot be used; nothing has changed.
        """
        return await self._in_turn(new)

    async def _in_turn(self, new: Settings | None) -> list[str]:
        """Reload, one after the other. None: what is in force by then, from the files as they are then."""
        if self._reloading is None or self._stopped is not None:
            raise RuntimeError("the broker does not run")
        # Whoever gives up waiting shall not leave it half done.
        return await asyncio.shield(self.loop.create_task(self._reload(new, self._reloading)))

    async def _reload(self, new: Settings | None, turn: asyncio.Lock) -> list[str]:
        async with turn:
            new = self.settings if new is None else new
            if self.links is None or self._stopped is not None:
                raise RuntimeError("the broker does not run")
            before = flatten(self.settings)
            wanted = flatten(new)
            changed = [name for name, value in wanted.items() if value != before[name]]
            # First what may fail, and changes nothing.
            try:
                renewal = await self.listeners.prepare(new)
            except TlsError as error:
                raise SettingsError([str(error)]) from error
            log = new.log.model_copy(update={"format": self.settings.log.format})
            applied = self.settings.model_copy(
                update={
                    "upstream": new.upstream,
                    "authenticator": new.authenticator,
                    "rule": new.rule,
                    "access": new.access,
                    "security": new.security,
                    "log": log,
                    "listener": renewal.settings,
                }
            )
            in_force = flatten(applied)
            if "upstream" in changed:
                self._warn(applied)
            suspected = await asyncio.to_thread(self._suspicious, self.settings)
            suspicious = await asyncio.to_thread(self._suspicious, applied)
            securing = self.securing
            try:
                prepared = None if securing is None else await securing.prepare(applied)
            except SecurityError as error:
                raise SettingsError([str(error)]) from error
            # Whether they differ or not: what they are made of may stand in other files.
            await self.links.apply(applied)
            self.listeners.apply(renewal)
            self.settings = applied
            self.log_changed()
            dismissed = 0
            if securing is not None and prepared is not None:
                dismissed = await securing.apply(prepared)
        lines = [
            f"{name}: {show(in_force[name])} stays in force; {show(wanted[name])} takes a restart"
            for name in changed
            if in_force[name] != wanted[name] and name != "listener"
        ]
        lines += of_listeners(applied.listener, new.listener)
        await self._watch()
        for line in suspicious:
            if line not in suspected:
                self.log.warning("suspicious setting", detail=line)
        for line in lines:
            self.log.warning("setting takes a restart", detail=line)
        self.log.info("settings reloaded", upstream=len(applied.upstream), dismissed=dismissed)
        return lines

    def _suspicious(self, settings: Settings) -> list[str]:
        """What in settings about clients is hardly meant, a line each."""
        own = self._own_access_control
        embedded = own or self._embedded
        lines = [*exposed(settings, embedded), *ineffective(settings, embedded)]
        if self._own_store:
            # It may have settings of its own; these of ours count for any store.
            lines = [line for line in lines if not line.startswith(("store.on_failure ", "store.removed_link_expiry "))]
            if settings.store.path:
                lines.append(
                    f"store.path: {show(settings.store.path)} is not used, since the program has a store of its own"
                )
        unasked = [name for name in ("authenticator", "rule") if getattr(settings, name)]
        if own and unasked:
            lines.append(
                f"{' and '.join(f'[[{name}]]' for name in unasked)}: never asked, since the program has an access "
                "control of its own, which decides everything about clients"
            )
        return lines

    def _warn(self, settings: Settings) -> None:
        for line in warnings(settings):
            self.log.warning("suspicious setting", detail=line)

    # -- connections ---------------------------------------------------------------------------------------------------

    @property
    def hears_of_clients(self) -> bool:
        """Whether anybody wants to hear of each client that comes, and of each that goes by itself."""
        return super().hears_of_clients or self.presence is not None

    def report_open(self, connection: Client) -> None:
        """A client was accepted."""
        super().report_open(connection)
        if self.presence is not None:
            self.presence.came(connection.protocol.client_id)

    def report_end(self, connection: Client) -> None:
        """A connection's protocol is over, for the cause that its protocol names."""
        super().report_end(connection)
        if self.presence is not None and connection.protocol.accepted:
            self.presence.gone(connection.protocol.client_id)

    def _recorder(self, settings: Settings) -> Recorder | None:
        """The recorder of the settings, if they ask for one. Raises StartupError without pyarrow."""
        wanted = settings.recorder
        if not wanted.directory:
            return None
        try:
            from broker.record.recorder import Options, Recorder
        except ModuleNotFoundError as error:
            if error.name != "pyarrow":
                raise
            raise StartupError(
                "recorder.directory needs pyarrow: in a clone of Canopy run `make setup`; elsewhere install Canopy "
                "with its extra, as in pip install './canopy[record]'"
            ) from error
        if wanted.table == "delta":
            try:
                import broker.record.delta  # noqa: F401  the recorder's thread needs it
            except ImportError as error:
                if (error.name or "").partition(".")[0] != "deltalake":
                    raise
                raise StartupError(
                    'recorder.table = "delta" needs deltalake 1.6 or newer: in a clone of Canopy run `make setup`; '
                    "elsewhere install Canopy with its extra, as in pip install './canopy[record,delta]'"
                ) from error
        options = Options(
            Path(wanted.directory),
            tuple(wanted.filters),
            wanted.payloads,
            wanted.deliveries,
            wanted.segment_bytes,
            wanted.segment_seconds,
            wanted.queue_events,
            wanted.queue_bytes,
            wanted.snapshot_seconds,
            wanted.draft_seconds,
            wanted.table,
        )
        return Recorder(options, self.router, self.log)

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
