"""Copy the finished segments of a record to an object store, or another folder, while the recorder writes.

Owns: which segments are there, and whose copy it is: a file `OWNER` beside them has the number of this record.

Promises: a segment goes before its manifest, and its checksum is computed before, so that the copy is a record at any
moment. What is there is not sent again; after `kill -9` the next run goes on. Nothing is removed here that is not
there, and two records never share a copy. What `retention` removed before it was sent is listed there as removed.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Final

from canopy_mqtt.record.files.current_files import is_merged
from canopy_mqtt.record.files.folder import json_lines
from canopy_mqtt.record.files.parts import has_own, part_names
from canopy_mqtt.words import counted
from canopy_pipeline import job_metrics
from canopy_pipeline.errors import AWAY, MisuseError, PipelineError, in_a_line
from canopy_pipeline.outputs import check_apart
from canopy_pipeline.record.manifests import REMOVED
from canopy_pipeline.record.record_folder import RecordFolder, Segment, manifest_of, record_folders
from canopy_pipeline.retention import retention_job
from canopy_pipeline.runtime.locks import alone_with
from canopy_pipeline.runtime.storage import CHUNK, MANIFESTS, Storage, local_path, storage

OWNER: Final = ".upload"
"""Beside a record: its number. Beside a copy: the number of the record that it is of."""
UPLOADED: Final = "uploaded"
"""Why a segment was removed here."""
TOGETHER: Final = 4
"""Segments that are sent at the same time."""
MAX_PAUSE: Final = 60.0
"""Seconds between two attempts while the other place cannot be reached, at most."""
REMEDY: Final = "give each record a place of its own (--output)"


@dataclass
class UploadOutcome:
    """What one look at the record has done."""

    sent: list[Segment] = field(default_factory=list)
    removed: list[Segment] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Segments that are not sent: their content is not what their manifest says."""

    def line(self) -> str:
        """Return a line for people."""
        size = sum(each.bytes for each in self.sent)
        uploaded = f"uploaded {counted(len(self.sent), 'segment')} ({size:,} bytes)"
        removed = f"removed {counted(len(self.removed), 'segment')} here"
        return "; ".join([uploaded] * bool(self.sent or not self.removed) + [removed] * bool(self.removed))


class Copy:
    """The copy of one folder of a record. Its methods raise OSError and PipelineError."""

    def __init__(self, record: RecordFolder, to: Storage) -> None:
        self.record = record
        self._to = to
        self._there: set[str] = set()
        """Places of segments that the copy has whole, or had: it may be compacted, and what is old removed."""
        self._noted: set[str] = set()
        """Segments that the copy lists as removed."""
        self._look()

    def _look(self) -> None:
        """List the copy. Nobody else sends anything there, so once is enough."""
        sizes, told = self._to.listed(".parquet"), self._to.listed(".json", MANIFESTS)
        here = {each.place: each.bytes for each in self.record.segments()}
        for place, size in sizes.items():
            if manifest_of(place) in told and here.get(place, size) == size:
                self._there.add(place)
                if is_merged(place):
                    self._there.update(self._replaced(place))
        with suppress(FileNotFoundError):
            for said in json_lines(self._to.text(REMOVED)):
                self._noted.add(str(said.get("segment")))
                self._there.update({str(said.get("segment")), *map(str, said.get("replaces") or ())})

    def _replaced(self, place: str) -> list[str]:
        try:
            return [str(each) for each in json.loads(self._to.text(manifest_of(place)))["replaces"]]
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(f"{self._to.at(manifest_of(place))}: not a manifest of a merged segment") from error

    def waiting(self) -> list[Segment]:
        """Return the segments that are not there."""
        return [each for each in self.record.segments() if each.place not in self._there]

    def send(self, waiting: Sequence[Segment], outcome: UploadOutcome) -> None:
        """Send segments, and list there as removed what `retention` removed here before."""
        with ThreadPoolExecutor(TOGETHER) as pool:
            for segment, sent in zip(waiting, pool.map(self._send, waiting), strict=True):
                if sent:
                    self._there.add(segment.place)
                    outcome.sent.append(segment)
                elif sent is None:
                    outcome.damaged.append(f"{self.record.path}/{segment.place}")
        removed = []
        for said in self.record.told().removed:
            places = {str(said.get("segment")), *map(str, said.get("replaces") or ())}
            if said.get("why") != UPLOADED and not places & (self._there | self._noted):
                removed.append(json.dumps(said))
                self._noted |= places
        if removed:
            self._to.append(REMOVED, "\n".join(removed))

    def _send(self, segment: Segment) -> bool | None:
        """Send a segment, and then its manifest. False: it has gone meanwhile; None: it is damaged."""
        here, place = self.record.storage, segment.place
        try:
            if here.sha256(place) != segment.said.get("sha256"):
                return None
            draft = self._to.draft(place, ".part")
            with here.fs.open_input_stream(place) as source, self._to.open(draft) as target:
                shutil.copyfileobj(source, target, CHUNK)
            self._to.publish(draft, place)
            manifest = here.read(manifest_of(place))
        except FileNotFoundError:
            # Compact and retention begin with the manifest.
            if place in self.record.files():
                raise
            return False
        arrived = self._to.size(place)
        if arrived != segment.bytes:
            raise OSError(f"{self._to.at(place)}: {arrived} bytes arrived, and {segment.bytes} were sent")
        self._to.write(manifest_of(place), manifest)
        return True

    def remove(self, keep: timedelta, now: datetime, outcome: UploadOutcome) -> None:
        """Remove here what is there, and older than `keep`."""
        with self.record.locked():
            self.record.settle(UPLOADED)
            retention_job.finish(self.record)
            old = retention_job.chosen({"": self.record.segments()}, now, keep, None)[""]
            going = [segment for segment, _ in old if segment.place in self._there]
            if going:
                retention_job.remove(self.record, [(segment, UPLOADED) for segment in going], now)
                outcome.removed += going


def run(
    path: str,
    to: str,
    keep: timedelta | None,
    say: Callable[[str], None],
    follow: float | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> UploadOutcome:
    """Upload a record, and return what that did; or look each `follow` seconds, for ever.

    `keep`: remove here what is there and older; None: remove nothing. `say` is told what happens, in lines for people.

    Raises:
        MisuseError: there is no such folder on this machine, the copy is of another record, or would be in this one.
        PipelineError: another upload or job is at work, or a manifest cannot be read.
        OSError: the other place cannot be reached; with `follow` it is tried again.
    """
    folder = local_path(path)
    if folder is None:
        raise MisuseError(f"--input {path}: not a folder of this machine, where a recorder writes")
    check_apart([path], to)
    record_folders(path)
    copies: dict[str, Copy] = {}
    pause = 0.0
    with alone_with(folder / f"{OWNER}.lock", f"{path}: another upload is at work here"):
        number = _number(folder / OWNER)
        while True:
            try:
                outcome = _turn(path, to, number, copies, keep, now())
            except (OSError, PipelineError) as error:
                if follow is None or isinstance(error, MisuseError):
                    raise
                copies.clear()
                if pause == 0.0:
                    say(f"canopy: {in_a_line(error)}; it is tried again")
                pause = min(max(2 * pause, follow), MAX_PAUSE)
                job_metrics.write(wrote=False)
                sleep(pause)
                continue
            if follow is None:
                return outcome
            if pause > 0.0:
                say(f"canopy: {to} is reached again")
                pause = 0.0
            if outcome.sent or outcome.removed:
                say(outcome.line())
            for place in outcome.damaged:
                say(f"canopy: {damaged(place)}")
            job_metrics.write(wrote=not outcome.damaged)
            sleep(follow)


def _turn(
    path: str, to: str, number: str, copies: dict[str, Copy], keep: timedelta | None, now: datetime
) -> UploadOutcome:
    """Look at all folders of a record once."""
    _own(storage(None, to), number, to)
    for record in record_folders(path):
        if record.name not in copies:
            copies[record.name] = Copy(record, storage(None, f"{to.rstrip('/')}/{record.name}".rstrip("/")))
    waiting = {name: copy.waiting() for name, copy in copies.items()}
    _note(each for some in waiting.values() for each in some)
    outcome = UploadOutcome()
    for name, copy in copies.items():
        copy.send(waiting[name], outcome)
        if keep is not None:
            copy.remove(keep, now, outcome)
    _note(each for copy in copies.values() for each in copy.waiting())
    job_metrics.note("uploaded_segments", len(outcome.sent))
    job_metrics.note("removed_segments", len(outcome.removed))
    return outcome


def _note(waiting: Iterable[Segment]) -> None:
    sizes = [each.bytes for each in waiting]
    job_metrics.note("upload_waiting_segments", len(sizes))
    job_metrics.note("upload_waiting_bytes", sum(sizes))


def damaged(place: str) -> str:
    """Return the line about a segment that is not sent."""
    return f"{place}: damaged, and not uploaded: {AWAY}"


def _number(file: Path) -> str:
    """Return the number of a record, which it gets with its first upload."""
    with suppress(FileNotFoundError):
        if found := file.read_text().strip():
            return found
    found = uuid.uuid4().hex
    file.write_text(f"{found}\n")
    return found


def _own(copy: Storage, number: str, to: str) -> None:
    """Make sure that a copy is of this record. Raises MisuseError."""
    try:
        owner = copy.text(OWNER).strip()
    except FileNotFoundError:
        names = copy.names("")
        if has_own(names) or part_names(names):
            raise MisuseError(f"--output {to}: a record is there that was not uploaded: {REMEDY}") from None
        copy.write(OWNER, f"{number}\n".encode())
        # Of two that begin at the same moment, the first finds the number of the second now, or in its next turn.
        owner = copy.text(OWNER).strip()
    if owner != number:
        raise MisuseError(f"--output {to}: the copy of another record: {REMEDY}")
