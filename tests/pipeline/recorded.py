"""Recorded events for tests, written without a broker: what the table means, as a builder.

`Story` numbers events and gives them times; `write` makes segments with manifests of them, as the recorder does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from canopy_mqtt.record.files.folder import describe
from canopy_mqtt.record.files.segment import manifest_path, write_manifest
from canopy_mqtt.record.schema import SCHEMA

BEGIN: Final = datetime(2026, 11, 21, 16, 0, tzinfo=UTC)


class Story:
    """Events in the order in which a broker would have recorded them."""

    def __init__(self, run_id: str = "0a1b2c3d", first_seq: int = 1, begin: datetime = BEGIN) -> None:
        self.run_id = run_id
        self.begin = begin
        self.now = begin
        self.seq = first_seq
        self.events: list[dict[str, Any]] = []

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def add(self, kind: str, **columns: Any) -> int:
        """An event; its number."""
        seq = self.seq
        self.seq += 1
        recv_ns = int((self.now - self.begin) / timedelta(microseconds=1)) * 1000 + 1_000_000_000
        row = {"seq": seq, "kind": kind, "ts": self.now, "recv_ns": recv_ns, "run_id": self.run_id, **columns}
        self.events.append(row)
        return seq

    def publish(self, client: str | None, topic: str, payload: bytes = b"x", qos: int = 0, **more: Any) -> int:
        """A PUBLISH; its number."""
        return self.add(
            "publish", client_id=client, topic=topic, payload=payload, size=len(payload), qos=qos,
            retain=more.pop("retain", False), **more,
        )  # fmt: skip

    def subscribe(self, client: str, topic_filter: str, qos: int = 0, no_local: bool = False, **more: Any) -> int:
        """A subscription that was granted."""
        return self.add(
            "subscribe", client_id=client, topic_filter=topic_filter, qos=qos, no_local=no_local,
            retain_as_published=more.pop("retain_as_published", False), **more,
        )  # fmt: skip

    def unsubscribe(self, client: str, topic_filter: str, reason: str | None = None) -> int:
        """A subscription that ended."""
        return self.add("unsubscribe", client_id=client, topic_filter=topic_filter, reason=reason)

    def deliver(self, client: str, ref_seq: int, qos: int = 0, topic_filter: str | None = None) -> int:
        """A message that was put in a client's queue."""
        return self.add("deliver", client_id=client, ref_seq=ref_seq, qos=qos, retain=False, topic_filter=topic_filter)

    def drop(self, client: str, reason: str, n: int = 1, ref_seq: int | None = None) -> int:
        """A loss with its cause."""
        return self.add("drop", client_id=client, reason=reason, n=n, ref_seq=ref_seq)

    def gap(self, from_seq: int, to_seq: int, reason: str = "queue-full", n: int | None = None) -> int:
        """Sequence numbers that are missing."""
        lost = to_seq - from_seq + 1 if n is None else n
        return self.add("gap", from_seq=from_seq, to_seq=to_seq, n=lost, reason=reason)

    def write(self, folder: Path, segments: int = 1, manifests: bool = True) -> list[Path]:
        """All events, as so many segments; their paths."""
        size = -(-len(self.events) // segments)
        parts = [self.events[at : at + size] for at in range(0, len(self.events), size)]
        return [write_segment(folder, part, manifests) for part in parts]


def write_segment(folder: Path, events: list[dict[str, Any]], manifest: bool = True) -> Path:
    """One segment in its place, and its manifest."""
    first = events[0]
    place = f"date={first['ts']:%Y-%m-%d}/hour={first['ts']:%H}/seg-{first['run_id']}-{first['seq']:015d}.parquet"
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{name: event.get(name) for name in SCHEMA.names} for event in events]
    # As the recorder writes it: a checksum beside every page.
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, compression="zstd", write_page_checksum=True)
    if manifest:
        write_manifest(folder, place, describe(folder, place))
    return path


def beside(folder: Path, segment: Path) -> Path:
    """A segment's manifest."""
    return manifest_path(folder, segment.relative_to(folder).as_posix())


def taken_away(folder: Path, segment: Path, to: Path, manifest_too: bool) -> Callable[[], None]:
    """Move a segment elsewhere, and its manifest if that is wanted; call what is returned to bring them back."""
    paths = [segment, beside(folder, segment)] if manifest_too else [segment]
    for path in paths:
        path.rename(to / path.name)

    def back() -> None:
        for path in paths:
            (to / path.name).rename(path)

    return back
