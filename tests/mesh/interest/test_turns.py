"""A node with very many filters tells them in turns: none does more than a bounded part of it."""

from __future__ import annotations

import pytest

from tests.mesh.interest.nodes import Counted, Mesh, Node

MANY = 500
LOOKS = 16


@pytest.mark.parametrize("there", [False, True], ids=["before the other node comes", "while it is there"])
def test_very_much_that_changes_at_once_is_closed_in_turns(there: bool) -> None:
    mesh = Mesh()
    tells, hears = (mesh.add(Node(mesh, name, declare_keys=LOOKS, looks=LOOKS)) for name in ("tells", "hears"))
    if there:
        mesh.settle()
    for number in range(MANY):
        tells.room.wanted(f"x/{number}", mesh.now)
    waiting = Counted()
    waits = tells.room.wait(waiting, mesh.now)
    assert waits is there
    most = 0
    for _ in range(MANY // LOOKS):
        before = tells.interest.work
        tells.turn(mesh.now)
        most = max(most, tells.interest.work - before)
        # What comes meanwhile belongs to it, and what goes.
        tells.room.wanted("y/1", mesh.now)
        tells.room.unwanted("y/1", mesh.now)
        assert not mesh.lines["tells", "hears"]
    assert most <= 3 * LOOKS
    tells.room.unwanted("x/7", mesh.now)
    mesh.settle()
    assert waiting.heard == ([True] if waits else [])
    assert hears.sinks["tells"].filters == {f"x/{number}" for number in range(MANY) if number != 7}
    assert hears.room.remotes["tells"].differed == 0
    assert tells.interest.confirmed_by("hears") == tells.interest.version
