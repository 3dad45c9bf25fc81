"""The wills of one process of another node."""

from __future__ import annotations

from collections.abc import Iterable

from broker.mesh.wills.kept import Process
from broker.mesh.wills.messages import WillCopy

ROOM = 1 << 30
MANY = 1_000


def tell(process: Process, numbers: Iterable[int], running: bool = False) -> None:
    for number in numbers:
        process.put(WillCopy(f"c{number}", number + 1, 0, running, b"will"), 0.0, ROOM)


def standing(process: Process) -> set[int]:
    return {number for number in range(MANY) if process.find(f"c{number}") is not None}


def test_what_is_not_named_anew_stands_no_more_at_once_and_is_forgotten_in_turns() -> None:
    process = Process("a", 1)
    tell(process, range(MANY))
    process.whole()
    process.back()
    tell(process, range(10))
    assert standing(process) == set(range(MANY))
    process.whole()
    assert standing(process) == set(range(10))
    turns = 0
    while process.stale:
        before = process.open
        process.forget_stale(100)
        turns += 1
        assert before - process.open <= 100
    assert turns >= MANY // 100
    assert len(process.wills) == process.open == 10
    tell(process, range(10))
    assert process.bytes == sum(kept.size for kept in process.wills.values())


def test_a_process_that_is_lost_again_before_it_has_told_all_has_what_it_had() -> None:
    process = Process("a", 1)
    tell(process, range(20))
    process.whole()
    process.back()
    tell(process, range(5))
    process.lost(1.0)
    assert standing(process) == set(range(20))
    assert len(process.some(MANY)) == 20
    process.back()
    tell(process, range(3))
    assert standing(process) == set(range(20))
    process.whole()
    assert standing(process) == {0, 1, 2}
    # And what was forgotten does not come back with it.
    process.back()
    assert standing(process) == {0, 1, 2}


def test_one_that_stops_has_those_whose_delay_runs() -> None:
    process = Process("a", 1)
    tell(process, range(20))
    tell(process, range(15, 20), running=True)
    process.stops()
    process.lost(1.0)
    assert standing(process) == set(range(15, 20))
    process.forget()
    assert standing(process) == set()
    while process.stale:
        process.forget_stale(7)
    assert (process.empty, process.bytes, process.open) == (True, 0, 0)
