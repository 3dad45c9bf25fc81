"""What the subcommands of ``canopy load`` share: flags, exit codes, how failures look, playing and reporting.

Exit codes: 0 the run took place, 1 it could not or nothing was sent, 2 the scenario or the command line is wrong,
3 `--strict` and something was lost, doubled, out of order, altered or not reconciled, or much could not be judged,
130 after Ctrl-C (with a report of what there was).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

if TYPE_CHECKING:
    from loadtest.load.engine.job import Job, Target
    from loadtest.load.report.result import Result
    from loadtest.load.scenario.schema import Scenario

FAILED: Final = 1
MISUSED: Final = 2
FAULTY: Final = 3
INTERRUPTED: Final = 130

EXTRA: Final = frozenset({"hdrh", "pyarrow"})

TargetOption = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="URL", help="mqtt://HOST:PORT (mqtt://127.0.0.1:1883); several are used in turn."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the scenario, as in groups.sensors.clients=10. Repeatable."
    ),
]
ScaleOption = Annotated[
    float | None, typer.Option("--scale", metavar="F", help="Multiply the numbers of clients.", min=0.0)
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where the report goes (canopy-load/SCENARIO-TIME).")
]
ProcessesOption = Annotated[
    int | None, typer.Option("--processes", metavar="N", min=1, max=256, help="Processes of the generator.")
]
DriverOption = Annotated[str, typer.Option("--driver", metavar="NAME", help="Whose client speaks: canopy or amqtt.")]
LimitOption = Annotated[bool, typer.Option("--limit/--no-limit", help="First measure the generator's own limit here.")]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit code 3 when anything was lost, doubled, out of order or altered, or much could not be judged.",
    ),
]


RecordsOption = Annotated[
    bool, typer.Option("--records", help="Keep a row of every message: Parquet under DIR/records (needs room).")
]


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the command with a message; every line of it says who speaks."""
    for line in text.splitlines():
        typer.echo(f"canopy: {line}", err=True)
    raise typer.Exit(code)


def told(command: Callable[..., Any]) -> Callable[..., Any]:
    """Foreseen failures of a command as lines for people."""

    @wraps(command)
    def guarded(*arguments: Any, **flags: Any) -> Any:
        try:
            return command(*arguments, **flags)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRA:
                raise
            fail(
                f"`canopy load` needs {error.name}: in a clone of Canopy run `make setup`; elsewhere install Canopy "
                "with its extra, as in pip install './canopy[load]'"
            )

    return guarded


def load_scenario(name: str, sets: list[str] | None, scale: float | None) -> tuple[Scenario, str]:
    """A scenario and its text; ends the command where there is something wrong with it."""
    from loadtest.load.scenario import library

    try:
        return library.load(name, sets or (), scale)
    except library.ScenarioError as error:
        fail(str(error), MISUSED)


def parse_targets(texts: list[str] | None) -> list[Target]:
    """The targets of the command line; ends the command where one is none."""
    from loadtest.load.engine.job import Target

    targets = []
    for text in texts or ["mqtt://127.0.0.1:1883"]:
        try:
            targets.append(Target.parse(text))
        except ValueError as error:
            fail(f"--target {text}: {error}", MISUSED)
    return targets


def default_processes(scenario: Scenario) -> int:
    """One process for each core but one, which is the broker's, as far as the scenario bears it."""
    from loadtest.brokers.cores import core_count
    from loadtest.load.compare.started_brokers import most_processes

    return most_processes(scenario, max(1, core_count() - 1))


def stamp() -> str:
    """The time, in the name of what is written when no name was given."""
    return f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def play_and_report(job: Job, out: Path | None, limit: bool, strict: bool, records: bool = False) -> None:
    """Play a job with a view on the terminal, write the report, end the command with its exit code."""
    from dataclasses import replace

    from rich.console import Console

    from loadtest.load import report
    from loadtest.load.engine.running import PlayError, own_limit, play
    from loadtest.load.report import live

    console = Console(stderr=False)
    folder = out or Path("canopy-load") / f"{job.scenario.name}-{stamp()}"
    try:
        report.check(folder)
        if records:
            job = replace(job, records=str(folder / "records"))
        if limit:
            job = replace(job, own_limit=own_limit(console))
        with live.audience(console, job.scenario, str(job.targets[0])) as audience:
            result = play(job, audience)
        files = report.write(result, folder)
    except PlayError as error:
        fail(str(error))
    except report.ReportError as error:
        fail(str(error))
    console.print(live.summary(result))
    console.print(f"report: {files.page}", soft_wrap=True, highlight=False)
    raise typer.Exit(exit_code(result, strict))


def exit_code(result: Result, strict: bool) -> int:
    """What the command ends with."""
    if result.interrupted:
        return INTERRUPTED
    subscribed = any(group.connects for group in result.groups)
    if not subscribed or (any(group.publishes for group in result.groups) and not any(g.sent for g in result.groups)):
        return FAILED
    return FAULTY if strict and faults(result) else 0


def faults(result: Result) -> bool:
    """Whether anything went otherwise than it should, in groups that read as fast as they can."""
    total = result.deliveries
    disagrees = result.reconciled is not None and result.reconciled.agrees is False
    seen = total.lost or total.duplicates or total.reordered or total.altered
    return bool(seen or disagrees or result.too_little_judged)
