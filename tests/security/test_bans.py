"""Bans by operators: whom they keep out, for how long, and how many there may be."""

from __future__ import annotations

import pytest

from canopy_mqtt.security.bans import ADDRESS, CLIENT_ID, NETWORK, USER, Ban, Bans
from tests.support.runs import for_each

CLIENT = ("sensor-7", "bob", "10.1.2.3")


def ban(kind: str, who: str, until: float = 0.0) -> Ban:
    return Ban(kind, who, until, 0.0, "alice", "")


@for_each(
    ("kind", "who", "barred"),
    [
        (CLIENT_ID, "sensor-7", True),
        (CLIENT_ID, "sensor", False),
        (CLIENT_ID, "bob", False),
        (USER, "bob", True),
        (USER, "sensor-7", False),
        (ADDRESS, "10.1.2.3", True),
        (ADDRESS, "10.1.2.4", False),
        (NETWORK, "10.0.0.0/8", True),
        (NETWORK, "10.1.2.9/24", True),
        (NETWORK, "fe80::/10", False),
    ],
)
def test_whom_a_ban_keeps_out(kind: str, who: str, barred: bool) -> None:
    bans = Bans()
    assert bans.add(ban(kind, who), 1.0)
    assert bans.bars(*CLIENT, 2.0) == barred
    assert bans.lift(kind, who)
    assert not bans.bars(*CLIENT, 2.0)
    assert not bans.lift(kind, who)


def test_the_64_bits_of_an_ipv6_address_count() -> None:
    bans = Bans()
    bans.add(ban(ADDRESS, "2001:db8::1"), 1.0)
    assert bans.bars("a", None, "2001:db8::2", 1.0)
    assert not bans.bars("a", None, "2001:db8:0:1::1", 1.0)
    # A Unix socket has no address.
    assert not bans.bars("a", None, "", 1.0)


@for_each("kind", [CLIENT_ID, USER, ADDRESS, NETWORK])
def test_a_ban_ends(kind: str) -> None:
    bans = Bans()
    bans.add(
        ban(kind, dict(zip((CLIENT_ID, USER, ADDRESS, NETWORK), (*CLIENT, CLIENT[2]), strict=True))[kind], 5.0), 1.0
    )
    assert bans.bars(*CLIENT, 4.9)
    assert not bans.bars(*CLIENT, 5.0)
    assert len(bans) == 0


def test_there_are_no_more_than_so_many_and_those_that_are_over_make_room() -> None:
    bans = Bans(2)
    assert bans.add(ban(CLIENT_ID, "a", 5.0), 1.0)
    assert bans.add(ban(CLIENT_ID, "b"), 1.0)
    assert not bans.add(ban(CLIENT_ID, "c"), 1.0)
    # One that is there is replaced.
    assert bans.add(ban(CLIENT_ID, "b", 9.0), 1.0)
    assert bans.add(ban(CLIENT_ID, "c"), 5.0)
    assert sorted(each.who for each in bans.all()) == ["b", "c"]


@for_each(("kind", "who"), [(ADDRESS, "x"), (NETWORK, "10.0.0.0/33"), (ADDRESS, "10.0.0.0/8")])
def test_what_is_no_address_is_refused(kind: str, who: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        Bans().add(ban(kind, who), 1.0)
