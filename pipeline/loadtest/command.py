"""The command ``canopy pipeline loadtest``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.options import (
    AllowOption,
    EngineOption,
    MasterOption,
    MemoryOption,
    OutputOption,
    SkipOption,
    close,
    existing,
    tell,
    told,
)


@told
def loadtest(
    source: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="DIR",
            help="The folder that `canopy load run … --records --out DIR` wrote.",
            callback=existing,
        ),
    ],
    output: OutputOption,
    engine: EngineOption = "auto",
    master: MasterOption = None,
    driver_memory: MemoryOption = "2g",
    skip_corrupt: SkipOption = False,
    allow_gaps: AllowOption = False,
) -> None:
    """Compute the results of a load run again from its messages: latency, losses, duplicates, order.

    Joins the messages sent with those received, and compares the figures with the load tester's own report if it is
    beside the records. The exit code is 1 if they differ.
    """
    from pipeline.loadtest.job import run
    from pipeline.runtime.engine import session

    with session("canopy loadtest", engine, [source], output, master, driver_memory, tell) as spark:
        outcome = run(spark, source, output, skip_corrupt, tell)
    typer.echo(outcome.line())
    close(outcome.coverage, allow_gaps, outcome.fine)
