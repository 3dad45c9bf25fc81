"""The command ``canopy pipeline report``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.options import (
    AllowOption,
    EngineOption,
    InputOption,
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
def report(
    input: InputOption,  # noqa: A002
    output: OutputOption,
    load: Annotated[
        str | None,
        typer.Option(
            "--load",
            metavar="DIR",
            help="The folder that `canopy load run … --records --out DIR` wrote.",
            callback=existing,
        ),
    ] = None,
    engine: EngineOption = "auto",
    master: MasterOption = None,
    driver_memory: MemoryOption = "2g",
    skip_corrupt: SkipOption = False,
    allow_gaps: AllowOption = False,
) -> None:
    """Run rollup, tree, oracle, loadtest and plan in one session, and write a page that links to theirs.

    Omits oracle if deliveries were not recorded, and loadtest without --load. The exit code is 1 if a job fails or
    finds faults, and 3 if parts of the record are missing.
    """
    from pipeline.report.job import run
    from pipeline.runtime.engine import session

    with session(
        "canopy report", engine, [*input, *([load] if load else [])], output, master, driver_memory, tell
    ) as spark:
        outcome = run(spark, input, output, load, skip_corrupt, tell)
    typer.echo(f"{output.rstrip('/')}/index.html")
    close(outcome.coverage, allow_gaps, outcome.fine)
