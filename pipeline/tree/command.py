"""``canopy pipeline tree``."""

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
    RunOption,
    SinceOption,
    SkipOption,
    UntilOption,
    close,
    told,
)


@told
def tree(
    inputs: InputOption,
    output: OutputOption,
    hot: Annotated[int, typer.Option("--hot", metavar="N", help="How many of the hottest topics to list.")] = 100,
    children: Annotated[
        int, typer.Option("--children", metavar="N", help="An explosion: a prefix with so many children.")
    ] = 1000,
    growing: Annotated[
        int, typer.Option("--growing", metavar="N", help="An explosion: so many, if there are ever more of them.")
    ] = 100,
    per_child: Annotated[
        float, typer.Option("--per-child", metavar="N", help="But only with so few messages for each child.")
    ] = 10.0,
    steady: Annotated[
        float, typer.Option("--steady", metavar="SHARE", help="Ever more: new ones in this share of the time.")
    ] = 0.75,
    since: SinceOption = None,
    until: UntilOption = None,
    run: RunOption = None,
    skip_corrupt: SkipOption = False,
    engine: EngineOption = "auto",
    master: MasterOption = None,
    driver_memory: MemoryOption = "2g",
    allow_gaps: AllowOption = False,
) -> None:
    """The topic tree: messages, bytes, topics and children of each prefix; hot topics; topic explosions."""
    from pipeline.engine import session

    def say(line: str) -> None:
        typer.echo(line, err=True)

    with session(
        "canopy-tree", engine, inputs, output, master, driver_memory, lambda line: typer.echo(line, err=True)
    ) as spark:
        from pipeline.segments import Choice
        from pipeline.tree import job
        from pipeline.tree.transforms import Thresholds

        outcome = job.run(
            spark,
            inputs,
            output,
            Choice((), since, until, run),
            Thresholds(children, growing, per_child, steady),
            hot,
            skip_corrupt,
            say,
        )
    typer.echo(outcome.line())
    close(outcome.coverage, allow_gaps)
