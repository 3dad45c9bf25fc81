"""One subscriber's account, held against a naive one that keeps every number: whatever comes, in whatever order, and
however often the subscriber leaves and returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from canopy_load.checks.expected import account
from canopy_load.ledger import mark
from canopy_load.ledger.counters import Tally
from canopy_load.ledger.deliveries import Judge, Source, Streams
from tests.support.runs import examples

RUN = 0x81
TOPIC = b"t"


def new(whole: bool = True, source: Source | None = None) -> Judge:
    streams = Streams(RUN, lambda stream: TOPIC if stream < 8 else b"")
    if source is not None:
        streams.sources[0] = source
    judge = Judge(0, streams, Tally())
    judge.open = True
    judge.whole = whole
    return judge


def give(judge: Judge, *sequences: int, qos: int = 0, dup: bool = False, stream: int = 0) -> None:
    for sequence in sequences:
        payload = mark.pack(RUN, 1, stream, sequence) + mark.filler(24)
        judge.receive(TOPIC, payload, qos, False, dup, 2)


def counts(judge: Judge, stream: int = 0) -> dict[str, int]:
    """What is not 0."""
    found = account(judge).receipts[stream]
    return {name: value for name, value in vars(found).items() if value}


@dataclass
class Naive:
    """All numbers, one by one."""

    whole: bool
    next: int = 0
    lost: set[int] = field(default_factory=set)
    unjudged: set[int] = field(default_factory=set)
    before: int = 0
    kept: bool = True
    present: bool = True
    counted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.kept = self.present = self.whole

    def leave(self, session_kept: bool) -> None:
        self.present = False
        self.kept = self.kept and session_kept
        self.before = self.next

    def come(self, sequence: int, qos: int, dup: bool) -> None:
        if sequence >= self.next:
            due = self.kept and (self.present or qos > 0)
            (self.lost if due else self.unjudged).update(range(self.next, sequence))
            self.next = sequence + 1
            self.kept = self.present = True
        elif sequence in self.lost | self.unjudged:
            self.lost.discard(sequence)
            self.unjudged.discard(sequence)
            self.counted["reordered"] += 1
        else:
            again = qos == 1 and (dup or sequence < self.before)
            self.counted["redelivered" if again else "duplicates"] += 1
            return
        self.counted["received"] += 1

    def counts(self) -> dict[str, int]:
        found = {**self.counted, "lost": len(self.lost), "unjudged": len(self.unjudged)}
        return {name: value for name, value in found.items() if value}


COME = st.tuples(st.just("come"), st.integers(0, 30), st.booleans())
LEAVE = st.tuples(st.just("leave"), st.just(0), st.booleans())


@given(st.lists(st.one_of(COME, COME, COME, LEAVE), max_size=60), st.booleans(), st.integers(0, 2))
@example([("come", 3, False), ("leave", 0, False), ("come", 9, False), ("come", 5, False)], True, 1)
@example([("leave", 0, True), ("come", 5, False)], True, 0)
@example(
    [("come", 0, False), ("come", 1, False), ("leave", 0, True), *[("come", at, False) for at in (1, 2, 2)]], True, 1
)
@settings(max_examples=examples(300), deadline=None)
def test_whatever_comes_is_counted_as_one_who_keeps_every_number_counts_it(
    events: list[tuple[str, int, bool]], whole: bool, qos: int
) -> None:
    source = Source()
    judge, naive = new(whole, source), Naive(whole)
    for what, sequence, flag in events:
        if what == "leave":
            judge.left(session_kept=flag)
            naive.leave(flag)
        else:
            give(judge, sequence, qos=qos, dup=flag)
            naive.come(sequence, qos, flag)
    receipt = judge.receipts.get(0)
    if receipt is None:
        assert naive.counts() == {}
        return
    assert counts(judge) == naive.counts()
    assert judge.tally.gaps == len(naive.lost)
    assert judge.tally.copies == naive.counted["duplicates"] + naive.counted["redelivered"]
    assert source.returned == naive.next, "every number below the next has come or is given up"
    gaps = {number for first, end in account(judge).gaps.get(0, []) for number in range(first, end)}
    assert gaps == naive.lost
