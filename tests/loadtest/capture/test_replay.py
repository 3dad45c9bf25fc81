"""`canopy load replay`: what was captured is what is sent, in its order, its sizes and its time."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from canopy_load.capture import replay_spool
from canopy_load.capture.capture_file import CaptureError, about, rows
from canopy_load.capture.recording import Recording
from canopy_load.capture.replay import ReplayOptions, parse_speed, prepare
from canopy_load.capture.replay_spool import ReplaySpool, scan
from canopy_load.capture.subscriber import Captured, CaptureOptions, capture
from canopy_load.cli.app import app
from canopy_load.engine import conductor
from canopy_load.engine.clients.sending import Sender, Session
from canopy_load.engine.job import Job, Target
from canopy_load.engine.schedule import NEVER
from canopy_load.errors import Misuse
from canopy_load.ledger.counters import Tally
from canopy_load.ledger.mark import Mark, run_number
from canopy_load.report.result import Result
from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.codec.packets import Publish
from canopy_mqtt.record.schema import SCHEMA
from canopy_mqtt.settings import Settings, Sys
from tests.e2e import wire
from tests.loadtest.account import Message
from tests.loadtest.paper import Paper
from tests.loadtest.script import DELIVER, DROP, Script
from tests.loadtest.scripted import ScriptedServer
from tests.pipeline.recorded import Story
from tests.support.runs import for_each

SETTINGS = Settings(listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=0))
TARGET = Target("127.0.0.1", 1)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A capture with these rows, as few columns as it takes."""
    usual = {"topic": "t", "size": 20, "qos": 0, "retain": False}
    full = [{"recv_ns": number * 1_000_000, **usual, **row} for number, row in enumerate(rows)]
    types = {"recv_ns": pa.int64(), "topic": pa.string(), "size": pa.int32(), "qos": pa.int8(), "retain": pa.bool_()}
    pq.write_table(pa.Table.from_pylist(full, pa.schema(list(types.items()))), path, row_group_size=50)
    return path


def mixed(count: int) -> list[dict[str, Any]]:
    """Messages of all kinds on seven topics, at uneven times."""
    return [
        {
            "recv_ns": 5_000_000_000 + number * 3_000_000 + (number * 7919 % 2000) * 1000,
            "topic": f"a/{(number + number // 7) * 5 % 7}",
            "size": number * 37 % 300,
            "qos": number * number % 3,
            "retain": number % 11 == 0,
        }
        for number in range(count)
    ]


def by_topic(rows: list[dict[str, Any]], prefix: str = "", least: int = 16) -> dict[str, list[tuple[int, int, bool]]]:
    """Of each topic: size, QoS and RETAIN of its messages, in their order."""
    found = defaultdict(list)
    for row in rows:
        found[prefix + row["topic"]].append((max(row["size"], least), row["qos"], row["retain"]))
    return dict(found)


@asynccontextmanager
async def broker() -> AsyncIterator[int]:
    async with Broker(SETTINGS) as running:
        yield running.ports[0]


@asynccontextmanager
async def captured(port: int, out: Path, messages: int) -> AsyncIterator[asyncio.Task[Captured]]:
    """Capture so many messages from here on."""
    begun = asyncio.Event()
    wanted = CaptureOptions(Target("127.0.0.1", port), ["#"], out, 2, messages=messages)
    task = asyncio.create_task(capture(wanted, asyncio.Event(), lambda _: begun.set()))
    await begun.wait()
    yield task
    await task


def job(path: Path, port: int, asked: ReplayOptions | None = None, **more: Any) -> Job:
    return replace(prepare(path, asked or ReplayOptions(), [Target("127.0.0.1", port)]), **more)


async def play(path: Path, port: int, asked: ReplayOptions | None = None, **more: Any) -> Result:
    return await conductor.play(await asyncio.to_thread(job, path, port, asked, **more))


# -- from one broker to another ----------------------------------------------------------------------------------------


async def test_what_was_captured_is_what_the_next_broker_gets(tmp_path: Path) -> None:
    """Real traffic, captured, replayed, and captured once more."""
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    async with broker() as port:
        sender = await wire.Peer.open("127.0.0.1", port)
        await sender.send(wire.connect("p"))
        await sender.expect(wire.CONNACK)
        await sender.publish("kept", bytes(30), retain=True)
        async with captured(port, first, 61):
            for number in range(60):
                await sender.publish(f"t/{number % 4}", bytes(number * 3), qos=number % 3, retain=number % 5 == 0)
        sender.abort()
    rows = pq.read_table(first).to_pylist()
    assert len(rows) == 61
    async with broker() as port, captured(port, second, 61):
        result = await play(first, port, ReplayOptions(speed=10))
    assert by_topic(pq.read_table(second).to_pylist()) == by_topic(rows)
    assert result.scenario == "replay-first"
    assert result.groups[1].sent == 61
    assert (result.deliveries.expected, result.deliveries.received, result.errors) == (61, 61, {})
    small = sum(row["size"] < 16 for row in rows)
    assert f"; {small} of them have less than 16 bytes and are sent with 16" in result.environment["replay"]
    assert [group.publishes for group in result.groups] == [False, True]


async def test_several_publishers_and_processes_at_ten_times_the_speed(tmp_path: Path) -> None:
    rows = mixed(300)
    path, again = written(tmp_path / "x.parquet", rows), tmp_path / "again.parquet"
    async with broker() as port, captured(port, again, 300):
        asked = ReplayOptions(speed=10, publishers=3, subscribers=2, prefix="new/%c/", filters=("new/#",))
        result = await play(path, port, asked, processes=2)
    assert by_topic(pq.read_table(again).to_pylist()) == by_topic(rows, "new/%c/")
    assert (result.processes, result.groups[1].sent) == (2, 300)
    assert (result.deliveries.expected, result.deliveries.received, result.deliveries.reordered) == (600, 600, 0)
    assert result.errors == {}
    begun = rows[0]["recv_ns"]
    length = (rows[-1]["recv_ns"] - begun) / 1e10
    assert result.measured_seconds == pytest.approx(length + 0.05, abs=0.001)

    # Each topic is one publisher's, and its messages were meant for a tenth of their recorded time.
    assert len({pair.publisher for pair in result.pairs}) == 3
    assert sum(pair.deliveries.received for pair in result.pairs) == 600
    times = defaultdict(list)
    mark = Mark(run_number(result.run))
    for row in pq.read_table(again).to_pylist():
        assert mark.read(row["payload"])
        times[row["topic"]].append(int(mark.time))
    first = min(min(each) for each in times.values())
    for topic, sent in times.items():
        meant = [(row["recv_ns"] - begun) / 1e10 for row in rows if f"new/%c/{row['topic']}" == topic]
        assert [(time - first) / 1e6 for time in sent] == pytest.approx(meant, abs=2e-6)


async def test_as_fast_as_it_goes_ends_when_everything_is_sent(tmp_path: Path) -> None:
    rows = [{"recv_ns": number * 10**9, "topic": f"t/{number % 3}", "qos": number % 2} for number in range(5000)]
    path = written(tmp_path / "hours.parquet", rows)
    async with broker() as port:
        result = await play(path, port, ReplayOptions(speed=math.inf, publishers=2), processes=2)
    assert result.deliveries.expected == result.deliveries.received == 5000
    assert [group.unsent for group in result.groups] == [0, 0]
    assert not result.interrupted
    [stage] = result.stages
    assert stage["seconds"] == pytest.approx(result.measured_seconds)
    assert stage["seconds"] < 60


async def test_faults_are_found_in_a_replay_too(tmp_path: Path) -> None:
    rows = mixed(120)
    path = written(tmp_path / "x.parquet", rows)
    script = Script(fate=lambda each: DROP if each.message.number % 10 == 3 else DELIVER)
    async with ScriptedServer(script) as server:
        result = await play(path, server.port, ReplayOptions(speed=10))
        assert server.violations == []
        came = [(each.topic, len(each.payload), each.qos, each.retain) for each in server.messages]
        names = ("topic", "size", "qos", "retain")
        assert by_topic([dict(zip(names, each, strict=True)) for each in came]) == by_topic(rows)
        assert [each.topic for each in server.messages] == [row["topic"] for row in rows], "the whole order is kept"
    assert (result.deliveries.expected, result.deliveries.lost) == (120, 12)


async def test_a_broker_that_breaks_off_leaves_the_rest_unsent(tmp_path: Path) -> None:
    """The connection ends at the fifth message and there is no other: what was due by then is told."""

    def hangs_up(client: str, _: int, packet: object) -> bool:
        return isinstance(packet, Publish) and server.arrivals.get(client, -1) == 3

    path = written(tmp_path / "x.parquet", mixed(40))
    script = Script(hangs_up=hangs_up, connack=lambda _, attempt: 0 if attempt == 0 else 3)
    async with ScriptedServer(script) as server:
        result = await play(path, server.port, ReplayOptions(speed=2))
    publishers = result.groups[1]
    assert publishers.connections_lost == 1
    assert publishers.sent + publishers.unsent == 40
    assert publishers.unsent > 0
    assert result.deliveries.received == 4
    assert result.deliveries.lost == 0


async def test_in_a_hurry_what_is_left_at_an_interruption_is_unsent(tmp_path: Path) -> None:
    """The server does not read on; the stage would have no end."""
    path = written(tmp_path / "x.parquet", [{"size": 200_000} for _ in range(200)])
    stop = asyncio.Event()

    def stall(message: Message) -> float:
        if message.number == 3:
            asyncio.get_running_loop().call_later(0.2, stop.set)
            return 1.0
        return 0.0

    async with ScriptedServer(Script(stall=stall)) as server:
        result = await conductor.play(job(path, server.port, ReplayOptions(speed=math.inf)), stop=stop)
    publishers = result.groups[1]
    assert result.interrupted
    assert publishers.sent + publishers.unsent == 200
    assert publishers.unsent > 0
    assert (result.deliveries.received, result.deliveries.lost) == (publishers.sent, 0)


# -- before a run ------------------------------------------------------------------------------------------------------


@for_each(
    ("text", "speed"), [("1", 1.0), ("1x", 1.0), ("10x", 10.0), ("0.5x", 0.5), ("max", math.inf), ("1e3x", 1000.0)]
)
def test_speeds(text: str, speed: float) -> None:
    assert parse_speed(text) == speed


@for_each("text", ["", "x", "0x", "-1x", "nan", "inf", "fast", "1e9x", "10 x 2"])
def test_no_speeds(text: str) -> None:
    with pytest.raises(Misuse, match=r"not a speed from 0\.001x to 1,000,000x, and not max"):
        parse_speed(text)


@for_each(("rows", "prefix", "line"),
    [
        ([], "", "holds no messages"),
        ([{"topic": "$x"}], "", "topic '$x' is the broker's own, and clients may not publish there: give a --prefix"),
        ([{"topic": ""}], "", "topic '': "),
        ([{"topic": "a/+/b"}], "", "topic 'a/+/b': "),
        ([{"topic": "a"}], "#/", "topic '#/a': "),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed(tmp_path: Path, rows: list[dict[str, Any]], prefix: str, line: str) -> None:
    path = written(tmp_path / "x.parquet", rows)
    with pytest.raises(CaptureError) as caught:
        prepare(path, ReplayOptions(prefix=prefix), [TARGET])
    assert str(caught.value).startswith(f"{path}: {line}")


def test_too_many_topics_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_spool, "MAX_RECORDED_STREAMS", 6)
    prepare(
        written(tmp_path / "six.parquet", [{"topic": f"t/{number}"} for number in range(6)]), ReplayOptions(), [TARGET]
    )
    with pytest.raises(CaptureError, match="more than 6 topics: too many to tell apart"):
        prepare(
            written(tmp_path / "x.parquet", [{"topic": f"t/{number}"} for number in range(7)]),
            ReplayOptions(),
            [TARGET],
        )


# -- a recorder's folder -----------------------------------------------------------------------------------------------


def told(folder: Path) -> Story:
    """A broker that was recorded, with all that happens beside messages."""
    story = Story("ffffffff", first_seq=90)
    story.add("connect", client_id="c", address="127.0.0.1:1")
    story.subscribe("c", "a/#")
    for number in range(10):
        sent = story.publish("p", f"a/{number % 3}", bytes(20 + number), number % 3, retain=number == 4)
        story.deliver("c", sent)
        story.pause(0.01)
    story.drop("c", "full-messages", 2)
    story.gap(7, 9)
    story.write(folder, segments=4)
    return story


def recorded_in(folder: Path) -> list[tuple[str, int, int, bool]]:
    """What the folder holds, as a replay reads it: times never fall."""
    found: list[dict[str, Any]] = []
    for batch in rows(about(folder)):
        found += batch.to_pylist()
    assert [row["time"] for row in found] == sorted(row["time"] for row in found)
    return [(row["topic"], row["size"], row["qos"], row["retain"]) for row in found]


MESSAGES = [(f"a/{number % 3}", 20 + number, number % 3, number == 4) for number in range(10)]


def test_messages_of_a_recorder(tmp_path: Path) -> None:
    story = told(tmp_path)
    assert recorded_in(tmp_path) == MESSAGES

    # Another run, later in the same hour and earlier by its name; one in the hour after.
    more = Story("00000000", first_seq=story.seq, begin=story.now)
    more.publish("p", "later", bytes(17))
    more.write(tmp_path)
    last = Story("11111111", first_seq=more.seq, begin=story.begin + timedelta(hours=1))
    last.publish(None, "last", bytes(18))
    last.write(tmp_path)
    everything = [*MESSAGES, ("later", 17, 0, False), ("last", 18, 0, False)]
    assert recorded_in(tmp_path) == everything

    # What is being written, and what is no event.
    hour = next(tmp_path.glob("date=*/hour=16"))
    (hour / ".seg-00000000-000000000000999.parquet.inprogress").write_bytes(b"PAR1")
    (hour / ".seg-00000000-000000000000998.parquet").write_bytes(b"PAR1")
    (tmp_path / "_manifests" / "x.parquet").write_bytes(b"PAR1")
    assert recorded_in(tmp_path) == everything

    # A merged segment, and those that it replaces, which are not gone yet.
    old = sorted(each.relative_to(tmp_path).as_posix() for each in hour.glob("seg-*.parquet"))
    rows_of = [row for place in old for row in pq.ParquetFile(tmp_path / place).read().to_pylist()]
    merged = hour / "merged-000000000000090-000000000000199-0a.parquet"
    pq.write_table(pa.Table.from_pylist(sorted(rows_of, key=lambda row: row["seq"]), SCHEMA), merged)
    assert recorded_in(tmp_path) == everything, "it is not in force yet"
    beside = tmp_path / "_manifests" / merged.relative_to(tmp_path).with_suffix(".json")
    said = json.loads((tmp_path / "_manifests" / old[0]).with_suffix(".json").read_text())
    said["segment"] = merged.relative_to(tmp_path).as_posix()
    beside.write_text(json.dumps({**said, "replaces": old}))
    assert recorded_in(tmp_path) == everything
    assert recorded_in(hour) == everything[:-1], "a part of a record is read as the record is"

    beside.write_text(json.dumps(said))
    with pytest.raises(CaptureError, match=r"merged-.*\.json: not a manifest of a merged segment"):
        about(tmp_path)


async def test_a_recorders_folder_is_played(tmp_path: Path) -> None:
    await asyncio.to_thread(told, tmp_path / "events")
    async with ScriptedServer() as server:
        result = await play(tmp_path / "events", server.port)
    assert [(one.topic, len(one.payload), one.qos, one.retain) for one in server.messages] == MESSAGES
    assert result.deliveries.received == result.deliveries.expected == len(MESSAGES)


# -- the spool ---------------------------------------------------------------------------------------------------------


def looked_at(path: Path, publishers: int = 1, prefix: str = "") -> Recording:
    return scan(str(path), prefix, publishers)


def drained(recording: Recording, publisher: int, speed: float) -> list[tuple[float, str, int, int]]:
    """What a publisher plays: time, topic, kind and size."""
    cursor = ReplaySpool(recording, [publisher], speed).cursor(publisher)
    share = recording.shares[publisher]
    found = []
    while (time := cursor.following()) != NEVER:
        number = cursor.pick()
        found.append((time, share.topics[number], share.kinds[number], cursor.size()))
    return found


@for_each("publishers", [1, 2, 5, 40])
def test_messages_are_dealt_whole_and_in_order(
    tmp_path: Path, publishers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("canopy_load.capture.capture_file.BATCH", 33)
    rows = mixed(500)
    recording = looked_at(written(tmp_path / "x.parquet", rows), publishers)
    assert (recording.messages, recording.topics, recording.small) == (500, 7, sum(row["size"] < 16 for row in rows))
    assert sum(share.messages for share in recording.shares) == 500
    owners = {topic: number for number, share in enumerate(recording.shares) for topic in share.topics}
    for publisher in range(publishers):
        mine = [row for row in rows if owners[row["topic"]] == publisher]
        times = [(row["recv_ns"] - rows[0]["recv_ns"]) / 1000 / 2.5 for row in mine]
        meant = [(row["topic"], row["qos"] + 4 * row["retain"], max(row["size"], 16)) for row in mine]
        found = drained(recording, publisher, 2.5)
        assert [each[1:] for each in found] == meant
        assert [each[0] for each in found] == pytest.approx(times)


def test_a_file_that_changed_in_between_is_noticed(tmp_path: Path) -> None:
    for count in (4, 6):
        recording = looked_at(written(tmp_path / "x.parquet", mixed(5)))
        written(tmp_path / "x.parquet", mixed(count))
        with pytest.raises(CaptureError, match="has changed since it was looked at"):
            ReplaySpool(recording, [0], 1.0)


def test_no_room_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    recording = looked_at(written(tmp_path / "x.parquet", mixed(5)))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CaptureError, match=r"no room for the 80 bytes .*no space left on device\): set TMPDIR"):
        ReplaySpool(recording, [0], 1.0)


# -- the schedule ------------------------------------------------------------------------------------------------------


def sending(path: Path, hurry: bool = False) -> tuple[Sender, Paper]:
    recording = looked_at(path)
    share = recording.shares[0]
    cursor = ReplaySpool(recording, [0], math.inf if hurry else 1.0).cursor(0)
    names = [topic.encode() for topic in share.topics]
    sender = Sender(7, 0, len(names), lambda number: names[number], share.highest, False, 5, Tally(), Session(False))
    sender.kinds, sender.lowest = bytes(share.kinds), share.lowest
    sender.pick, sender.choose_size = cursor.pick, cursor.size
    sender.following, sender.behind, sender.hurry = cursor.following, cursor.behind, hurry
    sender.remaining = share.messages
    paper = Paper()
    sender.connected(paper.wire, 0, 65_535)
    return sender, paper


def test_messages_go_at_their_times_and_keep_them_when_they_are_late(tmp_path: Path) -> None:
    times = (0, 10, 10, 25, 40)
    rows: list[dict[str, Any]] = [
        {"recv_ns": 1000 * time, "topic": f"t/{time % 3}", "qos": time % 3, "retain": time % 2 == 0, "size": 16 + time}
        for time in times
    ]
    sender, paper = sending(written(tmp_path / "x.parquet", rows))
    sender.active = True
    assert sender.next_at == NEVER
    sender.set_rate(1.0, 1000.0)
    assert sender.next_at == 1000
    sender.pump(999)
    assert paper.data == b""
    sender.pump(1009)
    [first] = paper.packets()
    assert [sender.overdue(now) for now in (1009.0, 1010.0, 1025.0, 2000.0)] == [0, 2, 3, 4]
    paper.wire.paused = True
    sender.pump(1030)
    assert paper.data == b""
    paper.wire.paused = False
    sender.pump(1039)
    assert sender.next_at == 1040
    sender.pump(5000)
    assert sender.next_at == NEVER
    assert (sender.remaining, sender.overdue(9000.0)) == (0, 0)
    found = [first, *paper.packets()]
    meant = [(row["topic"].encode(), row["qos"], row["retain"], row["size"]) for row in rows]
    assert [(each.topic, each.qos, each.retain, len(each.payload)) for each in found] == meant
    assert [int.from_bytes(each.payload[2:8], "big") - 1000 for each in found] == list(times)


def test_of_mixed_qualities_only_those_without_acknowledgement_are_uncertain(tmp_path: Path) -> None:
    rows = [{"topic": "a", "qos": 1}, {"topic": "b", "qos": 0}, {"topic": "b", "qos": 0}, {"topic": "b", "qos": 1}]
    sender, _ = sending(written(tmp_path / "x.parquet", rows))
    sender.active = True
    sender.set_rate(1.0, 0.0)
    sender.pump(1500)
    sender.ping_sent()
    sender.ping_answered()
    sender.pump(10_000)
    assert sender.sequences == [1, 2, 1]
    sender.lost(cleanly=False)
    assert sender.uncertain == [(1, 1, 2)], "the second one of b with QoS 0"
    assert len(sender.session.unacked) == 2


# -- the commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[int]:
    """A broker in a thread, with three retained messages."""
    port = 0
    begun, over = threading.Event(), threading.Event()

    async def serve() -> None:
        nonlocal port
        async with Broker(SETTINGS) as running:
            port = running.ports[0]
            sender = await wire.Peer.open("127.0.0.1", port)
            await sender.send(wire.connect("p"))
            await sender.expect(wire.CONNACK)
            for number in range(3):
                await sender.publish(f"kept/{number}", bytes(20 + number), retain=True, qos=1)
            await sender.disconnect()
            begun.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert begun.wait(30)
    yield port
    over.set()
    thread.join(30)


def test_capture_and_replay_from_the_command_line(served: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    target = f"mqtt://127.0.0.1:{served}"
    out = tmp_path / "kept.parquet"
    done = runner.invoke(
        app, ["capture", "--target", target, "--filter", "kept/#", "--messages", "3", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert re.fullmatch(
        rf"{re.escape(str(out))}: 3 messages on 3 topics in [\d.]+ s, 3 of them retained\n", done.stdout
    )
    again = runner.invoke(app, ["capture", "--target", target, "--out", str(out)])
    assert (again.exit_code, again.stderr) == (1, f"canopy: {out}: exists already; give another name\n")
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        named = runner.invoke(app, ["capture", "--target", target, "--messages", "1", "--sizes-only"])
    assert re.match(r"capture-\d{8}-\d{6}\.parquet: 1 messages? on 1 topics? in ", named.stdout), named.output
    assert (tmp_path / named.stdout.partition(":")[0]).exists()
    folder = tmp_path / "report"
    how = ["--speed", "max", "--strict", "--prefix", "new/", "--mqtt", "3.1.1"]
    done = runner.invoke(app, ["replay", str(out), "--target", target, "--out", str(folder), *how])
    assert done.exit_code == 0, done.output
    assert "3 messages on 3 topics" in done.stderr
    assert (folder / "report.html").exists()
    assert "# Publishers play the capture kept.parquet." in (folder / "scenario.toml").read_text()


@for_each(("arguments", "code", "line"),
    [
        (["replay", "nowhere.parquet"], 2, "nowhere.parquet: no such file or folder"),
        (["replay", "x.parquet", "--speed", "fast"], 2, "--speed fast: not a speed"),
        (["replay", "x.parquet", "--filter", "a/#/b"], 2, "filter 'a/#/b'"),
        (["replay", "bad.parquet"], 2, "bad.parquet: not a whole Parquet file"),
        (["replay", "empty.parquet"], 2, "empty.parquet: holds no messages"),
        (["capture", "--out", "y.parquet", "--filter", "a/#/b"], 2, "--filter a/#/b: "),
        (["capture", "--out", "y.parquet", "--target", "mqtt://127.0.0.1:1"], 1, ":1: connection refused"),
        (["capture", "--out", "y.parquet", "--target", "http://x"], 2, "--target http://x: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(
    arguments: list[str], code: int, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "x.parquet", mixed(5))
    written(tmp_path / "empty.parquet", [])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    said = [each for each in done.stderr.splitlines() if each.startswith("canopy: ")]
    assert len(said) == 1
    assert line in said[0]
    assert "Traceback" not in done.output
    assert not (tmp_path / "y.parquet").exists()


def test_the_record_of_several_workers_is_replayed_by_its_folders(tmp_path: Path) -> None:
    for number in range(2):
        story = Story(f"0000000{number}")
        story.publish("p", f"t/{number}")
        story.write(tmp_path / f"w{number}")
    with pytest.raises(CaptureError, match=r"record of several workers: give one of its folders, such as .*/w1"):
        about(tmp_path)
    assert [topic for topic, *_ in recorded_in(tmp_path / "w1")] == ["t/1"]
