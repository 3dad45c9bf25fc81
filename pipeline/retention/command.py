"""``canopy pipeline retention``."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from pipeline.compact.command import DryRunOption, FolderOption
from pipeline.options import seconds, told


@told
def retention(
    folder: FolderOption,
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="TIME", help="Segments whose last event is older go, as in 7d."),
    ] = None,
    keep_bytes: Annotated[
        str | None,
        typer.Option("--keep-bytes", metavar="SIZE", help="The oldest go, until the others fit in this, as in 10g."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Drop old segments, whole, and write down which. Safe while the broker records; needs no Java."""
    age = None if keep is None else timedelta(seconds=seconds(keep, "--keep"))
    from pipeline.depot import size
    from pipeline.retention import job

    room = None if keep_bytes is None else size(keep_bytes, "--keep-bytes")
    for line in job.run(folder, age, room, dry_run).lines(dry_run):
        typer.echo(line)
