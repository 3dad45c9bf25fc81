"""A crash leaves a prefix of the changes in a store, whatever they are, wherever groups end, and if commits fail.

At any time the store is read as another broker would find it, as if the process had been killed then. It then has the
state of the model at one moment, not before the last committed number: every acknowledgement that this number released
was right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from canopy_mqtt.store import MemoryStore, StoreError
from tests.store.sqlite.place import see
from tests.store.sqlite.test_store import STEP_NAMES, Both
from tests.support.runs import examples

Value = TypeVar("Value")

TELLING = tuple(name for name in STEP_NAMES if name != "flush")


class Kept(Protocol):
    """A store, and how it is hurt and read."""

    store: Any
    failures: list[bool]
    """The next commits that fail: whether each is made all the same, where that can be."""
    turn: float
    """Seconds in which the loop has a turn."""

    def hurt(self) -> None:
        """From now on commits fail by `failures`. The store is open."""

    async def found(self, now: Callable[[], float]) -> Any:
        """Return the state that another broker would find now."""

    async def left(self, now: Callable[[], float]) -> Any:
        """Return the state that another broker finds after an orderly end."""

    def remove(self) -> None:
        """It is no longer needed."""


class Crashes(RuleBasedStateMachine):
    """Two sessions, some topics; the store and the model are told the same."""

    def __init__(self, kept: Callable[[], Kept]) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.kept = kept()
        self.store = self.kept.store
        self.model = MemoryStore()
        self.do(self.store.open(self.loop.time))
        self.do(self.model.open(self.loop.time))
        commits = self.store.journal.commits
        assert commits is not None
        self.commits = commits
        self.both = Both(self.store, self.model)
        # How much had been told → what the model had then.
        self.seen: dict[int, Any] = {}
        self.remember()
        self.kept.hurt()

    def do(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self.loop.run_until_complete(work)

    def remember(self) -> None:
        self.seen[int(self.commits.journal_position)] = see(self.do(self.model.load()))

    @rule(steps=st.lists(st.tuples(st.sampled_from(TELLING), st.sampled_from("cd"), st.integers(0, 3)), max_size=8))
    def tell(self, steps: list[tuple[str, str, int]]) -> None:
        """Make the changes of one call of the core."""
        for what, client_id, number in steps:
            self.both.tell(what, client_id, number)
        self.remember()

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        """The loop has turns: a group ends, another may come down."""
        for _ in range(turns):
            self.do(asyncio.sleep(self.kept.turn))

    @rule(made=st.lists(st.booleans(), min_size=1, max_size=3))
    def fail(self, made: list[bool]) -> None:
        self.kept.failures = made

    @rule()
    def flush(self) -> None:
        """It raises when a commit fails, and all is there when it does not."""
        while True:
            try:
                self.do(self.store.flush())
                break
            except StoreError:
                assert self.commits.failed
        assert self.commits.committed == self.commits.journal_position
        assert not self.commits.failed

    @rule()
    def crash(self) -> None:
        committed, told = int(self.commits.committed), int(self.commits.journal_position)
        found = self.do(self.kept.found(self.loop.time))
        assert any(found == self.seen[number] for number in self.seen if committed <= number <= told)

    def teardown(self) -> None:
        """An orderly end leaves all of it."""
        try:
            self.kept.failures = []
            self.flush()
            self.do(self.store.close())
            assert self.do(self.kept.left(self.loop.time)) == self.seen[int(self.commits.journal_position)]
        finally:
            self.kept.failures = []
            self.do(self.store.close())
            self.loop.close()
            self.kept.remove()


def survive(kept: Callable[[], Kept], steps: int, most: int) -> None:
    """Tell such stores so many things, crash them in between, and look at each."""
    run_state_machine_as_test(
        lambda: Crashes(kept),  # type: ignore[arg-type]  # whatever makes one
        settings=settings(
            max_examples=examples(most),
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
