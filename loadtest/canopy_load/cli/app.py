"""The command: ``canopy load``.

Owns: its subcommands. What they share is in ``common``; ``engine``, ``report``, ``compare`` and ``capture`` do the
work, and are imported when they are needed: `canopy serve` starts without them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from canopy_load.cli import one_liners
from canopy_load.cli.common import (
    Credentials,
    Output,
    ScaleOption,
    ScenarioArgument,
    Secured,
    SetOption,
    TargetOption,
    parse_targets,
    play_and_report,
    told,
)
from canopy_load.cli.compare import compare
from canopy_load.cli.replay import capture, replay

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
    scenario: ScenarioArgument,
    target: TargetOption = None,
    sets: SetOption = None,
    scale: ScaleOption = None,
    *,
    output: Output,
    secured: Secured,
    who: Credentials,
) -> None:
    """Run a scenario against a running broker, and write a report."""
    from canopy_load.engine.job import Job
    from canopy_load.scenario import library

    played, text = library.load(scenario, sets or (), scale)
    play_and_report(Job(played, text, parse_targets(target, secured)), output, who)


@app.command()
@told
def show(
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="A built-in scenario's name, or a file.")
    ] = None,
    sets: SetOption = None,
    scale: ScaleOption = None,
) -> None:
    """List the built-in scenarios, or print one, to start your own from it."""
    from canopy_load.scenario import library

    if scenario is not None:
        typer.echo(library.load(scenario, sets or (), scale)[1], nl=False)
        return
    known = library.builtin()
    width = max(len(name) for name, _ in known)
    for name, description in known:
        typer.echo(f"{name:<{width}}  {description}")


app.command("pub", cls=one_liners.HostOrHelp)(told(one_liners.pub))
app.command("sub", cls=one_liners.HostOrHelp)(told(one_liners.sub))
app.command("conn", cls=one_liners.HostOrHelp)(told(one_liners.conn))
app.command()(told(compare))
app.command()(told(capture))
app.command()(told(replay))


def main() -> None:
    app(prog_name="canopy load")


if __name__ == "__main__":
    main()
