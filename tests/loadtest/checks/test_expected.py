"""What should have come to whom, and what is said where a subscriber or a publisher was away."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_load.checks.expected import Account, Sent, Subscriptions, account, settle
from canopy_load.ledger import mark
from canopy_load.ledger.counters import Tally
from canopy_load.ledger.deliveries import Judge, Streams
from canopy_load.report.result import Deliveries
from canopy_load.scenario.plan import Plan
from tests.loadtest.playing import reader, scenario, sender
from tests.support.runs import examples

RUN = "00000001"


def plan(qos: int = 0) -> Plan:
    """One publisher (client 0, stream 0) and one subscriber (client 1)."""
    return Plan(scenario(sender(topic="t", qos=qos), reader(filters="t", qos=qos)), RUN)


def judge(known: Plan) -> Judge:
    made = Judge(1, Streams(known.mark_run, lambda stream: known.topic(stream).encode()), Tally())
    made.open = made.whole = True
    return made


def give(to: Judge, *sequences: int, qos: int = 0) -> None:
    for sequence in sequences:
        payload = mark.pack(to.streams.mark.run, 1, 0, sequence) + mark.filler(24)
        to.receive(b"t", payload, qos, False, False, 2)


def outcome(known: Plan, what: Account, sent: Sent) -> Deliveries:
    everybody = Subscriptions(known, [(0, 0), (1, 0)])
    [pair] = settle(known, everybody, [what], sent).pairs
    return pair.deliveries


def test_one_who_heard_nothing_and_was_away_lost_nothing_of_quality_0() -> None:
    for qos, expected in ((0, Deliveries(unjudged=9)), (1, Deliveries(expected=9, lost=9))):
        known = plan(qos)
        one = judge(known)
        one.left(session_kept=True)
        assert outcome(known, account(one), Sent({0: 9})) == expected


def test_what_is_doubtful_twice_is_subtracted_once() -> None:
    known = plan()
    one = judge(known)
    give(one, 0, 1, 7)
    sent = Sent({0: 8}, {0: [(0, 5), (0, 6), (2, 4)]})
    assert outcome(known, account(one), sent) == Deliveries(expected=8, received=3, lost=1, unconfirmed=4)


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6)


@given(st.sets(st.integers(0, 39)), RANGES, st.booleans(), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_every_message_is_received_lost_unconfirmed_or_unjudged(
    came: set[int], uncertain: list[tuple[int, int]], left: bool, kept: bool
) -> None:
    known = plan()
    one = judge(known)
    give(one, *sorted(came))
    if left:
        one.left(kept)
    found = outcome(known, account(one), Sent({0: 40}, {0: uncertain}))
    top = max(came, default=-1)
    missing = set(range(top if left else 40)) - came
    doubtful = {number for first, end in uncertain for number in range(first, end)} & missing
    assert found == Deliveries(
        expected=len(came | missing),
        received=len(came),
        lost=len(missing - doubtful),
        unconfirmed=len(doubtful),
        unjudged=39 - top if left else 0,
    )


def test_a_share_is_there_while_one_of_its_members_is() -> None:
    known = Plan(scenario(sender(topic="t"), reader(filters="$share/g/t", clients=2)), RUN)
    one = judge(known)
    one.shared, one.open = True, False
    one.joined()
    one.joined()
    one.parted()
    assert account(one).open
    give(one, 0)
    one.parted()
    assert not account(one).open
    assert outcome(known, account(one), Sent({0: 5})) == Deliveries(expected=1, received=1, unjudged=4)
    one.joined()
    give(one, 4)
    assert outcome(known, account(one), Sent({0: 6})) == Deliveries(expected=3, received=2, lost=1, unjudged=3)


def test_a_copy_by_a_filter_that_comes_and_goes_is_no_duplicate() -> None:
    for churn, expected in (("%n", Deliveries(2, 2, overlapping=1)), ("u/%n", Deliveries(2, 2, duplicates=1))):
        keys = {"churn": {"filter": churn, "filters": 20, "rate": 1}}
        known = Plan(scenario(sender(topic="7"), reader(filters="7", keys=keys)), RUN)
        one = judge(known)
        for sequence in (0, 1, 1):
            payload = mark.pack(one.streams.mark.run, 1, 0, sequence) + mark.filler(24)
            one.receive(b"7", payload, 0, False, False, 2)
        found = outcome(known, account(one), Sent({0: 2}))
        assert found == expected
