"""The commands of `canopy ctl` for a whole broker: `status`, `upstream`, `reload`, `log-level`, `drain` and more."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from canopy_mqtt.ctl.api_client import CtlError, named
from canopy_mqtt.ctl.lists import Columns, facts, table, write
from canopy_mqtt.ctl.options import done, failures_in_one_line, options
from canopy_mqtt.ctl.top import printable
from canopy_mqtt.ctl.trace import seconds
from canopy_mqtt.json_keys import RepeatedKey, unique
from canopy_mqtt.words import duration

SOME: Final = 3
"""The exit code that answers a script's question with no."""

AS_IT_IS: Final = "/?&=%+,:;@!$'()*-._~"
"""Characters that are not escaped in a given path."""

LINKS: Final[Columns] = {
    "link": lambda of: of["name"],
    "state": lambda of: of["state"],
    "demanded": lambda of: int(of["figures"]["filters/demanded"]),
    "declared": lambda of: int(of["figures"]["filters/declared"]),
    "queued": lambda of: int(of["figures"]["messages/queued"]),
    "dropped": lambda of: int(of["figures"]["messages/dropped"]),
    "trouble": lambda of: of["trouble"],
}


ALARMS: Final[Columns] = {
    "alarm": lambda of: of["name"],
    "since": lambda of: of["activate_at"][:19],
    "seconds": lambda of: of["duration"] // 1_000,
    "what it says": lambda of: of["message"],
}

ROOMS: Final[Columns] = {
    "room": lambda of: of["room"],
    "held": lambda of: of["held"],
    "bound": lambda of: of["bound"] or "none",
    "used": lambda of: f"{of['held'] / of['bound']:.1%}" if of["bound"] else "",
    "accounts": lambda of: of["accounts"],
    "fair share": lambda of: of["share"] if of["bound"] else "",
    "refused": lambda of: of["refused"],
    "gave way": lambda of: of["gave_way"],
}

HOLDERS: Final[Columns] = {
    "room": lambda of: of["room"],
    "account": lambda of: of["account"],
    "held": lambda of: of["held"],
    "of the bound": lambda of: f"{of['held'] / of['bound']:.1%}" if of["bound"] else "",
}


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Method(StrEnum):
    GET = "GET"
    POST = "POST"
    PUT = "PUT"
    DELETE = "DELETE"


@failures_in_one_line
def status(
    context: typer.Context,
    figures: Annotated[
        str, typer.Option(metavar="PATTERN", help="Show figures instead, such as 'messages.*'. docs/sys.md has them.")
    ] = "",
    room: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100,
            metavar="N",
            help="Show how much of each bound is used instead, and which N users and addresses hold most.",
        ),
    ] = None,
) -> None:
    """Show the broker's version and state. The exit code is 3 if clients should not connect to it."""
    if figures and room is not None:
        raise typer.BadParameter("--figures or --room, not both")
    if figures:
        _figures(context, figures)
        return
    if room is not None:
        _room(context, room)
        return
    answer = options(context).api().call("GET", "/status")
    facts(context, answer if options(context).as_json else {**answer, "uptime": duration(answer["uptime"])})
    if not answer["ready"]:
        raise typer.Exit(SOME)


def _room(context: typer.Context, limit: int) -> None:
    """Print the used part of each bound, and the accounts that hold most."""
    found: dict[str, Any] = options(context).api().call("GET", "/room", limit=limit)
    if options(context).as_json:
        typer.echo(json.dumps(found))
        return
    table(ROOMS, found["data"])
    holders = [
        {**holder, "room": each["room"], "bound": each["bound"]} for each in found["data"] for holder in each["largest"]
    ]
    if holders:
        typer.echo()
        table(HOLDERS, holders)


def _figures(context: typer.Context, pattern: str) -> None:
    """Print the broker's figures: gauges, and counters since its start."""
    api = options(context).api()
    answer = api.call("GET", "/stats") | api.call("GET", "/metrics")
    found = {name: value for name, value in sorted(answer.items()) if fnmatchcase(name, pattern)}
    if options(context).as_json:
        typer.echo(json.dumps(found))
        return
    made = Table(box=None, show_header=False)
    made.add_column()
    made.add_column(justify="right")
    for name, value in found.items():
        made.add_row(name, f"{value:,}" if isinstance(value, int) else f"{value:,.3f}")
    Console(highlight=False, soft_wrap=True).print(made)


@failures_in_one_line
def upstream(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The link to reset.")] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Make the link NAME connect again. Its queued messages stay queued.")
    ] = False,
) -> None:
    """Show the links to upstream brokers. The exit code is 3 if one of them is not connected.

    demanded: distinct filters of local clients; declared: filters that the link subscribes to instead.
    """
    api = options(context).api()
    if reset != (name is not None):
        raise typer.BadParameter("a link is reset by: canopy ctl upstream NAME --reset")
    if name is not None:
        api.call("POST", f"/upstreams/{named(name)}/reset")
        done(context, f"the link {printable(name)} connects again")
        return
    answer = api.call("GET", "/upstreams")
    if options(context).as_json:
        typer.echo(json.dumps(answer))
    elif answer["data"]:
        table(LINKS, answer["data"])
    else:
        typer.echo("there are no links")
    if any(link["state"] != "connected" for link in answer["data"]):
        raise typer.Exit(SOME)


@failures_in_one_line
def reload(context: typer.Context) -> None:
    """Reload the settings and all files that they name, as SIGHUP does."""
    answer = options(context).api().call("POST", "/reload")
    if options(context).as_json:
        typer.echo(json.dumps(answer))
        return
    typer.echo("reloaded the settings and the files that they name")
    for line in answer["restart"]:
        typer.echo(line)


@failures_in_one_line
def log_level(
    context: typer.Context,
    level: Annotated[Level, typer.Argument(metavar="LEVEL", show_default=False)],
    how_long: Annotated[
        float, typer.Option("--for", parser=seconds, metavar="TIME", help="For how long: 30s, 5m, 1h.")
    ] = 600.0,
) -> None:
    """Change the log level for a time."""
    options(context).api().call("PUT", "/log-level", {"level": level.value, "seconds": how_long})
    done(context, f"the log level is {level.value} for {duration(how_long)}")


@failures_in_one_line
def drain(
    context: typer.Context,
    within: Annotated[
        float, typer.Option("--within", parser=seconds, metavar="TIME", help="Time over which to move clients: 5m.")
    ] = 60.0,
    for_good: Annotated[bool, typer.Option("--for-good", help="Tell clients not to come back.")] = False,
    to: Annotated[str, typer.Option(metavar="SERVERS", help="Where clients should go: 'HOST:PORT HOST:PORT'.")] = "",
    look: Annotated[bool, typer.Option("--status", help="Show the progress.")] = False,
    end: Annotated[bool, typer.Option("--end", help="Accept clients again.")] = False,
) -> None:
    """Accept no more clients, and move connected clients to other brokers evenly over a time."""
    api = options(context).api()
    if look and end:
        raise typer.BadParameter("--status or --end, not both")
    if end:
        api.call("DELETE", "/drain")
        done(context, "the broker accepts clients again")
    elif look:
        facts(context, api.call("GET", "/drain"))
    else:
        body = {"seconds": within, "for_good": for_good, "server_reference": to}
        facts(context, api.call("POST", "/drain", body))


@failures_in_one_line
def api(
    context: typer.Context,
    method: Annotated[Method, typer.Argument(metavar="METHOD", show_default=False)],
    path: Annotated[str, typer.Argument(metavar="PATH", help="Path below /api/v5, such as '/clients?limit=5'.")],
    body: Annotated[str, typer.Argument(metavar="BODY", help="JSON; - reads it from standard input.")] = "",
) -> None:
    """Send a request to the API, and print the response unchanged. /openapi.json describes the API."""
    if not path.startswith("/"):
        raise typer.BadParameter("begins with /", param_hint="PATH")
    made = None
    if body:
        try:
            made = json.loads(sys.stdin.read() if body == "-" else body, object_pairs_hook=unique)
        except RepeatedKey as error:
            raise CtlError(f"the body cannot be used: {error}") from None
        except ValueError as error:
            raise CtlError(f"the body is not JSON: {error}") from None
    last = b""
    for piece in options(context).api().pieces(method.value, quote(path, safe=AS_IT_IS), made):
        write(piece)
        last = piece
    if last and not last.endswith(b"\n"):
        write(b"\n")


@failures_in_one_line
def alarms(
    context: typer.Context,
    history: Annotated[bool, typer.Option("--history", help="Show past alarms, the latest first.")] = False,
) -> None:
    """Show current alarms. The exit code is 3 if there are any, for scripts."""
    answer = options(context).api().call("GET", "/alarms", activated="false" if history else None)
    found = answer["data"]
    if options(context).as_json:
        typer.echo(json.dumps(answer))
    elif not found:
        typer.echo("no alarm has been raised and cleared" if history else "no alarm is raised")
    else:
        table(ALARMS, found)
    if found and not history:
        raise typer.Exit(3)
