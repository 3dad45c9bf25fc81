"""The command: ``canopy load``.

Owns: its subcommands. What they share is in ``common``; ``engine``, ``report``, ``compare`` and ``capture`` do the
work, and are imported when they are needed: `canopy serve` starts without them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from loadtest.load.cli import one_liners
from loadtest.load.cli.common import (
    Credentials,
    LimitOption,
    Output,
    ScaleOption,
    Secured,
    SetOption,
    TargetOption,
    load_scenario,
    parse_targets,
    play_and_report,
    told,
    with_users,
)
from loadtest.load.cli.compare import compare, limit
from loadtest.load.cli.replay import capture, replay

app = typer.Typer(
    name="load",
    help="Put load on any MQTT broker, and account for every message.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
@told
def run(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A built-in scenario's name, or a file.")],
    target: TargetOption = None,
    sets: SetOption = None,
    scale: ScaleOption = None,
    calibrate: LimitOption = True,
    *,
    output: Output,
    secured: Secured,
    who: Credentials,
) -> None:
    """Run a scenario against a running broker, and write a report."""
    from loadtest.load.engine.job import Job

    played, text = load_scenario(scenario, sets, scale)
    play_and_report(Job(with_users(played, who), text, parse_targets(target, secured)), output, calibrate)


@app.command()
@told
def show(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="A built-in scenario's name, or a file.")
    ] = None,
    sets: SetOption = None,
    scale: ScaleOption = None,
) -> None:
    """List the built-in scenarios, or print one, to start your own from it."""
    if scenario is not None:
        typer.echo(load_scenario(scenario, sets, scale)[1], nl=False)
        return
    from loadtest.load.scenario import library

    known = library.builtin()
    width = max(len(name) for name, _ in known)
    for name, description in known:
        typer.echo(f"{name:<{width}}  {description}")


app.command("pub", cls=one_liners.HostOrHelp)(told(one_liners.pub))
app.command("sub", cls=one_liners.HostOrHelp)(told(one_liners.sub))
app.command("conn", cls=one_liners.HostOrHelp)(told(one_liners.conn))
app.command()(told(compare))
app.command()(told(limit))
app.command()(told(capture))
app.command()(told(replay))


def main() -> None:
    """``python -m loadtest.load``."""
    app(prog_name="canopy load")


if __name__ == "__main__":
    main()
