"""Credentials that are remembered: for whom, until when, and how many."""

from __future__ import annotations

import pickle

from canopy_mqtt.security.passwords.verified_credentials import VerifiedCredentials


def test_the_same_password_for_the_same_hash() -> None:
    kept = VerifiedCredentials(10)
    kept.keep("alice", b"secret", "hash")
    assert kept.good("alice", b"secret", "hash")
    assert not kept.good("alice", b"other", "hash")
    assert not kept.good("bob", b"secret", "hash")
    # One wrong password does not cost the right one its place.
    assert kept.good("alice", b"secret", "hash")


def test_another_hash_forgets() -> None:
    kept = VerifiedCredentials(10)
    kept.keep("alice", b"secret", "hash")
    assert not kept.good("alice", b"secret", "another")
    assert not kept.good("alice", b"secret", "hash")
    kept.keep("alice", b"secret", "hash")
    kept.forget("alice")
    assert len(kept) == 0


def test_the_oldest_goes_first() -> None:
    kept = VerifiedCredentials(2)
    for user in ("a", "b"):
        kept.keep(user, b"x", "hash")
    assert kept.good("a", b"x", "hash")
    kept.keep("c", b"x", "hash")
    assert [kept.good(user, b"x", "hash") for user in "abc"] == [True, False, True]
    kept.bound(1)
    assert len(kept) == 1


def test_none_are_kept_where_none_may_be() -> None:
    kept = VerifiedCredentials(0)
    kept.keep("a", b"x", "hash")
    assert len(kept) == 0


def test_user_and_password_do_not_run_into_each_other() -> None:
    kept = VerifiedCredentials(2)
    kept.keep("a", b"bc", "hash")
    assert not kept.good("ab", b"c", "hash")
    assert kept._mark("a", b"bc") != kept._mark("ab", b"c")


def test_neither_the_password_nor_a_plain_hash_of_it_is_kept() -> None:
    one, other = VerifiedCredentials(2), VerifiedCredentials(2)
    for kept in (one, other):
        kept.keep("alice", b"hunter2", "hash")
    assert b"hunter2" not in pickle.dumps(vars(one))
    assert one._kept["alice"] != other._kept["alice"]
