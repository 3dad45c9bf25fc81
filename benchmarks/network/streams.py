"""What a subscriber received, held against what was sent.

Owns: the ledger of delivered, lost and doubled messages, and the checks that fill it: one for a QoS 0 stream from one
publisher, one for the merged stream of many publishers, one for QoS 1 and 2 with their acknowledgements.

Promises: every message is accounted for, at the speed of ``memcmp``. What a subscriber gets from one publisher is known
in advance: the publisher's frames in order, sequence numbers counting up modulo the cycle. So a check compares each
read with the expected stream at once, and only takes frames apart where the two differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from canopy_load.brokers import frames
from canopy_load.brokers.frames import FrameError, PublishShape

# Frames looked at in one step of a column scan: keeps the cost linear when packets of two kinds alternate.
SCAN_FRAMES: Final = 256


@dataclass
class Ledger:
    """Messages of one load: ``delivered`` once each, ``lost`` (never came), ``doubled`` (came again)."""

    delivered: int = 0
    lost: int = 0
    doubled: int = 0


class Template:
    """The stream of frames one subscriber must receive from one publisher: a cycle of frames of one shape.

    ``expected`` is the cycle written twice, so that a read that begins anywhere in the cycle and is no longer
    than the cycle is one slice of it. QoS 1 and 2 frames differ in their packet identifiers, which the broker chooses;
    all frames have one size, so each byte of the identifier and of the sequence number is a column: a slice with a
    stride.
    """

    def __init__(self, built: Sequence[bytes], shape: PublishShape) -> None:
        self.shape = shape
        self.frame_size = shape.size
        self.cycle_bytes = len(built) * shape.size
        self.expected = b"".join(built) * 2
        if len(self.expected) != 2 * self.cycle_bytes:
            raise ValueError("the frames of a stream must have one size")

    @classmethod
    def learn(cls, frame: bytes, shape: PublishShape, cycle: int) -> Template:
        """The stream of a publisher that keeps to one topic, from any of its frames."""
        publisher, _, _, _ = frames.PAYLOAD_HEAD.unpack_from(frame, shape.payload)
        head, size = frame[: shape.payload], shape.size - shape.payload
        template = cls([head + frames.payload(publisher, number, size) for number in range(cycle)], shape)
        if frame != template.frame(sequence_of(frame, 0, shape) % cycle):
            raise FrameError(f"the broker delivered a payload on {shape.topic!r} that nobody sent")
        return template

    def frame(self, sequence: int) -> bytes:
        """The frame that carries this sequence number."""
        return self.expected[sequence * self.frame_size : (sequence + 1) * self.frame_size]


class Templates:
    """The templates of one load, shared by its subscribers; all their publishers use one cycle and payload size."""

    def __init__(self, cycle: int, level: int) -> None:
        self.cycle = cycle
        self.level = level
        self._known: dict[tuple[bytes, int], Template] = {}

    def learn(self, frame: bytes) -> Template:
        """The template that a complete PUBLISH belongs to, made when it is the first of its kind."""
        shape = PublishShape.read(frame, 0, self.level)
        publisher, _, _, _ = frames.PAYLOAD_HEAD.unpack_from(frame, shape.payload)
        key = (frame[: shape.payload], publisher)
        template = self._known.get(key)
        if template is None or template.frame_size != shape.size:
            template = self._known[key] = Template.learn(frame, shape, self.cycle)
        return template


class Rounds(Templates):
    """The templates of publishers whose frames are known beforehand, on as many topics as they like, all of one length.

    ``rounds[n]`` are the frames of the publisher that payloads call ``n``; all rounds have one number of frames."""

    def __init__(self, rounds: Sequence[Sequence[bytes]], level: int) -> None:
        super().__init__(len(rounds[0]), level)
        self._rounds = [Template(built, PublishShape.read(built[0], 0, level)) for built in rounds]

    def learn(self, frame: bytes) -> Template:
        shape = PublishShape.read(frame, 0, self.level)
        publisher: int = frames.PAYLOAD_HEAD.unpack_from(frame, shape.payload)[0]
        if publisher >= len(self._rounds) or self._rounds[publisher].frame_size != shape.size:
            raise FrameError(f"the broker delivered a message on {shape.topic!r} that nobody sent")
        return self._rounds[publisher]


def sequence_of(data: bytes | bytearray | memoryview, offset: int, shape: PublishShape) -> int:
    """The sequence number of the PUBLISH at ``offset``."""
    at = offset + shape.payload + frames.SEQUENCE_OFFSET
    return data[at] << 8 | data[at + 1]


def step(ledger: Ledger, expected: int, found: int, cycle: int) -> int:
    """Account for one message; how far the publisher's stream advanced: 0 for a repetition, else 1 + messages lost."""
    gap = (found - expected) % cycle
    if gap >= cycle // 2:
        ledger.doubled += 1
        return 0
    ledger.delivered += 1
    ledger.lost += gap
    return gap + 1


class StreamCheck:
    """One subscriber that receives the QoS 0 messages of one publisher.

    ``feed`` takes reads as they come, at most one cycle long each, and returns how far the stream advanced: messages
    delivered plus messages now known to be lost, which is what goes back into the publisher's window.

    A reordered message is not told from a lost and a doubled one: a message that comes late was counted lost when
    its successor came, and counts as doubled itself. No broker may reorder one publisher's messages of one topic and
    QoS, so either figure above zero is a fault. A gap of half a cycle or more cannot be told from a repetition: loads
    keep fewer messages in flight than that.
    """

    def __init__(self, templates: Templates, ledger: Ledger) -> None:
        self._templates = templates
        self._ledger = ledger
        self._template: Template | None = None  # None also while frames are being taken apart
        self._expected = b""
        self._position = 0  # of the next byte in the cycle, while in step
        self._partial = 0  # bytes of the frame under way, while in step
        self._carry = b""  # bytes of the frame under way, while out of step
        self._sequence = 0  # of the next message, while out of step

    def feed(self, chunk: memoryview) -> int:
        template = self._template
        if template is None or not self._expected.startswith(chunk, self._position):
            return self._take_apart(chunk)
        size = len(chunk)
        position = self._position + size
        if position >= template.cycle_bytes:
            position -= template.cycle_bytes
        self._position = position
        count, self._partial = divmod(self._partial + size, template.frame_size)
        self._ledger.delivered += count
        return count

    def _take_apart(self, chunk: memoryview) -> int:
        """Frame by frame: at the start, and where the stream is not as expected; in step again as soon as it is."""
        if self._template is not None:
            begin = self._position - self._partial
            if begin < 0:
                begin += self._template.cycle_bytes
            self._sequence = begin // self._template.frame_size
            self._carry = self._expected[begin : begin + self._partial]
            self._template = None
        data = self._carry + bytes(chunk)
        cycle = self._templates.cycle
        advanced = offset = 0
        template: Template | None = None
        while size := frames.packet_size(data, offset):
            if offset + size > len(data):
                break
            template = self._templates.learn(data[offset : offset + size])
            found = sequence_of(data, offset, template.shape)
            if data[offset : offset + size] != template.frame(found % cycle):
                raise FrameError(f"the broker changed a payload on {template.shape.topic!r}")
            progress = step(self._ledger, self._sequence, found, cycle)
            self._sequence = (self._sequence + progress) % cycle
            advanced += progress
            offset += size
        self._carry = data[offset:]
        if template is not None:
            begin = self._sequence * template.frame_size
            if template.expected.startswith(self._carry, begin):
                self._template = template
                self._expected = template.expected
                self._partial = len(self._carry)
                self._position = (begin + self._partial) % template.cycle_bytes
                self._carry = b""
        return advanced


class MergedCheck:
    """One subscriber that receives the QoS 0 messages of many publishers, frames interleaved as the broker likes.

    ``feed`` returns the publishers that advanced (some twice); ``advanced[publisher]`` holds by how many messages, and
    is the caller's to reset. ``burst`` is the number of frames a publisher sends at once: brokers often pass a burst on
    whole, so that is tried before single frames.
    """

    def __init__(self, templates: Templates, ledger: Ledger, publishers: int, burst: int) -> None:
        self.advanced = [0] * publishers
        self._templates = templates
        self._ledger = ledger
        self._burst = burst
        self._sequences = [0] * publishers
        self._by_publisher: list[Template | None] = [None] * publishers
        self._shape: PublishShape | None = None
        self._carry = b""

    def feed(self, chunk: memoryview) -> list[int]:
        data = self._carry + bytes(chunk) if self._carry else bytes(chunk)
        if self._shape is None:
            size = frames.packet_size(data)
            if not size or size > len(data):
                self._carry = data
                return []
            self._shape = self._templates.learn(data[:size]).shape
        size, at = self._shape.size, self._shape.payload
        cycle, burst = self._templates.cycle, self._burst
        sequences, templates, advanced = self._sequences, self._by_publisher, self.advanced
        touched: list[int] = []
        offset, end = 0, len(data)
        view = memoryview(data)
        while offset + size <= end:
            publisher = data[offset + at] << 8 | data[offset + at + 1]
            template = templates[publisher] if publisher < len(templates) else None
            if template is None:
                template = self._learn(data[offset : offset + size], publisher)
            sequence = sequences[publisher]
            run = burst - sequence % burst
            stop = offset + run * size
            if stop <= end and template.expected.startswith(view[offset:stop], sequence * size):
                self._ledger.delivered += run
                offset = stop
            else:
                found = sequence_of(data, offset, template.shape)
                if data[offset : offset + size] != template.frame(found % cycle):
                    raise FrameError("the broker changed a message or broke the framing of a merged stream")
                run = step(self._ledger, sequence, found, cycle)
                offset += size
            sequences[publisher] = (sequence + run) % cycle
            advanced[publisher] += run
            touched.append(publisher)
        self._carry = data[offset:]
        return touched

    def _learn(self, frame: bytes, publisher: int) -> Template:
        template = self._templates.learn(frame)
        if publisher >= len(self._by_publisher) or self._shape is None or template.frame_size != self._shape.size:
            raise FrameError(f"the broker delivered a message of publisher {publisher} that nobody sent")
        self._by_publisher[publisher] = template
        return template


class AckedCheck:
    """One subscriber at QoS 1 or 2 that receives the messages of one publisher and must acknowledge them.

    ``feed`` returns how far the stream advanced; ``answer`` holds the PUBACK, PUBREC and PUBCOMP packets to be sent for
    what was fed, and is the caller's to clear.
    """

    def __init__(self, templates: Templates, ledger: Ledger, qos: int) -> None:
        self.answer = bytearray()
        self._templates = templates
        self._ledger = ledger
        self._first = frames.PUBLISH | qos << 1
        self._first_byte = bytes((self._first,))
        self._reply = bytes((frames.PUBACK if qos == 1 else frames.PUBREC,))
        self._sequence = 0
        self._shape: PublishShape | None = None
        cycle = templates.cycle
        self._high = bytes(number >> 8 for number in range(cycle)) * 2
        self._low = bytes(number & 0xFF for number in range(cycle)) * 2
        self._carry = b""

    def feed(self, chunk: memoryview) -> int:
        data = self._carry + bytes(chunk) if self._carry else bytes(chunk)
        advanced = offset = 0
        end = len(data)
        while offset < end:
            if data[offset] == self._first:
                used, progress = self._publishes(data, offset)
                advanced += progress
            elif data[offset] == frames.PUBREL:
                used = self._releases(data, offset)
            else:
                used, progress = self._one(data, offset)
                advanced += progress
            if not used:
                break
            offset += used
        self._carry = data[offset:]
        return advanced

    def _publishes(self, data: bytes, offset: int) -> tuple[int, int]:
        """A run of PUBLISH packets without DUP: bytes used, messages advanced."""
        shape = self._shape
        if shape is None:
            return self._one(data, offset)
        size, cycle = shape.size, self._templates.cycle
        count = min((len(data) - offset) // size, SCAN_FRAMES, cycle)
        if count <= 1:
            return self._one(data, offset)
        stop = offset + count * size
        column = data[offset:stop:size]
        count -= len(column.lstrip(self._first_byte))
        stop = offset + count * size
        at = offset + shape.payload + frames.SEQUENCE_OFFSET
        sequence = self._sequence
        in_step = self._high.startswith(data[at:stop:size], sequence)
        if not (in_step and self._low.startswith(data[at + 1 : stop : size], sequence)):
            return self._one(data, offset)
        at = offset + shape.packet_id
        reply = bytearray(4 * count)
        reply[0::4] = self._reply * count
        reply[1::4] = b"\x02" * count
        reply[2::4] = data[at:stop:size]
        reply[3::4] = data[at + 1 : stop : size]
        self.answer += reply
        self._ledger.delivered += count
        self._sequence = (sequence + count) % cycle
        return count * size, count

    def _releases(self, data: bytes, offset: int) -> int:
        """A run of PUBREL packets of two bytes remaining length: bytes used."""
        count = min((len(data) - offset) // 4, SCAN_FRAMES)
        stop = offset + 4 * count
        count -= len(data[offset:stop:4].lstrip(b"\x62"))
        if not count:
            return 0
        stop = offset + 4 * count
        reply = bytearray(data[offset:stop])
        if reply[1::4] != b"\x02" * count:
            raise FrameError("the broker sent a PUBREL with a reason code")
        reply[0::4] = bytes((frames.PUBCOMP,)) * count
        self.answer += reply
        return 4 * count

    def _one(self, data: bytes, offset: int) -> tuple[int, int]:
        """One PUBLISH by itself, whatever its flags: bytes used (0 if it is incomplete), messages advanced."""
        size = frames.packet_size(data, offset)
        if not size or offset + size > len(data):
            return 0, 0
        shape = PublishShape.read(data, offset, self._templates.level)
        if not shape.packet_id:
            raise FrameError("the broker delivered at QoS 0 what was subscribed at QoS 1 or 2")
        self._shape = shape
        self.answer += self._reply + b"\x02" + data[offset + shape.packet_id : offset + shape.packet_id + 2]
        found = sequence_of(data, offset, shape)
        progress = step(self._ledger, self._sequence, found, self._templates.cycle)
        self._sequence = (self._sequence + progress) % self._templates.cycle
        return size, progress


class PublisherAcks:
    """The acknowledgements one publisher at QoS 1 or 2 receives.

    ``feed`` returns how many of its messages the broker has finished with (PUBACK or PUBCOMP); ``answer`` holds the
    PUBREL packets to be sent, and is the caller's to clear.
    """

    def __init__(self) -> None:
        self.answer = bytearray()
        self._carry = b""

    def feed(self, chunk: memoryview) -> int:
        data = self._carry + bytes(chunk) if self._carry else bytes(chunk)
        whole = len(data) & ~3
        finished = offset = 0
        while offset < whole:
            first = data[offset : offset + 1]
            run = min((whole - offset) // 4, SCAN_FRAMES)
            run -= len(data[offset : offset + 4 * run : 4].lstrip(first))
            stop = offset + 4 * run
            if data[offset + 1 : stop : 4] != b"\x02" * run:
                raise FrameError(f"the broker answered with {frames.packet_name(first[0])} carrying a reason code")
            if first[0] in (frames.PUBACK, frames.PUBCOMP):
                finished += run
            elif first[0] == frames.PUBREC:
                reply = bytearray(data[offset:stop])
                reply[0::4] = b"\x62" * run
                self.answer += reply
            else:
                raise FrameError(f"the broker sent {frames.packet_name(first[0])} to a publisher")
            offset = stop
        self._carry = data[offset:]
        return finished
