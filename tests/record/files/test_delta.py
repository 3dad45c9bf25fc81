"""`recorder.table = "delta"`: the table follows the recorder, and the record never depends on it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from canopy_mqtt import Broker
from canopy_mqtt.assembly.app import StartupError
from canopy_mqtt.delta import Table, TableError
from canopy_mqtt.delta import table as tables
from canopy_mqtt.record.files.delta_follower import LOCK, DeltaFollower
from tests.pipeline.folder import record, seen
from tests.pipeline.recorded import Story
from tests.record.test_recorder import checked, join, leave, of, recording, settings, until


def _held(root: Path) -> list[int]:
    read: Any = DeltaTable(root).to_pyarrow_table(columns=["seq"])
    return sorted(pa.table(read)["seq"].to_pylist())


async def held(root: Path) -> list[int]:
    """The numbers in the table."""
    return await asyncio.to_thread(_held, root)


class TestBroker:
    """With a broker that records."""

    async def test_each_segment_is_committed(self, tmp_path: Path) -> None:
        async with recording(tmp_path, segment_seconds=0.01, table="delta") as broker:
            peer = await join(broker)
            for count in range(1, 4):
                await peer.publish("t", b"x", qos=1)
                await until(lambda count=count: of(broker).segments >= count, peer)  # type: ignore[misc]
            await leave()
            recorder = of(broker)
        events = recorder.events
        assert await held(tmp_path) == list(range(1, events + 1))
        # The table itself, and a commit for each.
        assert await asyncio.to_thread(lambda: DeltaTable(tmp_path).version()) == recorder.segments
        assert (await checked(tmp_path)).faults == []

    async def test_a_table_that_cannot_be_written_costs_no_event(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The log says so once, and when it has caught up."""

        caplog.set_level("INFO")

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        async with recording(tmp_path, segment_seconds=0.01, table="delta") as broker:
            peer = await join(broker)
            await until(lambda: of(broker).segments >= 1, peer)
            with monkeypatch.context() as patch:
                patch.setattr(Table, "_commit", full)
                for count in (2, 3):
                    await peer.publish("t", b"x", qos=1)
                    await until(lambda count=count: of(broker).segments >= count, peer)  # type: ignore[misc]
                await until(lambda: of(broker).table.failure != "", peer)
            assert "no space left on device" in of(broker).table.failure.lower()
            assert of(broker).recording
            before = of(broker).segments
            await peer.publish("t", b"x", qos=1)
            await until(lambda: of(broker).segments > before and of(broker).table.failure == "", peer)
            await leave()
        told = [each.message for each in caplog.records if "recorder's table" in each.message]
        assert [" is behind" in each for each in told] == [True, False]
        found = await checked(tmp_path)
        assert (found.faults, found.gaps) == ([], [])
        assert len(await held(tmp_path)) == found.events

    async def test_what_a_killed_recorder_finished_is_committed_at_the_next_start(self, tmp_path: Path) -> None:
        """Killed between the manifest and the commit; and a record that was no table before."""
        await asyncio.to_thread(record, tmp_path)
        async with recording(tmp_path, table="delta") as broker:
            await join(broker)
            await leave()
        found = await checked(tmp_path)
        assert len(await held(tmp_path)) == found.events > 61

    @pytest.mark.parametrize("lacking", ["deltalake", "deltalake.transaction"])
    async def test_without_the_package_it_does_not_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
    ) -> None:
        """Or with one that is too old."""
        monkeypatch.setitem(sys.modules, lacking, None)
        for name in ("canopy_mqtt.record.files.delta_follower", "canopy_mqtt.delta", "canopy_mqtt.delta.table"):
            monkeypatch.delitem(sys.modules, name)
        with pytest.raises(StartupError, match=r"needs deltalake 1.6 .* pip install '\.\[record,delta\]'"):
            await Broker(settings(tmp_path, table="delta")).start()


class TestFollower:
    """By itself."""

    def test_while_a_job_is_at_work_only_what_is_new_is_added(self, tmp_path: Path) -> None:
        """The job brings the table to what counts; and the recorder looks again."""
        record(tmp_path)
        follower = DeltaFollower(tmp_path)
        story = Story(first_seq=1_000)
        story.publish("p", "t")
        number = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            follower.follow(None)
            follower.follow(self._written(tmp_path, story))
            assert _held(tmp_path) == [1_000]
        finally:
            os.close(number)
        story.events.clear()
        story.publish("p", "t")
        follower.follow(self._written(tmp_path, story))
        assert not follower.behind
        assert _held(tmp_path) == seen(tmp_path)

    def _written(self, root: Path, story: Story) -> dict[str, Any]:
        from canopy_mqtt.record.files.folder import describe

        (path,) = story.write(root)
        return describe(root, path.relative_to(root).as_posix())

    def test_a_segment_that_is_added_twice_is_there_once(self, tmp_path: Path) -> None:
        """The recorder and a job may both find that it is new."""
        record(tmp_path)
        follower = DeltaFollower(tmp_path)
        follower.follow(None)
        story = Story(first_seq=1_000)
        story.publish("p", "t")
        about = self._written(tmp_path, story)
        follower.follow(about)
        follower.follow(about)
        assert _held(tmp_path) == seen(tmp_path)

    def test_one_that_failed_settles_next_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        record(tmp_path)
        follower = DeltaFollower(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(tables, "added", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                follower.follow(None)
        follower.follow(None)
        story = Story(first_seq=1_000)
        story.publish("p", "t")
        with monkeypatch.context() as patch:
            patch.setattr(Table, "_opened", lambda _: (_ for _ in ()).throw(OSError("gone")))
            with pytest.raises(TableError, match="gone"):
                follower.follow(self._written(tmp_path, story))
        assert follower.behind
        story.events.clear()
        story.publish("p", "t")
        follower.follow(self._written(tmp_path, story))
        assert _held(tmp_path) == seen(tmp_path)
