"""Parts that the subcommands of ``canopy load`` share: flags, exit codes, error lines, playing and reporting.

Exit codes: 0 the run took place, 1 it could not or nothing was sent, 2 the scenario or the command line is wrong,
3 `--strict` and something was lost, doubled, out of order, altered, unsent or not reconciled, connections broke, or
much could not be judged, 4 a threshold was missed, 130 after Ctrl-C (with a report of what there was).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, get_type_hints

import typer

from canopy_load.brokers.process import BrokerFailed, core_count
from canopy_load.errors import LoadError, Misuse

if TYPE_CHECKING:
    from canopy_load.engine.job import Job, Target
    from canopy_load.report.result import Result
    from canopy_load.scenario.scenario_schema import Scenario

FAILED: Final = 1
MISUSED: Final = 2
FAULTY: Final = 3
MISSED: Final = 4
INTERRUPTED: Final = 130

EXTRA: Final = frozenset({"psutil", "pyarrow"})

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
ProcessesOption = Annotated[
    int | None, typer.Option("--processes", metavar="N", min=1, max=256, help="Number of generator processes.")
]
ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A built-in scenario's name, or a file.")]


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
    """The clients' user names and passwords."""

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
    """The files that a run writes, and its flags beside the scenario."""

    processes: ProcessesOption = None
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
    """End the command with a message; every line begins with the program's name."""
    for line in text.splitlines():
        typer.echo(harmless(f"canopy: {line}"), err=True)
    raise typer.Exit(code)


def told(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command for typer: it prints foreseen failures as lines for people, and a parameter that is a
    dataclass of options (`Secured`, `Output` …) stands for these options."""
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
        except LoadError as error:
            fail(str(error), error.code)
        except BrokerFailed as error:
            fail(str(error))
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRA:
                raise
            fail(f"this command needs {error.name}: in a clone of Canopy run `make setup` or pip install '.[load]'")

    guarded.__name__, guarded.__doc__ = command.__name__, command.__doc__
    guarded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    guarded.__annotations__ = {each.name: each.annotation for each in parameters}
    return guarded


def parse_targets(texts: list[str] | None, secured: Secured = Secured()) -> list[Target]:
    """The targets of the command line.

    Raises:
        Misuse: one is none, or TLS cannot be had.
    """
    from canopy_load.engine.job import Target, Tls
    from canopy_load.engine.transports import context

    if secured.key and not secured.cert:
        raise Misuse("--key needs --cert")
    targets = []
    for text in texts or ["mqtt://127.0.0.1:1883"]:
        try:
            target = Target.parse(text, Tls(secured.ca, secured.cert, secured.key, secured.insecure))
            context(target)
        except ValueError as error:
            raise Misuse(f"--target {text}: {error}") from None
        targets.append(target)
    if secured != Secured() and not any(target.encrypted for target in targets):
        raise Misuse("--ca, --cert, --key and --insecure are for mqtts:// and wss://")
    return targets


def default_processes(scenario: Scenario) -> int:
    """Return one process for each core but the broker's, as far as the scenario allows."""
    from canopy_load.compare.started_brokers import most_processes

    return most_processes(scenario, max(1, core_count() - 1))


def seconds_option(text: str) -> float:
    """Seconds above 0: a number, or a duration with units."""
    from canopy_load.scenario import units

    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else units.duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not 0 < seconds < float("inf"):
        raise typer.BadParameter(units.DURATION)
    return seconds


def size_option(given: str | int) -> int:
    """Parse bytes: a number, or a size with a unit. A default is returned unchanged."""
    from canopy_load.scenario import units

    text = str(given)
    try:
        return int(text) if text.isdecimal() else units.size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def harmless(text: str) -> str:
    """Escape what a terminal would take for a command: text of a broker may have anything. Lines and tabs stay."""
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def passing(text: str) -> None:
    """Write a line on standard error about what goes on; a terminal overwrites it with the next."""
    clear()
    typer.echo(text, nl=not sys.stderr.isatty(), err=True)


def clear() -> None:
    """Remove the line that `passing` wrote last from a terminal."""
    if sys.stderr.isatty():
        typer.echo("\r\x1b[K", nl=False, err=True)


def stamp() -> str:
    """Return the time for the name of a report that was given no name."""
    return f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def play_and_report(job: Job, output: Output, who: Credentials) -> None:
    """Play a job as these users with a view on the terminal, write the report, end the command with its exit code."""
    from dataclasses import replace

    from rich.console import Console

    from canopy_load.engine.running import play
    from canopy_load.report import exports, live, report_files
    from canopy_load.scenario import library, thresholds

    scenario = library.with_users(job.scenario, who.user, who.password, who.users)
    conditions = tuple(output.threshold or ())
    for text in conditions:
        try:
            thresholds.parse(text, [group.name for group in scenario.groups])
        except ValueError as error:
            raise Misuse(f"--threshold {text}: {error}") from None
    processes = output.processes or default_processes(scenario)
    job = replace(job, scenario=scenario, processes=processes, thresholds=conditions, strict=output.strict)
    report_files.spare(output.out)
    console = Console(stderr=False)
    folder = output.out or Path("canopy-load") / f"{scenario.name}-{stamp()}"
    for place in (folder, *(file.parent for file in (output.junit, output.prometheus) if file)):
        report_files.check(place)
    metrics = [] if output.prometheus is None else [exports.Metrics(scenario.name, output.prometheus)]
    with live.audience(console, scenario, str(job.targets[0])) as audience:
        result = play(job, audience, *metrics)
    written = report_files.write(result, folder)
    if output.junit is not None:
        exports.write(output.junit, exports.junit(result))
    if output.prometheus is not None:
        exports.write(output.prometheus, exports.prometheus(result))
    console.print(live.summary(result))
    console.print(f"report: {written / 'report.html'}", soft_wrap=True, highlight=False)
    raise typer.Exit(exit_code(result, output.strict))


def exit_code(result: Result, strict: bool) -> int:
    if result.interrupted:
        return INTERRUPTED
    subscribed = any(group.connects for group in result.groups)
    if not subscribed or (any(group.publishes for group in result.groups) and not any(g.sent for g in result.groups)):
        return FAILED
    if strict and faults(result):
        return FAULTY
    return MISSED if result.missed else 0


def faults(result: Result) -> bool:
    """Return True if anything went wrong in groups that read as fast as they can."""
    disagrees = result.reconciled is not None and result.reconciled.agrees is False
    return bool(
        result.deliveries.faults
        or disagrees
        or result.too_little_judged
        or result.broken
        or result.too_much_unsent
        or result.unanswered
    )
