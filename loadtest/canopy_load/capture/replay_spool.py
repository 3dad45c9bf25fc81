"""A capture laid out for playing: for each message its time, its stream and its size, 16 bytes in all.

Owns: ``scan``, which deals a capture's topics to publishers, and ``ReplaySpool``, which holds the messages of one
process's publishers in a temporary file without a name, so that a recording of any length takes no memory of the
process: the kernel pages it in and out. While a run is played, every lookup reads that file.

Promises: messages of one publisher stand in the order of the capture. Their times count from the first message of the
whole capture, in microseconds, divided by the speed.

There are no payloads: marks and filler take their place (``sending``).
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from canopy_load.capture.capture_file import CaptureError, about, rows
from canopy_load.capture.recording import MAX_RECORDED_STREAMS, RETAIN, Recording, Share
from canopy_load.engine.schedule import NEVER
from canopy_load.ledger.mark import SIZE
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import validate_topic

BYTES: Final = 16
"""Of one message: eight of its time, four of its stream's number, four of its size."""


def scan(path: str, prefix: str, publishers: int) -> Recording:
    """Look through a capture and deal its topics. Blocks: it reads the columns without payloads once.

    Raises:
        CaptureError: it is none, holds no messages, more than `MAX_RECORDED_STREAMS` streams, or a topic that no client
            may publish.
    """
    try:
        found = os.stat(path)
        version = found.st_mtime_ns, found.st_size
    except OSError:
        version = 0, 0
    return _scan(path, prefix, publishers, version)


@lru_cache(maxsize=1)
def _scan(path: str, prefix: str, publishers: int, version: tuple[int, int]) -> Recording:
    del version  # a file that was changed is another one
    found = about(Path(path))
    recording = Recording(path, prefix, [Share() for _ in range(publishers)], found.filters)
    streams = _Streams(recording)
    for batch in rows(found):
        if not recording.messages:
            recording.first = batch.column("time")[0].as_py()
        recording.last = batch.column("time")[batch.num_rows - 1].as_py()
        recording.messages += batch.num_rows
        recording.small += pc.sum(pc.less(batch.column("size"), SIZE)).as_py()
        for code, count in _counted(streams.codes(batch)):
            share, _ = streams.where(code)
            recording.shares[share].messages += count
    if not recording.messages:
        raise CaptureError(f"{path}: holds no messages")
    recording.topics = len(streams.topics)
    return recording


class _Streams:
    """The numbers of streams, in the order in which they first appear. A code is a topic's number and a kind."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.topics: dict[str, int] = {}
        self._names: list[str] = []
        self._places: dict[int, tuple[int, int]] = {}

    def codes(self, batch: Any) -> Any:
        topics = batch.column("topic").dictionary_encode()
        numbers = pa.array([self._topic(topic) for topic in topics.dictionary.to_pylist()], pa.int64())
        kinds = pc.add(batch.column("qos"), pc.multiply(batch.column("retain").cast(pa.int64()), RETAIN))
        return pc.add(pc.multiply(numbers.take(topics.indices), 2 * RETAIN), kinds)

    def where(self, code: int) -> tuple[int, int]:
        """Return the publisher of a stream, and the stream's number there."""
        place = self._places.get(code)
        if place is None:
            topic = self._names[code // (2 * RETAIN)]
            owner = crc32(topic.encode()) % len(self._recording.shares)
            share = self._recording.shares[owner]
            place = self._places[code] = owner, len(share.topics)
            share.topics.append(topic)
            share.kinds.append(code % (2 * RETAIN))
            if len(self._places) > MAX_RECORDED_STREAMS:
                raise CaptureError(
                    f"{self._recording.path}: more than {MAX_RECORDED_STREAMS:,} topics: too many to tell apart"
                )
        return place

    def known(self) -> None:
        """Take the numbers from a recording that was scanned."""
        for owner, share in enumerate(self._recording.shares):
            for number, topic in enumerate(share.topics):
                self._places[self._topic(topic) * 2 * RETAIN + share.kinds[number]] = owner, number

    def _topic(self, topic: str) -> int:
        number = self.topics.get(topic)
        if number is None:
            number = self.topics[topic] = len(self._names)
            self._names.append(topic)
            played = self._recording.prefix + topic
            try:
                validate_topic(played)
            except ProtocolError as error:
                raise CaptureError(f"{self._recording.path}: topic {played!r}: {error}") from error
            if played.startswith("$"):
                raise CaptureError(
                    f"{self._recording.path}: topic {played!r} is the broker's own, and clients may not publish there: "
                    "give a --prefix"
                )
        return number


class Cursor:
    """The messages of one publisher, asked for one by one: for each `pick`, then `size`, which goes on to the next."""

    def __init__(self, times: Sequence[float], numbers: Sequence[int], sizes: Sequence[int]) -> None:
        self._times = times
        self._numbers = numbers
        self._sizes = sizes
        self._at = 0

    def following(self) -> float:
        """Return the time of the next message in microseconds from the beginning; infinite: there is none."""
        return self._times[self._at] if self._at < len(self._times) else NEVER

    def pick(self) -> int:
        return self._numbers[self._at]

    def size(self) -> int:
        """Return the size of its payload, and go on to the next message."""
        self._at += 1
        return self._sizes[self._at - 1]

    def behind(self, elapsed: float) -> int:
        """Return the number of messages that are due so many microseconds after the beginning and were not asked
        for."""
        return bisect_right(self._times, elapsed, self._at) - self._at


class ReplaySpool:
    """The messages of some publishers of a recording. `speed` may be infinite. Blocks while it reads the capture.

    Raises:
        CaptureError: the capture cannot be read any more, has changed, or there is no room for the temporary file.
    """

    def __init__(self, recording: Recording, publishers: Sequence[int], speed: float) -> None:
        self.speed = speed
        self._counts = {each: recording.shares[each].messages for each in publishers}
        total = sum(self._counts.values())
        memory = memoryview(_room(total * BYTES))
        self._starts: dict[int, int] = {}
        start = 0
        for each, count in self._counts.items():
            self._starts[each] = start
            start += count
        self._times = memory[: 8 * total].cast("d")
        self._numbers = memory[8 * total : 12 * total].cast("I")
        self._sizes = memory[12 * total : 16 * total].cast("I")
        if total:
            self._fill(recording)

    def cursor(self, publisher: int) -> Cursor:
        start = self._starts[publisher]
        mine = slice(start, start + self._counts[publisher])
        return Cursor(self._times[mine], self._numbers[mine], self._sizes[mine])

    def _fill(self, recording: Recording) -> None:
        streams = _Streams(recording)
        streams.known()
        ends = {each: self._starts[each] + count for each, count in self._counts.items()}
        at = dict(self._starts)
        for batch in rows(about(Path(recording.path))):
            for publisher, times, numbers, sizes in self._dealt(batch, streams, recording.first):
                place = slice(at[publisher], at[publisher] + len(times))
                if place.stop > ends[publisher]:
                    raise CaptureError(f"{recording.path}: has changed since it was looked at")
                self._times[place] = _buffer(times).cast("d")
                self._numbers[place] = _buffer(numbers).cast("I")
                self._sizes[place] = _buffer(sizes).cast("I")
                at[publisher] = place.stop
        if at != ends:
            raise CaptureError(f"{recording.path}: has changed since it was looked at")

    def _dealt(self, batch: Any, streams: _Streams, first: int) -> Iterator[tuple[int, Any, Any, Any]]:
        """The messages of a batch by publisher, ours only: times, numbers, sizes."""
        encoded = streams.codes(batch).dictionary_encode()
        places = [streams.where(code) for code in encoded.dictionary.to_pylist()]
        owner = pa.array([place[0] for place in places], pa.int64()).take(encoded.indices)
        number = pa.array([place[1] for place in places], pa.uint32()).take(encoded.indices)
        micros = pc.divide(pc.subtract(batch.column("time"), first).cast(pa.float64()), 1000.0)
        played = pc.multiply(micros, 0.0 if math.isinf(self.speed) else 1.0 / self.speed)
        size = pc.max_element_wise(batch.column("size"), SIZE).cast(pa.uint32())
        order = pc.sort_indices(owner)  # a stable one
        columns = [column.take(order) for column in (played, number, size)]
        start = 0
        for publisher, count in _counted(owner.take(order)):
            if publisher in self._counts:
                times, numbers, sizes = (column.slice(start, count) for column in columns)
                yield publisher, times, numbers, sizes
            start += count


def _counted(column: Any) -> Iterator[tuple[int, int]]:
    """Return every value and its count, in the order in which they first appear."""
    counts = column.value_counts()
    return zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)


def _buffer(column: Any) -> memoryview:
    """The bytes of a column of numbers, none of them null."""
    width = column.type.bit_width // 8
    return memoryview(column.buffers()[1])[column.offset * width : (column.offset + len(column)) * width].cast("B")


def _room(size: int) -> mmap.mmap | bytearray:
    """Make an unnamed file of so many bytes, all of them allocated: a full disk is noticed now."""
    if not size:
        return bytearray()
    try:
        with tempfile.TemporaryFile(prefix="canopy-replay-") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise CaptureError(
            f"{tempfile.gettempdir()}: no room for the {size:,} bytes that the replay needs "
            f"({(error.strerror or str(error)).lower()}): set TMPDIR to another folder"
        ) from error
