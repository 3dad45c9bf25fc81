"""The recorder in a broker with a loop, clients over sockets, and a thread that writes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import threading
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from canopy_mqtt import Broker, Settings
from canopy_mqtt.assembly.app import StartupError
from canopy_mqtt.command.record_verify import Found
from canopy_mqtt.command.record_verify import check_part as verify
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.record.files.folder import Folder, Left, RecorderError
from canopy_mqtt.record.files.segment import Segment
from canopy_mqtt.record.recorder import Recorder
from canopy_mqtt.record.tap import Tap
from canopy_mqtt.record.writer import Writer
from canopy_mqtt.settings import Recorder as RecorderSettings
from canopy_mqtt.settings import Shutdown, Sys
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.record.scenes import stored
from tests.support import waiting
from tests.support.runs import for_each

peers: list[Peer] = []
"""Who joined in this test."""

PREFIX = "$SYS/broker/recorder/"


def settings(root: Path | str, sys_interval: float = 0.0, **recorder: Any) -> Settings:
    return Settings(
        listen=("mqtt://127.0.0.1:0",),
        recorder=RecorderSettings(directory=str(root), **recorder),
        sys=Sys(interval=sys_interval),
        shutdown=Shutdown(flush_timeout=0.0),
    )


@asynccontextmanager
async def recording(root: Path, **options: Any) -> AsyncIterator[Broker]:
    """A broker that records, and leaves no thread and no open file behind."""
    threads, files = threads_of_recorders(), open_files(root)
    async with Broker(settings(root, **options)) as running:
        yield running
        await leave()
    assert threads_of_recorders() == threads
    assert open_files(root) == files


@pytest.fixture(autouse=True)
async def _leave() -> AsyncIterator[None]:
    """Nobody stays connected after a test, whatever became of it."""
    yield
    await leave()


async def leave() -> None:
    while peers:
        peer = peers.pop()
        peer.abort()
        with contextlib.suppress(OSError):
            await peer.writer.wait_closed()


def full(*_: object) -> None:
    """In the place of what writes."""
    raise OSError(28, "No space left on device")


class Refusing:
    """In the place of `Folder.open`."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Left:
        self.asked += 1
        raise RecorderError("the folder is not there")


async def checked(root: Path) -> Found:
    """What `canopy record verify` finds."""
    return await asyncio.to_thread(verify, root)


async def rows_in(root: Path) -> list[dict[str, Any]]:
    return await asyncio.to_thread(stored, root)


def threads_of_recorders() -> int:
    return sum(thread.name == "canopy-recorder" for thread in threading.enumerate())


def drafts(root: Path) -> list[Path]:
    return list(root.rglob(".*.inprogress"))


def open_files(root: Path) -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(root))
        except FileNotFoundError:
            continue
    return found


async def join(broker: Broker, client_id: str = "c", version: int = 5) -> Peer:
    peers.append(await Peer.join(broker.ports[0], client_id, version=version))
    return peers[-1]


async def until(condition: Callable[[], bool], peer: Peer) -> None:
    """Give the broker turns, by pings, until something holds."""
    async with asyncio.timeout(30):
        while not condition():
            await peer.fence()


def of(broker: Broker) -> Recorder:
    assert broker.recorder is not None
    return broker.recorder


def told(broker: Broker, name: str) -> str:
    """A value under `$SYS/broker/recorder`."""
    found = broker.router.retained.get(PREFIX + name)
    assert isinstance(found, Message)
    return found.payload().decode()


class TestRecording:
    """What clients do is in segments."""

    async def test_all_of_it(self, tmp_path: Path) -> None:
        """In order, with numbers from 1 on, and complete after a stop."""
        async with recording(tmp_path, deliveries=True, sys_interval=86_400.0) as broker:
            assert told(broker, "state") == "recording"
            one, two = await join(broker, "one"), await join(broker, "two", 4)
            await two.subscribe(("a/#", 1))
            await one.publish("a/b", b"x", qos=1, props=[(0x26, ("k", "v"))])
            await two.message()
            await one.send(*[wire.publish("a/c", b"%d" % at) for at in range(300)])
            for _ in range(300):
                await two.message()
            await one.disconnect()
        rows = await rows_in(tmp_path)
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
        assert Counter(row["kind"] for row in rows) == {
            "connect": 2, "subscribe": 1, "publish": 301, "deliver": 301, "disconnect": 2, "unsubscribe": 1
        }  # fmt: skip
        assert [row["payload"] for row in rows if row.get("topic") == "a/c"] == [b"%d" % at for at in range(300)]
        assert [row["kind"] for row in rows[-2:]] == ["disconnect", "unsubscribe"]
        assert {row["run_id"] for row in rows} == {of(broker).run_id}
        times = [row["recv_ns"] for row in rows]
        assert times == sorted(times)
        found = await checked(tmp_path)
        assert (found.faults, found.gaps, found.unfinished) == ([], [], None)
        assert (of(broker).segments, of(broker).events) == (1, len(rows))

    async def test_a_number_is_noted_before_its_acknowledgement(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that a kill in between cannot lose what a client was told is safe, and not even know its number."""
        noted: list[tuple[int, int]] = []
        really = _SelectorSocketTransport.write

        async with recording(tmp_path) as broker:
            tap, memo = of(broker).tap, of(broker)._folder.memo
            assert tap is not None
            assert memo is not None

            def write(self: _SelectorSocketTransport, data: bytes) -> None:
                if data[:1] == b"\x40":
                    noted.append((int.from_bytes(memo[:8], "little"), tap.seq))
                really(self, data)

            with monkeypatch.context() as patch:
                patch.setattr(_SelectorSocketTransport, "write", write)
                peer = await join(broker)
                for _ in range(3):
                    await peer.publish("t", b"", qos=1)
        assert noted == [(2, 2), (3, 3), (4, 4)]

    async def test_rotation_by_size(self, tmp_path: Path) -> None:
        async with recording(tmp_path, segment_bytes=65_536) as broker:
            peer = await join(broker)
            for at in range(4):
                await peer.publish("t", os.urandom(40_000), qos=1)
                await peer.publish("t", os.urandom(40_000), qos=1)
                await until(lambda count=at: of(broker).segments > count, peer)  # type: ignore[misc]
        found = await checked(tmp_path)
        assert found.faults == []
        assert 4 <= found.segments <= 5
        rows = await rows_in(tmp_path)
        assert [len(row["payload"]) for row in rows if row["kind"] == "publish"] == [40_000] * 8

    async def test_rotation_by_time(self, tmp_path: Path) -> None:
        """A segment is finished when its time has come, though nothing more happens."""
        async with recording(tmp_path, segment_seconds=0.01) as broker:
            peer = await join(broker)
            await until(lambda: of(broker).segments == 1, peer)
            await peer.publish("t", b"")
            await until(lambda: of(broker).segments == 2, peer)
            first, second = (await checked(tmp_path)).segments, (await rows_in(tmp_path))
            assert (first, [row["kind"] for row in second]) == (2, ["connect", "publish"])

    async def test_payloads_and_filters(self, tmp_path: Path) -> None:
        async with recording(
            tmp_path, payloads=False, filters=["a/+", "$SYS/broker/version"], sys_interval=86_400.0
        ) as broker:
            peer = await join(broker)
            for topic in ("a/b", "b/a", "a/b/c"):
                await peer.publish(topic, b"four")
        rows = [row for row in (await rows_in(tmp_path)) if row["kind"] == "publish"]
        assert [(row["topic"], row.get("client_id"), row.get("payload")) for row in rows] == [
            ("$SYS/broker/version", None, None),
            ("a/b", "c", None),
        ]
        assert rows[1]["size"] == 4

    async def test_no_recorder_is_asked_for(self) -> None:
        """Nothing is told of one under `$SYS`, and no thread runs."""
        before = threading.active_count()
        async with Broker(settings("", sys_interval=86_400.0)) as broker:
            assert broker.recorder is None
            assert broker.router.tap is None
            assert broker.router.retained.get(PREFIX + "state") is None
            assert threads_of_recorders() == 0
        assert threading.active_count() <= before + 1


class TestGivingUp:
    """The broker goes on without it, and says so; the next start names what is missing."""

    @pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyError("a fault of ours")])
    async def test_while_it_writes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
        async with recording(tmp_path, segment_seconds=0.01, sys_interval=86_400.0) as broker:
            peer = await join(broker)
            await until(lambda: of(broker).segments == 1, peer)

            def broken(*_: object) -> None:
                raise fault

            with monkeypatch.context() as patch:
                patch.setattr(Segment, "add", broken)
                await peer.publish("t", b"lost")
                await until(lambda: not of(broker).recording, peer)
            broker._sys.update()
            state = told(broker, "state")
            assert state.startswith(f"{tmp_path}: cannot be written to (")
            assert "no space left" in state or "KeyError" in state
            assert told(broker, "queued") == "0"
            await peer.subscribe("t")
            await peer.publish("t", b"still here")
            assert (await peer.message()).payload == b"still here"
            # What is numbered is not kept.
            tap = broker.router.tap
            assert isinstance(tap, Tap)
            assert tap.empty
        assert drafts(tmp_path) == []
        async with recording(tmp_path):
            pass
        found = await checked(tmp_path)
        assert found.faults == []
        [(first, last, lost, why)] = found.gaps
        # The first of them, and what came until it could write again.
        assert (first, lost, why) == (2, last - 1, "stopped")
        assert last >= 2

    async def test_it_begins_again_when_it_can(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As after a disk that was full, and in a folder that was not there: a new run, which names what is missing."""

        async with recording(tmp_path / "record", segment_seconds=0.01) as broker:
            peer = await join(broker)
            recorder = of(broker)
            recorder.retry = 0.01
            await until(lambda: recorder.segments == 1, peer)
            first_run = recorder.run_id
            with monkeypatch.context() as patch:
                patch.setattr(Segment, "add", full)
                patch.setattr(Folder, "open", refuse := Refusing())
                await peer.publish("t", b"lost")
                await until(lambda: refuse.asked > 1, peer)
                assert recorder.failure == "the folder is not there"
                assert not recorder.recording
            await until(lambda: recorder.recording, peer)
            assert recorder.failure == ""
            assert recorder.run_id != first_run
            await peer.publish("t", b"recorded")
            await until(lambda: recorder.segments == 2, peer)
        found = await checked(tmp_path / "record")
        assert found.faults == []
        [(first, last, lost, why)] = found.gaps
        # The first of them, and what came until it could write again.
        assert (first, lost, why) == (2, last - 1, "stopped")
        assert last >= 2
        assert b"recorded" in [row.get("payload") for row in await rows_in(tmp_path / "record")]

    async def test_what_happens_meanwhile_has_its_numbers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However much that is: `verify` counts it while the recorder is off, and the gap says it afterwards."""

        async with recording(tmp_path, segment_seconds=0.01) as broker:
            recorder, peer = of(broker), await join(broker)
            recorder.retry = 3_600.0
            await until(lambda: recorder.segments == 1, peer)
            with monkeypatch.context() as patch:
                patch.setattr(Segment, "add", full)
                await peer.publish("t", b"lost")
                await until(lambda: not recorder.recording, peer)
            await peer.send(*[wire.publish("t", b"%d" % at) for at in range(700)])
            await peer.fence()
            assert recorder.lost >= 700
            off = await checked(tmp_path)
            assert off.faults == ["numbers 2 to 702 are not written: the recorder gave up"]
            recorder._end_turns()
            recorder._begin_again()
            await until(lambda: recorder.recording, peer)
            await peer.publish("t", b"recorded", qos=1)
        found = await checked(tmp_path)
        assert (found.faults, found.gaps) == ([], [(2, 702, 701, "stopped")])
        assert found.kinds["publish"] == 1

    async def test_a_broker_that_is_killed_while_it_does_not_record_has_noted_what_was_lost(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = tmp_path / "copy"
        async with recording(tmp_path / "record") as broker:
            recorder, peer = of(broker), await join(broker)
            with monkeypatch.context() as patch:
                patch.setattr(Segment, "add", full)
                await peer.publish("t", b"lost")
                await until(lambda: not recorder.recording, peer)
                await peer.send(*[wire.publish("t", b"%d" % at) for at in range(300)])
                await peer.fence()
                # What a kill would leave.
                shutil.copytree(tmp_path / "record", copy)
        async with recording(copy):
            pass
        assert (await checked(copy)).gaps == [(1, 302, 302, "stopped")]

    async def test_what_happens_before_it_can_begin_has_its_numbers(self, tmp_path: Path) -> None:
        """The folder is not there yet when the broker starts."""
        (tmp_path / "file").write_text("")
        async with recording(tmp_path / "file") as broker:
            recorder, peer = of(broker), await join(broker)
            recorder.retry = 3_600.0
            for _ in range(3):
                await peer.publish("t", b"lost", qos=1)
            (tmp_path / "file").unlink()
            recorder._end_turns()
            recorder._begin_again()
            await until(lambda: recorder.recording, peer)
            await peer.publish("t", b"recorded", qos=1)
        found = await checked(tmp_path / "file")
        assert (found.faults, found.gaps) == ([], [(1, 4, 4, "stopped")])

    @pytest.mark.parametrize("opens", [False, True])
    async def test_a_broker_may_end_while_it_tries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "open", Refusing())
            async with recording(tmp_path) as broker:
                recorder = of(broker)
                assert recorder.failure
                if opens:
                    patch.undo()
                    recorder._end_turns()
                    recorder._begin_again()
        assert recorder.tap is None

    async def test_a_broker_that_must_record_does_not_start_without_a_record(self, tmp_path: Path) -> None:
        taken = tmp_path / "file"
        taken.write_text("")
        broker = Broker(settings(taken, required=True))
        with pytest.raises(StartupError, match=r"recorder\.required: .*file"):
            await broker.start()
        assert broker.listening == []
        taken.unlink()
        await broker.start()
        assert of(broker).recording
        await broker.stop()

    async def test_a_broker_that_must_record_stops_when_it_cannot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In order: a 5.0 client is told that the server shuts down."""

        broker = Broker(settings(tmp_path, required=True))
        await broker.start()
        broken = asyncio.create_task(broker.broken())
        peer = await join(broker)
        monkeypatch.setattr(Segment, "add", full)
        await peer.publish("t", b"x")
        assert "no space left" in await asyncio.wait_for(broken, wire.TIMEOUT)
        goodbye = await peer.wait_for(wire.DISCONNECT)
        assert goodbye.code == 0x8B
        peer.abort()
        await broker.stop()
        assert broker.listening == []

    async def test_at_the_last_moment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last segment cannot be finished: the stop goes on, and nothing is said to be there that is not."""

        with monkeypatch.context() as patch:
            async with recording(tmp_path) as broker:
                patch.setattr(Segment, "finish", full)
                of(broker).retry = 0.0
                await join(broker)
            assert "no space left" in of(broker).failure
            # It does not begin again.
            await asyncio.sleep(0)
            assert of(broker)._beginning is None
        async with recording(tmp_path):
            pass
        assert (await checked(tmp_path)).gaps[0][:2] == (1, 2)

    async def test_the_disk_is_full_of_a_manifest(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The segment is whole and has none: its manifest is made at the next start, and nothing is missing."""

        with monkeypatch.context() as patch:
            async with recording(tmp_path) as broker:
                patch.setattr("canopy_mqtt.record.files.segment.write_manifest", full)
                await join(broker)
        assert (await checked(tmp_path)).faults[0].endswith("it has no manifest: the recorder's next start writes it")
        async with recording(tmp_path) as broker:
            await join(broker)
        found = await checked(tmp_path)
        assert (found.faults, found.gaps) == ([], [])

    async def test_two_brokers(self, tmp_path: Path) -> None:
        """The second serves, and says that it does not record."""
        async with recording(tmp_path) as first:
            async with Broker(settings(tmp_path)) as second:
                assert "another broker records there" in of(second).failure
                await join(second)
                await leave()
            assert of(first).recording
            await join(first)
        assert [row["kind"] for row in await rows_in(tmp_path)][:1] == ["connect"]
        assert (await checked(tmp_path)).faults == []


async def test_what_waits_is_written_in_few_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is behind converts much at a time: each batch costs it turns with a busy event loop."""
    begun, go, really = threading.Event(), threading.Event(), Writer.write
    rows: list[int] = []

    def slow(self: Writer, batch: Any) -> None:
        rows.append(batch.num_rows)
        begun.set()
        assert go.wait(30)
        really(self, batch)

    monkeypatch.setattr(Writer, "write", slow)
    async with recording(tmp_path) as broker:
        peer = await join(broker)
        await waiting.until(begun.is_set)
        for _ in range(10):
            await peer.send(*[wire.publish("t", b"") for _ in range(3_000)])
        await waiting.until(lambda: broker.router.counters.messages_received == 30_000)
        await peer.fence()
        of(broker).hand_over()
        go.set()
        await waiting.until(lambda: of(broker).tap is not None and of(broker).tap.waiting == 0)  # type: ignore[union-attr]
        assert max(rows[1:]) > 20_000
    assert (await checked(tmp_path)).kinds["publish"] == 30_000


class TestHolding:
    """`recorder.when_full = "hold"`: publishers wait for the thread, as for a subscriber that is behind."""

    async def test_nothing_is_lost_while_it_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        go, really = threading.Event(), Writer.write

        def slow(self: Writer, batch: Any) -> None:
            assert go.wait(30)
            really(self, batch)

        monkeypatch.setattr(Writer, "write", slow)
        async with recording(tmp_path, queue_events=400, when_full="hold", hold_timeout=3_600.0) as broker:
            peer = await join(broker)
            await peer.send(*[wire.publish("t", b"%d" % at) for at in range(5_000)])
            await waiting.until(lambda: of(broker).behind > 0)
            assert broker.router.counters.messages_received < 400
            go.set()
            await waiting.until(lambda: broker.router.counters.messages_received == 5_000)
            # A QoS 1 publish waits as well, and is answered.
            await peer.publish("t", b"last", qos=1)
            assert of(broker).lost == 0
            await waiting.until(lambda: of(broker).behind == 0)
        found = await checked(tmp_path)
        assert (found.faults, found.gaps, found.kinds["publish"]) == ([], [], 5_001)

    async def test_a_thread_that_writes_nothing_holds_nobody_for_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What does not fit then is lost to the record, by name."""
        go, really = threading.Event(), Writer.write

        def stuck(self: Writer, batch: Any) -> None:
            assert go.wait(30)
            really(self, batch)

        monkeypatch.setattr(Writer, "write", stuck)
        async with recording(tmp_path, queue_events=400, when_full="hold", hold_timeout=0.05) as broker:
            peer = await join(broker)
            await peer.send(*[wire.publish("t", b"%d" % at) for at in range(2_000)])
            await waiting.until(lambda: broker.router.counters.messages_received == 2_000)
            assert of(broker).lost > 0
            go.set()
        found = await checked(tmp_path)
        assert found.faults == []
        assert found.kinds["publish"] + sum(gap[2] for gap in found.gaps) == 2_000

    async def test_a_recorder_that_gave_up_holds_nobody(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async with recording(tmp_path, queue_events=400, when_full="hold", hold_timeout=3_600.0) as broker:
            peer = await join(broker)
            with monkeypatch.context() as patch:
                patch.setattr(Segment, "add", full)
                await peer.send(*[wire.publish("t", b"%d" % at) for at in range(2_000)])
                await waiting.until(lambda: broker.router.counters.messages_received == 2_000)
                assert not of(broker).recording


class TestStartAndStop:
    """In any order, and more than once."""

    async def test_stop_twice_at_once(self, tmp_path: Path) -> None:
        broker = Broker(settings(tmp_path))
        await broker.start()
        await (await join(broker)).publish("t", b"")
        await leave()
        await asyncio.gather(broker.stop(), broker.stop())
        await broker.stop()
        assert (await checked(tmp_path)).faults == []
        assert (threads_of_recorders(), open_files(tmp_path)) == (0, 0)

    async def test_a_broker_that_cannot_listen_leaves_the_folder(self, tmp_path: Path) -> None:
        async with recording(tmp_path / "a") as running:
            taken = settings(tmp_path / "b").model_copy(update={"listen": (f"mqtt://127.0.0.1:{running.ports[0]}",)})
            with pytest.raises(StartupError):
                await Broker(taken).start()
        assert (threads_of_recorders(), open_files(tmp_path)) == (0, 0)
        async with recording(tmp_path / "b") as running:
            assert of(running).recording

    async def test_a_start_that_is_cancelled(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The folder is let go, though it was being opened."""
        begun, go, opened = threading.Event(), threading.Event(), threading.Event()
        really = Folder.open

        def slow(self: Any) -> Any:
            begun.set()
            assert go.wait(30)
            left = really(self)
            opened.set()
            return left

        with monkeypatch.context() as patch:
            patch.setattr(Folder, "open", slow)
            start = asyncio.create_task(Broker(settings(tmp_path)).start())
            assert await asyncio.to_thread(begun.wait, 30)
            start.cancel()
            await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await start
        assert await asyncio.to_thread(opened.wait, 30)
        async with asyncio.timeout(30):
            while open_files(tmp_path):
                await asyncio.to_thread(lambda: None)
        async with recording(tmp_path) as broker:
            assert of(broker).recording

    async def test_many_subscriptions_end_at_once(self, tmp_path: Path) -> None:
        """More than the queue holds: the record says that it does not know them any more."""
        async with recording(tmp_path, queue_events=2_000) as broker:
            peer = await join(broker)
            filters = [(f"f/{at}", 0) for at in range(6_000)]
            for at in range(0, len(filters), 1_000):
                await peer.subscribe(*filters[at : at + 1_000])
                await until(lambda: of(broker).tap is not None and of(broker).tap.waiting == 0, peer)  # type: ignore[union-attr]
            await peer.disconnect()
            # They end in turns.
            table = broker.router.table
            await waiting.until(lambda: not broker.connections and not table.leaving)
        found = await checked(tmp_path)
        assert found.faults == []
        assert found.kinds["subscribe"] == 6_000
        ended = found.kinds.get("unsubscribe", 0)
        assert ended + sum(gap[2] for gap in found.gaps) == 6_000
        assert all(gap[3] == "queue-full+state" for gap in found.gaps)


class TestSettings:
    """What may be asked for."""

    @for_each("wrong",
        [
            {"filters": ["a/#/b"]}, {"filters": ["$share/g/a"]}, {"filters": [""]}, {"segment_bytes": 65_535},
            {"segment_seconds": 0}, {"queue_events": -1}, {"queue_bytes": -1}, {"directory": 7}, {"folder": "x"},
            {"snapshot_seconds": -1}, {"draft_seconds": -1}, {"table": "iceberg"},
            {"when_full": "wait"}, {"hold_timeout": -1}, {"directory": "s3://plant/record"}, {"directory": "file:///srv/record"},
        ],
    )  # fmt: skip
    def test_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            Settings.model_validate({"recorder": wrong})

    async def test_without_pyarrow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        for name in [name for name in sys.modules if name.startswith("canopy_mqtt.record.")]:
            monkeypatch.delitem(sys.modules, name)
        with pytest.raises(StartupError, match="needs pyarrow"):
            await Broker(settings(tmp_path)).start()
        async with Broker(settings("")) as broker:
            await join(broker)
            await leave()
