"""What the subcommands of ``canopy load`` share: flags, exit codes, how failures look, playing and reporting.

Exit codes: 0 the run took place, 1 it could not or nothing was sent, 2 the scenario or the command line is wrong,
3 `--strict` and something was lost, doubled, out of order, altered, unsent or not reconciled, connections broke, or
much could not be judged, 4 a threshold was missed, 130 after Ctrl-C (with a report of what there was).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, get_type_hints

import typer

if TYPE_CHECKING:
    from loadtest.load.engine.job import Job, Target
    from loadtest.load.report.result import Result
    from loadtest.load.scenario.schema import Scenario

FAILED: Final = 1
MISUSED: Final = 2
FAULTY: Final = 3
MISSED: Final = 4
INTERRUPTED: Final = 130

EXTRA: Final = frozenset({"hdrh", "pyarrow"})

TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="URL",
        help="mqtt://HOST:PORT (mqtt://127.0.0.1:1883), mqtts://, ws://HOST:PORT/PATH or wss://. Repeatable.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the scenario, such as groups.sensors.clients=10. Repeatable."
    ),
]
ScaleOption = Annotated[
    float | None, typer.Option("--scale", metavar="F", help="Multiply the number of clients by this.", min=0.0)
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder for the report (canopy-load/SCENARIO-TIME).")
]
LimitOption = Annotated[bool, typer.Option("--limit/--no-limit", help="Measure the generator's own limit first.")]


@dataclass(frozen=True)
class Secured:
    """The options of TLS."""

    ca: Annotated[
        str | None,
        typer.Option("--ca", "--cacertfile", metavar="FILE", help="TLS: authority (PEM) of the broker's certificate."),
    ] = None
    cert: Annotated[
        str | None, typer.Option("--cert", "--certfile", metavar="FILE", help="TLS: the clients' certificate.")
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", "--keyfile", metavar="FILE", help="TLS: key of the clients' certificate.")
    ] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="TLS: accept any certificate of the broker.")] = False


@dataclass(frozen=True)
class Credentials:
    """Who the clients are."""

    user: Annotated[
        str | None,
        typer.Option(
            "-u", "--user", "--username", metavar="PATTERN", help="User name, such as user-%c, for groups without one."
        ),
    ] = None
    password: Annotated[
        str | None,
        typer.Option(
            "-P",
            "--password",
            metavar="PATTERN",
            envvar="CANOPY_LOAD_PASSWORD",
            show_envvar=True,
            help="Password, may contain patterns too.",
        ),
    ] = None
    users: Annotated[
        str | None,
        typer.Option("--users", metavar="FILE", help="CSV file of USER_NAME,PASSWORD lines, used in turn."),
    ] = None


@dataclass(frozen=True)
class Output:
    """What a run leaves, and what it is asked for beside its scenario."""

    processes: Annotated[
        int | None, typer.Option("--processes", metavar="N", min=1, max=256, help="Number of generator processes.")
    ] = None
    out: OutOption = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit code 3 if messages were lost, duplicated, reordered, altered or not sent, if connections broke, "
            "or if more than 1 % could not be judged.",
        ),
    ] = False
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            metavar="CONDITION",
            help="Such as 'p99 < 50ms', 'lost == 0', 'rate >= 10000'; if missed, exit code 4. Repeatable.",
        ),
    ] = None
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")] = None
    prometheus: Annotated[
        Path | None,
        typer.Option(
            "--prometheus",
            metavar="FILE",
            help="Also write metrics for the node exporter's textfile collector: every second, and at the end.",
        ),
    ] = None


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the command with a message; every line of it says who speaks."""
    for line in text.splitlines():
        typer.echo(f"canopy: {line}", err=True)
    raise typer.Exit(code)


def told(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command as typer takes it: foreseen failures are lines for people, and a parameter that is a dataclass of
    options (`Secured`, `Output` …) stands for these options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        taken = get_type_hints(groups[name], include_extras=True)
        for each in fields(groups[name]):
            default = Parameter.empty if each.default is MISSING else each.default
            parameters.append(
                Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=taken[each.name])
            )

    def guarded(**given: Any) -> Any:
        held = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        try:
            return command(**given, **held)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRA:
                raise
            fail(f"`canopy load` needs {error.name}: in a clone of Canopy run `make setup` or pip install '.[load]'")

    guarded.__name__, guarded.__doc__ = command.__name__, command.__doc__
    guarded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    guarded.__annotations__ = {each.name: each.annotation for each in parameters}
    return guarded


def load_scenario(name: str, sets: list[str] | None, scale: float | None) -> tuple[Scenario, str]:
    """A scenario and its text; ends the command where there is something wrong with it."""
    from loadtest.load.scenario import library

    try:
        return library.load(name, sets or (), scale)
    except library.ScenarioError as error:
        fail(str(error), MISUSED)


def parse_targets(texts: list[str] | None, secured: Secured = Secured()) -> list[Target]:
    """The targets of the command line; ends the command where one is none, or TLS cannot be had."""
    from loadtest.load.engine.job import Target, Tls
    from loadtest.load.engine.transports import TargetError, context

    if secured.key and not secured.cert:
        fail("--key needs --cert", MISUSED)
    targets = []
    for text in texts or ["mqtt://127.0.0.1:1883"]:
        try:
            target = Target.parse(text, Tls(secured.ca, secured.cert, secured.key, secured.insecure))
            context(target)
        except ValueError as error:
            fail(f"--target {text}: {error}", MISUSED)
        except TargetError as error:
            fail(str(error), MISUSED)
        targets.append(target)
    if secured != Secured() and not any(target.encrypted for target in targets):
        fail("--ca, --cert, --key and --insecure are for mqtts:// and wss://", MISUSED)
    return targets


def with_users(scenario: Scenario, who: Credentials) -> Scenario:
    """The scenario with the credentials of the command line; ends the command where they are wrong."""
    from loadtest.load.scenario import library

    try:
        return library.with_users(scenario, who.user, who.password, who.users)
    except library.ScenarioError as error:
        fail(str(error), MISUSED)


def default_processes(scenario: Scenario) -> int:
    """One process for each core but one, which is the broker's, as far as the scenario bears it."""
    from loadtest.brokers.cores import core_count
    from loadtest.load.compare.started_brokers import most_processes

    return most_processes(scenario, max(1, core_count() - 1))


def seconds_option(text: str) -> float:
    """Seconds above 0: a number, or a duration with units."""
    from loadtest.load.scenario import units

    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else units.duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not 0 < seconds < float("inf"):
        raise typer.BadParameter(units.DURATION)
    return seconds


def size_option(given: str | int) -> int:
    """Bytes: a number, or a size with a unit. A default comes as it stands."""
    from loadtest.load.scenario import units

    text = str(given)
    try:
        return int(text) if text.isdecimal() else units.size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def spare_report(folder: Path | None) -> None:
    """End the command where `--out` holds the report of an earlier run: it would be written over."""
    from loadtest.load.report import files

    if folder is not None and files.holds_report(folder):
        fail(f"{folder}: holds the report of an earlier run; give another --out")


def stamp() -> str:
    """The time, in the name of what is written when no name was given."""
    return f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def play_and_report(job: Job, output: Output, calibrate: bool) -> None:
    """Play a job with a view on the terminal, write the report, end the command with its exit code. `calibrate`: the
    generator's own limit is measured first."""
    from dataclasses import replace

    from rich.console import Console

    from loadtest.load.engine.running import PlayError, own_limit, play
    from loadtest.load.report import exports, files, live
    from loadtest.load.scenario import thresholds

    conditions = tuple(output.threshold or ())
    processes = output.processes or default_processes(job.scenario)
    job = replace(job, processes=processes, thresholds=conditions, strict=output.strict)
    for text in conditions:
        try:
            thresholds.parse(text, [group.name for group in job.scenario.groups])
        except ValueError as error:
            fail(f"--threshold {text}: {error}", MISUSED)
    spare_report(output.out)
    console = Console(stderr=False)
    folder = output.out or Path("canopy-load") / f"{job.scenario.name}-{stamp()}"
    try:
        for place in (folder, *(file.parent for file in (output.junit, output.prometheus) if file)):
            files.check(place)
        if calibrate:
            job = replace(job, own_limit=own_limit(console))
        with live.audience(console, job.scenario, str(job.targets[0])) as audience:
            told = audience if output.prometheus is None else exports.Metrics(audience, job.scenario, output.prometheus)
            result = play(job, told)
        written = files.write(result, folder)
        for path, form in (
            (output.junit, exports.junit),
            (output.prometheus, exports.prometheus),
        ):
            if path is not None:
                exports.write(path, form(result))
    except PlayError as error:
        fail(str(error))
    except files.ReportError as error:
        fail(str(error))
    console.print(live.summary(result))
    console.print(f"report: {written.page}", soft_wrap=True, highlight=False)
    raise typer.Exit(exit_code(result, output.strict))


def exit_code(result: Result, strict: bool) -> int:
    """What the command ends with."""
    if result.interrupted:
        return INTERRUPTED
    subscribed = any(group.connects for group in result.groups)
    if not subscribed or (any(group.publishes for group in result.groups) and not any(g.sent for g in result.groups)):
        return FAILED
    if strict and faults(result):
        return FAULTY
    return MISSED if result.missed else 0


def faults(result: Result) -> bool:
    """Whether anything went otherwise than it should, in groups that read as fast as they can."""
    disagrees = result.reconciled is not None and result.reconciled.agrees is False
    return bool(
        result.deliveries.faults
        or disagrees
        or result.too_little_judged
        or result.broken
        or result.too_much_unsent
        or result.unanswered
    )
