"""The user properties that nodes add to messages, and those of clients with the same names."""

from __future__ import annotations

import itertools

import pytest

from broker.core.routing.remote.node_tags import (
    take_late,
    take_number,
    take_share,
    with_late,
    with_number,
    with_share,
)
from tests.e2e import wire

NAMES = ("canopy-publish", "canopy-share", "canopy-late")
WRITTEN = [names for count in range(3) for names in itertools.product(NAMES, repeat=count)]
"""What a client may have written, one behind the other."""


def encoded(*names: str) -> bytes:
    return wire.packet(3, 0, wire.properties([(wire.USER_PROPERTY, (name, "5")) for name in names]))[3:]


@pytest.mark.parametrize("move", ["", "move"])
@pytest.mark.parametrize("share", ["", "$share/g/x"])
@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("written", WRITTEN, ids="-".join)
def test_a_node_takes_what_a_node_has_added_and_nothing_else(
    written: tuple[str, ...], number: int, share: str, move: str
) -> None:
    """[MQTT-3.3.2-17]"""
    own = encoded(*written)
    sent = with_number(own, number)
    if share:
        sent = with_share(sent, share)
    if move:
        sent = with_late(sent, move)
    taken_move, left = take_late(sent)
    taken_share, left = take_share(left)
    taken_number, left = take_number(left)
    assert (taken_move, taken_share, taken_number) == (move, share, str(number or ""))
    assert left == own


def test_nothing_is_added_where_no_such_name_stands() -> None:
    for own in (b"", encoded("canopy-via"), encoded("other")):
        assert with_number(own, 0) == own
