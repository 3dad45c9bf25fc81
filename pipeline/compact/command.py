"""``canopy pipeline compact``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from broker.words import counted
from pipeline.options import AllowOption, close, existing, say, seconds, told

FolderOption = Annotated[
    str,
    typer.Option("--input", metavar="DIR", help="The recorder's folder, or s3://BUCKET/PREFIX.", callback=existing),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would be done.")]


@told
def compact(
    folder: FolderOption,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only hours that ended this long ago.")
    ] = "1h",
    target_size: Annotated[
        str, typer.Option("--target-size", metavar="SIZE", help="Largest size of a merged segment.")
    ] = "128m",
    remove_after: Annotated[
        str,
        typer.Option(
            "--remove-after",
            metavar="TIME",
            help="Keep replaced segments for this long, for readers that use them and streams that are stopped.",
        ),
    ] = "1h",
    dry_run: DryRunOption = False,
    allow_gaps: AllowOption = False,
) -> None:
    """Merge small segments of past hours. Safe while the broker records; needs no Java."""
    age = timedelta(seconds=seconds(older_than, "--older-than"))
    after = timedelta(seconds=seconds(remove_after, "--remove-after"))
    from pipeline.compact import job
    from pipeline.record.depot import size

    outcome = job.run(folder, age, size(target_size, "--target-size"), after, dry_run, say)
    for place, number in outcome.merged:
        typer.echo(f"{place}: {counted(number, 'segment')}")
    typer.echo(outcome.line(dry_run))
    close(outcome.coverage, allow_gaps, not outcome.refused)
