"""Bans: what counts, for how long, for whom, and how much is remembered."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from canopy_mqtt.security.brute_force import BruteForceGuard
from canopy_mqtt.settings import Security
from tests.support.runs import for_each


def guessing(**settings: Any) -> BruteForceGuard:
    return BruteForceGuard(Security(**{"ban_after": 3, "ban_time": 100.0, **settings}))


def fail(made: BruteForceGuard, times: int, host: str = "10.0.0.1", now: float = 0.0, at: int = 0) -> list[str]:
    banned: list[str] = []
    for each in range(at, at + times):
        banned.append(made.failed(host, "alice", b"%d" % each, now))
    return [each for each in banned if each]


def test_an_address_is_banned_for_a_time() -> None:
    made = guessing()
    assert fail(made, 2) == []
    assert made.banned("10.0.0.1", 0.0) == ""
    assert fail(made, 1, at=2) == ["address 10.0.0.1"]
    assert made.banned("10.0.0.1", 99.9) == "address 10.0.0.1"
    assert made.banned("10.0.0.2", 0.0) == ""
    assert made.current(40.0) == [("address 10.0.0.1", 60.0)]
    assert made.banned("10.0.0.1", 100.0) == ""
    assert (made.failures, made.bans, made.refused) == (3, 1, 1)


def test_how_many_bans_hold_is_found_without_walking_over_them() -> None:
    made = guessing()
    for number in range(5):
        fail(made, 3, host=f"10.0.0.{number}", now=number * 10.0)
    looked_at: list[str] = []

    class Watched(OrderedDict[str, float]):
        def __getitem__(self, key: str) -> float:
            looked_at.append(key)
            return super().__getitem__(key)

    made._banned = Watched(made._banned)
    looked_at.clear()
    assert made.count(50.0) == 5
    assert looked_at == ["address 10.0.0.0"]
    assert made.count(110.0) == 3
    assert [key for key, _ in made.current(110.0)] == [f"address 10.0.0.{number}" for number in (2, 3, 4)]
    assert made.count(1_000.0) == 0


def test_the_same_credentials_count_once() -> None:
    made = guessing()
    for _ in range(1_000):
        assert made.failed("10.0.0.1", "alice", b"stale", 0.0) == ""
    assert made.failures == 1_000


def test_failures_grow_old() -> None:
    made = guessing()
    fail(made, 2, now=0.0)
    assert fail(made, 1, now=100.0, at=2) == []
    assert fail(made, 1, now=100.5, at=3) == []
    assert fail(made, 1, now=101.0, at=4) == ["address 10.0.0.1"]


@for_each(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_which_addresses_are_one(one: str, other: str, same: bool) -> None:
    made = guessing()
    fail(made, 3, one)
    assert bool(made.banned(other, 0.0)) is same


@for_each("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", ""])
def test_this_machine_is_exempt(host: str) -> None:
    made = guessing()
    assert fail(made, 10, host) == []
    assert not made.banned(host, 0.0)


def test_exempt_networks_of_ones_own() -> None:
    made = guessing(ban_exempt=["10.0.0.0/8"])
    assert fail(made, 3) == []
    assert fail(made, 3, "127.0.0.1") == ["address 127.0.0.1"]


def test_nobody_is_banned_where_nobody_is_to_be() -> None:
    made = guessing(ban_after=0)
    assert fail(made, 1_000) == []
    assert len(made._failed) == 0
    made = guessing()
    fail(made, 3)
    made.change(Security(ban_after=0))
    assert made.banned("10.0.0.1", 0.0) == ""


def test_what_is_remembered_is_bounded() -> None:
    made = guessing(max_bans=10)
    for at in range(100):
        fail(made, 2, f"10.0.1.{at}")
    assert len(made._failed) == 10
    # Those who failed last are remembered.
    assert fail(made, 1, "10.0.1.99", at=2)
    for at in range(100):
        fail(made, 3, f"10.0.2.{at}")
    assert len(made._banned) == 10
    assert made.banned("10.0.2.99", 0.0)
    assert max(map(len, made._failed.values()), default=0) < 3
