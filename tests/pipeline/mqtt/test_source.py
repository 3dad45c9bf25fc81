"""The stream reader, called as Spark 4.3 calls it, without Spark: a full spool becomes empty again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

from canopy_pipeline.mqtt.message import Message
from canopy_pipeline.mqtt.mqtt_options import SinkOptions, chosen
from canopy_pipeline.mqtt.publisher import Publisher
from canopy_pipeline.mqtt.receiver import Receiver
from canopy_pipeline.mqtt.rows import spark_schema
from canopy_pipeline.mqtt.source import MqttStreamReader
from canopy_pipeline.mqtt.spool import SpoolError
from tests.pipeline.mqtt.conftest import publish, until
from tests.pipeline.mqtt.test_spool import rows

SMALL = 65_536
"""Bytes of a spool that two segments fill: of 25 rows, half the window, with 2 kB each."""
ALL = ReadMaxRows(1_000_000)


@contextmanager
def reading(port: int, folder: Path, **options: str) -> Iterator[MqttStreamReader]:
    said = {
        "url": f"mqtt://127.0.0.1:{port}",
        "filters": f"{folder.name}/#",
        "client_id": f"source-{folder.name}",
        "spool": str(folder / "spool"),
        "spool_bytes": str(SMALL),
        "receive_maximum": "50",
        "available_now_wait": "1",
    } | options
    reader = MqttStreamReader(said, spark_schema())
    try:
        yield reader
    finally:
        reader.stop()


class Checkpoint:
    """The two logs of a query, and what it has read."""

    def __init__(self) -> None:
        self.planned: list[int] = []
        self.committed: list[int] = []
        self.got: list[bytes] = []

    def plan(self, reader: MqttStreamReader, limit: ReadLimit = ALL) -> bool:
        """As constructNextBatch: whether there is another batch. Only then the source hears of the last one's end."""
        assert self.planned == self.committed, "a batch that was planned is run, before another one is"
        start = self.planned[-1] if self.planned else reader.initialOffset()["seq"]
        end = reader.latestOffset({"seq": start}, limit)["seq"]
        if end == start:
            return False
        self.planned.append(end)
        if len(self.planned) > 1:
            reader.commit({"seq": start})
        return True

    def run(self, reader: MqttStreamReader) -> None:
        """The batch that is planned, with what it reads and the note that it is done."""
        start = self.committed[-1] if self.committed else reader.initialOffset()["seq"]
        for part in reader.partitions({"seq": start}, {"seq": self.planned[-1]}):
            self.got += [each for found in reader.read(part) for each in found.column("payload").to_pylist()]
        self.committed.append(self.planned[-1])

    def numbers(self) -> list[int]:
        return [int(each[:4]) for each in self.got]


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % each + b"x" * 2000 for each in range(count)]


def only(reader: MqttStreamReader) -> Receiver:
    return reader._open()


def full(reader: MqttStreamReader) -> bool:
    return only(reader).full


def test_a_full_spool_whose_rows_are_all_read_makes_room(brokers: Callable[[str], int], tmp_path: Path) -> None:
    port = brokers("canopy")
    log = Checkpoint()
    with reading(port, tmp_path) as reader:
        reader.initialOffset()
        until("SUBACK", lambda: only(reader).subscribed)
        publish(port, f"{tmp_path.name}/x", numbered(200))
        until("the spool is full", lambda: full(reader))
        assert log.plan(reader)
    # Killed with a batch that is planned, and not done: it is run again, and all its rows are there.
    with reading(port, tmp_path) as reader:
        reader.initialOffset()
        log.run(reader)
        assert log.numbers() == list(range(log.planned[-1]))
        # Killed again, between the sink and the commit log.
        log.committed.clear()
        log.got.clear()
    with reading(port, tmp_path) as reader:
        log.run(reader)
        # Nothing is appended to a full spool: each batch takes all of it, and there is no new row behind.
        while len(log.got) < 200:
            until("more rows", lambda: log.plan(reader), 20)
            log.run(reader)
            if len(log.got) < 150:
                until("the spool is full", lambda: full(reader), 20)
        assert log.numbers() == list(range(200))


def test_available_now_takes_what_a_full_spool_kept_out(brokers: Callable[[str], int], tmp_path: Path) -> None:
    port = brokers("canopy")
    with reading(port, tmp_path) as reader:
        reader.prepareForTriggerAvailableNow()
    publish(port, f"{tmp_path.name}/x", numbered(200))
    log = Checkpoint()
    with reading(port, tmp_path) as reader:
        reader.initialOffset()
        until("the spool is full", lambda: full(reader))
        assert log.plan(reader)
        log.run(reader)
        # The run ends here; all that fills the spool is done with, and only the checkpoint knows.
        assert log.planned == [only(reader).spool.next]
    with reading(port, tmp_path) as reader:
        reader.prepareForTriggerAvailableNow()
        while log.plan(reader, ReadMaxRows(30)):
            log.run(reader)
        assert log.numbers() == list(range(200))
        # What comes later is for the next run.
        publish(port, f"{tmp_path.name}/x", [b"0200"])
        until("a row more", lambda: only(reader).spool.next == 201)
        assert not log.plan(reader)


def test_available_now_ends_where_messages_never_cease(
    brokers: Callable[[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("canopy_pipeline.mqtt.source.FULL_SPOOLS", 1)
    port = brokers("canopy")
    with reading(port, tmp_path) as reader:
        reader.prepareForTriggerAvailableNow()
    publish(port, f"{tmp_path.name}/x", numbered(200))
    log = Checkpoint()
    with reading(port, tmp_path) as reader:
        reader.prepareForTriggerAvailableNow()
        while log.plan(reader):
            log.run(reader)
        assert len(log.planned) == 2
        assert 0 < len(log.got) < 200


def test_a_start_that_is_not_the_spools_unlinks_nothing(brokers: Callable[[str], int], tmp_path: Path) -> None:
    port = brokers("canopy")
    with reading(port, tmp_path) as reader:
        spool = only(reader).spool
        while spool.bytes < SMALL:
            spool.append(rows(spool.next, 500))
        assert full(reader)
        segments = sorted((tmp_path / "spool").glob("seg-*"))
        with pytest.raises(SpoolError, match="they do not belong together"):
            reader.latestOffset({"seq": spool.next + 1}, ALL)
        assert sorted((tmp_path / "spool").glob("seg-*")) == segments


def test_two_streams_share_what_comes_and_each_message_is_one_row(
    brokers: Callable[[str], int], tmp_path: Path
) -> None:
    port = brokers("canopy")
    group = f"$share/g/{tmp_path.name}/#"
    with (
        reading(port, tmp_path / "a", filters=group) as one,
        reading(port, tmp_path / "b", filters=group) as other,
    ):
        for each in (one, other):
            # Each has subscribed when it is still.
            each.prepareForTriggerAvailableNow()
        publish(port, f"{tmp_path.name}/x", [b"%d" % each for each in range(20)])
        got = []
        for each in (one, other):
            each.prepareForTriggerAvailableNow()
            log = Checkpoint()
            assert log.plan(each)
            log.run(each)
            got += log.got
        assert sorted(map(int, got)) == list(range(20))


@pytest.mark.long
def test_what_the_default_queue_drops_while_the_query_is_away_stands_in_its_progress(
    brokers: Callable[[str], int], tmp_path: Path
) -> None:
    port = brokers("canopy")
    said = {"available_now_wait": "2", "spool_bytes": str(1 << 30), "receive_maximum": "10000"}
    with reading(port, tmp_path, **said) as reader:
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
    sent = 10_000 + 500
    publisher = Publisher(chosen(SinkOptions, {"url": f"mqtt://127.0.0.1:{port}"}), "much")
    for number in range(sent):
        publisher.publish(Message(f"{tmp_path.name}/x", b"%d" % number, 1, False, [], {}))
    publisher.finish()
    publisher.close()
    with reading(port, tmp_path, **said) as reader:
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(start, ALL)
        rows = [row for p in reader.partitions(start, end) for b in reader.read(p) for row in b.to_pylist()]
        progress = reader.reportLatestOffset()
    lost = sum(row["lost"] for row in rows)
    assert lost > 0
    assert len({row["payload"] for row in rows}) + lost == sent
    assert progress == end | {"lost": lost, "session": 1}
