"""``canopy pipeline tables``."""

from __future__ import annotations

import re
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
    existing_file,
    seconds,
    told,
)
from pipeline.session import REMOTE, SETTINGS

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
            callback=existing_file,
        ),
    ],
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="parquet, delta, iceberg or kafka.")
    ] = "parquet",
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", metavar="NAME", help="Of Iceberg: its name in pyiceberg's configuration (default)."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Of Iceberg's tables in the catalog (canopy).")
    ] = None,
    servers: Annotated[
        str | None, typer.Option("--servers", metavar="HOST:PORT,…", help="Of Kafka: its bootstrap servers.")
    ] = None,
    topic_prefix: Annotated[
        str | None, typer.Option("--topic-prefix", metavar="TEXT", help="Of Kafka: what stands before a table's name.")
    ] = None,
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
    if format_ not in ("parquet", "delta", "iceberg", "kafka"):
        raise MisuseError(f"--format {format_}: parquet, delta, iceberg or kafka")
    if (format_ == "kafka") != bool(servers) or (topic_prefix and not servers):
        raise MisuseError("--servers, and --topic-prefix beside it, are for --format kafka, which takes --servers")
    if topic_prefix and not re.fullmatch(r"[a-zA-Z0-9._-]{1,150}", topic_prefix):
        raise MisuseError("--topic-prefix: Kafka's topics have letters, digits, dots, underscores and hyphens")
    if format_ == "kafka" and engine != "spark":
        raise MisuseError("--format kafka is written by Spark: give --engine spark too")
    if format_ != "iceberg" and (catalog or namespace):
        raise MisuseError("--catalog and --namespace are for Iceberg: give --format iceberg too")
    if engine == "arrow" and (master is not None or REMOTE.get() is not None or SETTINGS.get()):
        raise MisuseError("--master, --remote, --conf and --packages are for Spark: give --engine spark too")
    pause = seconds(every or "10s", "--every") if stream else None
    from pipeline.tables.job import Options, run

    def say(line: str) -> None:
        typer.echo(line, err=True)

    session: AbstractContextManager[SparkSession | None] = nullcontext()
    if engine == "spark":
        from pipeline.session import spark_session

        session = spark_session("canopy-tables", master, driver_memory)
    options = Options(
        format_,
        batch_events,
        pause,
        skip_corrupt,
        allow_gaps,
        catalog or "default",
        namespace or "canopy",
        servers or "",
        topic_prefix or "",
    )
    with session as spark:
        outcome = run(inputs[0], output, mapping, options, spark, say)
    for line in outcome.lines():
        typer.echo(line)
    close(outcome.coverage, allow_gaps)
