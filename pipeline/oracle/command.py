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
    tell,
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
    """Check that the broker sent every message to the right clients, and to no other.

    Works out from the recorded subscriptions and publishes who should receive what by the MQTT 5.0 specification, and
    compares that with the recorded deliveries and drops. The recorder must run with `deliveries = true`. The exit code
    is 1 if a delivery is missing, unexpected or wrong.
    """
    from pipeline.oracle.job import run as judge
    from pipeline.runtime.engine import session

    with session("canopy oracle", engine, input, output, master, driver_memory, tell) as spark:
        outcome = judge(spark, input, output, run, skip_corrupt, tell, since, until)
    for note in outcome.notes:
        tell(note)
    typer.echo(outcome.line())
    close(outcome.coverage, allow_gaps, outcome.fine)
