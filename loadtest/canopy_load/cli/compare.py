"""`canopy load compare`.

Owns: its arguments, what is printed while it runs, and its exit codes: 0 when every broker that was asked for played
every round, 1 when one was missing, was left out or failed, or when a file could not be written, 2 for a wrong command
line or scenario, 130 when it was interrupted, with a report of what there is.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from canopy_load.brokers.registry import PEERS
from canopy_load.cli.common import (
    FAILED,
    INTERRUPTED,
    OutOption,
    ProcessesOption,
    ScaleOption,
    ScenarioArgument,
    SetOption,
    clear,
    passing,
    stamp,
)

if TYPE_CHECKING:
    from canopy_load.compare.started_brokers import Version

ROUNDS: Final = 3
MAX_ROUNDS: Final = 1000


class Mqtt(StrEnum):
    """The values of `--mqtt`."""

    V3_1_1 = "3.1.1"
    V5_0 = "5.0"


VERSIONS: Final[dict[Mqtt, Version]] = {Mqtt.V3_1_1: "3.1.1", Mqtt.V5_0: "5.0"}


def compare(
    scenario: ScenarioArgument,
    broker: Annotated[
        list[str],
        typer.Option(metavar="NAME", help=f"One of {', '.join(PEERS)}. Repeatable; ratios are to the first."),
    ],
    rounds: Annotated[int, typer.Option(min=1, max=MAX_ROUNDS, help="Runs of each broker.")] = ROUNDS,
    scale: ScaleOption = None,
    sets: SetOption = None,
    mqtt: Annotated[
        Mqtt | None,
        typer.Option(help="MQTT version of all clients; default: the scenario's, or 3.1.1 if a broker has no 5.0."),
    ] = None,
    processes: ProcessesOption = None,
    out: OutOption = None,
) -> None:
    """Start several brokers in turn, run a scenario against each, and compare their figures."""
    from rich.console import Console

    from canopy_load.compare import compare_page
    from canopy_load.compare.compare_table import table
    from canopy_load.compare.contest import Contest, ContestHooks
    from canopy_load.engine.running import run
    from canopy_load.report import report_files
    from canopy_load.scenario import library

    asked, text = library.load(scenario, sets or (), scale)
    contest = Contest(asked, text, broker, rounds, VERSIONS[mqtt] if mqtt else None)
    comparison = contest.comparison
    folder = out or Path("canopy-load") / f"compare-{comparison.name}-{stamp()}"
    report_files.spare(out)
    report_files.check(folder)
    try:
        run(lambda stop: contest.run(ContestHooks(passing, _note, stop), processes))
    except asyncio.CancelledError:
        pass
    finally:
        clear()
    console = Console()
    console.print(table(comparison))
    written = compare_page.write(comparison, folder)
    console.print(f"report: {written / 'compare.html'}", soft_wrap=True, highlight=False)
    if comparison.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not comparison.whole:
        raise typer.Exit(FAILED)


def _note(text: str) -> None:
    """Write a line that stays."""
    clear()
    typer.echo(f"canopy: {text}", err=True)
