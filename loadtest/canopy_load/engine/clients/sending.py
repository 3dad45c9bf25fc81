"""Composing PUBLISH packets: one client's one stream of work, in bursts, each message with its mark.

Owns: ``Sender`` (when the next message is due, which topic and size it gets, its sequence number) and ``Session`` (the
packet identifiers under way, which outlive a connection). Compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from canopy_load.engine.schedule import Schedule
from canopy_load.ledger.counters import Tally, add
from canopy_load.ledger.mark import SIZE, TEXT_SIZE, filler, pack, pack_text
from canopy_load.scenario.payloads import PLACE
from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.packets import Publish
from canopy_mqtt.core.codec.primitives import two_bytes

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_BATCH: Final = 2048
"""Messages of one write."""

MAX_BATCH_BYTES: Final = 262_144

MAX_LAYOUTS: Final = 200_000
"""Laid-out frames kept by all senders of a process together, some 500 bytes each."""

MAX_SNAPSHOT: Final = 1024
"""Streams of a sender for which it is remembered up to where a PINGRESP has confirmed them."""

MAX_ALIASES: Final = 2047
"""Topic aliases that a sender uses, however many the broker allows: a layout's key has so much room for them."""

_LOW: Final[list[bytes]] = [value.to_bytes(2, "big") for value in range(65_536)]


class Outlet:
    """The destination of frames: a connection (``connection``)."""

    def __init__(self) -> None:
        self.paused = False
        """True while its transport takes no more."""

    def write(self, data: bytes) -> None:
        raise NotImplementedError


class Outgoing:
    """A PUBLISH with QoS 1 or 2 whose delivery is not complete."""

    def __init__(self, sender: Sender, number: int, sequence: int, frame: bytes) -> None:
        self.sender = sender
        self.number = number
        self.sequence = sequence
        self.frame = frame
        self.received = False
        """True once PUBREC has come (QoS 2)."""


class Session:
    """The state of one client that outlives its connection."""

    def __init__(self, keep_frames: bool) -> None:
        self.keep_frames = keep_frames
        self.unacked: dict[int, Outgoing] = {}
        self.taken: set[int] = set()
        """Packet identifiers of QoS 2 messages that came and are not released yet."""
        self.reserved: set[int] = set()
        """Packet identifiers of SUBSCRIBE and UNSUBSCRIBE that are not answered: all kinds have one space of them
        [MQTT-2.2.1-2]."""
        self.replying: set[int] = set()
        """Those of `reserved` that are answers to requests."""
        self._last: i64 = 0

    def identifier(self) -> int:
        """A packet identifier that is free; there is one, since windows are below 65,536."""
        number = self._last
        while True:
            number = number + 1 if number < 65_535 else 1
            if number not in self.unacked and number not in self.reserved:
                self._last = number
                return number


class Layout:
    """The layout of a PUBLISH: its bytes before the packet identifier, before the mark, and, from a template, after it.
    It does not keep the filler."""

    def __init__(self, frame: bytes, identifier_at: int, mark_at: int, tail: bytes, size: int, asks: bool) -> None:
        self.asks_at: i64 = frame.rfind(PLACE, 0, mark_at) if asks else 0
        """Where the correlation data of a request comes."""
        self.head = frame[:identifier_at] if identifier_at else frame[:mark_at]
        self.middle = frame[identifier_at + 2 : mark_at] if identifier_at else b""
        self.tail = tail
        self.size: i64 = size
        """Bytes of the payload."""


class Sender(Schedule):
    """One `publish` entry of one client.

    Promises:
    - Open loop: a message's intended time is the schedule's, however late it is written. While the connection is down
      or does not take more, messages stay due and are sent with their old times.
    - What is counted as lateness is the generator's own: it begins when a message is due and the connection takes it.
    - Closed loop: never more than the window is under way.
    - A frame is laid out by the broker's codec once for each topic and size; after that only its packet identifier and
      its mark are new.
    """

    def __init__(
        self,
        run: int,
        base: int,
        topics: int,
        name: Callable[[int], bytes],
        qos: int,
        retain: bool,
        version: int,
        tally: Tally,
        session: Session,
    ) -> None:
        super().__init__()
        self.run = run
        self.base: i64 = base
        self.topics: i64 = topics
        self.name = name
        self.qos: i64 = qos
        self.retain = retain
        self.version = version
        self.tally = tally
        self.session = session
        self.outlet: Outlet | None = None
        # What messages are.
        self.size: i64 = 64
        self.choose_size: Callable[[], int] | None = None
        self.template: Callable[[int], tuple[bytes, bytes]] | None = None
        self.varied: Callable[[int, int], tuple[bytes, bytes]] | None = None
        """Returns the payload before and behind the mark by sequence number and time, if messages differ in it."""
        self.distinct: i64 = 0
        """The number of different contents, which take turns; 0: each message differs."""
        self.pick: Callable[[], int] | None = None
        self.kinds = b""
        """By topic number, where its messages have QoS and RETAIN of their own: the QoS, and 4 for RETAIN. `qos` is the
        highest then."""
        self.lowest: i64 = qos
        """The lowest QoS of its messages."""
        self.properties = b""
        self.message_expiry = -1
        self.wants_alias = False
        self.correlates = False
        """True if messages are requests: their correlation data is their mark, at the place of `PLACE` in
        `properties`."""
        self.alias_maximum: i64 = 0
        # How many may be under way.
        self.window: i64 = 65_535
        self.receive_maximum: i64 = 65_535
        self.fan = 1.0
        self.fans: list[int] | None = None
        # What was done.
        self.sequences: list[int] = [0] * topics
        self.sent: i64 = 0
        self.refused: dict[int, int] = {}
        """Messages that the broker refused, by reason code."""
        self.under_way: i64 = 0
        self.expected: i64 = 0
        self.pardoned: i64 = 0
        """The number of deliveries that it no longer waits for."""
        self.seen: i64 = 0
        """`returned` a second ago."""
        self.uncertain: list[tuple[int, int, int]] = []
        """Stream, first and one above the last sequence number that the broker may not have got."""
        self._held = False
        """True if the connection, or a window of the broker's, kept it from sending when it last tried."""
        self._free_at: i64 = 0
        """When it could send again after that."""
        self._turn: i64 = 0
        self.most_layouts: i64 = MAX_LAYOUTS
        self._layouts: dict[int, Layout] = {}
        self._aliases: dict[int, int] = {}
        self._asked: list[int] | None = None
        self._confirmed: list[int] | None = None

    # -- connection ----------------------------------------------------------------------------------------------------

    def connected(self, outlet: Outlet, alias_maximum: int, receive_maximum: int) -> None:
        self.outlet = outlet
        self.alias_maximum = min(alias_maximum, MAX_ALIASES)
        self.receive_maximum = receive_maximum
        self._aliases = {}
        self._asked = None

    def lost(self, cleanly: bool) -> None:
        """Note that the connection is gone. After a DISCONNECT the broker has taken everything before it."""
        if self.outlet is None:
            return
        self.outlet = None
        self._held = True
        if self.lowest == 0:
            known = self._confirmed
            if not cleanly:
                for number, sequence in enumerate(self.sequences):
                    start = known[number] if known is not None else 0
                    if sequence > start and self._quality(number) == 0:
                        self.uncertain.append((self.base + number, start, sequence))
            self._confirmed = list(self.sequences)

    def ping_sent(self) -> None:
        """Note that a PINGREQ follows the messages sent up to now: its PINGRESP will confirm them."""
        if self.lowest == 0 and self.topics <= MAX_SNAPSHOT:
            self._asked = list(self.sequences)

    def ping_answered(self) -> None:
        """Note that the broker has read up to the last PINGREQ."""
        if self._asked is not None:
            self._confirmed = self._asked
            self._asked = None

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    def done(self, outgoing: Outgoing, reason: int) -> None:
        """Note that the broker has taken a message, or refused it (reason codes from 0x80)."""
        self.under_way -= 1
        if reason >= 0x80:
            self.refused[reason] = self.refused.get(reason, 0) + 1
            self._doubt(outgoing)

    def lose(self, outgoing: Outgoing) -> None:
        """Note that a message is no longer under way, and that the broker may not have taken it."""
        self.under_way -= 1
        self._doubt(outgoing)

    def _doubt(self, outgoing: Outgoing) -> None:
        stream: int = self.base + outgoing.number
        self.uncertain.append((stream, outgoing.sequence, outgoing.sequence + 1))

    # -- sending -------------------------------------------------------------------------------------------------------

    def _room(self) -> i64:
        """Return the number of messages that the windows allow now."""
        room: i64 = MAX_BATCH
        if self.qos > 0:
            limit: i64 = self.receive_maximum
            free: i64 = limit - len(self.session.unacked)
            if self.closed and self.window - self.under_way < free:
                free = self.window - self.under_way
            if free < room:
                room = free
        elif self.closed:
            back: i64 = self.returned
            if self.pardoned > back:
                back = self.pardoned
            # A message of which one copy is still to come is under way.
            rest = self.fan - 1.0 if self.fan > 1.0 else 0.0
            away: i64 = int((float(self.expected - back) + rest) / self.fan)
            free = self.window - away
            # A quarter at a time: a burst costs little more than a message.
            if free * 4 < self.window:
                return 0
            if free < room:
                room = free
        if self.remaining >= 0 and self.remaining < room:
            room = self.remaining
        return room

    @property
    def ready(self) -> bool:
        """True if it could send now, windows aside."""
        outlet = self.outlet
        return self.active and outlet is not None and not outlet.paused

    def forgive(self) -> bool:
        """Wait no longer for deliveries that are under way; return True if there were any. What comes all the same
        counts as that, and widens the window for nothing else."""
        if not self.closed or self.qos > 0 or self.returned >= self.expected or self.pardoned >= self.expected:
            return False
        self.pardoned = self.expected
        return True

    def pump(self, now: i64) -> None:
        """Send the messages that are due and that the windows allow; `now` in microseconds of the monotonic clock."""
        outlet = self.outlet
        if not self.active:
            return
        if outlet is None or outlet.paused:
            self._held = True
            return
        room = self._room()
        if room <= 0:
            self._held = True
            return
        if self.closed:
            uniform = self.choose_size is None and self.template is None and self.varied is None
            if self.topics == 1 and self.qos == 0 and uniform and not self.wants_alias and not self.correlates:
                self._stream_burst(outlet, room, now)
                return
            parts: list[bytes] = []
            size: i64 = 0
            while room > 0 and size < MAX_BATCH_BYTES:
                frame = self._compose(now)
                parts.append(frame)
                size += len(frame)
                room -= 1
            outlet.write(b"".join(parts))
            return
        if self._held:
            self._held = False
            self._free_at = now
        clock: float = float(now)
        if self.next_at > clock:
            return
        if self.hurry:
            self.next_at = clock
        batch: list[bytes] = []
        bytes_: i64 = 0
        late = self.tally.late
        window = room < MAX_BATCH
        while room > 0 and self.next_at <= clock and bytes_ < MAX_BATCH_BYTES:
            intended: i64 = int(self.next_at)
            frame = self._compose(intended)
            batch.append(frame)
            bytes_ += len(frame)
            add(late, now - (intended if intended > self._free_at else self._free_at), 1)
            self._advance()
            room -= 1
        self._held = window and room == 0
        outlet.write(b"".join(batch))

    def _stream_burst(self, outlet: Outlet, count: i64, now: i64) -> None:
        """A burst of one stream and one size in QoS 0: only the last two bytes of the marks differ."""
        sequence: i64 = self.sequences[0]
        low: i64 = sequence & 0xFFFF
        if low + count > 65_536:
            count = 65_536 - low
        layout = self._layout(0, self.size, 0)
        mark = pack(self.run, now, self.base, sequence)
        before = layout.head + mark[:14]
        tail = filler(self.size)
        outlet.write(before + (tail + before).join(_LOW[low : low + count]) + tail)
        self.sequences[0] = sequence + count
        self.sent += count
        self.tally.sent += count
        self.expected += int(float(count) * self.fan)
        if self.remaining > 0:
            self.remaining -= count

    def _compose(self, time: i64) -> bytes:
        """Return the frame of the next message, meant for `time`, and count it as sent."""
        number: i64
        if self.pick is not None:
            number = self.pick()
        else:
            number = self._turn
            self._turn = number + 1 if number + 1 < self.topics else 0
        size = self.size
        if self.choose_size is not None:
            size = self.choose_size()
        sequence: int = self.sequences[number]
        self.sequences[number] = sequence + 1
        if self.varied is not None:
            layout = self._varied_layout(number, sequence, time)
        else:
            layout = self._known_alias(number, size) if self.wants_alias else self._layout(number, size, 0)
        stream: int = self.base + number
        if self.template is None and self.varied is None:
            mark = pack(self.run, time, stream, sequence)
            tail = filler(size)
        else:
            mark = pack_text(self.run, time, stream, sequence)
            tail = layout.tail
        self.sent += 1
        self.tally.sent += 1
        if self.remaining > 0:
            self.remaining -= 1
        if self._quality(number) == 0:
            self.expected += 1 if self.fans is None else self.fans[number]
            frame = layout.head + mark + tail
            return self._correlated(frame, layout, stream, sequence, time) if self.correlates else frame
        identifier = self.session.identifier()
        name = two_bytes(identifier)
        frame = b"".join((layout.head, name, layout.middle, mark, tail))
        if self.correlates:
            frame = self._correlated(frame, layout, stream, sequence, time)
        kept = b""
        if self.session.keep_frames:
            kept = frame
            if self.wants_alias:
                # Another connection will not know the alias.
                plain = self._layout(number, size, 0)
                kept = b"".join((plain.head, name, plain.middle, mark, tail))
        self.session.unacked[identifier] = Outgoing(self, number, sequence, kept)
        self.under_way += 1
        return frame

    def _correlated(self, frame: bytes, layout: Layout, stream: i64, sequence: int, time: i64) -> bytes:
        at = layout.asks_at
        return frame[:at] + pack(self.run, time, stream, sequence) + frame[at + SIZE :]

    def _quality(self, number: i64) -> i64:
        if not self.kinds:
            return self.qos
        kind: i64 = self.kinds[number]
        return kind & 3

    def _known_alias(self, number: i64, size: i64) -> Layout:
        """Return a layout with topic and alias the first time, with the alias alone after that, as far as aliases
        go."""
        alias: i64 = self._aliases.get(number, 0)
        if alias:
            return self._layout(number, size, alias)
        if len(self._aliases) < self.alias_maximum:
            alias = len(self._aliases) + 1
            self._aliases[number] = alias
            return self._lay_out(number, size, alias, self.name(number))
        return self._layout(number, size, 0)

    def _layout(self, number: i64, size: i64, alias: i64) -> Layout:
        key: int = (alias << 52) ^ (number << 28) ^ size
        found = self._layouts.get(key)
        if found is None:
            found = self._lay_out(number, size, alias, b"" if alias else self.name(number))
            if len(self._layouts) >= self.most_layouts:
                self._layouts = {}
            self._layouts[key] = found
        return found

    def _varied_layout(self, number: i64, sequence: i64, time: i64) -> Layout:
        """Return the layout of contents that differ from message to message; keep it if their number is bounded."""
        varied = self.varied
        assert varied is not None
        if self.distinct == 0:
            return self._lay_out(number, 0, 0, self.name(number), varied(sequence, time))
        key: int = (number << 28) ^ (sequence % self.distinct)
        found = self._layouts.get(key)
        if found is None:
            found = self._lay_out(number, 0, 0, self.name(number), varied(sequence, time))
            if len(self._layouts) >= self.most_layouts:
                self._layouts = {}
            self._layouts[key] = found
        return found

    def _lay_out(
        self, number: i64, size: i64, alias: i64, topic: bytes, around: tuple[bytes, bytes] | None = None
    ) -> Layout:
        before = b""
        mark_size: i64 = SIZE
        if around is None and self.template is not None:
            around = self.template(number)
        if around is None:
            after = filler(size)
        else:
            before, after = around
            mark_size = TEXT_SIZE
        payload = before + bytes(mark_size) + after
        qos = self._quality(number)
        retain = self.retain if not self.kinds else self.kinds[number] & 4 == 4
        packet = Publish(
            topic, payload, qos, retain, False, 1 if qos else 0, self.properties, alias, self.message_expiry
        )  # fmt: skip
        frame = encoder.publish(packet, self.version)
        mark_at: i64 = len(frame) - len(after) - mark_size
        identifier_at: i64 = 0
        if qos:
            # Behind the fixed header and the topic with its length.
            identifier_at = 1
            while frame[identifier_at] >= 128:
                identifier_at += 1
            identifier_at += 3 + len(topic)
        return Layout(frame, identifier_at, mark_at, b"" if around is None else after, len(payload), self.correlates)
