"""The model keeps the promises of a cluster on PostgreSQL, in histories of many faults, and needs its rules for it."""

from __future__ import annotations

from typing import Final

import pytest

from tests.cluster.model.network import PARTS, Violation
from tests.cluster.model.world import World
from tests.support.runs import examples, for_each

NO_PARTS: Final[frozenset[str]] = frozenset()
"""Sessions, subscriptions and messages alone."""
CLEAN: Final = frozenset({"clean"})
RETAINED: Final = frozenset({"retained"})
SHARES: Final = frozenset({"shares"})
WILLS: Final = frozenset({"wills"})


def histories(first: int, count: int, *, nodes: int = 3, faults: bool = True) -> None:
    """Run histories with all parts of the design and without, and see that clients got messages."""
    for seed in range(first, first + count):
        world = World(seed, nodes=nodes, faults=faults, parts=PARTS if seed % 2 else NO_PARTS)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}, {nodes} nodes")
            raise
        assert world.acked


NEEDED: Final = (
    ("no_look", 1, NO_PARTS),
    ("number_first", 1, NO_PARTS),
    ("fence_nolock", 8, NO_PARTS),
    ("slot_only", 1, NO_PARTS),
    ("no_claim_read", 99, NO_PARTS),
    ("read_by_key", 1, NO_PARTS),
    ("cursor_any", 1, NO_PARTS),
    ("truncate_after", 2, NO_PARTS),
    ("message_left", 5, NO_PARTS),
    ("messages_unseen", 5, NO_PARTS),
    ("no_again", 16, NO_PARTS),
    ("no_pub_fence", 16, NO_PARTS),
    ("look_unread", 165, RETAINED),
    ("retained_unfenced", 153, RETAINED),
    ("will_stays", 49, WILLS),
    ("will_overtakes", 107, WILLS),
    ("source_lost", 1, SHARES),
    ("join_unasked", 160, CLEAN),
)
"""Rules, and the first history that breaks a promise without each, and none with it. No history of a few hundred does
so without others: they stay by argument."""
LIMIT: Final = 20_000
"""Events in which these histories come to rest; with all rules they need no more than 15,000."""


def test_the_promises_hold_with_all_rules() -> None:
    """Where one is broken without a rule, and within the same number of events."""
    for seed, parts in {(seed, parts) for _, seed, parts in NEEDED}:
        World(seed, parts=parts).run(limit=LIMIT)


@for_each(("rule", "seed", "parts"), NEEDED)
def test_a_promise_is_broken_without_a_rule(rule: str, seed: int, parts: frozenset[str]) -> None:
    with pytest.raises(Violation):
        World(seed, parts=parts, without=frozenset({rule})).run(limit=LIMIT)


def test_the_promises_hold_under_faults() -> None:
    histories(1, examples(60))


def test_the_promises_hold_with_five_nodes() -> None:
    histories(1, examples(6), nodes=5)


def test_the_promises_hold_while_clients_roam_without_a_fault() -> None:
    histories(1, examples(8), faults=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", [1_000, 2_000, 3_000, 4_000])
def test_the_promises_hold_in_many_histories(first: int) -> None:
    histories(first, 50)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", [5_000, 6_000])
def test_the_promises_hold_in_many_histories_of_five_nodes(first: int) -> None:
    histories(first, 25, nodes=5)
