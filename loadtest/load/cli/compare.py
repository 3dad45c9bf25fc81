"""`canopy load compare`.

Owns: its arguments, what is printed while it runs, and its exit codes: 0 when every broker that was asked for played
every round, 1 when one was missing, was left out or failed, or when a file could not be written, 2 for a wrong command
line or scenario, 130 when it was interrupted, with a report of what there is.
"""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from loadtest.brokers.registry import PEERS
from loadtest.load.cli.common import (
    FAILED,
    INTERRUPTED,
    OutOption,
    ProcessesOption,
    ScaleOption,
    ScenarioArgument,
    SetOption,
    stamp,
)

if TYPE_CHECKING:
    from loadtest.load.compare.started_brokers import Version

ROUNDS: Final = 3
MOST_ROUNDS: Final = 1000


class Mqtt(StrEnum):
    """What `--mqtt` takes."""

    V3_1_1 = "3.1.1"
    V5_0 = "5.0"


VERSIONS: Final[dict[Mqtt, Version]] = {Mqtt.V3_1_1: "3.1.1", Mqtt.V5_0: "5.0"}


def compare(
    scenario: ScenarioArgument,
    broker: Annotated[
        list[str],
        typer.Option(metavar="NAME", help=f"One of {', '.join(PEERS)}. Repeatable; ratios are to the first."),
    ],
    rounds: Annotated[int, typer.Option(min=1, max=MOST_ROUNDS, help="Runs of each broker.")] = ROUNDS,
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

    from loadtest.load.compare import page
    from loadtest.load.compare.contest import Contest, Means
    from loadtest.load.compare.table import table
    from loadtest.load.engine.running import run
    from loadtest.load.report import files
    from loadtest.load.scenario import library

    asked, text = library.load(scenario, sets or (), scale)
    contest = Contest(asked, text, broker, rounds, VERSIONS[mqtt] if mqtt else None)
    comparison = contest.comparison
    folder = out or Path("canopy-load") / f"compare-{comparison.name}-{stamp()}"
    files.spare(out)
    files.check(folder)
    try:
        run(lambda stop: contest.run(Means(_passing, _note, stop), processes))
    except asyncio.CancelledError:
        pass
    finally:
        _clear()
    console = Console()
    console.print(table(comparison))
    written = page.write(comparison, folder)
    console.print(f"report: {written / 'compare.html'}", soft_wrap=True, highlight=False)
    if comparison.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not comparison.whole:
        raise typer.Exit(FAILED)


def _passing(text: str) -> None:
    """A line on standard error about what runs now, written over where somebody watches."""
    _clear()
    typer.echo(text, nl=not sys.stderr.isatty(), err=True)


def _note(text: str) -> None:
    """A line that stays."""
    _clear()
    typer.echo(f"canopy: {text}", err=True)


def _clear() -> None:
    if sys.stderr.isatty():
        typer.echo("\r\x1b[K", nl=False, err=True)
