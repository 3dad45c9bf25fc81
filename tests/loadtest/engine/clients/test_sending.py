"""What a publisher sends and when: the schedule, the windows, the frames, and what is known of what was taken."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_load.engine.clients.sending import MAX_SNAPSHOT, Sender, Session
from canopy_load.engine.schedule import BURSTS, CONSTANT, POISSON
from canopy_load.ledger import mark
from canopy_load.ledger.counters import Tally
from canopy_mqtt.core.codec.packets import V5
from tests.loadtest.paper import RUN, Paper
from tests.support.runs import examples, for_each

SECOND = 1_000_000


def new(topics: int = 1, qos: int = 0) -> tuple[Sender, Paper]:
    """A sender that is connected and active."""
    name: Callable[[int], bytes] = lambda number: b"t/%d" % number  # noqa: E731
    sender = Sender(RUN, 0, topics, name, qos, False, V5, Tally(), Session(False))
    paper = Paper()
    sender.connected(paper.wire, 0, 65_535)
    sender.active = True
    return sender, paper


def loop(window: int) -> tuple[Sender, Paper]:
    sender, paper = new()
    sender.closed, sender.window = True, window
    return sender, paper


# -- closed loops ------------------------------------------------------------------------------------------------------


def test_late_deliveries_pay_for_what_was_forgiven_and_do_not_widen_the_window() -> None:
    sender, paper = loop(8)
    sender.pump(1)
    assert sender.forgive()
    sender.pump(2)
    assert len(paper.marks()) == 16
    sender.returned += 8  # the first eight after all
    sender.pump(3)
    assert paper.marks() == [], "eight are still under way"
    assert sender.forgive()
    assert not sender.forgive()
    sender.pump(4)
    sender.returned += 16
    sender.pump(5)
    assert len(paper.marks()) == 16
    assert sender.expected - sender.returned == 8


@for_each("start", [65_530, 131_064])
def test_a_burst_ends_where_the_low_bytes_of_the_number_wrap(start: int) -> None:
    sender, paper = loop(10)
    sender.sequences[0] = start
    for _ in range(3):
        sender.pump(1)
        sender.returned = sender.expected
    assert [found[1] for found in paper.marks()] == list(range(start, start + int(sender.sent)))
    assert sender.sent > 20


# -- open loops --------------------------------------------------------------------------------------------------------


CHANGES = st.lists(
    st.tuples(st.integers(1, 3 * SECOND), st.sampled_from([0.0, 0.7, 3.0, 10.0, 250.0])), min_size=1, max_size=6
)


@given(CHANGES, st.lists(st.booleans(), min_size=6, max_size=6), st.sampled_from([(CONSTANT, 1), (BURSTS, 5)]))
@settings(max_examples=examples(150), deadline=None)
def test_who_is_held_up_has_the_schedule_of_one_who_is_not(
    changes: list[tuple[int, float]], held: list[bool], arrival: tuple[int, int]
) -> None:
    (free, letters), (stuck, late) = new(), new()
    for sender in (free, stuck):
        sender.arrival, sender.burst = arrival
        sender.phase = 0.25
    now = SECOND
    for (pause, rate), holds in zip(changes, held, strict=False):
        for sender in (free, stuck):
            sender.set_rate(rate, now)
        now += pause
        late.wire.paused = holds
        _pump(free, now)
        _pump(stuck, now)
        assert int(free.sent) == int(stuck.sent) + stuck.overdue(now)
    late.wire.paused = False
    _pump(stuck, now)
    assert stuck.overdue(now) == 0
    times = [(found[1], found[2]) for found in letters.marks()]
    for (number, time), (other, later) in zip(times, [(f[1], f[2]) for f in late.marks()], strict=True):
        assert number == other
        assert abs(time - later) <= 1, "a microsecond's rounding"


@for_each("by", ["a full socket", "a lost connection", "a window"])
def test_lateness_is_the_generators_own_and_not_what_the_broker_held_up(by: str) -> None:
    """The verdict holds this figure against the latency."""
    sender, paper = new(qos=1 if by == "a window" else 0)
    sender.phase = 1.0
    sender.set_rate(1.0, 0)
    if by == "a window":
        sender.window, sender.receive_maximum = 1, 1
    sender.pump(SECOND + 300)
    assert sender.tally.late == {300: 1}
    if by == "a full socket":
        paper.wire.paused = True
    elif by == "a lost connection":
        sender.lost(cleanly=False)
    sender.pump(2 * SECOND)
    assert sender.sent == 1
    # The broker takes more from the 5th second on; the generator comes to the 6th message 40 µs late.
    paper.wire.paused = False
    if by == "a lost connection":
        sender.connected(paper.wire, 0, 65_535)
    sender.session.unacked.clear()
    sender.receive_maximum = 65_535
    sender.pump(5 * SECOND)
    sender.pump(6 * SECOND + 40)
    assert sender.sent == 6
    assert sender.tally.late == {300: 1, 0: 4, 40: 1}
    assert [time for _, _, time in paper.marks()] == [second * SECOND for second in range(1, 7)]


def _pump(sender: Sender, now: int) -> None:
    """Everything that is due, as far as it may go."""
    sent = -1
    while sent != sender.sent:
        sent = int(sender.sent)
        sender.pump(now)


def test_chance_keeps_its_rate_while_that_changes() -> None:
    sender, paper = new()
    source = random.Random(7)
    sender.arrival = POISSON
    sender.gap = lambda: source.expovariate(1.0)
    sender.phase = 0.5
    expected = 0.0
    for step in range(40_000):
        rate = 1.0 + (step % 100) / 100
        sender.set_rate(rate, step * SECOND / 10)
        sender.pump((step + 1) * SECOND // 10)
        expected += rate / 10
    # Its standard deviation is the root: 77 of 5,980.
    assert abs(len(paper.packets()) - expected) < 4 * expected**0.5


# -- frames ------------------------------------------------------------------------------------------------------------


def test_frames_of_many_sizes_do_not_keep_their_payloads() -> None:
    sender, paper = new()
    sender.set_rate(1e6, 0)
    sizes = iter(range(100_000, 100_200))
    sender.choose_size = lambda: next(sizes)
    kept = 0
    for now in range(200):
        sender.next_at = float(now)
        sender.pump(now)
        kept += len(paper.data)
        [packet] = paper.packets()
        assert packet.payload.endswith(mark.filler(len(packet.payload)))
    assert kept > 20_000_000
    assert sum(len(layout.tail) for layout in sender._layouts.values()) < 1_000_000
    assert sum(map(len, mark._fillers.values())) <= mark.MAX_FILLERS


# -- windows and doubts ------------------------------------------------------------------------------------------------


def test_packet_identifiers_wrap_around_those_that_are_taken() -> None:
    session = Session(False)
    sender, _ = new(qos=1)
    assert [session.identifier() for _ in range(65_535)] == list(range(1, 65_536))
    session.unacked[1] = session.unacked[2] = session.unacked.get(0)  # type: ignore[assignment]
    session.reserved.add(3)
    assert session.identifier() == 4
    assert sender.session.identifier() == 1


@for_each("topics", [3, MAX_SNAPSHOT + 1])
def test_each_message_is_doubted_once_however_often_the_connection_breaks(topics: int) -> None:
    sender, paper = new(topics)
    sender.set_rate(1e6, 0)
    for now in (topics, 3 * topics, 4 * topics):
        _pump(sender, now)
        sender.lost(cleanly=False)
        sender.connected(paper.wire, 0, 65_535)
    doubted = [(stream, number) for stream, first, end in sender.uncertain for number in range(first, end)]
    assert len(doubted) == len(set(doubted)) == sender.sent


def test_what_a_pingresp_confirms_and_what_went_before_a_disconnect_is_not_doubted() -> None:
    sender, paper = new()
    sender.set_rate(1e6, 0)
    sender.pump(5)
    sender.ping_sent()
    sender.pump(8)
    sender.ping_answered()
    sender.lost(cleanly=False)
    [(stream, first, end)] = sender.uncertain
    assert stream == 0
    assert 0 < first < end == sender.sent
    sender.connected(paper.wire, 0, 65_535)
    sender.pump(20)
    sender.lost(cleanly=True)
    assert len(sender.uncertain) == 1
