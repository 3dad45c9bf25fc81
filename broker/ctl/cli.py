"""`canopy ctl`: the group of commands, and the options that all of them have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker.command.commands import Group
from broker.ctl import alarms, bans, clients, explain, figures, messages, operating, recent, room, top, trace
from broker.ctl.options import Options

app = typer.Typer(name="ctl", help="Inspect and control a running broker.", no_args_is_help=True, rich_markup_mode=None)
app.command("top")(top.top)
app.add_typer(trace.app, name="trace", cls=Group)
app.command("explain")(explain.explain)
app.command("alarms")(alarms.alarms)
app.command("figures")(figures.figures)
app.command("room")(room.room)
app.command("status")(operating.status)
app.command("clients")(clients.clients)
app.command("client")(clients.client)
app.command("losers")(recent.losers)
app.command("refused")(recent.refused)
app.command("kick")(clients.kick)
app.command("subs")(clients.subs)
app.command("sessions")(clients.sessions)
app.command("end")(clients.end)
app.command("bans")(bans.bans)
app.command("ban")(bans.ban)
app.command("unban")(bans.unban)
app.add_typer(messages.app, name="retained", cls=Group)
app.command("publish")(messages.publish)
app.add_typer(operating.upstreams, name="upstream", cls=Group)
app.command("reload")(operating.reload)
app.command("log-level")(operating.log_level)
app.command("drain")(operating.drain)
app.command("api")(operating.api)


@app.callback()
def ctl(
    context: typer.Context,
    url: Annotated[
        str, typer.Option(metavar="URL", help="Its HTTP address: http://, https:// or http+unix:///PATH.")
    ] = "http://127.0.0.1:8080",
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file whose first line is a token.")] = None,
    user: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="A user name; the command asks for the password, or reads it from standard input."
        ),
    ] = "",
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authority (PEM) of the broker's https:// certificate.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Inspect and control a running broker. The broker must listen for HTTP (settings section [http])."""
    context.obj = Options(url, token_file, user, ca, as_json)
