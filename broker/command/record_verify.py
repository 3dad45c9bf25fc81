"""The command ``canopy record verify``: a recorder's folder against its manifests, and its numbers against each other.

Owns the look into each segment: whether it is what its manifest says. The account of the numbers is the jobs'
(`pipeline.record.account`), with what is in the segments in the place of what manifests say: what a job finds missing
or twice is a fault here, but for gaps, which the recorder named itself.

Promises: without `--repair` it changes nothing. Exit codes as the other commands of `canopy record`. Memory is bounded
by a batch of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from broker.command.commands import MISUSED, fail
from broker.command.record_files import app
from broker.record.cli import Directory, told
from broker.words import counted, size

CHECKED: Final = ("run_id", "rows", "from_seq", "to_seq", "first_ts", "last_ts", "kinds", "bytes", "sha256", "gaps")
"""What a manifest says that can be worked out again."""


@dataclass
class Found:
    """What a check came to."""

    segments: int = 0
    events: int = 0
    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """One line for each thing that is wrong."""
    gaps: list[tuple[int, int, int, str]] = field(default_factory=list)
    """Numbers that are missing and named as such: from, to, how many, why."""
    removed: list[tuple[int, int]] = field(default_factory=list)
    """Numbers that were removed because of their age."""
    unfinished: tuple[int, int] | None = None
    """Numbers that a recorder at work has given, and that are in no finished segment yet."""
    replaced: int = 0
    """Segments that a merged one stands for, and that are still there."""
    up_to: int | None = None
    """The last number, where nothing tells that the record ends there."""


def check(root: Path) -> Found:
    """Work out everything again that manifests say, and find the numbers that nothing accounts for.

    Raises:
        RecorderError: it is no recorder's folder.
    """
    from broker.record.files.folder import RecorderError, by_number
    from broker.record.reading import check_folder
    from pipeline.errors import PipelineError
    from pipeline.record.account import BARE, SPANS, account
    from pipeline.record.chosen import choose
    from pipeline.record.coverage import GAP, Coverage
    from pipeline.record.manifests import manifests, numbers, removed
    from pipeline.runtime.storage import Local

    check_folder(root)
    found = Found()
    shelf = Local(root)
    try:
        said = manifests(shelf)
    except PipelineError as error:
        raise RecorderError(str(error)) from error
    # Without any manifest, what the segments hold can be accounted for all the same.
    said.vouched = said.vouched or set()
    there = shelf.listed(".parquet")
    found.replaced = sum(place in said.gone for place in there)
    chosen = choose(said, there, shelf)
    # Gaps and faults are told in this order.
    for place in sorted(chosen.read, key=by_number):
        real = _segment(root, place, chosen.about(place), found)
        if real is not None:
            origin = chosen.origins.get(place, place)
            bare = {} if origin in said.said else {BARE: True}
            said.said[origin] = real[0] | {SPANS: real[1]} | bare
    coverage = Coverage(ignored=frozenset({GAP}))
    account(coverage, str(root), chosen, shelf, there, {}, local=root)
    found.faults += [each.said.removeprefix(f"{root}: ").removeprefix(f"{root}/") for each in coverage.findings]
    if (more := coverage.kinds.total() - len(coverage.findings)) > 0:
        found.faults.append(f"{more:,} more")
    found.removed = [span for about in removed(shelf) if (span := numbers(about)) is not None]
    if coverage.open:
        found.unfinished = (coverage.end + 1, coverage.end + coverage.open)
    found.up_to = coverage.up_to[0] if coverage.up_to else None
    return found


def _segment(
    root: Path, place: str, said: dict[str, Any] | None, found: Found
) -> tuple[dict[str, Any], list[tuple[int, int]]] | None:
    """What is in a segment, held against its manifest: what should be in that, and the stretches of numbers."""
    from pyarrow import ArrowException

    from broker.record.files.folder import describe, reason
    from broker.record.schema import FORMAT

    try:
        real = describe(root, place)
        spans = _spans(root / place)
        found.gaps += _gaps(root / place)
    except (OSError, ValueError, ArrowException) as error:
        found.faults.append(f"{place}: cannot be read ({reason(error)})")
        return None
    found.segments += 1
    found.events += real["rows"]
    found.bytes += real["bytes"]
    for kind, count in real["kinds"].items():
        found.kinds[kind] = found.kinds.get(kind, 0) + count
    if said is None:
        return real, spans
    if said.get("format") != FORMAT:
        found.faults.append(f"{place}: is of format {said.get('format')}, and this Canopy reads format {FORMAT}")
    for name in CHECKED:
        if name == "run_id" and "replaces" in said:
            continue
        if said.get(name) != real[name]:
            found.faults.append(f"{place}: its manifest says {name} = {said.get(name)!r}, and it is {real[name]!r}")
    return {**real, **{name: said[name] for name in ("runs", "replaces") if name in said}}, spans


def _spans(path: Path) -> list[tuple[int, int]]:
    """The stretches of numbers without a hole that a segment holds. ValueError where they do not rise."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from broker.record.reading import BATCH

    spans: list[tuple[int, int]] = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH, columns=["seq"]):
            seq = batch.column("seq")
            # Where the difference to the place in the batch changes, numbers are missing.
            start = 0
            if batch.num_rows > 1:
                steps = pc.subtract(seq[1:], seq[:-1])
                if pc.min(steps).as_py() < 1:
                    raise ValueError("its numbers do not rise")
                for at in pc.indices_nonzero(pc.greater(steps, 1)).to_pylist():
                    spans.append((seq[start].as_py(), seq[at].as_py()))
                    start = at + 1
            spans.append((seq[start].as_py(), seq[batch.num_rows - 1].as_py()))
    return spans


def _gaps(path: Path) -> list[tuple[int, int, int, str]]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from broker.record.reading import BATCH

    found: list[tuple[int, int, int, str]] = []
    with pq.ParquetFile(path) as file:
        names = ["kind", "from_seq", "to_seq", "n", "reason"]
        for batch in file.iter_batches(BATCH, columns=names):
            for row in batch.filter(pc.equal(batch.column("kind"), "gap")).to_pylist():
                found.append((row["from_seq"], row["to_seq"], row["n"], row["reason"]))
    return found


def _repair(directory: Path) -> None:
    from broker.record.files.folder import STATE, Folder, noted

    before = noted(directory)
    if before is None:
        fail(f"{directory}: no recorder's folder: it has no {STATE}", MISUSED)
    folder = Folder(directory)
    left = folder.open()
    # How the run ended is for the next start to know.
    folder.close(before[1])
    for made in left.recovered:
        typer.echo(f"recovered: {made.from_seq}..{made.to_seq}, {counted(made.rows, 'event')}, in {made.place}")
    if left.missing is not None:
        typer.echo(f"missing: {left.missing[0]}..{left.missing[1]} (the recorder's next start names them)")


@app.command()
@told
def verify(
    directory: Directory,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="First make segments of the drafts of a killed recorder, as the broker's next start does."
        ),
    ] = False,
) -> None:
    """Check every segment against its manifest, and that every number is in one segment or in a gap.

    The exit code is 0 when all is well, gaps that are named included, and 1 when it is not.
    """
    if repair:
        _repair(directory)
    found = check(directory)
    for first, last, lost, why in found.gaps:
        typer.echo(f"gap: {first}..{last}, {counted(lost, 'event')} at most ({why})")
    for first, last in found.removed:
        typer.echo(f"removed: {first}..{last}")
    if found.unfinished is not None:
        first, last = found.unfinished
        typer.echo(f"open: {first}..{last}, in no segment yet (the recorder runs)")
    for fault in found.faults:
        typer.echo(f"fault: {fault}", err=True)
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(found.kinds.items()))
    segments = counted(found.segments, "segment")
    typer.echo(f"{segments}, {counted(found.events, 'event')} ({kinds}), {size(found.bytes)}")
    if found.faults:
        fail(counted(len(found.faults), "fault"))
    end = "" if found.up_to is None else f" up to number {found.up_to:,}"
    gaps = f" but for {counted(len(found.gaps), 'gap')}, named above" if found.gaps else ""
    typer.echo(f"complete{end}{gaps}")


__all__ = ["app", "verify"]
