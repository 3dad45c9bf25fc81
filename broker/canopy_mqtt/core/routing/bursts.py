"""Consecutive publishes with the same receivers, processed together.

A `Run` is two or more complete QoS 0 PUBLISH frames that are adjacent in a read and whose topics all match the same
single filter. A receiver without fields of its own in the frame gets the bytes in one piece, as they came or in the
layout of its version: a burst costs it one entry in its send buffer. For all others the run is split, once, into its
messages. A run contains only what `protocol.publish` would route one by one on its hot path, in the same order, and
never more than `most` messages and `most_bytes` bytes (unless a single frame is longer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i64_le

from canopy_mqtt.core.codec.framing import Frames, frame_body, frame_end, plain_payload, topic_end
from canopy_mqtt.core.codec.primitives import BYTE, varint
from canopy_mqtt.core.codec.topic_names import DOLLAR
from canopy_mqtt.core.hooks import Permissions
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.topics.subscription import FilterEntry

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.routing.fanout import Fanout

RUN_MESSAGES: Final = 64
"""Messages in a run at most."""

RUN_BYTES: Final = 262_144
"""Bytes in a run at most: as much as one read has. A read that is one run is not even copied."""

SLOW_DELIVERIES: Final = 8_192
"""Deliveries of a run that are made one by one, about: some milliseconds. A run for many subscribers who cannot take
the bytes as they came is shorter, beginning with the second."""

QUEUE_PART: Final = 8
"""A run takes no more than this part of a receiver's queue: one eighth."""

ANY_PAYLOAD: Final = RUN_BYTES << 16
"""The bound on a payload where the settings have none: more than a packet may have."""


def longest(limit: int, most: int) -> int:
    """Return how much of a queue bounded by `limit` (0: unbounded) a run may take: at least 1, at most `most`."""
    return max(1, min(most, limit // QUEUE_PART)) if limit > 0 else most


class Run:
    """Adjacent frames. `largest`: bytes of the longest one; `v5`: whether they are of MQTT 5.0."""

    def __init__(self, data: bytes, count: int, largest: int, v5: bool, publisher: str) -> None:
        self.data = data
        self.count = count
        self.largest = largest
        self.v5 = v5
        self.publisher = publisher
        self._messages: list[Message] | None = None
        self._translated: Run | None = None

    def translated(self) -> Run:
        """The same frames in the layout of the other version, made when they are first asked for.

        They have no properties: 5.0 has a length of 0 between topic and payload, and 3.1.1 nothing.
        """
        other = self._translated
        if other is not None:
            return other
        data = self.data
        v5 = self.v5
        size: i64 = len(data)
        start: i64 = 0
        # The last frame that was looked at, and what stands in place of its head: that of most that follow.
        like: i64 = 0
        length: i64 = 0
        head: i64 = 0
        skip: i64 = 1 if v5 else 0
        largest: i64 = 0
        replaced = b""
        pieces: list[bytes] = []
        while start < size:
            if head == 0 or start + head > size or not same_bytes(data, start, like, head):
                end: i64 = frame_end(data, start, size)
                body: i64 = frame_body(data, start)
                topic: i64 = topic_end(data, body)
                remaining: i64 = end - body - 1 if v5 else end - body + 1
                replaced = BYTE[0x30] + varint(remaining) + data[body:topic] + (b"" if v5 else b"\0")
                like, length, head = start, end - start, topic - start
                frame: i64 = len(replaced) + end - topic - skip
                if frame > largest:
                    largest = frame
            pieces.append(replaced)
            pieces.append(data[start + head + skip : start + length])
            start += length
        other = Run(b"".join(pieces), self.count, largest, not v5, self.publisher)
        self._translated = other
        return other

    def messages(self) -> list[Message]:
        """The messages one by one, made when they are first asked for."""
        made = self._messages
        if made is None:
            made = []
            data = self.data
            start: i64 = 0
            while start < len(data):
                end: i64 = frame_end(data, start, len(data))
                body: i64 = frame_body(data, start)
                topic = data[body + 2 : topic_end(data, body)]
                message = Message(topic, b"", 0, False, b"", 0.0, self.publisher)
                message.adopt_frame(data[start:end], self.v5, plain_payload(data, body, end, 0, self.v5) - start)
                made.append(message)
                start = end
            self._messages = made
        return made


def same_bytes(data: bytes, one: i64, other: i64, size: i64) -> bool:
    """Return whether `size` bytes from `one` on are those from `other` on. Both have to be within the data.

    Eight at a time: two slices and their comparison were half of what a message in a burst costs.
    """
    if size < 8:
        return data[one : one + size] == data[other : other + size]
    last: i64 = size - 8
    at: i64 = 0
    while at < last:
        if read_i64_le(data, one + at) != read_i64_le(data, other + at):
            return False
        at += 8
    # The last eight may overlap with those before.
    return read_i64_le(data, one + last) == read_i64_le(data, other + last)


class RunFinder:
    """Finds the end of a run in the buffer of a connection's decoder. One for each broker."""

    def __init__(self, fanout: Fanout) -> None:
        """The bounds come by `keep_to`."""
        self._fanout = fanout
        self.most: i64 = RUN_MESSAGES
        self.most_bytes: i64 = RUN_BYTES
        # Bytes of the longest payload of a run, where there is a bound on them.
        self.most_payload: i64 = ANY_PAYLOAD
        # Whether the topics of the one that is being looked for are recorded: all of them, or none.
        self._tapped = False
        # What access control says of it, if there is one: see `permit`.
        self._permissions: Permissions | None = None
        self._publisher: Principal | None = None

    def keep_to(self, limits: Limits) -> None:
        """Find no run that the bounds on queues, payloads, or what a client may publish in a burst, would cut."""
        most = longest(limits.live_messages, RUN_MESSAGES)
        if limits.max_publish_rate > 0.0:
            # A run is taken whole.
            most = min(most, max(1, int(limits.max_publish_rate)))
        most_bytes = longest(limits.live_bytes, RUN_BYTES)
        if limits.max_publish_bytes > 0:
            most_bytes = min(most_bytes, limits.max_publish_bytes)
        self.most = most
        self.most_bytes = most_bytes
        self.most_payload = limits.max_payload_size if limits.max_payload_size > 0 else ANY_PAYLOAD

    def permit(self, permissions: Permissions | None, publisher: Principal) -> None:
        """Whose run will be looked for, and who says where that one may publish. The current frame has been allowed."""
        self._permissions = permissions
        self._publisher = publisher

    def find(
        self, frames: Frames, payload_at: i64, key: FilterEntry, v5: bool, tapped: bool = False
    ) -> tuple[i64, i64]:
        """Return how many frames from the current one on are one run, and the bytes of the longest of them.

        `frames.end` is then behind the last. The current frame is known to be one that a run may begin with,
        `payload_at` is where its payload begins, and `key` is the `Route.run_key` of its topic.
        """
        self._tapped = tapped
        buffer = frames.buffer
        start: i64 = frames.start
        end: i64 = frames.end
        size: i64 = len(buffer)
        limit: i64 = start + self.most_bytes
        if size < limit:
            limit = size
        most: i64 = self.most
        slow: i64 = key.slow
        if slow * most > SLOW_DELIVERIES:
            # Two are a run still, so that it is seen when this is over.
            most = max(2, SLOW_DELIVERIES // slow)
        length: i64 = end - start
        largest: i64 = length
        head: i64 = payload_at - start
        # All that is before the payload: a frame of the same length and topic begins with the same bytes.
        like: i64 = start
        count: i64 = 1
        while count < most:
            stop: i64 = end + length
            if stop <= limit and same_bytes(buffer, end, like, head):
                end = stop
                count += 1
                continue
            stop = frame_end(buffer, end, limit)
            payload: i64 = self._another(frames, end, stop, key, v5)
            if payload < 0:
                break
            length = stop - end
            if length > largest:
                largest = length
            head = payload - end
            like = end
            end = stop
            count += 1
        frames.end = end
        return count, largest

    def _another(self, frames: Frames, start: i64, end: i64, key: FilterEntry, v5: bool) -> i64:
        """Find the payload of the frame in `start`..`end`, if it continues the run: another length or topic.

        -1 when it does not, or is not whole (`end` -1): it is looked at again as the first of what follows.
        """
        buffer = frames.buffer
        if end < 0 or buffer[start] != 0x30 or end - start > frames.max_packet_size:
            return -1
        body: i64 = frame_body(buffer, start)
        if end - body < 3 or buffer[body + 2] == DOLLAR:
            return -1
        payload: i64 = plain_payload(buffer, body, end, 0, v5)
        if payload < 0 or end - payload > self.most_payload:
            return -1
        # None as well where access control is to be asked first: it is looked at by itself.
        route = self._fanout.route(buffer[body + 2 : topic_end(buffer, body)], False)
        if route is None or route.run_key is not key or route.tapped != self._tapped:
            return -1
        permissions = self._permissions
        if permissions is not None and (
            route.publish_key != permissions.publish_key(0x30) or route.publisher is not self._publisher
        ):
            return -1
        return payload
