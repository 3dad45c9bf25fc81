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
    tell,
    told,
)

TrafficOption = Annotated[
    list[str] | None,
    typer.Option(
        "--traffic",
        metavar="DIR",
        help="The upstream broker's record; default: all inputs. Repeatable.",
        callback=existing,
    ),
]
MaxOption = Annotated[
    int | None, typer.Option("--max-filters", metavar="K", help="At most this many upstream filters for each broker.")
]
HeadroomOption = Annotated[
    float,
    typer.Option(
        metavar="PERCENT",
        help="Without --max-filters: allow unwanted bytes up to this percentage of the wanted bytes.",
    ),
]
WhenOption = Annotated[
    Literal["any", "end"],
    typer.Option(help="Subscriptions at any time, or only those at the end of the last run."),
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
    """Find a small set of upstream topic filters that covers the subscriptions of a broker's clients.

    Each --input is the record of one downstream broker. Writes how many unwanted bytes each number of filters costs,
    and for each broker a set of filters in the format of the upstream settings.
    """
    from pipeline.plan.job import run
    from pipeline.runtime.engine import session

    with session("canopy plan", engine, [*input, *(traffic or ())], output, master, driver_memory, tell) as spark:
        outcome = run(
            spark, input, output, traffic or (), max_filters, headroom, subscriptions == "end", skip_corrupt, tell
        )
    for each in outcome.plans:
        for note in each.notes:
            tell(f"{each.broker}: {note}")
        typer.echo(each.line())
    close(outcome.coverage, allow_gaps)
