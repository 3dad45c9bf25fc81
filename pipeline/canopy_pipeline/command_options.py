"""Parts that the commands of ``canopy pipeline`` share: flags, exit codes, error lines.

Promises: importable without pyspark, so that `canopy serve` starts without it. Exit codes: 0 it is done, 1 it could not
be done, or the verdict is bad, 2 the command line is wrong, 3 it is done, over a record that is not complete, 130 after
Ctrl-C.
"""

from __future__ import annotations

import inspect
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from typer import CallbackParam

from canopy_pipeline import job_metrics
from canopy_pipeline.errors import FAILED, INCOMPLETE, MISUSED, MisuseError, PipelineError, foreseen, in_a_line
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.runtime.spark_session import SparkOptions
from canopy_pipeline.runtime.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERRUPTED: Final = 130
EXTRA: Final = frozenset({"duckdb", "pandas", "pyarrow", "pyspark", "numpy"})


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the command with a message; every line begins with the program's name."""
    for line in text.splitlines():
        tell(line)
    raise typer.Exit(code)


def say(line: str) -> None:
    """Write a line for people on standard error."""
    typer.echo(line, err=True)


def tell(line: str) -> None:
    """Write a line that begins with the program's name."""
    say(f"canopy: {line}")


def named(param: CallbackParam, value: str) -> str:
    """Refuse an empty place, as a variable that is not set leaves: it would be the present folder."""
    if not value.strip():
        fail(f"{param.opts[0]}: is empty; give a folder", MISUSED)
    return value


def existing(param: CallbackParam, value: Any) -> Any:
    """Refuse a folder of this machine that is not there, at once: Java takes seconds to start."""
    for path in [value] if isinstance(value, str) else value or ():
        local = local_path(named(param, path))
        if local is not None:
            _mode(local, f"{param.opts[0]} {path}", "folder")
    return value


def existing_file(param: CallbackParam, value: str) -> str:
    mode = _mode(Path(value), f"{param.opts[0]} {value}", "file")
    if not stat.S_ISREG(mode):
        fail(f"{param.opts[0]} {value}: is {'a folder' if stat.S_ISDIR(mode) else 'no file'}", MISUSED)
    return value


def _mode(path: Path, given: str, what: str) -> int:
    """Return the mode of what lies at a path; refuse an option if nothing does, or it cannot be reached."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        fail(f"{given}: no such {what}", MISUSED)
    except OSError as error:
        fail(f"{given}: {(error.strerror or str(error)).lower()}; give another", MISUSED)


InputOption = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="DIR",
        help="A recorder's folder, or a path that Spark can read. Repeatable.",
        callback=existing,
    ),
]
OutputOption = Annotated[str, typer.Option("--output", metavar="DIR", help="Folder for the results.", callback=named)]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="spark, duckdb (writes to this machine only), or auto: duckdb if it is installed, and all is on this "
        "machine, with at most 1 GiB of segments.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark master, such as local[2]; default: what spark-submit sets, or all cores of this machine.",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="KEY=VALUE",
        help="A Spark setting, as with spark-submit. Repeatable.",
    ),
]
PackagesOption = Annotated[
    str | None,
    typer.Option(
        "--packages",
        metavar="NAMES",
        help="Maven packages that Spark downloads, such as org.apache.hadoop:hadoop-aws:3.4.2.",
    ),
]
MemoryOption = Annotated[
    str, typer.Option("--driver-memory", metavar="SIZE", help="Memory of Spark's driver, or of DuckDB, such as 4g.")
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="FILE",
        help="Write metrics to this file, for node_exporter's textfile collector.",
    ),
]
AllowOption = Annotated[
    bool,
    typer.Option("--allow-gaps", help="Exit with code 0 instead of 3 if events are missing; they are still named."),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only events from this time on: ISO 8601, UTC by default."),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only events before this time.")]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN_ID", help="Only events of this run of the broker.")
]
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LONGEST: Final = 365_000
"""Days: a calendar has a time so long before now, and so long after it."""


def seconds(text: str, option: str) -> float:
    """A length of time as people write it (10s, 500ms, 2h), in seconds.

    Raises:
        MisuseError: it is none, or longer than a thousand years.
    """
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise MisuseError(f"{option} {text}: must be a number and a unit, such as 500ms, 10s, 5m, 2h or 7d")
    length = float(found[1]) * _UNITS[found[2]]
    if length > _LONGEST * _UNITS["d"]:
        raise MisuseError(f"{option} {text}: must be at most {_LONGEST}d")
    return length


def spark_options(master: str | None, memory: str, conf: Sequence[str] | None, packages: str | None) -> SparkOptions:
    """Return the settings of --master, --driver-memory, --conf and --packages.

    Raises:
        MisuseError: a --conf is no KEY=VALUE.
    """
    settings = {}
    for each in conf or ():
        key, equals, value = each.partition("=")
        if not key.strip() or not equals:
            # Not the text itself, in which a key for a store may stand.
            raise MisuseError("--conf takes KEY=VALUE, as in --conf spark.sql.shuffle.partitions=64")
        settings[key.strip()] = value
    if packages is not None:
        settings["spark.jars.packages"] = packages
    return SparkOptions(master, memory, settings)


@dataclass(frozen=True)
class Run:
    spark: SparkSession
    inputs: list[str]
    output: str


@dataclass(frozen=True)
class Verdict:
    """The result of a job: its lines for people, the gaps of the record, and the verdict."""

    lines: list[str]
    coverage: Coverage
    fine: bool = True
    notes: list[str] = field(default_factory=list)


def on_an_engine(command: Callable[..., Verdict]) -> Callable[..., None]:
    """The command of a job: `command` with the flags that all jobs have, in a session of the engine that they ask for.

    `command` takes a `Run`, and then its own flags; `traffic`, if it is one of them, names more inputs.
    """

    def run(
        inputs: InputOption,
        output: OutputOption,
        *,
        engine: EngineOption = "auto",
        master: MasterOption = None,
        driver_memory: MemoryOption = "2g",
        conf: ConfOption = None,
        packages: PackagesOption = None,
        allow_gaps: AllowOption = False,
        **own: Any,
    ) -> None:
        from canopy_pipeline.runtime.engine import session

        options = spark_options(master, driver_memory, conf, packages)
        more = own.get("traffic") or ()
        with session(f"canopy-{command.__name__}", engine, [*inputs, *more], output, options, tell) as spark:
            verdict = command(Run(spark, inputs, output), **own)
        for note in verdict.notes:
            tell(note)
        for line in verdict.lines:
            typer.echo(line)
        close(verdict.coverage, allow_gaps, verdict.fine)

    own = [*inspect.signature(command, eval_str=True).parameters.values()][1:]
    shared = [*inspect.signature(run, eval_str=True).parameters.values()][:-1]
    flags = [*shared[:2], *(each.replace(kind=each.KEYWORD_ONLY) for each in own), *shared[2:]]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {each.name: each.annotation for each in flags}
    setattr(run, "__signature__", inspect.Signature(flags))  # noqa: B010
    return told(run)


def close(coverage: Coverage, allow_gaps: bool, fine: bool = True) -> None:
    """Write the last lines of a job and the gaps of its record, and end with its exit code: 1 before 3."""
    for line in coverage.lines():
        tell(line)
    job_metrics.note("segments", coverage.segments)
    job_metrics.note("events", coverage.events)
    job_metrics.note("missing_events", coverage.missing)
    if not fine:
        raise typer.Exit(FAILED)
    if not coverage.complete and not allow_gaps:
        why = "the record is not in order" if coverage.nothing_missing else "events are missing"
        tell(f"exit code 3, since {why}; with --allow-gaps it is 0")
        raise typer.Exit(INCOMPLETE)


def told(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn foreseen failures of a command into lines for people, and give it the flag `--metrics`."""

    @wraps(command)
    def guarded(*arguments: Any, metrics: MetricsOption = None, **flags: Any) -> Any:
        try:
            if metrics is not None and not Path(metrics).absolute().parent.is_dir():
                fail(f"--metrics {metrics}: its folder is not there", MISUSED)
            if metrics is not None and Path(metrics).is_dir():
                fail(f"--metrics {metrics}: is a folder; give a file", MISUSED)
            with job_metrics.measured(command.__name__, metrics):
                return in_lines(arguments, flags)
        except OSError as error:
            fail(f"--metrics {metrics}: cannot be written ({in_a_line(error)}); give another file")

    def in_lines(arguments: Any, flags: dict[str, Any]) -> Any:
        try:
            return command(*arguments, **flags)
        except PipelineError as error:
            fail(str(error), error.exit_code)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)
        except foreseen() as error:
            fail(in_a_line(error))
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            if name not in EXTRA:
                raise
            install = "in a clone of Canopy run `make setup` or pip install '.[pipeline]'"
            fail(f"`canopy pipeline` needs {name}: {install}")

    metrics = inspect.Parameter("metrics", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=MetricsOption)
    flags = [*inspect.signature(command, eval_str=True).parameters.values(), metrics]
    setattr(guarded, "__signature__", inspect.Signature([each.replace(kind=each.KEYWORD_ONLY) for each in flags]))  # noqa: B010
    guarded.__annotations__ = {each.name: each.annotation for each in flags}
    return guarded
