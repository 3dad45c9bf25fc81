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
        typer.Option("--keep", metavar="TIME", help="Remove segments whose last event is older, such as 7d."),
    ] = None,
    keep_bytes: Annotated[
        str | None,
        typer.Option("--keep-bytes", metavar="SIZE", help="Remove the oldest until the others fit, such as 10g."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Remove old segments, and list them in _manifests/removed.jsonl. Safe while the broker records; needs no Java."""
    age = None if keep is None else timedelta(seconds=seconds(keep, "--keep"))
    from pipeline.record.depot import size
    from pipeline.retention import job

    room = None if keep_bytes is None else size(keep_bytes, "--keep-bytes")
    for line in job.run(folder, age, room, dry_run).lines(dry_run):
        typer.echo(line)
