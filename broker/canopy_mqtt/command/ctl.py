"""`canopy ctl`: the group of commands, and their common options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from canopy_mqtt.ctl import clients, cluster, explain, messages, operations, top, trace
from canopy_mqtt.ctl.api_client import CtlError
from canopy_mqtt.ctl.options import DEFAULT_URL, Options, of_settings
from canopy_mqtt.settings.environment import CTL_CA, CTL_TOKEN_FILE, CTL_URL, CTL_USER
from canopy_mqtt.terminal import fail

app = typer.Typer(name="ctl", help="Inspect and control a running broker.", no_args_is_help=True, rich_markup_mode=None)
app.command("status")(operations.status)
app.command("alarms")(operations.alarms)
app.command("top")(top.top)
app.command("clients")(clients.clients)
app.command("subs")(clients.subs)
app.command("explain")(explain.explain)
app.command("trace")(trace.trace)
app.command("traces")(trace.traces)
app.command("retained")(messages.retained)
app.command("publish")(messages.publish)
app.command("kick")(clients.kick)
app.command("session")(cluster.session)
app.command("ban")(clients.ban)
app.command("cluster")(cluster.cluster)
app.command("upstream")(operations.upstream)
app.command("reload")(operations.reload)
app.command("log-level")(operations.log_level)
app.command("drain")(operations.drain)
app.command("api")(operations.api)


@app.callback()
def ctl(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=CTL_URL,
            show_envvar=True,
            help=f"Its HTTP address: http://, https:// or http+unix:///PATH. Default: {DEFAULT_URL}.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="The broker's settings: they say where it is. See below."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar=CTL_TOKEN_FILE, show_envvar=True, help="A file whose first line is a token."
        ),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            envvar=CTL_USER,
            show_envvar=True,
            help="A user name; the command asks for the password, or reads it from standard input.",
        ),
    ] = "",
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=CTL_CA,
            show_envvar=True,
            help="The authority (PEM) of the broker's https:// certificate.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON. Also behind the command.")] = False,
) -> None:
    """Inspect and control a running broker. The broker must listen for HTTP (settings section [http]).

    --config takes URL, token file and certificate from [http] of the broker's settings, where no option says otherwise.
    """
    if config is not None and not _typed(context, "url"):
        try:
            url, its_token_file, its_ca = of_settings(config)
        except CtlError as error:
            fail(str(error))
        if not user:
            token_file = token_file if _typed(context, "token_file") else its_token_file
        ca = ca if _typed(context, "ca") else its_ca
    context.obj = Options(url or DEFAULT_URL, token_file, user, ca, as_json)


def _typed(context: typer.Context, name: str) -> bool:
    """Return True if an option was typed, and does not come from the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
