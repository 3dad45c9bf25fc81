"""The declarer's packets, checked against an upstream that does as it is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import SUBSCRIBE, UNSUBSCRIBE, V5, Subscribe, Unsubscribe
from canopy_mqtt.core.codec.properties import SUBSCRIPTION_IDENTIFIER
from canopy_mqtt.core.codec.reason_codes import ProtocolViolation
from canopy_mqtt.core.codec.topic_names import matches, overlaps
from canopy_mqtt.links.filters.declarer import FIRST_ID, OUTSIDE, TAKEN, UNACKNOWLEDGED, Declarer
from tests.support.runs import examples

LARGEST = 1_000_000

NARROW_AND_WIDE = ["a/1", "a/2", "a/3", "a/+", "b/1", "b/2", "b/#", "c", "#", "+/1", "$x/1", "$x/#"]


class Upstream:
    """Keeps subscriptions as a broker does, and answers when it is told to."""

    def __init__(self, version: int = V5) -> None:
        self.version = version
        self.table: dict[str, int] = {}
        self.unanswered: list[tuple[int, list[int]]] = []
        self.packets = 0
        self.no_room_above = 1_000_000

    def take(self, raw: list[bytes]) -> None:
        decoder = Decoder(LARGEST, version=self.version)
        decoder.feed(b"".join(raw))
        while decoder.next_frame():
            packet = decoder.packet()
            self.packets += 1
            codes: list[int] = []
            if isinstance(packet, Subscribe):
                identifier = packet.properties.integers.get(SUBSCRIPTION_IDENTIFIER, 0)
                for request in packet.requests:
                    assert request.no_local or self.version < V5
                    if request.topic_filter not in self.table and len(self.table) >= self.no_room_above:
                        codes.append(0x97)
                        continue
                    self.table[request.topic_filter] = identifier
                    codes.append(request.qos)
                self.unanswered.append((packet.packet_id, codes))
            else:
                assert isinstance(packet, Unsubscribe)
                for topic_filter in packet.topic_filters:
                    codes.append(0 if self.table.pop(topic_filter, None) is not None else 0x11)
                self.unanswered.append((packet.packet_id, codes if self.version >= V5 else []))

    def answer(self, declarer: Declarer, count: int = 1) -> None:
        for _ in range(count):
            if self.unanswered:
                declarer.acknowledged(*self.unanswered.pop(0))

    def go_through(self, declarer: Declarer) -> None:
        """Everything that is due, with its answers."""
        while True:
            raw = declarer.packets([])
            self.take(raw)
            if not raw and not self.unanswered:
                return
            self.answer(declarer, 100)


def opened(filters: list[str], version: int = V5) -> tuple[Declarer, Upstream]:
    declarer = Declarer(1)
    upstream = Upstream(version)
    for topic_filter in filters:
        declarer.declare(topic_filter)
    declarer.open(version, False, version >= V5, LARGEST, [])
    return declarer, upstream


def test_an_upstream_that_takes_few_filters_at_once() -> None:
    declarer, upstream = Declarer(1, 8), Upstream()
    for number in range(20):
        declarer.declare(f"a/{number}")
    declarer.open(V5, False, True, LARGEST, [])
    upstream.go_through(declarer)
    assert (len(upstream.table), upstream.packets) == (20, 3)


def test_packets_keep_to_the_upstreams_size() -> None:
    declarer = Declarer(1)
    filters = [f"{n:04d}" + "x" * 500 for n in range(20)]
    for topic_filter in filters:
        declarer.declare(topic_filter)
    declarer.open(V5, False, True, 1_200, [])
    upstream = Upstream()
    while raw := declarer.packets([]):
        assert all(len(each) <= 1_200 for each in raw)
        upstream.take(raw)
        upstream.answer(declarer, 100)
    assert list(upstream.table) == filters


def test_what_an_earlier_program_left_goes() -> None:
    declarer, upstream = opened(["kept/#"])
    upstream.table = {"old/#": 3, "kept/#": 4, "unknown": 5}
    declarer.open(V5, True, True, LARGEST, ["old/#", "kept/#"])
    upstream.go_through(declarer)
    assert set(upstream.table) == {"kept/#", "unknown"}


def test_what_an_earlier_program_left_goes_behind_what_takes_its_place() -> None:
    declarer = Declarer(1)
    declarer.declare("new")
    declarer.open(V5, True, True, LARGEST, ["old"])
    assert [packet[0] >> 4 for packet in declarer.packets([])] == [SUBSCRIBE, UNSUBSCRIBE]


@pytest.mark.parametrize("answered", [0, 1, 2, 3])
def test_a_filter_that_comes_and_goes_while_its_unsubscribe_is_on_its_way(answered: int) -> None:
    declarer, upstream = opened(["a"])
    upstream.go_through(declarer)
    declarer.withdraw("a")
    upstream.take(declarer.packets([]))
    steps = [declarer.declare, declarer.withdraw, declarer.declare]
    for at, step in enumerate(steps):
        if at == answered:
            upstream.answer(declarer)
        step("a")
    upstream.go_through(declarer)
    assert list(upstream.table) == list(declarer.held) == ["a"]


def test_what_there_was_no_room_for_is_tried_when_something_goes() -> None:
    upstream = Upstream()
    upstream.no_room_above = 1
    declarer = Declarer(1)
    declarer.declare("a")
    declarer.declare("b")
    declarer.open(V5, False, True, LARGEST, [])
    upstream.go_through(declarer)
    assert set(upstream.table) == {"a"}
    declarer.withdraw("a")
    upstream.go_through(declarer)
    assert set(upstream.table) == {"b"}
    assert declarer.refused == {}


def test_what_nobody_has_asked_for() -> None:
    """A topic that no filter matches; one that is wanted counts from the moment on in which somebody wants it."""
    declarer, upstream = opened(["a/b", "a/#"])
    for name in (b"a/b", b"a/x"):
        assert declarer.verdict(name, ()) == TAKEN
    for name in (b"b", b"b/a", b"$SYS/a"):
        assert declarer.verdict(name, (1,)) == declarer.verdict(name, ()) == OUTSIDE
    upstream.go_through(declarer)
    declarer.declare("b")
    assert declarer.verdict(b"b", ()) == TAKEN
    declarer.withdraw("b")
    assert declarer.verdict(b"b", ()) == OUTSIDE
    # On their way until the upstream has confirmed.
    declarer.withdraw("a/b")
    declarer.withdraw("a/#")
    assert declarer.verdict(b"a/b", ()) == TAKEN
    upstream.go_through(declarer)
    assert declarer.verdict(b"a/b", ()) == OUTSIDE


def test_an_unsuback_with_too_few_codes() -> None:
    """[MQTT-3.11.3-1] Whether it was acted on is not known: the next connection asks again."""
    declarer, upstream = opened(["a", "b"])
    upstream.go_through(declarer)
    declarer.withdraw("a")
    upstream.take(declarer.packets([]))
    [(packet_id, _)] = upstream.unanswered
    with pytest.raises(ProtocolViolation, match="UNSUBACK"):
        declarer.acknowledged(packet_id, [])
    declarer.close()
    upstream.unanswered.clear()
    declarer.open(V5, True, True, LARGEST, [])
    upstream.go_through(declarer)
    assert set(declarer.held) == set(upstream.table) == {"b"}


def test_gathering_changes_only_what_differs() -> None:
    declarer, upstream = opened(["a", "b"])
    upstream.go_through(declarer)
    before = upstream.packets
    declarer.gather()
    for topic_filter in ("b", "c", "d"):
        declarer.declare(topic_filter)
    declarer.withdraw("d")
    assert set(declarer.wanted) == {"a", "b"}
    declarer.settle()
    upstream.go_through(declarer)
    assert set(upstream.table) == {"b", "c"}
    assert upstream.packets == before + 2


@given(
    before=st.lists(st.sampled_from(NARROW_AND_WIDE), max_size=8, unique=True),
    after=st.lists(st.sampled_from(NARROW_AND_WIDE), max_size=8, unique=True),
    spare=st.integers(0, 3),
)
def test_gathering_within_a_budget(before: list[str], after: list[str], spare: int) -> None:
    """Never more than the budget, or than there were before; what stays is not touched, and gaps are only for room."""
    most = max(1, len(after) + spare)
    declarer, upstream = opened(before)
    upstream.go_through(declarer)
    told: list[str] = []

    declarer.gather()
    for topic_filter in after:
        declarer.declare(topic_filter)
    declarer.settle(most)
    assert set(declarer.wanted) == set(after)
    limit = max(most, len(before))
    table = set(before)
    for topic_filter, subscribes in declarer._due.items():
        told.append(topic_filter)
        if subscribes:
            table.add(topic_filter)
        else:
            table.discard(topic_filter)
        assert len(table) <= limit
    assert table == set(after)
    assert set(told) == set(before) ^ set(after)
    if len(set(before) | set(after)) <= limit:
        ways = list(declarer._due.values())
        assert ways == sorted(ways, reverse=True)
    upstream.go_through(declarer)
    assert set(upstream.table) == set(after)


FILTERS = ["a", "b", "a/b", "a/#", "+/b", "#", "b/+", "a/+/c"]
TOPICS = ["a", "b", "a/b", "a/c", "b/b", "a/b/c"]


class DeclarerMachine(RuleBasedStateMachine):
    """Filters come and go, connections break at any point: in the end the upstream has what is wanted, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.declarer = Declarer(1)
        self.upstream = Upstream()
        self.wanted: set[str] = set()

    @initialize()
    def begin(self) -> None:
        self.declarer.open(V5, False, True, LARGEST, [])

    @rule(topic_filter=st.sampled_from(FILTERS))
    def change(self, topic_filter: str) -> None:
        if topic_filter in self.wanted:
            self.wanted.discard(topic_filter)
            self.declarer.withdraw(topic_filter)
        else:
            self.wanted.add(topic_filter)
            self.declarer.declare(topic_filter)

    @rule(times=st.integers(2, 3))
    def flicker(self, times: int) -> None:
        for _ in range(times):
            self.change("a/b")

    @precondition(lambda self: self.declarer.connected)
    @rule(lost=st.booleans())
    def send(self, lost: bool) -> None:
        raw = self.declarer.packets([])
        if lost:
            self._break()
        else:
            self.upstream.take(raw)

    @precondition(lambda self: self.declarer.connected)
    @rule()
    def answer(self) -> None:
        self.upstream.answer(self.declarer)

    @precondition(lambda self: self.declarer.connected)
    @rule()
    def break_off(self) -> None:
        self._break()

    def _break(self) -> None:
        self.declarer.close()
        self.upstream.unanswered.clear()

    @precondition(lambda self: not self.declarer.connected)
    @rule(present=st.booleans())
    def connect(self, present: bool) -> None:
        if not present:
            self.upstream.table.clear()
        self.declarer.open(V5, present, True, LARGEST, [])

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert set(self.declarer.wanted) == self.wanted
        if self.declarer.connected:
            # Whatever it has, we know of.
            assert set(self.upstream.table) <= set(self.declarer.held)
        used = [each for each in range(FIRST_ID, 65_536) if each in self.declarer._waiting]
        assert len(used) <= UNACKNOWLEDGED

    @invariant()
    def overlapping_filters_have_identifiers_of_their_own(self) -> None:
        held = self.upstream.table
        for one in held:
            for other in held:
                if one < other and overlaps(one, other):
                    assert held[one] != held[other]

    @invariant()
    def what_somebody_wants_or_the_upstream_has_is_taken(self) -> None:
        for topic in TOPICS:
            asked = self.wanted | set(self.declarer.held)
            taken = self.declarer.verdict(topic.encode(), ()) == TAKEN
            assert taken is any(matches(topic_filter, topic) for topic_filter in asked)

    @invariant()
    def one_of_the_copies_is_taken(self) -> None:
        if not self.declarer.connected or not self.declarer.settled:
            return
        for topic in TOPICS:
            copies = [identifier for name, identifier in self.upstream.table.items() if matches(name, topic)]
            taken = [self.declarer.verdict(topic.encode(), (each,)) == TAKEN for each in copies]
            assert sum(taken) == (1 if copies else 0)

    def teardown(self) -> None:
        if not self.declarer.connected:
            self.connect(True)
        self.upstream.go_through(self.declarer)
        assert set(self.upstream.table) == self.wanted
        assert set(self.declarer.held) == self.wanted
        assert self.declarer.settled


TestDeclarerMachine = DeclarerMachine.TestCase
TestDeclarerMachine.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
