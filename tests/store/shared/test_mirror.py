"""The shipped SQL does what the model does, statement by statement, and the comparison finds where it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.model.network import PARTS
from tests.cluster.model.world import World
from tests.store.shared.mirror import Mirror


@contextmanager
def mirrored(seed: int, change: Callable[[str], str] = str) -> Iterator[World]:
    """A history whose transactions PostgreSQL carries out, too; every second one without share groups and wills.

    None has nodes that live on after their death: what such a node asks waits for locks in PostgreSQL that the model
    does not know yet, and others skip those rows. Nor is a history run (such as 103) in which a group waits for one of
    the sessions that it locks, and a claim skips another one of them.
    """
    made: list[Mirror] = []

    def database(without: frozenset[str]) -> Mirror:
        made.append(Mirror(without, change=change))
        return made[0]

    try:
        world = World(seed, parts=PARTS - {"clean"} if seed % 2 else frozenset({"retained"}), database=database)
        if seed % 2:
            made[0].adopt()
        yield world
    finally:
        made[0].close()


def run(seed: int, steps: int) -> None:
    with mirrored(seed) as world:
        world.run(steps)
        assert isinstance(world.db, Mirror)
        world.db.compare_all()


def test_transactions_do_what_they_do_in_the_model() -> None:
    with mirrored(1) as world:
        for world.now in range(600):
            world.one()
        assert isinstance(world.db, Mirror)
        world.db.compare_all()
        assert world.db.commits > 20


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(104, 108, 4))
def test_transactions_do_what_they_do_in_the_model_in_many_histories(first: int) -> None:
    for seed in range(first, first + 4):
        run(seed, 600)
