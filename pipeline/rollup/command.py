"""``canopy pipeline rollup``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.errors import MisuseError
from pipeline.options import (
    AllowOption,
    CheckpointOption,
    EngineOption,
    EveryOption,
    InputOption,
    MasterOption,
    MemoryOption,
    OnceOption,
    OutputOption,
    RunOption,
    SinceOption,
    SkipOption,
    UntilOption,
    close,
    say,
    seconds,
    told,
)
from pipeline.runtime.engine import DUCKDB, SPARK
from pipeline.runtime.session import REMOTE


@told
def rollup(
    inputs: InputOption,
    output: OutputOption,
    latency: Annotated[
        str,
        typer.Option(
            "--latency",
            metavar="WHERE",
            help="Where to find the time at which a message was sent: mark (of canopy load), property:NAME (a user "
            "property, in s, ms, µs or ns since 1970), none, or auto: mark if there is one.",
        ),
    ] = "auto",
    checkpoint: CheckpointOption = None,
    once: OnceOption = False,
    every: EveryOption = None,
    late: Annotated[
        str,
        typer.Option(
            "--late",
            metavar="TIME",
            help="With --checkpoint: accept messages that are up to this much older than the newest.",
        ),
    ] = "48h",
    since: SinceOption = None,
    until: UntilOption = None,
    run: RunOption = None,
    skip_corrupt: SkipOption = False,
    engine: EngineOption = "auto",
    master: MasterOption = None,
    driver_memory: MemoryOption = "2g",
    allow_gaps: AllowOption = False,
) -> None:
    """Compute messages, bytes, sizes, publishers and latency for each topic and minute, and topic and hour."""
    if checkpoint is None and (once or every is not None):
        raise MisuseError("--once and --every need --checkpoint DIR")
    if once and every is not None:
        raise MisuseError("--once and --every exclude each other")
    if checkpoint is not None and (since or until or run):
        raise MisuseError("--since, --until and --run do not work with --checkpoint")
    if checkpoint is not None and len(inputs) != 1:
        raise MisuseError("--input: with --checkpoint give one folder")
    if checkpoint is not None and REMOTE.get() is not None:
        raise MisuseError("--remote does not work with --checkpoint: this process writes the tables")
    if checkpoint is not None and engine == DUCKDB:
        raise MisuseError("--engine duckdb does not work with --checkpoint: use spark")
    kept = seconds(late, "--late")
    pause = None if once else seconds(every or "10s", "--every")

    from pipeline.runtime.engine import session

    with session(
        "canopy-rollup", engine if checkpoint is None else SPARK, inputs, output, master, driver_memory, say
    ) as spark:
        from pipeline.record.segments import Choice
        from pipeline.rollup import job

        if checkpoint is None:
            outcome = job.run(spark, inputs, output, latency, Choice((), since, until, run), skip_corrupt, say)
        else:
            from pipeline.rollup.stream import stream

            outcome = stream(spark, inputs[0], output, checkpoint, pause, latency, skip_corrupt, say, allow_gaps, kept)
    typer.echo(outcome.line())
    close(outcome.coverage, allow_gaps)
