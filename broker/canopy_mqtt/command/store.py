"""The command ``canopy store``.

Exit codes: 0 success, 1 the store cannot be used, or has faults, 2 the command line is wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.terminal import MISUSED, fail, foreseen
from canopy_mqtt.words import counted, size

app = typer.Typer(
    name="store",
    help="Inspect, verify, salvage, export and import a broker's store.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

STANDARD: Final = "-"


def _folder(directory: Path) -> Path:
    if directory.parts[:1] in (("postgresql:",), ("postgres:",)):
        fail(
            "this command is about a folder (store.path); of a database pg_dump, pg_restore and psql do what is needed",
            MISUSED,
        )
    return directory


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of the store (store.path).", callback=_folder)
]


def _failures_in_one_line(command: Callable[..., Any]) -> Callable[..., Any]:
    return foreseen(command, StoreError)


@app.command()
@_failures_in_one_line
def info(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show contents and size of the store, the longest queues, and who uses it. A broker may be running."""
    from canopy_mqtt.store.tools import info

    found = info.info(directory)
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    typer.echo(f"{found['path']}: version {found['version']}, {_whose(found['used_by'])}")
    free, log = size(found["free_bytes"]), size(found["log_bytes"])
    typer.echo(f"  size: {size(found['bytes'])}, {free} of it free; log {log}")
    ended = f"; {found['ended']:,} ended and not cleared away yet" if found["ended"] else ""
    links = f", {found['links']:,} of links to upstream brokers" if found["links"] else ""
    # Without a broker no client is connected.
    there = "connected" if found["used_by"] is not None else "connected when it was written"
    connected = f"{found['connected']:,} {there}{links}"
    typer.echo(f"  sessions: {found['sessions']:,}, {connected}, {found['wills']:,} with a will{ended}")
    typer.echo(f"  subscriptions: {found['subscriptions']:,}")
    states = ", ".join(f"{count:,} {name}" for name, count in found["deliveries"].items())
    typer.echo(f"  deliveries: {states}; {counted(found['shared_messages'], 'shared message')}")
    typer.echo(f"  QoS 2 publishes begun: {found['received']:,}")
    typer.echo(f"  retained messages: {found['retained']:,}, {size(found['retained_bytes'])}")
    if (oldest := found["oldest"]) is not None:
        typer.echo(f"  longest away: {oldest['client_id']!r}, since {_date(oldest['disconnected_at'])}")
    for each in found["largest"]:
        typer.echo(f"  queue of {each['client_id']!r}: {counted(each['messages'], 'message')}, {size(each['bytes'])}")


def _whose(used_by: int | None) -> str:
    return "no broker uses it" if used_by is None else f"process {used_by or '?'} uses it"


@app.command()
@_failures_in_one_line
def verify(directory: Directory) -> None:
    """Check the pages of the file, and that a broker can use its contents. A broker may be running.

    A line for each fault; the exit code is 1 when there is one.
    """
    from canopy_mqtt.store.tools import verifying

    faults = 0
    for line in verifying.verify(directory):
        faults += 1
        typer.echo(line)
    if faults:
        found = counted(faults, "fault")
        fail(f"{directory}: {found}: restore it from a backup, or keep what is whole (canopy store salvage)")
    typer.echo(f"{directory}: whole")


@app.command()
@_failures_in_one_line
def salvage(
    directory: Directory,
    into: Annotated[Path, typer.Argument(metavar="NEW", help="A folder that holds no store yet; it is made.")],
) -> None:
    """Make a fresh store of all that is whole in a damaged or large one, which stays as it is.

    No broker may be using it. The new file has no empty pages. A line for each kind of row that is lost; the exit code
    is 1 when there is one.
    """
    from canopy_mqtt.store.tools import importing

    rebuilt = importing.salvage(directory, into)
    for what, count in sorted(rebuilt.lost.items()):
        typer.echo(f"lost: {count:,} of {what}")
    kept = ", ".join(f"{count:,} of {what}" for what, count in rebuilt.kept.items() if count) or "nothing"
    typer.echo(f"{into}: {kept}")
    if rebuilt.lost:
        fail(f"{directory}: something is lost; start the broker with store.path = {into}")


@app.command()
@_failures_in_one_line
def export(
    directory: Directory,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file; - for standard output.")] = STANDARD,
) -> None:
    """Write a consistent copy of the store as lines of JSON. A broker may be running."""
    from canopy_mqtt.store.tools import exporting
    from canopy_mqtt.store.tools.read_only import open_read_only

    with open_read_only(directory) as found:
        lines = exporting.lines(found)
        if file == STANDARD:
            for line in lines:
                sys.stdout.write(line + "\n")
            sys.stdout.flush()
        else:
            _write(Path(file), lines)


def _write(file: Path, lines: Iterable[str]) -> None:
    """Write a new file, completely or not at all; only the user may read it, because it contains payloads.

    The file has its name when all of it is on the disk; until then it is called `FILE.part`.
    """
    part = file.with_name(f"{file.name}.part")
    if os.path.lexists(file):
        fail(f"{file} is there already: move it away, or name another one")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        fail(f"{part} is the beginning of an export that runs, or was killed: remove it if none runs")
    except OSError as error:
        fail(f"{file} cannot be made ({error.strerror}): name another one")
    try:
        with open(descriptor, "w", encoding="utf-8") as out:
            for line in lines:
                out.write(line + "\n")
            out.flush()
            os.fsync(out.fileno())
        part.rename(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        fail(f"{file} cannot be written ({error.strerror}): make room, or name another one")
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@app.command("import")
@_failures_in_one_line
def bring(
    directory: Directory,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file that export wrote; - for standard input.")] = "",
    mosquitto_db: Annotated[
        Path | None,
        typer.Option("--mosquitto", metavar="FILE", help="Import mosquitto's file instead."),
    ] = None,
) -> None:
    """Import an export, or a file of mosquitto, into a new or empty store. No broker may be using it."""
    if (file == "") is (mosquitto_db is None):
        fail("name one file: FILE, or --mosquitto FILE", MISUSED)
    from canopy_mqtt.store.tools import importing

    if mosquitto_db is not None:
        from canopy_mqtt.store.tools import mosquitto_db as source_of

        counts, saved = source_of.bring(directory, mosquitto_db)
        for why, count in sorted(saved.left.items()):
            typer.echo(f"canopy: not taken over: {count:,} × {why}", err=True)
        for client_id in saved.doubtful:
            typer.echo(
                f"canopy: {client_id!r}: its user name may be another's, by a fault of mosquitto 2.0: see "
                'docs/from-mosquitto.md if it is refused with "another user\'s"',
                err=True,
            )
    elif file == STANDARD:
        counts = importing.bring(directory, sys.stdin.buffer, "input")
    else:
        try:
            with Path(file).open("rb") as source:
                counts = importing.bring(directory, source, file)
        except OSError as error:
            fail(f"{file} cannot be read ({error.strerror}): name another one, or be a user who may")
    _print_counts(directory, counts)


def _print_counts(directory: Path, counts: dict[str, int]) -> None:
    sessions, subscriptions = counted(counts["session"], "session"), counted(counts["subscription"], "subscription")
    messages, retained = counted(counts["delivery"], "message"), counted(counts["retained"], "retained message")
    typer.echo(f"{directory}: {sessions} with {subscriptions} and {messages}, {retained}")


def _date(when: float) -> str:
    try:
        return datetime.fromtimestamp(when).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):  # a year that no calendar has
        return f"{when:g} s"
