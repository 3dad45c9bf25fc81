"""The recorder of several workers: what they send, in one folder. The workers are in this process, without a broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import structlog

from broker.core.queues.message import Message
from broker.record.files.folder import RUNNING, Folder, Left, noted
from broker.record.files.segment import Segment
from broker.record.reading import Found, verify
from broker.record.workers import gathering
from broker.record.workers.gathering import Gathering
from broker.record.workers.sending import Sending
from broker.record.writer import Options
from tests.record.scenes import Tape, messages, stored
from tests.record.test_recorder import threads_of_recorders
from tests.support.waiting import until

AHEAD = 10**12
"""Nanoseconds: the workers' clocks stand in the future, so that nobody is late."""


class Worker:
    """A worker's tap, and the way of its events."""

    def __init__(self, sending: Sending, begin: int) -> None:
        self.tape = Tape()
        self.tape.time = begin
        self.sending = sending
        sending.open()
        sending.begin("")
        self.tape.tap._memo = sending.memo

    @property
    def tap(self) -> Any:
        return self.tape.tap

    async def send(self, until: int) -> None:
        """Send what it has, and that it was all up to a time."""
        for batch in self.tape.record_batch():
            await asyncio.to_thread(self.sending.write, batch)
        self.tap.note_number()
        await asyncio.to_thread(self.sending.told_until, until)

    async def send_on(self) -> None:
        """Until nobody takes it any more."""
        while True:
            await self.send(self.tape.time)

    async def end(self) -> None:
        """End in order."""
        await self.send(self.tape.time)
        await asyncio.to_thread(self.sending.finish)
        self.sending.close(None)

    async def die(self) -> None:
        """End without a word."""
        await asyncio.to_thread(self.sending.close, None)


class Recorded:
    """A folder that is being recorded."""

    def __init__(self, root: Path, made: Gathering) -> None:
        self.root = root
        self.made = made
        self.told: list[str] = []
        self.workers: list[Worker] = []
        self.begin = time.monotonic_ns() + AHEAD

    async def worker(self, number: int) -> Worker:
        way = await self.made.open(number)
        assert way is not None
        self.workers.append(Worker(Sending(*way), self.begin))
        return self.workers[-1]

    @property
    def last(self) -> int:
        return self.made._numbering.last


@asynccontextmanager
async def recording(root: Path, **options: Any) -> AsyncIterator[Recorded]:
    threads = threads_of_recorders()
    gave_up: list[str] = []
    made = Gathering(Options(root, **options), 2, structlog.get_logger(), gave_up.append)
    await made.start()
    recorded = Recorded(root, made)
    recorded.told = gave_up
    try:
        yield recorded
    finally:
        for worker in recorded.workers:
            await worker.die()
        await made.stop()
    assert threads_of_recorders() == threads


def pages(root: Path) -> list[Path]:
    return list(root.glob(".recorder-*"))


async def checked(root: Path) -> Found:
    return await asyncio.to_thread(verify, root)


async def rows_in(root: Path) -> list[dict[str, Any]]:
    return await asyncio.to_thread(stored, root)


async def test_one_record_of_two_workers_in_the_order_of_time(tmp_path: Path) -> None:
    """Also where one sends later what came earlier: the other waits for it."""
    async with recording(tmp_path) as record:
        one, two = await record.worker(0), await record.worker(1)
        await two.send(two.tape.time)
        for worker, topic in ((one, "first"), (two, "second"), (one, "third")):
            one.tape.time = two.tape.time = one.tape.time + 100
            messages(worker.tape, 2, topic)
            await one.send(one.tape.time)
        assert record.last == 0
        await two.send(two.tape.time)
        await two.end()
        await one.end()
    rows = await rows_in(tmp_path)
    assert [row["topic"] for row in rows] == ["first", "first", "second", "second", "third", "third"]
    assert [row["seq"] for row in rows] == list(range(1, 7))
    assert len({row["run_id"] for row in rows}) == 1
    found = await checked(tmp_path)
    assert (found.faults, found.gaps, found.unfinished) == ([], [], None)
    assert not pages(tmp_path)


async def test_a_worker_that_says_nothing_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events come behind those of others then, and are in the record all the same."""
    async with recording(tmp_path) as record:
        one, two = await record.worker(0), await record.worker(1)
        await two.send(two.tape.time)
        one.tape.time += 100
        messages(one.tape, 1, "one")
        await one.send(one.tape.time)
        assert record.last == 0
        monkeypatch.setattr(gathering, "LATE", -2 * AHEAD)
        await until(lambda: record.last == 1)
        messages(two.tape, 1, "two")
        await one.end()
        await two.end()
    assert [row["topic"] for row in await rows_in(tmp_path)] == ["one", "two"]


async def test_the_other_workers_are_no_clients(tmp_path: Path) -> None:
    """But what was lost on the way to one is told."""
    async with recording(tmp_path) as record:
        one = await record.worker(0)
        for name in ("$node/from/w1", "c"):
            one.tap.connected(name, "", None, 5, True, False)
            one.tap.subscribed(name, "a/#", 0, False, False, 0, False)
            one.tap.lost_messages(name, 0, 3)
            one.tap.unsubscribed(name, "a/#", False)
            one.tap.disconnected(name, "", "client-disconnect")
        await one.end()
    rows = await rows_in(tmp_path)
    assert [row["kind"] for row in rows if row["client_id"] == "$node/from/w1"] == ["drop"]
    assert len([row for row in rows if row["client_id"] == "c"]) == 5
    assert (await checked(tmp_path)).faults == []


async def test_what_a_killed_worker_did_not_send_is_a_gap(tmp_path: Path) -> None:
    """As many numbers as it had given; the next process of the worker begins anew."""
    async with recording(tmp_path) as record:
        one = await record.worker(0)
        messages(one.tape, 3)
        await one.send(one.tape.time)
        messages(one.tape, 5)
        one.tap.note_number()
        await one.die()
        one = await record.worker(0)
        messages(one.tape, 2)
        await one.end()
    found = await checked(tmp_path)
    assert found.faults == []
    assert found.gaps == [(4, 8, 5, "crash+state")]
    assert [row["seq"] for row in await rows_in(tmp_path)] == [1, 2, 3, 9, 10, 11]


async def test_a_killed_worker_is_a_gap_though_nothing_of_its_own_is_missing(tmp_path: Path) -> None:
    """The ends of its subscriptions are: without a word of it they would last."""
    async with recording(tmp_path) as record:
        one = await record.worker(0)
        messages(one.tape, 1)
        await one.send(one.tape.time)
        await until(lambda: record.last == 1)
        await one.die()
    found = await checked(tmp_path)
    assert (found.faults, found.gaps) == ([], [(2, 2, 1, "crash+state")])


async def test_what_workers_had_numbered_when_all_were_killed_the_next_start_names(tmp_path: Path) -> None:
    """Whoever records then: this run, or a broker without workers."""
    killed = tmp_path / "b"
    async with recording(tmp_path / "a", draft_seconds=0.0) as record:
        one = await record.worker(0)
        messages(one.tape, 3)
        await one.send(one.tape.time)
        await until(lambda: int.from_bytes(one.sending.memo[8:16], "little") == 3)
        messages(one.tape, 4)
        one.tap.note_number()
        # As it would be, had all died now.
        await asyncio.to_thread(copytree, tmp_path / "a", killed)
        await one.die()

    def opened() -> Left:
        folder = Folder(killed)
        try:
            return folder.open()
        finally:
            folder.close(None)

    assert await asyncio.to_thread(noted, killed) == (7, RUNNING)
    left = await asyncio.to_thread(opened)
    assert (left.last_seq, left.missing, left.why) == (7, (1, 7), "crash")
    # Said once.
    assert not pages(killed)
    async with recording(killed):
        pass
    assert (await checked(killed)).gaps == [(1, 7, 7, "crash")]


async def test_a_worker_that_sends_faster_than_can_be_written_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits here is bounded by `recorder.queue_bytes`; what its own queue does not hold, it names as a gap."""
    monkeypatch.setattr(gathering, "LEAST_BYTES", 1)
    async with recording(tmp_path, queue_bytes=200_000) as record:
        one = await record.worker(0)
        lane = record.made._lanes[0]
        # Nothing is written.
        monkeypatch.setattr(lane, "take", lambda _: [])
        assert one.sending._sock is not None
        one.sending._sock.settimeout(0.2)
        sent = 0
        with suppress(TimeoutError):
            while sent < 1_000:
                one.tap.message(Message(b"t", b"%06d" % sent * 1_000, 0, False, b"", 0.0, "p"), 0.0)
                await one.send(one.tape.time)
                sent += 1
        assert sent < 1_000
        assert lane.bytes < 400_000
        monkeypatch.undo()


async def test_a_full_disk_ends_the_record_and_the_next_start_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with recording(tmp_path) as record:
        one = await record.worker(0)
        with monkeypatch.context() as patch:
            patch.setattr(Segment, "add", full)
            messages(one.tape, 3)
            await one.send(one.tape.time)
            await until(lambda: bool(record.told))
        assert "no space left on device" in record.told[0]
        messages(one.tape, 2)
        one.tap.note_number()
        with pytest.raises(ConnectionError) as gone:
            await one.send_on()
        assert "the recorder of all workers has given up" in one.sending.why_not(gone.value)
        # Nobody records for who starts now.
        assert await record.made.open(1) is None
        await one.die()
    async with recording(tmp_path):
        pass
    found = await checked(tmp_path)
    assert found.faults == []
    assert [gap[3] for gap in found.gaps] == ["stopped"]
    assert found.gaps[0][:2] == (1, 5)


async def test_the_workers_subscriptions_are_told_again_as_one(tmp_path: Path) -> None:
    """A `snapshot` when each has told its own, from where the first of them began."""
    async with recording(tmp_path) as record:
        one, two = await record.worker(0), await record.worker(1)
        for worker, count in ((one, 1), (two, 2)):
            messages(worker.tape, 2)
            first = worker.tap.seq + 1
            for at in range(count):
                worker.tap.subscribed(f"c{at}", "a", 0, False, False, 0, True)
            worker.tap.snapshot(first, count)
            await one.send(worker.tape.time + 100)
            await two.send(worker.tape.time + 100)
            one.tape.time = two.tape.time = worker.tape.time + 100
        await until(lambda: record.last == 8)
        await one.end()
        await two.end()
    rows = await rows_in(tmp_path)
    (snapshot,) = [row for row in rows if row["kind"] == "snapshot"]
    assert snapshot["n"] == 3
    told = [row["seq"] for row in rows if row["kind"] == "subscribe"]
    assert len(told) == 3
    assert snapshot["ref_seq"] <= min(told)
    assert snapshot["seq"] > max(told)


async def test_the_first_worker_has_the_figures_of_all(tmp_path: Path) -> None:
    async with recording(tmp_path, segment_seconds=0.01) as record:
        one, two = await record.worker(0), await record.worker(1)
        messages(two.tape, 3)
        await two.end()
        await until(lambda: one.sending.events == 3)
        assert one.sending.segments == 1
        assert one.sending.bytes > 0
        await one.end()
