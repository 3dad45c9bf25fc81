"""The buffer of one connection: bounds, order, causes, batches, the ledger, and its end; and the same against a list.

The buffer stands alone here, with all that can be in it: QoS 0 frames, several in one piece, deliveries made late,
QoS 1 in flight, control packets. The list knows each message; the buffer knows sums.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import (
    ACCEPTED,
    AGE,
    DROP_CAUSES,
    FULL_BYTES,
    FULL_MESSAGES,
    GLOBAL,
    Ledger,
)
from canopy_mqtt.core.queues.delivery import SENT, Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import DROP_NEWEST, DROP_OLDEST
from canopy_mqtt.core.queues.send_buffer import MIN_GAPS, SendBuffer
from tests.core.recount import frames
from tests.support.runs import examples

PING = b"\xd0\x00"
ALL = 1 << 30


def frame(number: int = 0, size: int = 0) -> bytes:
    """A QoS 0 frame that can be told from others."""
    return Message(b"t", bytes((number,)) + b"x" * size, 0, False, b"", 0.0, "p").qos0_frame(False)


class Item:
    """Something that waits: its bytes on the wire, and what it counts for."""

    def __init__(self, wire: bytes, size: int, kind: str, delivery: Delivery | None = None) -> None:
        self.wire = wire
        self.size = size
        self.kind = kind  # "frame", "late", "quality" or "control"
        self.delivery = delivery


class Line(RuleBasedStateMachine):
    """See the top of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.items: list[Item] = []
        self.lost: Counter[int] = Counter()
        self.offered = self.taken = 0
        self.now = 100.0

    @initialize(
        max_messages=st.sampled_from((0, 3, 40)), max_bytes=st.sampled_from((0, 300, 3_000)), oldest=st.booleans()
    )
    def begin(self, max_messages: int, max_bytes: int, oldest: bool) -> None:
        """With one of the two policies that a live queue knows by itself."""
        self.counters = Counters()
        self.box = SendBuffer([], self.counters, max_messages, max_bytes)
        self.box.ledger = Ledger("c", self.counters)
        self.box.limit(DROP_OLDEST if oldest else DROP_NEWEST, max_messages, max_bytes)
        self.oldest = oldest
        self.max_messages = max_messages or ALL
        self.max_bytes = max_bytes or ALL

    def message(self, size: int, qos: int = 0) -> Message:
        self.count += 1
        return Message(b"t", b"%05d" % self.count + b"x" * size, qos, False, b"", 0.0, "p")

    def messages(self) -> list[Item]:
        return [item for item in self.items if item.kind != "control"]

    def size(self) -> int:
        return sum(item.size for item in self.messages())

    def full(self, size: int) -> int:
        """Why something does not fit; ACCEPTED when it does."""
        if len(self.messages()) + 1 > self.max_messages:
            return FULL_MESSAGES
        return FULL_BYTES if self.messages() and self.size() + size > self.max_bytes else ACCEPTED

    def shed_first(self) -> Item | None:
        for at, item in enumerate(self.items):
            if item.kind in ("frame", "late"):
                del self.items[at]
                return item
        return None

    def offered_one(self, item: Item, answer: int | None) -> None:
        """What a list makes of it."""
        self.offered += 1
        cause = self.full(item.size)
        # Nothing goes for what has no room beside what is in flight.
        stays = [each for each in self.items if each.kind == "quality"]
        fits = sum(each.size for each in stays) + item.size <= self.max_bytes and len(stays) < self.max_messages
        if cause != ACCEPTED and self.oldest and fits:
            while self.full(item.size) != ACCEPTED and self.shed_first() is not None:
                self.lost[cause] += 1
        left = self.full(item.size)
        if left == ACCEPTED:
            self.items.append(item)
        else:
            self.lost[cause] += 1
        if answer is not None:
            assert (answer == ACCEPTED) == (left == ACCEPTED)

    @rule(sizes=st.lists(st.sampled_from((0, 40, 200)), min_size=1, max_size=6))
    def offer(self, sizes: list[int]) -> None:
        """QoS 0 frames one by one."""
        for size in sizes:
            frame = self.message(size).qos0_frame(False)
            self.offered_one(Item(frame, len(frame), "frame"), self.box.offer(frame))

    @rule(count=st.integers(2, 9), size=st.sampled_from((0, 40)))
    def offer_run(self, count: int, size: int) -> None:
        """Several in one piece: as if they came one by one."""
        run = [self.message(size).qos0_frame(False) for _ in range(count)]
        self.box.offer_run(b"".join(run), count, len(run[0]))
        for frame in run:
            self.offered_one(Item(frame, len(frame), "frame"), None)

    @rule(sizes=st.lists(st.sampled_from((0, 40, 200)), min_size=1, max_size=6))
    def offer_late(self, sizes: list[int]) -> None:
        """QoS 0 deliveries."""
        for size in sizes:
            made = Delivery(self.message(size), 0, False, (), None)
            item = Item(made.message.qos0_frame(False), made.message.size, "late", made)
            self.offered_one(item, self.box.offer_late(made))

    @rule(size=st.sampled_from((0, 40)))
    def push(self, size: int) -> None:
        """QoS 1, in flight: only where there is room."""
        made = Delivery(self.message(size, 1), 1, False, (), None)
        made.packet_id, made.state = self.count % 65_535 + 1, SENT
        room = self.box.has_room(made.message.size)
        assert room == (self.full(made.message.size) == ACCEPTED)
        if room:
            # The sum has it from the session on.
            totals = self.counters.totals
            totals.messages += 1
            totals.bytes += made.message.size
            self.box.push(made)
            wire = made.message.qos12_frame(False, 1, made.packet_id)
            self.items.append(Item(wire, made.message.size, "quality", made))
            self.offered += 1

    @rule()
    def control(self) -> None:
        """Never refused."""
        self.box.control(PING)
        self.items.append(Item(PING, 0, "control"))

    @rule(messages=st.integers(0, 12), size=st.integers(0, 400))
    def shed(self, messages: int, size: int) -> None:
        """From the front, QoS 0 alone, until both are met."""
        self.box.shed(messages, size, GLOBAL)
        while messages > 0 or size > 0:
            item = self.shed_first()
            if item is None:
                break
            self.lost[GLOBAL] += 1
            messages -= 1
            size -= item.size

    @rule(number=st.integers(0, 50), times=st.integers(1, 40))
    def shed_one(self, number: int, times: int) -> None:
        """From anywhere."""
        for _ in range(times):
            late = [item for item in self.items if item.kind == "late"]
            if late:
                item = late[number % len(late)]
                assert item.delivery is not None
                self.box.shed_one(item.delivery, AGE)
                self.items.remove(item)
                self.lost[AGE] += 1

    @rule(size=st.sampled_from((1, 60, 500, ALL)))
    def take(self, size: int) -> None:
        """The front of the line, in order: whole, or about so much of it."""
        batch = self.box.take_batch(size, self.now)
        got = list(frames(b"".join(batch)))
        wanted = [item.wire for item in self.items]
        assert got == wanted[: len(got)]
        assert got or not wanted
        total = sum(map(len, got))
        # A piece is not cut, and holds 2,000 bytes at most here.
        assert len(got) == len(wanted) or size <= total <= size + 2_500
        self.taken += sum(item.kind != "control" for item in self.items[: len(got)])
        for item in self.items[: len(got)]:
            if item.kind == "quality":
                # Acknowledged at once, so that the sum lets it go.
                self.counters.totals.messages -= 1
                self.counters.totals.bytes -= item.size
        del self.items[: len(got)]
        if not self.items:
            # Gaps at the end may be left.
            self.box.take_batch(ALL, self.now)
            assert self.box.empty

    @rule(seconds=st.sampled_from((0.0, 1.5)))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.counters.totals.now = self.now

    @invariant()
    def accounts(self) -> None:
        """The list's sums are the buffer's."""
        if not hasattr(self, "box"):
            return
        box = self.box
        assert (box.messages, box.bytes) == (len(self.messages()), self.size())
        assert (box.offered, box.taken) == (self.offered, self.taken)
        found = {cause: count for cause, count in enumerate(box.dropped or [0] * len(DROP_CAUSES)) if count}
        if self.oldest:
            # A run makes room for all of itself at once; which bound was to blame then is one for all.
            assert _full_joined(found) == _full_joined(self.lost)
        else:
            assert found == +self.lost
        assert self.counters.dropped == (box.dropped or [0] * len(DROP_CAUSES))
        totals = self.counters.totals
        assert (totals.messages, totals.bytes) == (box.messages, box.bytes)
        # Gaps are bounded by what is there.
        assert len(box.items) <= 2 * (len(self.items) + MIN_GAPS) + 2
        assert box.waited(self.now) >= 0.0
        if not self.messages():
            assert box.waited(self.now) == 0.0

    def teardown(self) -> None:
        """All that is left comes out, in order."""
        if hasattr(self, "box"):
            self.take(ALL)
            assert self.items == []
            self.accounts()


def _full_joined(lost: dict[int, int]) -> Counter[int]:
    found = Counter(lost)
    found[FULL_MESSAGES] += found.pop(FULL_BYTES, 0)
    return +found


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("policy", [DROP_NEWEST, DROP_OLDEST])
def test_one_larger_than_the_bound_fits_an_empty_queue_alone(policy: int) -> None:
    """And no other goes for it."""
    box = SendBuffer([], Counters(), 0, 0)
    box.limit(policy, 10, 50)
    assert box.offer(frame(1, 100)) == ACCEPTED
    assert box.offer(frame(2)) == (FULL_BYTES if policy == DROP_NEWEST else ACCEPTED)
    assert box.offer(frame(3, 100)) == FULL_BYTES
    assert box.take_batch(ALL, 1.0) == [frame(1, 100) if policy == DROP_NEWEST else frame(2)]


class TestTime:
    """How long things wait, without a clock for each."""

    def box(self) -> tuple[SendBuffer, Counters]:
        counters = Counters()
        return SendBuffer([], counters, 0, 0), counters

    def put(self, box: SendBuffer, counters: Counters, now: float, number: int = 0) -> None:
        counters.totals.now = now
        box.offer(Message(b"t", b"%d" % number, 0, False, b"", 0.0, "p").qos0_frame(False))

    @given(
        st.lists(
            st.one_of(st.sampled_from(("put", "shed", "late", "one")), st.integers(1, 60), st.floats(0.1, 5.0)),
            max_size=40,
        )
    )
    def test_never_more_than_the_truth(self, steps: list[str | int | float]) -> None:
        """What is said is never longer than what some message has waited; a queue that stands still is not overlooked.

        Where something is shed, one that is watched may count as if it waited still: only the second holds then.
        """
        box, counters = self.box()
        now = 10.0
        # When each thing that waits came; the longest wait of what has gone.
        came: list[float] = []
        longest = 0.0
        stuck_since = now
        late: list[Delivery] = []
        for step in steps:
            if isinstance(step, float):
                now += step
                counters.totals.now = now
            elif isinstance(step, int):
                before = box.messages
                box.take_batch(step, now)
                gone = before - box.messages
                longest = max([longest, *(now - at for at in came[:gone])])
                del came[:gone]
                late = [one for one in late if one in box.items]
                if gone:
                    stuck_since = now
            elif step == "shed":
                before = box.messages
                box.shed(2, 0, GLOBAL)
                del came[: before - box.messages]
                late = [one for one in late if one in box.items]
            elif step == "put":
                self.put(box, counters, now)
                came.append(now)
            elif step == "late" or not late:
                made = Delivery(Message(b"t", b"", 0, False, b"", 0.0, "p"), 0, False, (), None)
                counters.totals.now = now
                box.offer_late(made)
                late.append(made)
                came.append(now)
            if came:
                oldest = now - came[0]
                assert "shed" in steps or box.waited(now) <= max(oldest, longest) + 1e-9
                assert box.waited(now) >= min(oldest, now - stuck_since) - 1e-9
            else:
                assert box.waited(now) == 0.0


@pytest.mark.parametrize("others", [0, 5])
def test_a_long_life_of_drops(others: int) -> None:
    """Thousands are shed from the middle of a line that never moves; its list stays short."""
    counters = Counters()
    box = SendBuffer([], counters, 0, 0)
    for _ in range(others):
        box.control(PING)
    stays = Delivery(Message(b"stays", b"", 0, False, b"", 0.0, "p"), 0, False, (), None)
    box.offer_late(stays)
    for number in range(5_000):
        goes = Delivery(Message(b"t", b"%d" % number, 0, False, b"", 0.0, "p"), 0, False, (), None)
        box.offer_late(goes)
        box.shed_one(goes, AGE)
        assert len(box.items) <= 2 * MIN_GAPS + others + 2
    assert (box.messages, sum(box.dropped or ())) == (1, 5_000)
    # What was shed is held by nobody.
    assert goes.message.topic == b""
    batch = box.take_batch(ALL, 1.0)
    assert batch == [PING] * others + [stays.message.qos0_frame(False)]
    assert box.empty
