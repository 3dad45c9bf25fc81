"""`canopy serve` runs the broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import structlog
import typer

from canopy_mqtt.assembly import daemon, logs
from canopy_mqtt.assembly.logwriter import BackgroundWriter
from canopy_mqtt.command.settings_arguments import load, one_of
from canopy_mqtt.files import is_empty, is_read_once
from canopy_mqtt.settings import DATABASES, Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings
from canopy_mqtt.settings.missing_files import missing_files
from canopy_mqtt.settings.secret_files import open_settings
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.division import divided
from canopy_mqtt.terminal import MISUSED, fail

app = typer.Typer(rich_markup_mode=None)


@app.command()
def serve(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Settings in TOML.", show_default=False)] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="The same as FILE.")] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Listen on mqtt:// or ws://HOST:PORT, instead of `listen`. Repeatable."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            metavar="PORT",
            min=0,
            max=65_535,
            help="Short for --listen mqtt://127.0.0.1:PORT: only for this machine.",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Change one setting: limits.max_packet_size=4096. Repeatable."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            help="Keep sessions and messages across restarts, in a folder or a PostgreSQL database; short for "
            "store.path and store.url.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Serve the clients in this many processes, which are one broker; short for workers.count.",
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning or error; short for --set log.level=LEVEL."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Short for --log-level debug: every subscription, every connection.")
    ] = False,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    Settings come from the defaults, then FILE, then CANOPY_ environment variables, then these flags. On SIGHUP the
    broker reads FILE again and applies changes of limits, queues, links, authentication, access rules, certificates,
    alarms and the log, or nothing if there is a mistake. It logs changed settings that need a restart.
    """
    daemon.ignore_signals()
    config = one_of(file, config)
    changes = list(sets or ())
    if store == "":
        # As from a shell variable that is not set: neither the folder here nor the memory is what was meant.
        fail("--store: found nothing; allowed: a folder, or the URL of a database", MISUSED)
    if store is not None:
        # In quotes: a folder may be called 1.
        name = "store.url" if store.startswith(DATABASES) else "store.path"
        changes.append(f"{name}={json.dumps(store, ensure_ascii=False)}")
    if workers is not None:
        changes.append(f"workers.count={workers}")
    if verbose and log_level not in (None, "debug"):
        fail(f"--verbose and --log-level {log_level} exclude each other", MISUSED)
    if verbose or log_level is not None:
        changes.append(f"log.level={log_level or 'debug'}")
    addresses = [*(listen or ()), *([] if port is None else [f"mqtt://127.0.0.1:{port}"])]
    # A pipe, as of `--config <(command)`, is empty when it is read again: that would be the defaults.
    once = config is not None and is_read_once(config)
    was_empty = config is None or is_empty(config)
    settings = load(config, changes, addresses)

    def read_again() -> Settings:
        if once:
            raise SettingsError([f"{config}: can be read only once; what was in it stays in force"])
        if config is not None and is_empty(config) and not was_empty:
            # A full disk or a write under way leaves it so, and the defaults have no users.
            raise SettingsError([f"{config}: is empty, and was not at the start; what was in it stays in force"])
        return load_settings(config, changes, addresses)

    # Nothing but the file can have changed.
    read = None if config is None else read_again
    if settings.workers.count > 1:
        # Not before: most brokers are one process.
        from canopy_mqtt.workers.plan import unusable

        if lines := unusable(settings):
            fail("\n".join(lines), MISUSED)
    if settings.workers.count > 1 or (settings.store.path and divided(Path(settings.store.path))):
        # Before this process has a thread.
        from canopy_mqtt.workers.process import nursery

        nursery(settings)
    # An unread log must not block the broker; and whatever ends it, nothing that was logged is lost.
    with closing(BackgroundWriter(sys.stderr)) as writer:
        logs.configure(settings.log.level, settings.log.format, writer)
        if config is not None:
            for line in open_settings(config, settings):
                structlog.get_logger().warning("suspicious setting", detail=line)
        failure = _run(settings, read, writer)
    # After the last line of the log, which may say more of it.
    if failure is not None:
        # All at once: who starts a broker for the first time has several files to make.
        fail(missing_files(settings) or str(failure))


def _run(settings: Settings, read: Callable[[], Settings] | None, writer: BackgroundWriter) -> Exception | None:
    """Run the broker, and return what prevented that; None after an orderly stop."""
    from canopy_mqtt.net.listening.listeners import StartupError

    make: Callable[[Settings], daemon.Service] = lambda given: daemon.real_broker(given, read)  # noqa: E731
    try:
        if settings.workers.count > 1:
            make = _supervisor(writer, read)
        elif settings.store.path and divided(Path(settings.store.path)):
            from canopy_mqtt.workers.moving import join_stores

            log, people = structlog.get_logger("canopy"), logs.for_people(settings.log.format, writer)
            if not join_stores(settings, log, people, writer):
                return None
        daemon.run(settings, make, stream=writer, read=read)
    except (daemon.DaemonError, StartupError, StoreError) as error:
        return error
    return None


def _supervisor(writer: BackgroundWriter, read: Callable[[], Settings] | None) -> Callable[[Settings], daemon.Service]:
    """Return the maker of what runs in place of a broker where there are several workers."""
    from canopy_mqtt.workers.supervisor import Supervisor

    return lambda settings: Supervisor(settings, logs.for_people(settings.log.format, writer), writer.write, read)
