"""Which worker has a client: the same in each run, evenly, and few have another one when the number changes."""

from __future__ import annotations

from collections import Counter

from canopy_mqtt.workers.placing import worker_of

NAMES = [f"client-{number}".encode() for number in range(4_000)]


def test_it_is_the_same_in_each_version() -> None:
    """Sessions lie where it says: another answer would lose them."""
    assert [worker_of(name, 4) for name in (b"", b"a", b"sensor-17", "ä".encode())] == [2, 0, 0, 2]
    assert [worker_of(name, 64) for name in (b"", b"a", b"sensor-17", "ä".encode())] == [62, 11, 4, 8]


def test_all_workers_have_their_part() -> None:
    found = Counter(worker_of(name, 4) for name in NAMES)
    assert set(found) == {0, 1, 2, 3}
    assert max(found.values()) < 1.15 * len(NAMES) / 4


def test_one_more_worker_takes_its_part_and_nothing_else_moves() -> None:
    moved = [(worker_of(name, 3), worker_of(name, 4)) for name in NAMES if worker_of(name, 3) != worker_of(name, 4)]
    assert {after for _, after in moved} == {3}
    assert len(moved) < 0.3 * len(NAMES)


def test_one_worker_has_all() -> None:
    assert {worker_of(name, 1) for name in NAMES} == {0}
