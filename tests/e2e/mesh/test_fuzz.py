"""The fuzz target of the mesh for a fixed time, and the proof that it notices what it is there for.

A finding names its seed; `python -m tests.fuzz mesh --seed N` runs the same for as long as one likes.
"""

from __future__ import annotations

import pytest

from broker.mesh.ownership.claims import Claims
from broker.mesh.ownership.messages import Ask
from broker.mesh.wills.replicating import Replicator
from tests.e2e.test_fuzz_live import for_a_while
from tests.fuzz import mesh_target
from tests.fuzz.finding import Finding

SECONDS = 4.0
"""A time and not a number of inputs: a slow machine sends fewer and still ends."""


def test_what_no_node_says_hurts_nobody_else() -> None:
    found = mesh_target.watched(1, for_a_while(SECONDS))
    # It has to have been a test: messages that were taken, some that were refused, honest traffic.
    assert found.watch.inputs > 10 * found.faults > 100
    assert found.number > 10


def test_an_exception_in_a_room_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Claims, node: str, ask: Ask) -> None:
        del self
        if node == mesh_target.HOSTILE:
            raise KeyError(ask)

    monkeypatch.setattr(Claims, "asked", careless)
    with pytest.raises(Finding, match="KeyError"):
        mesh_target.watched(2, for_a_while(30.0))


def test_what_is_left_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that still has wills to tell to one that is gone."""
    monkeypatch.setattr(Replicator, "left", lambda *_: None)
    monkeypatch.setattr("tests.support.waiting.PATIENCE", 6.0)
    with pytest.raises(Finding, match="wills"):
        mesh_target.watched(3, for_a_while(2.0))
