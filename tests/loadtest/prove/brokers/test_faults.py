"""Which faults happen when, to which nodes and for how long."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from canopy_load.prove.faults import (
    BROKER_FAULTS,
    CLIENT_FAULTS,
    LEAST_NODES,
    PARTITIONS,
    TOUCHES,
    BrokerFault,
    Fault,
    choose,
    rounds_for,
)

LOAD = 3.0
TIMEOUT = 10.0


def chosen(seed: int, rounds: int = 60, nodes: int = 4) -> list[tuple[BrokerFault, ...]]:
    return choose(Random(seed), rounds, BROKER_FAULTS, LOAD, nodes, TIMEOUT)


def test_every_fault_has_its_turn_and_so_has_peace() -> None:
    assert rounds_for(CLIENT_FAULTS) == 1
    made = chosen(1, rounds=rounds_for(CLIENT_FAULTS + BROKER_FAULTS))
    first = [each[0].fault if each else None for each in made]
    assert sorted(first, key=str) == sorted([*BROKER_FAULTS, None], key=str)


def test_two_faults_at_once_touch_different_things() -> None:
    several = [each for seed in range(20) for each in chosen(seed) if len(each) > 1]
    assert several
    assert all(TOUCHES[one.fault] != TOUCHES[other.fault] for one, other in several)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_faults_begin_under_load_and_happen_to_nodes_that_there_are(nodes: int) -> None:
    possible = [each for each in BROKER_FAULTS if LEAST_NODES.get(each, 1) <= nodes]
    for faults in choose(Random(1), 100, possible, LOAD, nodes, TIMEOUT):
        for each in faults:
            assert 0 < each.at < LOAD
            assert len(set(each.nodes)) == len(each.nodes)
            assert set(each.nodes) <= set(range(nodes))


def test_stops_and_partitions_last_about_as_long_as_the_time_out() -> None:
    times = [
        each.seconds / TIMEOUT
        for seed in range(20)
        for faults in chosen(seed)
        for each in faults
        if each.fault is Fault.STOP or each.fault in PARTITIONS
    ]
    assert min(times) >= 0.5
    assert max(times) <= 3.0
    # A broker may err most just after it has given up a node.
    assert any(1.0 < each < 1.6 for each in times)


def test_some_kills_outlast_the_time_out_where_others_may_take_over() -> None:
    def longest(nodes: int) -> float:
        return max(
            each.seconds for faults in choose(Random(1), 60, [Fault.KILL], LOAD, nodes, TIMEOUT) for each in faults
        )

    assert longest(3) > TIMEOUT
    assert longest(1) < TIMEOUT


def test_no_process_starts_on_a_disk_that_refuses_writes() -> None:
    """A broker may refuse to; other faults happen at the same time."""
    pairs = set()
    for seed in range(200):
        for each in choose(Random(seed), 20, BROKER_FAULTS, 3.0, nodes=3):
            pairs |= {frozenset((one.fault, other.fault)) for one, other in pairwise(each)}
    assert frozenset((Fault.KILL, Fault.STORE_PAUSED)) in pairs
    assert frozenset((Fault.STOP, Fault.STORE_READ_ONLY)) in pairs
    starts, refuses = {Fault.KILL, Fault.RESTART, Fault.SCALE}, {Fault.STORE_FULL, Fault.STORE_READ_ONLY}
    assert [pair for pair in pairs if pair & starts and pair & refuses] == []
