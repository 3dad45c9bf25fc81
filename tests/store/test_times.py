"""The time of a store: what passes between two brokers, whatever is done to the clocks.

`World` moves the clocks of a machine and a broker with a store on it. By hand and in random sequences: time passes, the
system's clock is set, the machine is suspended, restarts, the broker stops or is killed. Then what the store says is
left of a message is held against what is left.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.persistence.journal import Saved
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.store.postgresql import PostgresStore
from canopy_mqtt.store.sqlite import SqliteStore
from canopy_mqtt.store.times import (
    BELIEVED,
    NOTED_ALONE,
    NOTED_WITH_DATA,
    TOLD,
    Clocks,
    Note,
    Times,
    ahead_of_wall,
    uptime,
)
from tests.store.places import Clock
from tests.store.postgresql import place as database
from tests.store.sqlite.place import Listener
from tests.support import postgresql
from tests.support.runs import examples

TRUE: Final = 1_800_000_000.0
DAY: Final = 86_400.0


class World:
    """A machine with a broker on it. `true`: seconds that have passed; no clock of the machine shows them."""

    def __init__(self) -> None:
        self.true = 0.0
        self.wrong = 0.0
        self.booted = -500.0
        self.boots = 0
        self.origin = 40.0

    @property
    def wall(self) -> float:
        return TRUE + self.true + self.wrong

    def clocks(self) -> Clocks:
        """Those that a process finds that begins now."""
        return Clocks(lambda: self.wall, lambda: self.true - self.booted, f"boot {self.boots}")

    def broker(self) -> float:
        """The clock of the broker, which starts anywhere."""
        return self.true - self.booted + self.origin

    def reboot(self, off: float, wrong: float) -> None:
        """The machine is off for a while, and its clock is wrong afterwards by so much more."""
        self.true += off
        self.booted = self.true
        self.boots += 1
        self.origin = 3.0 * self.boots
        self.wrong += wrong


class TestTimes:
    """By hand, without a store."""

    def started(self, world: World, before: Times | None = None) -> Times:
        times = Times(world.clocks())
        times.start(world.broker, None if before is None else before.note())
        return times

    def test_a_clock_behind_the_newest_data_is_told_of(self) -> None:
        world = World()
        first = self.started(world)
        ends = first.lasting(world.broker() + 3 * DAY)
        note = first.note()
        world.reboot(2 * DAY, -22 * DAY)
        second = Times(world.clocks())
        second.start(world.broker, note)
        assert second.left(ends) == pytest.approx(3 * DAY)
        [line] = second.lines()
        assert line.startswith("the system's clock is 20 days behind the newest data of the store")
        # NTP answers: no time either.
        world.wrong += 22 * DAY
        assert second.left(ends) == pytest.approx(3 * DAY)

    def test_decades_between_two_boots_are_not_believed(self) -> None:
        world = World()
        first = self.started(world)
        ends = first.lasting(world.broker() + DAY)
        note = first.note()
        world.reboot(10.0, BELIEVED + DAY)
        second = Times(world.clocks())
        second.start(world.broker, note)
        assert second.left(ends) == pytest.approx(DAY)
        assert second.lines()

    def test_a_machine_that_was_set_back_to_a_snapshot_goes_by_the_wall_clock(self) -> None:
        world = World()
        first = self.started(world)
        ends = first.lasting(world.broker() + DAY)
        note = first.note()
        world.true += 60.0
        world.booted = world.true - 1.0  # the boot is the same, and younger than it was
        second = Times(world.clocks())
        second.start(world.broker, note)
        assert second.left(ends) == pytest.approx(DAY - 60.0)

    def test_a_system_without_a_name_for_its_boot_goes_by_the_wall_clock(self) -> None:
        wall = Clock(TRUE)
        first = Times(Clocks(wall, Clock(1.0), ""))
        first.start(Clock(5.0))
        note = first.note()
        assert note is not None
        wall.now += 60.0
        second = Times(Clocks(wall, Clock(1.0), ""))
        second.start(Clock(5.0), note)
        assert second.left(note.time + 100.0) == pytest.approx(40.0)

    def test_when_there_is_a_note(self) -> None:
        """At the start, with data, alone, when a clock steps, at the end."""
        world = World()
        times = self.started(world)
        assert times.see()
        assert times.note() is not None
        assert not times.see()
        assert times.note() is None
        world.true += NOTED_WITH_DATA
        assert not times.see()
        assert times.note() is not None
        world.true += NOTED_ALONE
        assert times.see()
        assert times.note() is not None
        world.wrong += 1.5
        assert times.see()
        assert times.note() is not None
        times.want_note()
        assert times.see()
        assert times.note() is not None
        assert not times.see()

    def test_a_clock_that_goes_to_and_fro_is_told_of_once_a_minute(self) -> None:
        world = World()
        times = self.started(world)
        times.note()
        lines: list[str] = []
        for _ in range(int(10 * TOLD)):
            world.true += 1.0
            world.wrong = 100.0 - world.wrong
            assert times.see()
            times.note()
            lines += times.lines()
        assert 1 <= len(lines) <= 11

    def test_of_an_export_the_present_clock_decides(self) -> None:
        """A store of a machine whose clock was wrong when it was noted, and is right by now."""
        world = World()
        world.wrong = -20 * DAY
        times = self.started(world)
        note = times.note()
        assert ahead_of_wall(note, world.clocks()) == 0.0
        world.wrong = 0.0
        assert ahead_of_wall(note, world.clocks()) == pytest.approx(-20 * DAY)

    def test_a_note_that_no_broker_wrote_is_none(self) -> None:
        note = Note(TRUE, TRUE, 5.0, "boot")
        assert Note.of(note.row()) == note
        assert Note.of((TRUE + 1.0, *note.row()[1:])) is None
        assert Note.of((None, None, None, None, None)) is None
        assert Note.of((float("nan"), TRUE, 5.0, "boot", note.row()[-1])) is None

    def test_the_machine_counts_from_its_start(self) -> None:
        before = uptime()
        assert before <= uptime()
        assert Clocks.of_system() == Clocks.of_system()


# -- with a store ------------------------------------------------------------------------------------------------------


class SqliteHouse:
    """A file; a kill leaves what is on disk."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.folders = 0
        self.folder = self.root / "0"
        self.store: SqliteStore

    async def start(self, world: World) -> SqliteStore:
        self.store = SqliteStore(self.folder, synchronous="off", commit_window=0.0, clocks=world.clocks())
        await self.store.open(world.broker)
        return self.store

    async def kill(self) -> None:
        self.folders += 1
        left = self.root / str(self.folders)
        shutil.copytree(self.folder, left)
        await self.store.close()
        self.folder = left

    def remove(self) -> None:
        shutil.rmtree(self.root)


class DatabaseHouse:
    """A schema; a kill leaves what was committed."""

    def __init__(self) -> None:
        self.name = postgresql.new_name()
        self.store: PostgresStore

    async def start(self, world: World) -> PostgresStore:
        self.store = database.make(self.name, commit_window=0.0, clocks=world.clocks())
        await self.store.open(world.broker)
        return self.store

    async def kill(self) -> None:
        await database.kill(self.store)
        # Nobody waits for it.
        await database.ask(self.name, "UPDATE owner SET lease_until = '-infinity'")

    def remove(self) -> None:
        pass


class Life:
    """The events of a world and of a broker's store there, and their expected results."""

    def __init__(self, house: SqliteHouse | DatabaseHouse) -> None:
        self.world = World()
        self.house = house
        self.expires: dict[bytes, float] = {}
        # How much further the store's time is than the true one, and what the last note knows.
        self.further = 0.0
        self.noted_at = 0.0
        self.noted_wrong = 0.0

    async def begin(self) -> None:
        store = await self.house.start(self.world)
        await store.load()
        await self._written()
        store.journal.session_kept("s", Principal("u"), 300, self.world.broker())
        self.left_at = self.world.true
        await self.tell(50 * DAY)

    async def _landed(self) -> None:
        while self.house.store._committer._air is not None:  # noqa: ASYNC110 (nobody is told of a note)
            await asyncio.sleep(0.001)

    async def _written(self) -> None:
        await self._landed()
        self._noted(always=True)

    def _noted(self, always: bool = False) -> None:
        world = self.world
        if always or world.wrong != self.noted_wrong or world.true - self.noted_at >= NOTED_WITH_DATA:
            self.noted_at, self.noted_wrong = world.true, world.wrong

    async def tell(self, expiry: float) -> None:
        """A message is acknowledged."""
        topic = b"t/%d" % len(self.expires)
        message = Message(topic, b"1", 1, True, b"", self.world.broker() + expiry, "p")
        self.house.store.journal.retained_set(message)
        await self.house.store.flush()
        self.expires[topic] = self.world.true + expiry + self.further
        self._noted()

    async def look(self) -> None:
        """The second of the broker's in which it looks at the clocks."""
        self.house.store._committer._see_clocks()
        await self._landed()
        world = self.world
        if world.wrong != self.noted_wrong or world.true - self.noted_at >= NOTED_ALONE:
            self._noted(always=True)

    async def restart(self, kill: bool, off: float, step: float) -> None:
        """The broker ends, and comes back on the same boot; the clock may be set meanwhile."""
        await self._end(kill)
        self.world.true += off
        self.world.wrong += step
        self.world.origin += 17.0
        await self._start()
        self.agree(self.further, self.further)

    async def reboot(self, kill: bool, off: float, wrong: float) -> None:
        """The machine ends, and comes back."""
        await self._end(kill)
        self.world.reboot(off, wrong)
        gap = self.world.true - self.noted_at
        step = self.world.wrong - self.noted_wrong
        await self._start()
        if step == 0.0 and gap <= BELIEVED:
            # The clock is right about what has passed.
            self.agree(self.further, self.further)
        elif step > 0.0:
            # It says that more has passed: nobody knows better, unless it is absurd.
            self.agree(self.further - gap, self.further + step)
        else:
            # Nothing expires too early, and nothing lives longer than the time without a note.
            self.agree(self.further - gap, self.further)

    async def _end(self, kill: bool) -> None:
        if kill:
            await self.house.kill()
        else:
            await self.house.store.close()
            self._noted(always=True)

    async def _start(self) -> None:
        store = await self.house.start(self.world)
        store.listener = Listener()
        self.saved: Saved = await store.load()
        await self._written()

    def agree(self, least: float, most: float) -> None:
        """By how much the store's time is further now, which all that is in it says alike."""
        [session] = self.saved.sessions
        assert session.disconnected_for is not None
        found = [
            self.expires[record.topic] - self.world.true - record.expires_in
            for record in self.saved.retained
            if record.expires_in is not None
        ]
        assert len(found) == len(self.expires)
        further = found[0]
        assert all(abs(one - further) < 1e-3 for one in found)
        # Of a session it is never below nothing.
        assert session.disconnected_for == pytest.approx(max(self.world.true - self.left_at + further, 0.0), abs=1e-3)
        assert least - 1e-3 <= further <= most + 1e-3
        self.further = further


off_time = st.sampled_from([0.0, 5.0, 300.0, 2 * DAY])
steps = st.sampled_from([0.0, 5.0, -5.0, 3_600.0, -3_600.0, 20 * DAY, -20 * DAY, 60 * 366 * DAY])
action = st.one_of(
    st.tuples(st.just("tell"), st.sampled_from([60.0, DAY, 30 * DAY])),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 30.0, 7_000.0, DAY])),
    st.tuples(st.just("step"), steps),
    st.tuples(st.just("look")),
    st.tuples(st.just("restart"), st.booleans(), off_time, steps),
    st.tuples(st.just("reboot"), st.booleans(), off_time, steps),
)


async def _live(house: SqliteHouse | DatabaseHouse, actions: list[tuple[Any, ...]]) -> None:
    life = Life(house)
    await life.begin()
    try:
        for what, *values in actions:
            if what == "pass":
                life.world.true += values[0]
            elif what == "step":
                life.world.wrong += values[0]
            else:
                await getattr(life, what)(*values)
        await life.restart(False, 1.0, 0.0)
    finally:
        await house.store.close()


@pytest.mark.parametrize(("kind", "most"), [(SqliteHouse, 300), (DatabaseHouse, 50)])
def test_nothing_expires_before_its_time(kind: type[SqliteHouse] | type[DatabaseHouse], most: int) -> None:
    """And nothing lives longer than asked by more than what cannot be known, in any sequence."""
    if kind is DatabaseHouse:
        postgresql.shared()

    @settings(max_examples=examples(most), deadline=None)
    @given(st.lists(action, max_size=12))
    def property_of_times(actions: list[tuple[Any, ...]]) -> None:
        house = kind()
        try:
            asyncio.run(_live(house, actions))
        finally:
            house.remove()

    property_of_times()
