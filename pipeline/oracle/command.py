"""The command ``canopy pipeline oracle``."""

from __future__ import annotations

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
def oracle(
    input: InputOption,  # noqa: A002
    output: OutputOption,
    since: SinceOption = None,
    until: UntilOption = None,
    run: RunOption = None,
    engine: EngineOption = "auto",
    master: MasterOption = None,
    driver_memory: MemoryOption = "2g",
    skip_corrupt: SkipOption = False,
    allow_gaps: AllowOption = False,
) -> None:
    """Check from what was recorded whether every message went where it should.

    Replays subscriptions over publishes, by the MQTT 5.0 specification alone, and compares with the recorded deliveries
    and drops. Needs a recorder with `deliveries = true`. Exit code 1 when something is missing, unexpected or wrong.
    """
    from pipeline.engine import session
    from pipeline.oracle.job import run as judge

    def say(line: str) -> None:
        typer.echo(f"canopy: {line}", err=True)

    with session("canopy oracle", engine, input, output, master, driver_memory, say) as spark:
        outcome = judge(spark, input, output, run, skip_corrupt, say, since, until)
    for note in outcome.notes:
        say(note)
    typer.echo(outcome.line())
    close(outcome.coverage, allow_gaps, outcome.fine)
