"""A journal that is told anything, groups that end anywhere, commits that fail or of which nobody hears.

At any time the tables are read as another broker would find them, as if the process had been killed then: that is what
the model had been told at one moment, which is not before the last number that was committed (as in
`tests/store/test_crashes.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from broker.store import MemoryStore, StoreError
from broker.store.groups import committing
from broker.store.groups.principals import Principals
from broker.store.groups.records import Loaded
from broker.store.postgresql import reading
from broker.store.postgresql.database import Database
from tests.store.postgresql.place import make
from tests.store.sqlite.place import see
from tests.store.sqlite.test_store import Both
from tests.store.test_crashes import TELLING
from tests.support import postgresql
from tests.support.runs import examples

Value = TypeVar("Value")


class Crashes(RuleBasedStateMachine):
    """Two sessions, some topics; the store and the model are told the same."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.name = postgresql.new_name()
        # Whether the next commits are made, of which nobody hears.
        self.failures: list[bool] = []
        # Groups end when the loop has a turn.
        self.store = make(self.name, commit_window=0.0, commit_bytes=5_000, lease_timeout=3600.0)
        self.model = MemoryStore()
        self.do(self.store.open(self.loop.time))
        self.do(self.model.open(self.loop.time))
        self.both = Both(self.store, self.model)
        commits = self.store.journal.commits
        assert commits is not None
        self.commits = commits
        # How much had been told → what the model had then.
        self.seen: dict[int, Any] = {}
        self.remember()
        self.database = self.store._database
        self.commit = self.database.commit
        self.database.commit = self.perhaps  # type: ignore[method-assign]

    def do(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self.loop.run_until_complete(work)

    def remember(self) -> None:
        self.seen[int(self.commits.told)] = see(self.do(self.model.load()))

    async def perhaps(self) -> None:
        """The connection breaks with the commit on its way, or with the answer."""
        if not self.failures:
            await self.commit()
            return
        if self.failures.pop():
            await (await self.database.connection()).execute("COMMIT")
        raise ConnectionError("broken")

    @rule(steps=st.lists(st.tuples(st.sampled_from(TELLING), st.sampled_from("cd"), st.integers(0, 3)), max_size=8))
    def tell(self, steps: list[tuple[str, str, int]]) -> None:
        """What happens in one call of the core."""
        for what, client_id, number in steps:
            self.both.tell(what, client_id, number)
        self.remember()

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        """The loop has turns: a group ends, another may come down."""
        for _ in range(turns):
            self.do(asyncio.sleep(0.001))

    @rule(made=st.lists(st.booleans(), min_size=1, max_size=3))
    def fail(self, made: list[bool]) -> None:
        self.failures = made

    @rule()
    def flush(self) -> None:
        """It raises when a commit fails, and all is there when it does not."""
        while True:
            try:
                self.do(self.store.flush())
                break
            except StoreError:
                assert self.commits.failed
        assert self.commits.committed == self.commits.told
        assert not self.commits.failed

    @rule()
    def crash(self) -> None:
        committed, told = int(self.commits.committed), int(self.commits.told)
        found = self.do(self.found())
        assert any(found == self.seen[number] for number in self.seen if committed <= number <= told)

    async def found(self) -> Any:
        """What another broker would find, of one moment."""
        other = Database(
            self.database.url, self.name, node="", synchronous="off", stall_timeout=0.0, lease_timeout=3600.0
        )
        loaded = Loaded(0.0, Principals())
        other.renewed = self.loop.time()
        connection = await other.connection()
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await reading._read(other, loaded)
        await other.disconnect()
        return see(loaded.saved)

    def teardown(self) -> None:
        """An orderly end leaves all of it."""
        try:
            self.flush()
            self.failures = []
            self.do(self.store.close())
            assert self.do(self.found()) == self.seen[int(self.commits.told)]
        finally:
            self.failures = []
            self.do(self.store.close())
            self.loop.close()


@pytest.mark.parametrize("steps", [15, pytest.param(50, marks=pytest.mark.long)])
def test_what_a_crash_leaves(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    postgresql.shared()
    monkeypatch.setattr(committing, "FIRST_RETRY", 0.001)
    monkeypatch.setattr(committing, "LAST_RETRY", 0.002)
    options: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(
        Crashes,
        settings=settings(max_examples=examples(100 if steps < 20 else 40), stateful_step_count=steps, **options),
    )
