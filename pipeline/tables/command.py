"""``canopy pipeline tables``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.errors import MisuseError
from pipeline.options import (
    AllowOption,
    InputOption,
    MasterOption,
    MemoryOption,
    OutputOption,
    SkipOption,
    close,
    existing,
    seconds,
    told,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@told
def tables(
    inputs: InputOption,
    output: OutputOption,
    mapping: Annotated[
        str,
        typer.Option(
            "--mapping",
            metavar="FILE",
            help="Which topics become which tables, and how payloads become columns (docs/tables.md).",
            callback=existing,
        ),
    ],
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help="parquet or delta.")] = "parquet",
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="ENGINE", help="Who decodes: arrow (this process) or spark."),
    ] = "arrow",
    stream: Annotated[
        bool, typer.Option("--stream", help="Go on as the record grows, until Ctrl-C; without it: what is there.")
    ] = False,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="TIME", help="With --stream: look for new segments so often, as in 10s."),
    ] = None,
    batch_events: Annotated[
        int,
        typer.Option(
            "--batch-events", metavar="N", min=1, help="Sequence numbers that are published at a time, exactly once."
        ),
    ] = 1_000_000,
    skip_corrupt: SkipOption = False,
    master: MasterOption = None,
    driver_memory: MemoryOption = "2g",
    allow_gaps: AllowOption = False,
) -> None:
    """Payloads as typed columns, by a mapping file. Each run goes on where the one before ended."""
    if len(inputs) != 1:
        raise MisuseError("--input: tables are made of one folder")
    if every is not None and not stream:
        raise MisuseError("--every is for a stream: give --stream too")
    if engine not in ("arrow", "spark"):
        raise MisuseError(f"--engine {engine}: arrow or spark")
    if format_ not in ("parquet", "delta"):
        raise MisuseError(f"--format {format_}: parquet or delta")
    if engine == "arrow" and master is not None:
        raise MisuseError("--master is for Spark: give --engine spark too")
    pause = seconds(every or "10s", "--every") if stream else None
    from pipeline.tables.job import Options, run

    def say(line: str) -> None:
        typer.echo(line, err=True)

    session: AbstractContextManager[SparkSession | None] = nullcontext()
    if engine == "spark":
        from pipeline.session import spark_session

        session = spark_session("canopy-tables", master, driver_memory)
    options = Options(format_, batch_events, pause, skip_corrupt, allow_gaps)
    with session as spark:
        outcome = run(inputs[0], output, mapping, options, spark, say)
    for line in outcome.lines():
        typer.echo(line)
    close(outcome.coverage, allow_gaps)
