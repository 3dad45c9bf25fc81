"""The `canopy` command.

Owns its arguments, its exit codes, and the messages of failures. Promises: every foreseen failure is reported in plain
lines on standard error, without a traceback. Exit codes: 0 success, 1 the broker cannot run or is not healthy, 2 the
settings or the command line are wrong; after a second signal, 128 and the signal's number.

`canopy_mqtt.settings.loader` finds the settings, `canopy_mqtt.assembly.daemon` runs the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast, get_args

import structlog
import typer

from canopy_mqtt.assembly import daemon, logs
from canopy_mqtt.assembly.logs import open_missing_streams
from canopy_mqtt.assembly.logwriter import BackgroundWriter
from canopy_mqtt.assembly.storing import unusable as store_unusable
from canopy_mqtt.assembly.storing import unwritable
from canopy_mqtt.buildinfo import build_info
from canopy_mqtt.certificates import check as certificates
from canopy_mqtt.command.command_groups import Canopy
from canopy_mqtt.command.health import UnhealthyError, check, context
from canopy_mqtt.command.initial_settings import USES, InitError, next_commands, settings_for, write
from canopy_mqtt.convert import mosquitto
from canopy_mqtt.convert.source import ConvertError
from canopy_mqtt.hooks.loading import unusable as hooks_unusable
from canopy_mqtt.links.filters.setting_warnings import warnings
from canopy_mqtt.links.parameters import unreadable
from canopy_mqtt.security.authenticator_factory import check as authenticators
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.security.passwords.hashes import Kind
from canopy_mqtt.security.passwords.passwd import delete_user, set_password
from canopy_mqtt.settings import DATABASES, Settings, parse_endpoint
from canopy_mqtt.settings.descriptions import show
from canopy_mqtt.settings.environment import HEALTH_PASSWORD, HEALTH_TARGET, HEALTH_USER
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.exposure import exposed
from canopy_mqtt.settings.ineffective import ineffective
from canopy_mqtt.settings.loader import annotated_defaults, changed, ignored, load_settings, of_tables
from canopy_mqtt.settings.missing_files import missing_files
from canopy_mqtt.settings.removed import ONE_PROCESS, WHERE
from canopy_mqtt.settings.secret_files import open_settings, open_to_others
from canopy_mqtt.sockets import check_groups as socket_files
from canopy_mqtt.terminal import HELP, MISUSED, fail

UNCONVERTED: Final = 3
"""The exit code of `convert` if its output does not do all that the source asks for."""

ENVIRONMENT: Final = "environment"
"""The name of the only source of `check-config` without a file."""

Result = TypeVar("Result")

app = typer.Typer(
    name="canopy",
    help="An MQTT 3.1.1 and 5.0 broker.",
    cls=Canopy,
    context_settings=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    open_missing_streams()
    app(prog_name="canopy")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(str(build_info()))
        raise typer.Exit


@app.callback()
def canopy(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print version and build, and exit."
        ),
    ] = False,
) -> None:
    """An MQTT 3.1.1 and 5.0 broker."""


@app.command()
def serve(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Settings in TOML.", show_default=False)] = None,
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
    workers: Annotated[str | None, typer.Option(hidden=True)] = None,
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
    config = _one_of(file, config)
    changes = list(sets or ())
    if store == "":
        # As from a shell variable that is not set: neither the folder here nor the memory is what was meant.
        fail("--store: found nothing; allowed: a folder, or the URL of a database", MISUSED)
    if store is not None:
        # In quotes: a folder may be called 1.
        name = "store.url" if store.startswith(DATABASES) else "store.path"
        changes.append(f"{name}={json.dumps(store, ensure_ascii=False)}")
    if workers is not None:
        fail(f"--workers: {ONE_PROCESS} {WHERE}", MISUSED)
    if verbose and log_level not in (None, "debug"):
        fail(f"--verbose and --log-level {log_level} exclude each other", MISUSED)
    if verbose or log_level is not None:
        changes.append(f"log.level={log_level or 'debug'}")
    addresses = [*(listen or ()), *([] if port is None else [f"mqtt://127.0.0.1:{port}"])]
    settings = _load(config, changes, addresses)
    # Nothing but the file can have changed.
    read = None if config is None else lambda: load_settings(config, changes, addresses)
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


@app.command()
def init(
    use: Annotated[
        str, typer.Argument(metavar="[USE]", help="dev, edge, public or recorder.", autocompletion=lambda: list(USES))
    ] = "dev",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write; - for standard output.")
    ] = Path("canopy.toml"),
) -> None:
    """Write a commented settings file to start from, and print the next commands.

    dev: a developer's machine. edge: a small machine, linked to a broker in the cloud. public: TLS, users and rules.
    recorder: records all traffic for analysis. Keys and passwords are expected beside FILE; existing ones stay.
    """
    if use not in USES:
        fail(f"{use}: allowed: {', '.join(USES)}", MISUSED)
    try:
        if str(output) == "-":
            typer.echo(settings_for(use), nl=False)
            return
        write(use, output)
    except InitError as error:
        fail(str(error))
    typer.echo(f"{output}: {USES[use].about}\n\nnext:")
    for command in next_commands(use, output):
        typer.echo(f"    {command}")


@app.command("check-config")
def check_config(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Settings in TOML.")] = None,
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
    file = _one_of(file, config)
    if defaults:
        if file is not None:
            fail("--defaults prints the defaults and takes no FILE", MISUSED)
        typer.echo(_or_fail(annotated_defaults), nl=False)
        return
    settings = _load(file, (), ())
    faults, soon = certificates(settings)
    # Unlike a link, which tries again, these keep the broker from starting.
    unusable, odd = authenticators(settings)
    broken = [
        *faults,
        *socket_files(settings),
        *unusable,
        *store_unusable(settings),
        *_http(settings),
        *hooks_unusable(settings.hooks),
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
    few = daemon.too_few_descriptors(settings.limits.max_connections)
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


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A mosquitto.conf, of mosquitto 2.0 or 2.1.")],
) -> None:
    """Convert a mosquitto.conf to Canopy settings: canopy convert mosquitto.conf > canopy.toml.

    Lines that become no setting stand as comments at the head, and on standard error, with the reason and Canopy's
    alternative. The exit code is 3 if one of them asked for something that the settings do not do.
    """
    try:
        converted = mosquitto.convert(file)
    except ConvertError as error:
        fail(str(error), MISUSED)
    typer.echo(converted.toml, nl=False)
    for line in (*converted.guards, *converted.missing, *converted.hints):
        typer.echo(f"canopy: {line}", err=True)
    if converted.guards or converted.missing:
        raise typer.Exit(UNCONVERTED)


@app.command()
def health(
    target: Annotated[
        str, typer.Option(metavar="URL", envvar=HEALTH_TARGET, help="The broker to check.")
    ] = "mqtt://127.0.0.1:1883",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How long to wait for an answer.")] = 5.0,
    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", envvar=HEALTH_USER, help="A user name that the broker has to accept."),
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar=HEALTH_PASSWORD,
            show_envvar=True,
            help="Its password; other users of this machine can see the option, but not the variable.",
        ),
    ] = None,
    ca: Annotated[
        str, typer.Option(metavar="FILE", help="With mqtts: the authorities to trust (PEM), instead of the system's.")
    ] = "",
    cert: Annotated[str, typer.Option(metavar="FILE", help="With mqtts: the client certificate (PEM).")] = "",
    key: Annotated[str, typer.Option(metavar="FILE", help="With mqtts: the private key of --cert (PEM).")] = "",
    server_name: Annotated[
        str, typer.Option(metavar="NAME", help="With mqtts: the name in the broker's certificate, if not the host.")
    ] = "",
) -> None:
    """Check that a running broker serves MQTT. The exit code is 0 if it does and 1 if it does not.

    URL is mqtt://HOST:PORT, mqtts://HOST:PORT or mqtt+unix:///PATH. Without --user a broker that refuses anonymous
    clients is healthy. With --user the broker has to accept the user. If the user may read $SYS, a broker whose store
    cannot be written is not healthy.
    """
    try:
        address = parse_endpoint(target)
    except ValueError as error:
        fail(f"--target {target}: allowed: {error}", MISUSED)
    if address.scheme in ("ws", "wss"):
        fail(f"--target {target}: a check speaks MQTT over TCP, TLS or a Unix socket, and not over WebSocket", MISUSED)
    if not address.tls and (ca or cert or key or server_name):
        fail("--ca, --cert, --key and --server-name are for an mqtts:// target", MISUSED)
    if password is not None and user is None:
        fail("--password needs --user: MQTT 3.1.1 has no password without a user name", MISUSED)
    try:
        trusted = context(ca, cert, key) if address.tls else None
        check(address, timeout, user, password, trusted, server_name)
    except UnhealthyError as error:
        fail(str(error))
    typer.echo(f"{address.url()}: OK")


@app.command()
def passwd(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The password file.")],
    user: Annotated[str, typer.Argument(metavar="USER", help="The user name.")],
    delete: Annotated[bool, typer.Option("--delete", "-D", help="Remove the user.")] = False,
    create: Annotated[bool, typer.Option("--create", "-c", help="Create the file if it does not exist.")] = False,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the password from the first line of the input.")] = False,
    password: Annotated[
        str | None,
        typer.Option(
            "--password",
            "-b",
            metavar="TEXT",
            help="The password; other users of this machine can see it.",
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option("--hash", metavar="KIND", help="argon2id, pbkdf2-sha512 (which mosquitto can read) or sha512."),
    ] = "argon2id",
    scram: Annotated[bool, typer.Option("--scram", help="Write keys for SCRAM-SHA-256, in a separate file.")] = False,
) -> None:
    """Add a user to a password file, change its password, or remove the user.

    The command asks for the password twice. It replaces the file as a whole; only the owner can read a new file. A
    running broker reads the changed file automatically.
    """
    if kind not in get_args(Kind):
        fail(f"--hash {kind}: allowed: {', '.join(get_args(Kind))}", MISUSED)
    if sum((delete, stdin, password is not None)) > 1:
        fail("--delete, --stdin and --password exclude each other", MISUSED)
    try:
        if delete:
            delete_user(file, user)
            typer.echo(f"{file}: {user} is gone")
            return
        chosen = None if scram else cast(Kind, kind)
        changed = set_password(file, user, _password(stdin, password), chosen, create=create)
    except SecurityError as error:
        fail(str(error))
    typer.echo(f"{file}: {user} {'has another password' if changed else 'was added'}")


def _password(stdin: bool, given: str | None) -> str:
    if given is not None:
        return given
    if stdin:
        return sys.stdin.readline().removeprefix("\ufeff").rstrip("\r\n")
    if not sys.stdin.isatty():
        fail("nobody can be asked for the password here: use --stdin", MISUSED)
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt="The same again"))


def _one_of(file: Path | None, config: Path | None) -> Path | None:
    if file is not None and config is not None:
        fail(f"{file} and --config {config}: one of them", MISUSED)
    return config if file is None else file


def _load(config: Path | None, sets: Sequence[str], listen: Sequence[str]) -> Settings:
    return _or_fail(lambda: load_settings(config, sets, listen))


def _or_fail(read: Callable[[], Result]) -> Result:
    try:
        return read()
    except SettingsError as error:
        fail(str(error), MISUSED)


def _run(settings: Settings, read: Callable[[], Settings] | None, writer: BackgroundWriter) -> Exception | None:
    """Run the broker, and return what prevented that; None after an orderly stop."""
    from canopy_mqtt.assembly.app import StartupError

    try:
        daemon.run(settings, lambda given: daemon.real_broker(given, read), stream=writer, read=read)
    except (daemon.DaemonError, StartupError) as error:
        return error
    return None
