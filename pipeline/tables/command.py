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
    say,
    seconds,
    told,
)
from pipeline.runtime.session import REMOTE, SETTINGS

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
            help="The mapping of topics to tables and of payloads to columns (docs/tables.md).",
            callback=existing_file,
        ),
    ],
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="parquet, delta, iceberg or kafka.")
    ] = "parquet",
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", metavar="NAME", help="Iceberg: a catalog of pyiceberg's configuration (default)."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", metavar="NAME", help="Iceberg: namespace of the tables in the catalog (canopy)."),
    ] = None,
    servers: Annotated[
        str | None, typer.Option("--servers", metavar="HOST:PORT,…", help="Kafka: bootstrap servers.")
    ] = None,
    topic_prefix: Annotated[
        str | None,
        typer.Option("--topic-prefix", metavar="TEXT", help="Kafka: prefix of the topics; the table's name follows."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="ENGINE", help="Decode payloads in this process (arrow) or by spark."),
    ] = "arrow",
    stream: Annotated[
        bool, typer.Option("--stream", help="Follow the growing record until Ctrl-C, instead of ending at its end.")
    ] = False,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="TIME", help="With --stream: look for new segments this often, such as 10s."),
    ] = None,
    batch_events: Annotated[
        int,
        typer.Option("--batch-events", metavar="N", min=1, help="Sequence numbers in one commit."),
    ] = 1_000_000,
    skip_corrupt: SkipOption = False,
    master: MasterOption = None,
    driver_memory: MemoryOption = "2g",
    allow_gaps: AllowOption = False,
) -> None:
    """Write payloads to typed tables, by a mapping file. Each run continues where the previous one ended."""
    if len(inputs) != 1:
        raise MisuseError("--input: give one folder")
    if every is not None and not stream:
        raise MisuseError("--every needs --stream")
    if engine not in ("arrow", "spark"):
        raise MisuseError(f"--engine {engine}: arrow or spark")
    if format_ not in ("parquet", "delta", "iceberg", "kafka"):
        raise MisuseError(f"--format {format_}: parquet, delta, iceberg or kafka")
    if (format_ == "kafka") != bool(servers) or (topic_prefix and not servers):
        raise MisuseError("--format kafka needs --servers; --servers and --topic-prefix need --format kafka")
    if topic_prefix and not re.fullmatch(r"[a-zA-Z0-9._-]{1,150}", topic_prefix):
        raise MisuseError("--topic-prefix: use letters, digits, dots, underscores and hyphens (150 at most)")
    if format_ == "kafka" and engine != "spark":
        raise MisuseError("--format kafka needs --engine spark")
    if format_ != "iceberg" and (catalog or namespace):
        raise MisuseError("--catalog and --namespace need --format iceberg")
    if engine == "arrow" and (master is not None or REMOTE.get() is not None or SETTINGS.get()):
        raise MisuseError("--master, --remote, --conf and --packages need --engine spark")
    pause = seconds(every or "10s", "--every") if stream else None
    from pipeline.tables.job import Options, run

    session: AbstractContextManager[SparkSession | None] = nullcontext()
    if engine == "spark":
        from pipeline.runtime.session import spark_session

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
