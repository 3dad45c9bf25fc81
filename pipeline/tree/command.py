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
    say,
    told,
)


@told
def tree(
    inputs: InputOption,
    output: OutputOption,
    hot: Annotated[
        int, typer.Option("--hot", metavar="N", help="List this many of the topics with most messages.")
    ] = 100,
    children: Annotated[
        int, typer.Option("--children", metavar="N", help="An explosion has at least this many children, ...")
    ] = 1000,
    growing: Annotated[
        int, typer.Option("--growing", metavar="N", help="... or this many, if new ones keep coming, ...")
    ] = 100,
    per_child: Annotated[
        float, typer.Option("--per-child", metavar="N", help="... and at most this many messages for each child.")
    ] = 10.0,
    steady: Annotated[
        float, typer.Option("--steady", metavar="SHARE", help="Share of the time in which new children keep coming.")
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
    """Compute messages, bytes, topics and children of each prefix; list hot topics and topic explosions."""
    from pipeline.runtime.engine import session

    with session("canopy-tree", engine, inputs, output, master, driver_memory, say) as spark:
        from pipeline.record.segments import Choice
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
