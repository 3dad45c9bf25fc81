"""Rows for Kafka: what the connector is given, at least once for each batch.

A Kafka itself is not at hand: `stand_in` is a data source that takes what the connector does, and writes it to files.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.errors import MisuseError
from pipeline.runtime.storage import Storage, storage
from pipeline.tables.job import Options, run
from pipeline.tables.sinks import kafka
from pipeline.tables.sinks.kafka import KafkaSink, messages
from tests.pipeline.folder import Broken
from tests.pipeline.recorded import write_segment
from tests.pipeline.tables.fleet import mapping, story


def test_a_row_is_a_message_with_its_topic_as_the_key_and_its_number_as_a_header(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(7, "plant/a", 1.5, None)], "seq bigint, topic string, watts double, note string")
    (row,) = messages(rows, "plant.power").collect()
    assert (row["topic"], row["key"]) == ("plant.power", "plant/a")
    assert json.loads(row["value"]) == {"seq": 7, "topic": "plant/a", "watts": 1.5}
    assert [(each["key"], bytes(each["value"])) for each in row["headers"]] == [("canopy.seq", b"7")]
    (row,) = messages(rows.drop("topic"), "t").collect()
    assert row["key"] == "7"


def test_without_the_connector_a_line_says_how_it_comes(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match=r"--packages org\.apache\.spark:spark-sql-kafka-0-10_2\.13:4"):
        KafkaSink(spark, storage(spark, str(tmp_path)), "127.0.0.1:9", "")


@pytest.mark.long
def test_each_row_is_sent_and_a_batch_that_was_sent_is_not_sent_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    def send(self: KafkaSink, rows: DataFrame) -> None:
        del self
        sent.extend(rows.collect())

    def init(self: KafkaSink, spark: SparkSession, place: Any, servers: str, prefix: str) -> None:
        self._spark, self._place, self._servers, self._prefix = spark, place, servers, prefix

    monkeypatch.setattr(KafkaSink, "__init__", init)
    monkeypatch.setattr(KafkaSink, "send", send)
    told = story()
    told.write(tmp_path / "record")
    options = Options("kafka", servers="k:9092", prefix="p.")
    outcome = run(str(tmp_path / "record"), str(tmp_path / "out"), str(mapping(tmp_path)), options, spark)
    wanted = sum(outcome.rows.values()) + sum(outcome.done.dead.values())
    assert len(sent) == wanted > 0
    assert {row["topic"] for row in sent} >= {f"p.{name}" for name, rows in outcome.rows.items() if rows}
    numbers = [json.loads(row["value"])["seq"] for row in sent]
    assert [bytes(row["headers"][0]["value"]).decode() for row in sent] == [str(number) for number in numbers]
    again = run(str(tmp_path / "record"), str(tmp_path / "out"), str(mapping(tmp_path)), options, spark)
    assert len(sent) == wanted
    assert again.rows == outcome.rows


Sent = Callable[[], list[dict[str, Any]]]
"""The messages that were sent so far, with the number that their header tells."""


@pytest.fixture
def stand_in(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sent:
    """What Spark takes for its connector to Kafka."""
    name, folder = "kafka_stand_in", tmp_path / "kafka"
    folder.mkdir()

    class Writer(DataSourceWriter):
        def __init__(self, options: dict[str, str]) -> None:
            assert {options[each] for each in ("kafka.acks", "includeheaders")} == {"all", "true"}
            self.servers = options["kafka.bootstrap.servers"]

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            with open(folder / uuid.uuid4().hex, "w") as file:
                for row in iterator:
                    told = {"topic": row.topic, "key": row.key, "value": row.value, "servers": self.servers}
                    told["seq"] = {each.key: bytes(each.value).decode() for each in row.headers}["canopy.seq"]
                    file.write(json.dumps(told) + "\n")
            return WriterCommitMessage()

    class StandIn(DataSource):
        @classmethod
        def name(cls) -> str:
            return "kafka_stand_in"

        def schema(self) -> str:
            return "value binary"

        def writer(self, schema: Any, overwrite: bool) -> Writer:  # noqa: ARG002  # as Spark calls it
            assert not overwrite
            return Writer({key.lower(): value for key, value in self.options.items()})

    spark.dataSource.register(StandIn)
    monkeypatch.setattr(kafka, "FORMAT", name)
    return lambda: [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]


@pytest.mark.long
def test_a_batch_that_was_sent_and_not_written_down_is_sent_again_and_its_copies_have_its_numbers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: Sent
) -> None:
    story().write(tmp_path / "record")
    record, out, file = str(tmp_path / "record"), str(tmp_path / "out"), str(mapping(tmp_path))
    options = Options("kafka", servers="k:9092", prefix="p.")

    def down(self: Storage, place: str, content: bytes) -> None:
        if place == kafka.SENT:
            raise Broken
        write(self, place, content)

    write = Storage.write
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write", down)
        with pytest.raises(Broken):
            run(record, out, file, options, spark)
    first = stand_in()
    assert first
    outcome = run(record, out, file, options, spark)
    every = Counter((each["topic"], each["seq"], each["value"]) for each in stand_in())
    # All of them, and those of the batch that broke off twice, the same to the letter.
    assert len(every) == sum(outcome.rows.values()) + sum(outcome.done.dead.values())
    assert every - Counter(set(every)) == Counter((each["topic"], each["seq"], each["value"]) for each in first)
    assert all(json.loads(value)["seq"] == int(seq) for _, seq, value in every)
    run(record, out, file, options, spark)
    assert len(stand_in()) == sum(every.values())


@pytest.mark.long
def test_a_stream_sends_what_comes_and_each_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: Sent
) -> None:
    told = story()
    half = len(told.events) // 2
    write_segment(tmp_path / "record", told.events[:half])
    seen: list[int] = []

    def sleep(seconds: float) -> None:
        del seconds
        seen.append(len(stand_in()))
        if len(seen) > 1:
            raise KeyboardInterrupt
        write_segment(tmp_path / "record", told.events[half:])

    monkeypatch.setattr("pipeline.tables.job.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    options = Options("kafka", servers="k:9092", prefix="p.", every=0.01)
    outcome = run(str(tmp_path / "record"), str(tmp_path / "out"), str(mapping(tmp_path)), options, spark)
    sent = stand_in()
    assert 0 < seen[0] < seen[1] == len(sent)
    assert len({(each["topic"], each["seq"], each["value"]) for each in sent}) == len(sent)
    assert len(sent) == sum(outcome.rows.values()) + sum(outcome.done.dead.values())
    assert {each["servers"] for each in sent} == {"k:9092"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--format", "kafka"], "--servers"),
        (["--servers", "a:1"], "--format kafka"),
        (["--format", "kafka", "--servers", "a:1"], "needs --engine spark"),
        (["--format", "kafka", "--servers", "a:1", "--engine", "spark", "--topic-prefix", "a b"], "--topic-prefix"),
    ],
)
def test_what_does_not_fit_is_said(arguments: list[str], why: str, tmp_path: Path) -> None:
    given = ["tables", "--input", str(tmp_path), "--output", str(tmp_path / "o"), "--mapping", str(mapping(tmp_path))]
    result = CliRunner().invoke(app, [*given, *arguments])
    assert result.exit_code == 2
    assert why in result.output
