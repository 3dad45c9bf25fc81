"""Applies other settings to a running broker: one reload after the other, and each completely or not at all.

Owns the order: first everything that may fail is prepared (files are read, listeners bound), without a change; then it
is put in force, and new listeners admit clients at the end, when the new rules are in force. `reloadable` lists the
settings that can change; all others are reported by name.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from canopy_mqtt.assembly import renewal
from canopy_mqtt.assembly.renewal import Renewal
from canopy_mqtt.assembly.securing import Securing
from canopy_mqtt.certificates import TlsError
from canopy_mqtt.links.manager import LinkManager
from canopy_mqtt.net.connections.admission import Admission
from canopy_mqtt.net.listening.listeners import ListenerHost, Listeners, StartupError, close_all
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.settings import Settings, flatten
from canopy_mqtt.settings.descriptions import show
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import of_listeners
from canopy_mqtt.settings.reloadable import with_reloadable
from canopy_mqtt.sockets import of_http, too_many

if TYPE_CHECKING:
    from canopy_mqtt.admin.server import AdminServer


class Host(ListenerHost, Protocol):
    loop: asyncio.AbstractEventLoop
    admission: Admission | None
    listeners: Listeners
    links: LinkManager | None
    securing: Securing | None
    admin: AdminServer | None

    @property
    def stopping(self) -> bool:
        """True while the broker stops, and afterwards."""

    @property
    def listening(self) -> list[str]:
        """The URLs of its listeners."""

    def suspicious(self, settings: Settings) -> list[str]:
        """Settings that are probably mistakes. May block: call it in a thread."""

    def warn(self, settings: Settings) -> None:
        """Warn of links that are probably mistakes."""

    async def apply(self, settings: Settings, asked: bool) -> None:
        """Put these settings in force."""

    async def watch(self) -> None:
        """Watch files for changes, if there are any and the settings ask for it."""


class Reloading:
    """The reloads of one broker, from its start on."""

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        self.turn = asyncio.Lock()
        """Held by the reload in progress."""

    async def reload(self, new: Settings | None) -> list[str]:
        """Apply these settings; returns a line for each that takes a restart. None: reread the files of the settings in
        force.

        Raises:
            RuntimeError: the broker does not run.
            SettingsError: a setting cannot be applied; nothing has changed.
        """
        if self._stops():
            raise RuntimeError("the broker does not run")
        # A caller that gives up must not leave it half done.
        return await asyncio.shield(self._broker.loop.create_task(self._reload(new)))

    async def check(self, new: Settings) -> None:
        """Prepare a reload with these settings, and change nothing. Raises as `reload`."""
        broker = self._broker
        async with self.turn:
            if self._stops():
                raise RuntimeError("the broker does not run")
            if line := too_many(new.limits.max_connections, of_http(broker.settings)):
                raise SettingsError([line])
            try:
                await close_all((await self._prepare_listeners(new)).added)
                if broker.securing is not None:
                    await broker.securing.prepare(with_reloadable(broker.settings, new, broker.admission is None))
                if broker.admin is not None:
                    await broker.admin.prepare(new.http)
            except (StartupError, SecurityError, TlsError) as error:
                raise SettingsError([str(error)]) from error

    async def _prepare_listeners(self, new: Settings) -> Renewal:
        broker = self._broker
        return await renewal.prepare(broker, broker.listeners, new, broker.admission is not None)

    def _stops(self) -> bool:
        return self._broker.stopping

    async def _reload(self, new: Settings | None) -> list[str]:
        broker = self._broker
        async with self.turn:
            asked = new is not None
            new = broker.settings if new is None else new
            if broker.links is None or self._stops():
                raise RuntimeError("the broker does not run")
            before, wanted = flatten(broker.settings), flatten(new)
            changed = [name for name, value in wanted.items() if value != before[name]]
            # First what may fail, and changes nothing.
            if "limits.max_connections" in changed and (
                line := too_many(new.limits.max_connections, of_http(broker.settings))
            ):
                raise SettingsError([line])
            try:
                renewed = await self._prepare_listeners(new)
            except (StartupError, TlsError) as error:
                raise SettingsError([str(error)]) from error
            applied = _with_listeners(with_reloadable(broker.settings, new, broker.admission is None), new, renewed)
            if "upstream" in changed:
                broker.warn(applied)
            suspected = await asyncio.to_thread(broker.suspicious, broker.settings)
            suspicious = await asyncio.to_thread(broker.suspicious, applied)
            securing = broker.securing
            try:
                prepared = None if securing is None else await securing.prepare(applied)
                admitted = None if broker.admin is None else await broker.admin.prepare(new.http)
                # Whether they differ or not: what they are made of may stand in other files.
                await broker.links.apply(applied)
            except BaseException as error:
                await close_all(renewed.added)
                if isinstance(error, (SecurityError, TlsError)):
                    raise SettingsError([str(error)]) from error
                raise
            if self._stops():
                # Meanwhile all that there were have been closed.
                await close_all(renewed.added)
            else:
                await renewal.apply(broker.listeners, renewed)
            if admitted is not None and broker.admin is not None:
                applied = applied.model_copy(update={"http": admitted.settings})
                broker.admin.apply(admitted)
            await broker.apply(applied, asked)
            dismissed = 0
            if securing is not None and prepared is not None:
                dismissed = await securing.apply(prepared)
            # Not before it is known who may come in there.
            lines = await renewal.serve(broker.listeners, renewed)
        in_force = flatten(applied)
        lines += [
            f"{name}: {show(in_force[name])} stays in force; {show(wanted[name])} takes a restart"
            for name in changed
            if in_force[name] != wanted[name] and name != "listener"
        ]
        lines += of_listeners(applied.listener, new.listener)
        await broker.watch()
        for line in suspicious:
            if line not in suspected:
                broker.log.warning("suspicious setting", detail=line)
        for line in lines:
            broker.log.warning("setting takes a restart", detail=line)
        broker.log.info(
            "settings reloaded", listening=broker.listening, upstream=len(applied.upstream), dismissed=dismissed
        )
        return lines


def _with_listeners(settings: Settings, new: Settings, renewed: Renewal) -> Settings:
    """Return the settings, with the listeners as they will be."""
    listen = renewed.listen or tuple(new.listen)
    made = settings.model_copy(update={"listen": listen, "listener": renewed.tables})
    if not renewed.listen:
        # Unset: beside tables the default does not count.
        made.model_fields_set.discard("listen")
    return made
