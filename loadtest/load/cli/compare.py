"""`canopy load compare` and `canopy load limit`.

Owns: their arguments, what is printed while they run, and their exit codes.

Promises: what can be foreseen is told in a line, without a traceback. Exit codes of `compare`: 0 when every broker that
was asked for played every round, 1 when one was missing, was left out or failed, or when a file could not be written, 2
for a wrong command line or scenario, 130 when it was interrupted, with a report of what there is. Of `limit`: 0, 1 and
130.

``contest`` and ``generator_limit`` do the work, and are imported when needed: `canopy serve` starts without.
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
    MISUSED,
    OutOption,
    ScaleOption,
    SetOption,
    fail,
    spare_report,
    stamp,
)

if TYPE_CHECKING:
    from loadtest.load.compare.comparison import Comparison
    from loadtest.load.compare.started_brokers import Version
    from loadtest.load.engine.job import Audience

ROUNDS: Final = 3
MOST_ROUNDS: Final = 1000


class Mqtt(StrEnum):
    """What `--mqtt` takes."""

    V3_1_1 = "3.1.1"
    V5_0 = "5.0"


VERSIONS: Final[dict[Mqtt, Version]] = {Mqtt.V3_1_1: "3.1.1", Mqtt.V5_0: "5.0"}


def compare(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A built-in scenario's name, or a file.")],
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
    processes: Annotated[
        int | None, typer.Option("--processes", metavar="N", min=1, max=256, help="Number of generator processes.")
    ] = None,
    own_limit: Annotated[
        bool, typer.Option("--limit/--no-limit", help="Measure the generator's own limit first.")
    ] = True,
    out: OutOption = None,
) -> None:
    """Start several brokers in turn, run a scenario against each, and compare their figures."""
    from loadtest.load.compare.contest import Contest, Means
    from loadtest.load.compare.started_brokers import UnknownBroker, VersionConflict
    from loadtest.load.engine.running import run
    from loadtest.load.scenario import library

    try:
        asked, text = library.load(scenario, sets or (), scale)
        contest = Contest(asked, text, broker, rounds, VERSIONS[mqtt] if mqtt else None)
    except (library.ScenarioError, UnknownBroker, VersionConflict) as error:
        fail(str(error), MISUSED)
    spare_report(out)
    comparison = contest.comparison
    listener = Progress()
    try:
        run(lambda stop: contest.run(Means(listener, stop), processes=processes, own_limit=own_limit))
    except asyncio.CancelledError:
        pass
    finally:
        listener.clear()
    _report(comparison, out or Path("canopy-load") / f"compare-{comparison.name}-{stamp()}")
    if comparison.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not comparison.whole:
        raise typer.Exit(FAILED)


def limit(
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="Time to measure.")] = 1.0,
) -> None:
    """Measure how many messages a second one generator process can send and check, without a broker."""
    from loadtest.brokers.process import BrokerFailed
    from loadtest.load.compare.generator_limit import LimitError, measure
    from loadtest.load.engine.conductor import RunError
    from loadtest.load.engine.running import run

    try:
        found = run(lambda stop: measure(seconds, stop=stop))
    except asyncio.CancelledError:
        raise typer.Exit(INTERRUPTED) from None
    except (LimitError, BrokerFailed, RunError) as error:
        fail(str(error), FAILED)
    typer.echo(f"{found} (QoS 0, 64 B, one publisher, one subscriber)")


class Progress:
    """A line on standard error about what runs now, written over where somebody watches; notes stay."""

    def __init__(self) -> None:
        self._watched = sys.stderr.isatty()

    def run(self, label: str, number: int, rounds: int) -> Audience:
        text = f"round {number} of {rounds}: {label}"
        if self._watched:
            typer.echo(f"\r\x1b[K{text}", nl=False, err=True)
        else:
            typer.echo(text, err=True)
        from loadtest.load.engine.job import Nobody

        return Nobody()

    def note(self, text: str) -> None:
        self.clear()
        typer.echo(f"canopy: {text}", err=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._watched:
            typer.echo("\r\x1b[K", nl=False, err=True)


def _report(comparison: Comparison, folder: Path) -> None:
    from rich.console import Console

    from loadtest.load.compare import page
    from loadtest.load.compare.table import table
    from loadtest.load.report.files import ReportError

    console = Console()
    console.print(table(comparison))
    try:
        path, _ = page.write(comparison, folder)
    except ReportError as error:
        fail(str(error), FAILED)
    console.print(f"report: {path}", soft_wrap=True, highlight=False)
