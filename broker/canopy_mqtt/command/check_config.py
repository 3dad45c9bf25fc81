"""`canopy check-config` checks settings without starting the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from canopy_mqtt.assembly import daemon
from canopy_mqtt.assembly.storing import unusable as store_unusable
from canopy_mqtt.assembly.storing import unwritable
from canopy_mqtt.certificates import check as certificates
from canopy_mqtt.command.settings_arguments import load, one_of, or_fail
from canopy_mqtt.hooks.loading import unusable as hooks_unusable
from canopy_mqtt.links.filters.setting_warnings import warnings
from canopy_mqtt.links.parameters import unreadable
from canopy_mqtt.security.authenticator_factory import check as authenticators
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.descriptions import show
from canopy_mqtt.settings.exposure import exposed
from canopy_mqtt.settings.ineffective import ineffective
from canopy_mqtt.settings.loader import annotated_defaults, changed, ignored, of_tables
from canopy_mqtt.settings.secret_files import open_settings, open_to_others
from canopy_mqtt.sockets import check_files as socket_files
from canopy_mqtt.sockets import of_http
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import Division, division
from canopy_mqtt.terminal import MISUSED, fail

ENVIRONMENT: Final = "environment, without a file"
"""The name of the only source of `check-config` without a file."""


app = typer.Typer(rich_markup_mode=None)


@app.command("check-config")
def check_config(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Settings in TOML.")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="The same as FILE.")] = None,
    defaults: Annotated[
        bool,
        typer.Option("--defaults", help="Print every setting with its default and explanation, as TOML, and exit."),
    ] = False,
) -> None:
    """Check a settings file. Show what it changes, and warn about settings that look wrong.

    CANOPY_ environment variables apply too, as when you start the broker here; without FILE only they are checked.
    The exit code is 0 when the settings are valid and 2 when they are not.
    """
    file = one_of(file, config)
    if defaults:
        if file is not None:
            fail("--defaults prints the defaults and takes no FILE", MISUSED)
        typer.echo(or_fail(annotated_defaults), nl=False)
        return
    settings = load(file, (), ())
    faults, soon = certificates(settings)
    # Unlike a link, which tries again, these keep the broker from starting.
    unusable, odd = authenticators(settings)
    broken = [
        *faults,
        *socket_files(settings),
        *unusable,
        *_store(settings),
        *_http(settings),
        *hooks_unusable(settings.hooks),
        *_workers(settings),
    ]
    folders = {"recorder.directory": settings.recorder.directory, "tracing.directory": settings.tracing.directory}
    # Without these the broker goes on, and says so.
    missed = [why for name, path in folders.items() if path and (why := unwritable(name, path))]
    if settings.recorder.required:
        broken += [line for line in missed if line.startswith("recorder.")]
        missed = [line for line in missed if line not in broken]
    missed += unreadable(settings)
    told = "OK"
    if missed:
        told = "the broker starts with these settings, and does without some of them"
    if broken:
        told = "the broker does not start with these settings"
    typer.echo(f"{ENVIRONMENT if file is None else file}: {told}")
    for name, (value, default) in changed(settings).items():
        if name in ("listener", "upstream", "authenticator", "rule"):
            _list_tables(name, value)
        else:
            typer.echo(f"  {name} = {show(value)}  (default {show(default)})")
    few = ""
    if settings.workers.count == 1:
        few = daemon.too_few_descriptors(settings.limits.max_connections, of_http(settings))
    for line in (
        *warnings(settings),
        *exposed(settings),
        *open_to_others(settings),
        *([] if file is None else open_settings(file, settings)),
        *ineffective(settings),
        *ignored(),
        *odd,
        *soon,
        *([few] if few else ()),
    ):
        typer.echo(f"  suspicious: {line}")
    for line in (*broken, *missed):
        typer.echo(f"  cannot be used: {line}")
    if broken:
        raise typer.Exit(MISUSED)


def _store(settings: Settings) -> list[str]:
    """Return why the broker cannot have its store."""
    path = settings.store.path
    try:
        if path and (settings.workers.count > 1 or division(Path(path)) != Division(1)):
            # Of several workers, now or before: the start moves the sessions.
            return [why] if (why := unwritable("store.path", path)) else []
    except StoreError as error:
        return [str(error)]
    return store_unusable(settings)


def _workers(settings: Settings) -> list[str]:
    """Return why the settings are not for several workers."""
    if settings.workers.count == 1:
        return []
    from canopy_mqtt.workers.plan import unusable

    return unusable(settings)


def _http(settings: Settings) -> list[str]:
    """Return the faults in the files of [http]; aiohttp is loaded only if there is HTTP."""
    if not settings.http.listen:
        return []
    from canopy_mqtt.admin.server import check

    return check(settings.http)


def _list_tables(table: str, tables: Any) -> None:
    for name, (value, default) in of_tables(table, tables).items():
        known = "" if default is None else f"  (default {show(default)})"
        typer.echo(f"  {name} = {show(value)}{known}")
