"""The command ``canopy record verify``: checks a record against its manifests, and the sequence numbers of each part.

Owns the check of each segment against its manifest. The jobs' code checks the numbers
(`canopy_pipeline.record.account`), here with those in the segments in place of those in the manifests: numbers that are
missing or twice are faults, except for the recorder's own gaps.

Promises: without `--repair` it changes nothing. A batch of rows bounds the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from canopy_mqtt.command.record import Directory, failures_in_one_line
from canopy_mqtt.command.record_files import app
from canopy_mqtt.terminal import MISUSED, fail
from canopy_mqtt.words import counted, size

CHECKED: Final = ("run_id", "rows", "from_seq", "to_seq", "first_ts", "last_ts", "kinds", "bytes", "sha256", "gaps")
"""The keys of a manifest that can be computed again."""


@dataclass
class Found:
    """The result of a check."""

    segments: int = 0
    events: int = 0
    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """One line for each fault."""
    gaps: list[tuple[int, int, int, str]] = field(default_factory=list)
    """Missing numbers that gaps name: from, to, count, reason."""
    erased: list[str] = field(default_factory=list)
    """Events that were erased: how many, from which segment, by which filter, by whom and when."""
    removed: list[tuple[int, int]] = field(default_factory=list)
    """Numbers that were removed because of their age."""
    unfinished: tuple[int, int] | None = None
    """Numbers that a running recorder has given, and that are in no finished segment yet."""
    replaced: int = 0
    """Segments that a merged one replaces, and that still exist."""
    up_to: int | None = None
    """The last number, if no state file tells that the record ends there."""

    def add(self, other: Found) -> None:
        """Add the segments, faults and gaps of another part."""
        self.segments += other.segments
        self.events += other.events
        self.bytes += other.bytes
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count
        self.faults += other.faults
        self.gaps += other.gaps


def check(root: Path) -> dict[str, Found]:
    """Compute all manifests again, and find the numbers that are unaccounted for, in each part of a record: by the name
    of the part, empty for the directory itself.

    Raises:
        RecorderError: it is no record.
    """
    from canopy_mqtt.record.files.parts import parts
    from canopy_mqtt.record.reader import check_folder

    check_folder(root)
    return {"" if folder == root else folder.name: check_part(folder) for folder in parts(root)}


def check_part(root: Path) -> Found:
    """Check a recorder's folder: see `check`. Raises RecorderError."""
    from canopy_mqtt.record.files.folder import RecorderError, by_number
    from canopy_pipeline.errors import PipelineError
    from canopy_pipeline.record.account import BARE, SPANS, account
    from canopy_pipeline.record.chosen_files import choose
    from canopy_pipeline.record.coverage import Coverage
    from canopy_pipeline.record.manifests import manifests, numbers
    from canopy_pipeline.record.parts import own
    from canopy_pipeline.runtime.storage import Local

    found = Found()
    storage = Local(root)
    try:
        said = manifests(storage)
    except PipelineError as error:
        raise RecorderError(str(error)) from error
    # Without any manifest, what the segments hold can be accounted for all the same.
    said.vouched = said.vouched or set()
    there = own(storage.listed(".parquet"))
    found.replaced = sum(place in said.gone for place in there)
    chosen = choose(said, there, storage)
    # Gaps and faults are told in this order.
    for place in sorted(chosen.read, key=by_number):
        real = _segment(root, place, chosen.about(place), found)
        if real is not None:
            origin = chosen.origins.get(place, place)
            bare = {} if origin in said.said else {BARE: True}
            said.said[origin] = real[0] | {SPANS: real[1]} | bare
    coverage = Coverage(ignored=frozenset({"gap"}))
    account(coverage, str(root), chosen, root)
    found.faults += [each.said.removeprefix(f"{root}: ").removeprefix(f"{root}/") for each in coverage.findings]
    if (more := coverage.kinds.total() - len(coverage.findings)) > 0:
        found.faults.append(f"{more:,} more")
    found.removed = [span for about in said.removed if (span := numbers(about)) is not None]
    if coverage.open:
        found.unfinished = (coverage.end + 1, coverage.end + coverage.open)
    found.up_to = coverage.up_to[0] if coverage.up_to else None
    return found


def _segment(
    root: Path, place: str, said: dict[str, Any] | None, found: Found
) -> tuple[dict[str, Any], list[tuple[int, int]]] | None:
    """Compare a segment with its manifest `said`. Returns the correct manifest, and the ranges of numbers."""
    from pyarrow import ArrowException

    from canopy_mqtt.record.files.folder import describe, reason
    from canopy_mqtt.record.schema import ERASED, FORMAT

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
    _explained(place, said, real["kinds"].get(ERASED, 0), found)
    for name in CHECKED:
        if name == "run_id" and "replaces" in said:
            continue
        if said.get(name) != real[name]:
            found.faults.append(f"{place}: its manifest says {name} = {said.get(name)!r}, and it is {real[name]!r}")
    return {**real, **{name: said[name] for name in ("runs", "replaces") if name in said}}, spans


def _explained(place: str, said: dict[str, Any], erased: int, found: Found) -> None:
    """Find the erased events of a segment, which its manifest must explain."""
    from canopy_pipeline.record.manifests import erasures

    notes = erasures(said)
    if (told := sum(int(note.get("events") or 0) for note in notes)) != erased:
        found.faults.append(f"{place}: {counted(erased, 'event')} erased, and its manifest says {told:,}")
    for note in notes:
        chosen = [f"topic {each}" for each in note.get("topics") or ()]
        chosen += [f"client {each}" for each in note.get("clients") or ()]
        count = counted(int(note.get("events") or 0), "event")
        found.erased.append(f"{place}: {count} ({', '.join(chosen)}) by {note.get('by')} at {note.get('erased_at')}")


def _spans(path: Path) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers in a segment. Raises ValueError if the numbers do not increase."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from canopy_mqtt.record.reader import BATCH
    from canopy_pipeline.record.number_set import Numbers

    spans: list[tuple[int, int]] = []
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH, columns=["seq"]):
            seq = batch.column("seq")
            if batch.num_rows > 1 and pc.min(pc.subtract(seq[1:], seq[:-1])).as_py() < 1:
                raise ValueError("its numbers do not rise")
            spans += Numbers.of(seq)
    return spans


def _gaps(path: Path) -> list[tuple[int, int, int, str]]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from canopy_mqtt.record.reader import BATCH

    found: list[tuple[int, int, int, str]] = []
    with pq.ParquetFile(path) as file:
        names = ["kind", "from_seq", "to_seq", "n", "reason"]
        for batch in file.iter_batches(BATCH, columns=names):
            for row in batch.filter(pc.equal(batch.column("kind"), "gap")).to_pylist():
                found.append((row["from_seq"], row["to_seq"], row["n"], row["reason"]))
    return found


def _repair(directory: Path) -> None:
    from canopy_mqtt.record.files.folder import STATE, Folder, noted
    from canopy_mqtt.record.files.parts import parts

    recorded = [(folder, before) for folder in parts(directory) if (before := noted(folder)) is not None]
    if not recorded:
        fail(f"{directory}: no recorder's folder: it has no {STATE}", MISUSED)
    for root, before in recorded:
        folder, where = Folder(root), "" if root == directory else f"{root.name}: "
        left = folder.open()
        # How the run ended is for the next start to know.
        folder.close(before[1])
        for made in left.recovered:
            events = counted(made.rows, "event")
            typer.echo(f"{where}recovered: {made.from_seq}..{made.to_seq}, {events}, in {made.place}")
        if left.missing is not None:
            typer.echo(f"{where}missing: {left.missing[0]}..{left.missing[1]} (the recorder's next start names them)")


@app.command()
@failures_in_one_line
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
    all_parts = check(directory)
    for name, found in all_parts.items():
        _tell(found, f"{name}: " if name else "")
    total = Found()
    for found in all_parts.values():
        total.add(found)
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(total.kinds.items()))
    segments = counted(total.segments, "segment")
    typer.echo(f"{segments}, {counted(total.events, 'event')} ({kinds}), {size(total.bytes)}")
    if total.faults:
        fail(counted(len(total.faults), "fault"))
    ends = [f"{found.up_to:,}{f' in {name}' if name else ''}" for name, found in all_parts.items() if found.up_to]
    end = f" up to number {', '.join(ends)}" if ends else ""
    but = f" but for {counted(len(total.gaps), 'gap')}, named above" if total.gaps else ""
    typer.echo(f"complete{end}{but}")


def _tell(found: Found, where: str) -> None:
    """Print what was found in a part of a record. `where`: words before each line."""
    for first, last, lost, why in found.gaps:
        typer.echo(f"{where}gap: {first}..{last}, {counted(lost, 'event')} at most ({why})")
    for line in found.erased:
        typer.echo(f"{where}erased: {line}")
    for first, last in found.removed:
        typer.echo(f"{where}removed: {first}..{last}")
    if found.unfinished is not None:
        first, last = found.unfinished
        typer.echo(f"{where}open: {first}..{last}, in no segment yet (the recorder runs)")
    for fault in found.faults:
        typer.echo(f"{where}fault: {fault}", err=True)


__all__ = ["app", "verify"]
