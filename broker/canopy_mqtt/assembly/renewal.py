"""Changes the listeners of a running broker: other certificates, listeners that come, and listeners that go.

Owns `Renewal`, what was prepared. Certificates are read and new listeners bound (`prepare`) before anything changes;
then all of it is put in force (`apply`), and new listeners admit clients (`serve`).
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from canopy_mqtt import certificates
from canopy_mqtt.net.listening.listeners import Listener, ListenerHost, Listeners, StartupError, close_all
from canopy_mqtt.settings import Listener as ListenerSettings
from canopy_mqtt.settings import Settings


class Renewal(NamedTuple):
    """Certificates that were read, listeners that are bound, and the settings once both are put in force."""

    ready: list[tuple[Listener, ListenerSettings, certificates.Loaded]]
    added: list[Listener]
    removed: list[Listener]
    listen: tuple[str, ...]
    tables: tuple[ListenerSettings, ...]
    """`listen` and the `listener` tables of these settings."""


async def prepare(server: ListenerHost, listeners: Listeners, new: Settings, counted: bool) -> Renewal:
    """Read all certificates of other settings again, and bind new listeners, which accept no client yet.

    Names identify listeners; of those that stay, only `[listener.tls]` counts. One that would take
    the address of another that goes, and one with limits where connections are not `counted`, take a restart.

    Raises:
        certificates.TlsError, StartupError: why one of them cannot be used, in one line that names it.
    """
    wanted = {each.label for each in new.listeners}
    has = {listener.name for listener in listeners.open}
    removed = [listener for listener in listeners.open if listener.name not in wanted]
    # With their real ports.
    left = {listener.endpoint._replace(scheme="") for listener in removed}
    added: list[Listener] = []
    for settings in new.listeners:
        listener = Listener(server, settings)
        place = settings.endpoint._replace(scheme="")
        if listener.name in has:
            continue
        if place in left:
            removed = [each for each in removed if each.endpoint._replace(scheme="") != place]
        elif counted or listener.admission is None:
            added.append(listener)
    tables = {each.label: each for each in new.listener}
    in_force: list[ListenerSettings] = []
    ready: list[tuple[Listener, ListenerSettings, certificates.Loaded]] = []
    for listener in [each for each in listeners.open if each not in removed]:
        settings, other = listener.settings, tables.get(listener.name)
        if settings.tls is not None:
            # A listener without a table keeps its certificates.
            keys = settings.tls if other is None or other.tls is None or other.url != settings.url else other.tls
            try:
                loaded = await asyncio.to_thread(certificates.load, keys, listener.scheme)
            except certificates.TlsError as error:
                raise certificates.TlsError(f'listener "{listener.name}": {error}') from None
            settings = settings.model_copy(update={"tls": keys})
            ready.append((listener, settings, loaded))
        in_force.append(settings)
    bound: list[Listener] = []
    try:
        for listener in added:
            await listener.bind()
            bound.append(listener)
    except BaseException:
        await close_all(bound)
        raise
    in_force += [listener.settings for listener in added]
    # A table that is only a URL has the same name as its address in `listen`: where no table has the name, it is there.
    named = {each.label for each in (*server.settings.listener, *new.listener)}
    short = tuple(each.url for each in in_force if each.label not in named)
    return Renewal(ready, added, removed, short, tuple(each for each in in_force if each.label in named))


async def apply(listeners: Listeners, renewal: Renewal) -> None:
    """Show the certificates that were prepared, and close the listeners that go; connections stay."""
    for listener, settings, loaded in renewal.ready:
        listener.show(loaded, settings)
    listeners.open = [each for each in listeners.open if each not in renewal.removed] + renewal.added
    listeners.all = list(listeners.open)
    await close_all(renewal.removed)


async def serve(listeners: Listeners, renewal: Renewal) -> list[str]:
    """Let clients in at the new listeners. Returns a line for each listener where this fails."""
    failed: list[str] = []
    # If the broker has stopped meanwhile, none is open.
    for listener in [each for each in renewal.added if each in listeners.open]:
        try:
            await listener.serve()
        except StartupError as error:
            listeners.open.remove(listener)
            failed.append(str(error))
    return failed
