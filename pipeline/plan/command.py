"""The command ``canopy pipeline plan``."""

from __future__ import annotations

from typing import Annotated, Literal

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
    told,
)

TrafficOption = Annotated[
    list[str] | None,
    typer.Option(
        "--traffic",
        metavar="DIR",
        help="The upstream broker's own recording. Default: all inputs. Repeatable.",
        callback=existing,
    ),
]
MaxOption = Annotated[
    int | None, typer.Option("--max-filters", metavar="K", help="At most so many upstream filters for each broker.")
]
HeadroomOption = Annotated[
    float,
    typer.Option(
        metavar="PERCENT",
        help="Without --max-filters: as few filters as cost no more than so much of the wanted bytes.",
    ),
]
WhenOption = Annotated[
    Literal["any", "end"],
    typer.Option(help="Topic filters that were subscribed at any time, or those left at the end of the last run."),
]


@told
def plan(
    input: InputOption,  # noqa: A002
    output: OutputOption,
    traffic: TrafficOption = None,
    max_filters: MaxOption = None,
    headroom: HeadroomOption = 10.0,
    subscriptions: WhenOption = "any",
    engine: EngineOption = "auto",
    master: MasterOption = None,
    driver_memory: MemoryOption = "2g",
    skip_corrupt: SkipOption = False,
    allow_gaps: AllowOption = False,
) -> None:
    """Find few upstream topic filters that cover what a broker's clients subscribe to.

    Each --input is the recording of one downstream broker. Writes the curve of filters against over-forwarded bytes,
    and for each broker a set of filters in the format of the upstream settings.
    """
    from pipeline.engine import session
    from pipeline.plan.job import run

    def say(line: str) -> None:
        typer.echo(f"canopy: {line}", err=True)

    with session("canopy plan", engine, [*input, *(traffic or ())], output, master, driver_memory, say) as spark:
        outcome = run(
            spark, input, output, traffic or (), max_filters, headroom, subscriptions == "end", skip_corrupt, say
        )
    for each in outcome.plans:
        for note in each.notes:
            say(f"{each.broker}: {note}")
        typer.echo(each.line())
    close(outcome.coverage, allow_gaps)
