"""`canopy load capture`: what comes is what stands in the file, and the file is whole or not there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from canopy_load.capture import capture_file
from canopy_load.capture import subscriber as module
from canopy_load.capture.capture_file import CaptureError, Writer
from canopy_load.capture.subscriber import CaptureOptions, capture
from canopy_load.engine.job import Target
from canopy_load.errors import LoadError
from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.settings import Settings, Sys
from tests.e2e import wire
from tests.loadtest.script import Fate, Script
from tests.loadtest.scripted import ScriptedServer
from tests.support.runs import for_each


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=0.2))) as broker:
        yield broker.ports[0]


class Running:
    """A capture that runs: `begun` is set when it is subscribed."""

    def __init__(self, port: int, out: Path, *filters: str, **more: Any) -> None:
        self.begun = asyncio.Event()
        self.stop = asyncio.Event()
        self.counts: list[int] = []
        wanted = CaptureOptions(Target("127.0.0.1", port), filters or ("#",), out, **more)
        self.task = asyncio.create_task(capture(wanted, self.stop, self._hear))

    def _hear(self, messages: int) -> None:
        self.counts.append(messages)
        self.begun.set()


async def client(port: int, name: str, version: int = 5) -> wire.Peer:
    peer = await wire.Peer.open("127.0.0.1", port, version)
    await peer.send(wire.connect(name, version=version))
    peer.connack = await peer.expect(wire.CONNACK)
    return peer


PROPERTIES: list[wire.Property] = [
    (wire.USER_PROPERTY, ("b", "2")),
    (wire.USER_PROPERTY, ("a", "1")),
    (wire.USER_PROPERTY, ("b", "3")),
    (wire.PAYLOAD_FORMAT, 1),
    (wire.CONTENT_TYPE, "text/plain"),
    (wire.RESPONSE_TOPIC, "answers/here"),
    (wire.CORRELATION_DATA, b"\0\xff"),
    (wire.MESSAGE_EXPIRY, 3600),
]


async def test_what_comes_is_what_stands_in_the_file(port: int, tmp_path: Path) -> None:
    out = tmp_path / "all.parquet"
    sender = await client(port, "p")
    await sender.publish("kept/one", b"old", retain=True)
    before = datetime.now(UTC)
    running = Running(port, out, "t/#", "kept/+", qos=2, messages=6)
    await running.begun.wait()
    await sender.publish("t/ä", b"\0\xff\x80", qos=1, props=PROPERTIES)
    await sender.publish("t/empty", b"", qos=0)
    await sender.publish("elsewhere", b"not asked for")
    await sender.publish("t/large", bytes(100_000), qos=2)
    await sender.publish("kept/two", b"new", qos=1, retain=True)
    await sender.publish("t/empty", b"x", qos=2)
    found = await running.task
    after = datetime.now(UTC)
    sender.abort()

    assert (found.messages, found.topics, found.retained, found.trouble) == (6, 5, 2, "")
    table = pq.read_table(out)
    assert table.schema.equals(capture_file.schema(sizes_only=False))
    rows = table.to_pylist()
    assert [(row["topic"], row["payload"], row["qos"], row["retain"], row["dup"]) for row in rows] == [
        ("kept/one", b"old", 0, True, False),
        ("t/ä", b"\0\xff\x80", 1, False, False),
        ("t/empty", b"", 0, False, False),
        ("t/large", bytes(100_000), 2, False, False),
        ("kept/two", b"new", 1, True, False),
        ("t/empty", b"x", 2, False, False),
    ]
    assert [row["size"] for row in rows] == [3, 3, 0, 100_000, 3, 1]
    rich, plain = rows[1], rows[2]
    assert [(each["key"], each["value"]) for each in rich["properties"]] == [("b", "2"), ("a", "1"), ("b", "3")]
    assert (rich["payload_format"], rich["content_type"], rich["response_topic"]) == (1, "text/plain", "answers/here")
    assert (rich["correlation_data"], rich["message_expiry"]) == (b"\0\xff", 3600)
    assert plain["properties"] == []
    names = ("payload_format", "content_type", "response_topic", "correlation_data", "message_expiry")
    assert [plain[name] for name in names] == [None] * 5

    times = [row["recv_ns"] for row in rows]
    assert times == sorted(times)
    assert times[0] >= 0
    begun = rows[0]["ts"] - timedelta(microseconds=times[0] // 1000)
    assert before <= begun <= after
    assert all(abs(row["ts"] - begun - timedelta(microseconds=row["recv_ns"] // 1000)).microseconds < 2 for row in rows)

    about = capture_file.about(out)
    assert about.filters == ("t/#", "kept/+")
    assert (about.values["format"], about.values["count"], about.values["mqtt"]) == ("1", "6", "5.0")
    assert about.values["broker"].startswith("canopy")
    assert abs(datetime.fromisoformat(about.values["begun"]) - begun) < timedelta(microseconds=2)
    assert os.listdir(tmp_path) == ["all.parquet"]


async def test_3_1_1_and_sizes_only(port: int, tmp_path: Path) -> None:
    out = tmp_path / "sizes.parquet"
    sender = await client(port, "p")
    await sender.publish("a", b"old", retain=True)
    running = Running(port, out, version="3.1.1", sizes_only=True, qos=1, messages=3)
    await running.begun.wait()
    await sender.publish("a", b"12345", qos=2, retain=True)
    await sender.publish("b", b"", qos=1, props=PROPERTIES)
    found = await running.task
    sender.abort()
    table = pq.read_table(out)
    assert "payload" not in table.schema.names
    rows = [(row["topic"], row["size"], row["qos"], row["retain"], row["properties"]) for row in table.to_pylist()]
    # Only 5.0 can ask to be told that a message was published as a retained one.
    assert rows == [("a", 3, 0, True, []), ("a", 5, 1, False, []), ("b", 0, 1, False, [])]
    assert (found.messages, found.retained) == (3, 1)


async def test_exactly_so_many_messages(port: int, tmp_path: Path) -> None:
    """All of them come in one read."""
    sender = await client(port, "p")
    running = Running(port, tmp_path / "few.parquet", messages=7)
    await running.begun.wait()
    await sender.send(b"".join(wire.publish(f"t/{number}", b"x") for number in range(20)))
    found = await running.task
    sender.abort()
    assert found.messages == 7
    topics = [row["topic"] for row in pq.read_table(tmp_path / "few.parquet").to_pylist()]
    assert topics == [f"t/{number}" for number in range(7)]


async def test_no_message_is_a_file_too(port: int, tmp_path: Path) -> None:
    found = await Running(port, tmp_path / "none.parquet", seconds=0.05).task
    assert (found.messages, found.trouble) == (0, "")
    assert found.seconds >= 0.05
    table = pq.read_table(tmp_path / "none.parquet")
    assert table.num_rows == 0
    assert table.schema.equals(capture_file.schema(sizes_only=False))


async def test_batches_become_row_groups_while_it_reads_on(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 10)
    monkeypatch.setattr(module, "BYTES", 1000)
    sender = await client(port, "p")
    running = Running(port, tmp_path / "many.parquet", messages=500, qos=1)
    await running.begun.wait()
    for number in range(500):
        await sender.publish("t", str(number).encode() + bytes(number), qos=1)
    await running.task
    sender.abort()
    file = pq.ParquetFile(tmp_path / "many.parquet")
    assert file.metadata.num_row_groups > 5
    payloads = [row["payload"] for row in file.read().to_pylist()]
    assert payloads == [str(number).encode() + bytes(number) for number in range(500)]


async def test_the_broker_going_away_ends_it_with_what_there_is(tmp_path: Path) -> None:
    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=0))) as broker:
        sender = await client(broker.ports[0], "p")
        running = Running(broker.ports[0], tmp_path / "cut.parquet", version="3.1.1")
        await running.begun.wait()
        for number in range(5):
            await sender.publish("t", str(number).encode())
        sender.abort()
    found = await running.task
    assert found.messages == 5
    assert found.trouble == "the broker closed the connection"
    assert pq.read_table(tmp_path / "cut.parquet").num_rows == 5
    assert capture_file.about(tmp_path / "cut.parquet").values["count"] == "5"


async def test_losses_that_the_broker_tells_of(tmp_path: Path) -> None:
    async with ScriptedServer(Script(fate=lambda _: Fate(told=("3;full-messages", "1;expired")))) as server:
        running = Running(server.port, tmp_path / "told.parquet", messages=1)
        await running.begun.wait()
        sender = await client(server.port, "p")
        await sender.publish("t", b"x")
        found = await running.task
        sender.abort()
        assert server.violations == []
        # Ours is the one that stays; the other asks for the broker's version.
        assert next(each for each in server.subscribed if not each[1].startswith("$SYS"))[1] == "#"
    assert found.told_lost == 4
    assert capture_file.about(tmp_path / "told.parquet").values["broker"] == ""


# -- what does not work is a line, and no file -------------------------------------------------------------------------


async def failing(port: int, out: Path, *filters: str, **more: Any) -> str:
    with pytest.raises(LoadError) as caught:
        await Running(port, out, *filters, **more).task
    assert [each for each in out.parent.iterdir() if each != out] == [] if out.parent.is_dir() else True
    return str(caught.value)


async def test_refusals(tmp_path: Path) -> None:
    out = tmp_path / "no.parquet"
    script = Script(suback=lambda _, request: 0x87 if request.topic_filter == "b" else 0)
    async with ScriptedServer(script) as server:
        assert await failing(server.port, out, "a", "b") == f"mqtt://127.0.0.1:{server.port}: refused b: Not authorized"
    async with ScriptedServer(Script(connack=lambda *_: 5)) as server:
        said = await failing(server.port, out, version="3.1.1")
        assert said == f"mqtt://127.0.0.1:{server.port}: refused: Not authorized"
    async with ScriptedServer(Script(hangs_up=lambda *packet: isinstance(packet[2], Connect))) as server:
        said = await failing(server.port, out)
        assert said == f"mqtt://127.0.0.1:{server.port}: the broker closed the connection"
    said = await failing(server.port, out)
    assert said == f"mqtt://127.0.0.1:{server.port}: connection refused"
    assert not out.exists()


async def test_files_that_cannot_be(tmp_path: Path) -> None:
    there = tmp_path / "there.parquet"
    there.write_text("mine")
    assert await failing(1, there) == f"{there}: exists already; give another name"
    assert there.read_text() == "mine"
    there.unlink()
    nowhere = tmp_path / "nowhere" / "x.parquet"
    assert await failing(1, nowhere) == f"{nowhere}: cannot be written (no such file or directory)"
    assert (await failing(1, there, "a/#/b")).startswith("--filter a/#/b: ")


async def test_a_full_disk_ends_it_without_a_file(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(writer: Writer, _: object) -> None:
        raise CaptureError(f"{writer.path}: cannot be written (no space left on device)")

    monkeypatch.setattr(module, "ROWS", 1)
    monkeypatch.setattr(Writer, "write", full)
    out = tmp_path / "full.parquet"
    running = Running(port, out)
    await running.begun.wait()
    sender = await client(port, "p")
    await sender.publish("t", b"x")
    with pytest.raises(CaptureError, match="no space left"):
        await running.task
    sender.abort()
    assert os.listdir(tmp_path) == []


# -- reading -----------------------------------------------------------------------------------------------------------


def plain(path: Path) -> list[dict[str, Any]]:
    return [row for batch in capture_file.rows(capture_file.about(path)) for row in batch.to_pylist()]


def test_a_foreign_file_needs_three_columns_in_any_order(tmp_path: Path) -> None:
    stamps = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second) for second in (0, 5, 3)]
    table = pa.table({"more": [1, 2, 3], "payload": [b"a", b"", b"ccc"], "ts": stamps, "topic": ["x", "y", "x"]})
    pq.write_table(table, tmp_path / "foreign.parquet")
    first = int(stamps[0].timestamp()) * 10**9
    assert plain(tmp_path / "foreign.parquet") == [
        {"time": first + second * 10**9, "topic": topic, "size": size, "qos": 0, "retain": False}
        for second, topic, size in ((0, "x", 1), (5, "y", 0), (5, "x", 3))
    ], "a clock that was set back stands still"
    assert capture_file.about(tmp_path / "foreign.parquet").filters == ()


def test_a_folder_is_its_files_by_name_and_clock(tmp_path: Path) -> None:
    for name, second in (("b", 10), ("a", 0)):
        stamp = datetime(2026, 1, 1, second=second, tzinfo=UTC)
        pq.write_table(
            pa.table({"ts": [stamp], "recv_ns": [7], "topic": [name], "size": [20]}), tmp_path / f"{name}.parquet"
        )
    (tmp_path / "notes.txt").write_text("not one of them")
    found = plain(tmp_path)
    assert [row["topic"] for row in found] == ["a", "b"]
    assert found[1]["time"] - found[0]["time"] == 10 * 10**9


def whole(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"topic": ["t"], "recv_ns": [1], "size": [20], "qos": [0], **columns}), sink)
    return bytes(sink.getvalue())


@for_each(
    ("content", "line"),
    [
        (b"", "not a whole Parquet file"),
        (b"PAR1 hello", "not a whole Parquet file"),
        (whole()[:-20], "not a whole Parquet file"),
        (whole(topic=[1]).replace(b"topic", b"tipoc"), "no capture: it has no column topic"),
        (whole(size=[20]).replace(b"size", b"zise"), "no capture: it has no column size or payload"),
        (whole().replace(b"recv_ns", b"recv_xx"), "no capture: it has no column recv_ns or ts"),
        (whole(qos=[3]), "cannot be read to its end (qos 3: not from 0 to 2)"),
        (whole(size=[-1]), "cannot be read to its end (size -1: not from 0 to 268435455)"),
        (whole(topic=pa.array([None], pa.string())), "cannot be read to its end (a message without topic)"),
        (whole(topic=[[1]]), "cannot be read to its end"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, line: str) -> None:
    file = tmp_path / "bad.parquet"
    file.write_bytes(content)
    with pytest.raises(CaptureError) as caught:
        plain(file)
    assert str(caught.value).startswith(f"{file}: {line}")
    assert "\n" not in str(caught.value)


def test_a_capture_is_as_readable_as_other_files(tmp_path: Path) -> None:
    earlier = os.umask(0o027)
    try:
        with Writer(tmp_path / "new.parquet", sizes_only=True) as writer:
            writer.finish({})
    finally:
        os.umask(earlier)
    assert (tmp_path / "new.parquet").stat().st_mode & 0o777 == 0o640


def test_a_later_format_is_not_guessed_at(tmp_path: Path) -> None:
    with Writer(tmp_path / "new.parquet", sizes_only=True) as writer:
        writer.finish({"format": "2"})
    with pytest.raises(CaptureError, match="is of format 2, and this Canopy reads format 1"):
        capture_file.about(tmp_path / "new.parquet")
