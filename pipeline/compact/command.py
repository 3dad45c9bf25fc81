"""``canopy pipeline compact``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from pipeline.options import AllowOption, close, existing, seconds, told

FolderOption = Annotated[
    str,
    typer.Option("--input", metavar="DIR", help="The recorder's folder, or s3://… of one.", callback=existing),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


@told
def compact(
    folder: FolderOption,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only hours that have been over for so long.")
    ] = "1h",
    target_size: Annotated[
        str, typer.Option("--target-size", metavar="SIZE", help="Merged segments grow to this, as in 128m.")
    ] = "128m",
    remove_after: Annotated[
        str,
        typer.Option(
            "--remove-after",
            metavar="TIME",
            help="Replaced segments stay for so long: for readers that listed them, and for streams that were stopped.",
        ),
    ] = "1h",
    dry_run: DryRunOption = False,
    allow_gaps: AllowOption = False,
) -> None:
    """Merge the small segments of hours that are over. Safe while the broker records; needs no Java."""
    age = timedelta(seconds=seconds(older_than, "--older-than"))
    after = timedelta(seconds=seconds(remove_after, "--remove-after"))
    from pipeline.compact import job
    from pipeline.depot import size

    outcome = job.run(
        folder, age, size(target_size, "--target-size"), after, dry_run, lambda line: typer.echo(line, err=True)
    )
    for place, number in outcome.merged:
        typer.echo(f"{place}: {number} segments")
    typer.echo(outcome.line(dry_run))
    close(outcome.coverage, allow_gaps, not outcome.refused)
