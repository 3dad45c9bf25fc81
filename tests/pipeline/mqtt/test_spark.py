"""The data source in Spark, with Canopy and with mosquitto."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.pipeline.mortal import environment
from tests.pipeline.mqtt.conftest import PATIENCE, client, publish, until
from tests.pipeline.mqtt.killed import MAX_ROWS, query

pytestmark = pytest.mark.long

NO_WORKER = "Python worker failed to connect back"
"""Spark fails a query whose Python worker does not start within 10 s, which no setting changes; it takes 0.7 CPU s."""
START = 300.0
"""Seconds that a second Spark may take to its first batch; 100 were seen on a busy machine."""


def test_stream_while_publishing(mqtt: SparkSession, brokers: Callable[[str], int], tmp_path: Path) -> None:
    port = brokers("canopy")
    batches: list[int] = []
    rows: list[Any] = []
    subscribed, arrived = threading.Event(), threading.Event()

    def take(frame: DataFrame, _batch: int) -> None:
        got = frame.collect()
        batches.append(len(got))
        rows.extend(each for each in got if each.topic != "plant/begin")
        if got:
            subscribed.set()
        if len(rows) >= 1000:
            arrived.set()

    publish(port, "plant/begin", [b"begin"], retain=True)
    running = (
        mqtt.readStream.format("mqtt")
        .options(url=f"mqtt://127.0.0.1:{port}", filters="plant/#", client_id="stream", max_rows=150)
        .option("spool", str(tmp_path / "spool"))
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        # The spool names a filter before it is asked for: the row of a retained message shows that it was.
        assert subscribed.wait(PATIENCE), running.exception()
        for part in range(10):
            publish(port, f"plant/{part}", [b"%d" % each for each in range(part * 100, part * 100 + 100)])
        assert arrived.wait(PATIENCE), running.exception()
    finally:
        running.stop()
        publish(port, "plant/begin", [b""], retain=True)
    assert sorted(int(each.payload) for each in rows) == list(range(1000))
    assert {(each.topic, int(each.payload) // 100) for each in rows} == {(f"plant/{n}", n) for n in range(10)}
    assert {(each.qos, each.retain, each.dup) for each in rows} == {(1, False, False)}
    assert max(batches) <= 150


def run_to_its_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query until it ends by itself, and start it again where a machine that stood still delayed its worker."""
    for _ in range(5):
        running = start()
        try:
            assert running.awaitTermination(int(PATIENCE))
        except StreamingQueryException as error:
            if NO_WORKER not in str(error):
                raise
        else:
            return running
    raise AssertionError(NO_WORKER)


def _descendants(process: int) -> list[int]:
    parents = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(each.parent.name)] = int(each.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [process]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


class Numbers(threading.Thread):
    """Publishes 0, 1, 2 … with QoS 1, one after the other, until ``close``."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.sent = 0
        self._port = port
        self._closing = threading.Event()

    def run(self) -> None:
        with client(self._port) as it:
            while not self._closing.is_set():
                it.publish("killed/x", b"%d" % self.sent, 1).wait_for_publish(PATIENCE)
                self.sent += 1
                # A pace that Spark can follow on a busy machine.
                self._closing.wait(0.003)

    def close(self) -> None:
        self._closing.set()
        self.join(PATIENCE)


@pytest.mark.timeout(600)
def test_killed_and_started_again(mqtt: SparkSession, brokers: Callable[[str], int], tmp_path: Path) -> None:
    port = brokers("canopy")
    url = f"mqtt://127.0.0.1:{port}"
    said = tmp_path / "said"
    with (
        said.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.pipeline.mqtt.killed", str(tmp_path), url],
            env=environment(tmp_path),
            stderr=stderr,
        ) as process,
        ExitStack() as stack,
    ):
        try:

            def seen(*names: str) -> bool:
                assert process.poll() is None, said.read_text()[-2000:]
                return tmp_path.joinpath(*names).exists()

            # Rows of a first batch are there, so the receiver has subscribed.
            publish(port, "killed/begin", [b"begin"], retain=True)
            until("it has subscribed", lambda: seen("out", "_spark_metadata", "0"), START)
            publisher = Numbers(port)
            publisher.start()
            stack.callback(publisher.close)
            until("some batches", lambda: seen("out", "_spark_metadata", "2"))
        finally:
            # Also the Java machine and its Python workers: the receiver must not end in good order.
            for number in _descendants(process.pid):
                # Spark's Python workers come and go: one may have ended since the list was made.
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        before = publisher.sent
        until("more while it is dead", lambda: publisher.sent > before + 100)
    running = run_to_its_end(query(mqtt, url, tmp_path).trigger(availableNow=True).start)
    assert max(each.numInputRows for each in running.recentProgress) <= MAX_ROWS
    rows = mqtt.read.parquet(str(tmp_path / "out")).where("topic = 'killed/x'").select("payload").collect()
    got = Counter(int(each.payload) for each in rows)
    lost = set(range(publisher.sent)) - set(got)
    assert not lost, f"{len(lost)} of {publisher.sent} lost"
    # At least once: what was under way when it was killed may be there twice, and nothing thrice.
    doubled = sum(times > 1 for times in got.values())
    print(f"{publisher.sent} messages, {doubled} of them twice")
    assert max(got.values()) <= 2
    assert doubled < 100


@pytest.mark.parametrize("broker", ["canopy", "mosquitto"])
def test_batch_read_and_sinks(mqtt: SparkSession, brokers: Callable[[str], int], tmp_path: Path, broker: str) -> None:
    port = brokers(broker)
    url = f"mqtt://127.0.0.1:{port}"
    got: list[Any] = []
    granted: list[int] = []
    with client(port) as receiver:
        receiver.on_message = lambda _c, _d, each: got.append(each)
        receiver.on_subscribe = lambda _c, _d, mid, _r, _p: granted.append(mid)
        receiver.subscribe([("out/#", 1), ("copy/#", 1)])
        until("SUBACK", lambda: granted)

        frame = mqtt.range(0, 200, numPartitions=2).selectExpr(
            "concat('out/', id % 5) AS topic", "cast(id AS string) AS payload", "true AS retain",
            "array(struct('unit' AS key, 'K' AS value)) AS properties", "'text/plain' AS content_type",
        )  # fmt: skip
        frame.write.format("mqtt").option("url", url).mode("append").save()
        until("200 messages", lambda: len(got) >= 200)
        assert sorted(int(each.payload) for each in got) == list(range(200))
        tags = [dict(each.properties.UserProperty) for each in got]
        assert {each["unit"] for each in tags} == {"K"}
        assert len({(each["canopy-batch"], each["canopy-partition"], each["canopy-row"]) for each in tags}) == 200
        assert len({each["canopy-batch"] for each in tags}) == 1
        assert got[0].properties.ContentType == "text/plain"

        # The retained ones, read as a batch.
        read = mqtt.read.format("mqtt").options(url=url, filters="out/#", idle="0.5").load()
        rows = read.collect()
        assert sorted((each.topic, each.retain, each.content_type) for each in rows) == [
            (f"out/{n}", True, "text/plain") for n in range(5)
        ]
        assert read.limit(3).count() == 3
        assert mqtt.read.format("mqtt").options(url=url, filters="out/#", max_rows="2").load().count() == 2

        # The source into the sink; with Trigger.AvailableNow retained messages are there now.
        got.clear()
        stream = mqtt.readStream.format("mqtt").options(url=url, filters="out/#", client_id="copy")
        running = run_to_its_end(
            stream.options(spool=str(tmp_path / "spool"), available_now_wait="0.5")
            .load()
            .selectExpr("'copy/json' AS topic", "to_json(struct(topic AS source)) AS payload")
            .writeStream.format("mqtt")
            .option("url", url)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start
        )
        until("5 messages", lambda: len(got) >= 5)
        assert sorted(json.loads(each.payload)["source"] for each in got) == [f"out/{n}" for n in range(5)]
        assert {dict(each.properties.UserProperty)["canopy-batch"] for each in got} == {f"{running.id}/0"}
    for each in range(5):
        publish(port, f"out/{each}", [b""], retain=True)


def test_errors_are_told(mqtt: SparkSession, tmp_path: Path) -> None:
    nowhere = {"url": "mqtt://127.0.0.1:1", "filters": "a", "connect_timeout": "0.1"}
    with pytest.raises(PySparkException, match="option 'filter' is unknown to the source mqtt; there are: "):
        mqtt.readStream.format("mqtt").options(**nowhere, filter="a").load()
    with pytest.raises(PySparkException, match="the source mqtt has its own columns"):
        mqtt.read.format("mqtt").schema("a int").options(**nowhere).load().count()
    stream = mqtt.readStream.format("mqtt").options(**nowhere, client_id="c", spool=str(tmp_path)).load()
    with pytest.raises(StreamingQueryException, match=r"mqtt://127\.0\.0\.1:1: connection refused"):
        run_to_its_end(stream.writeStream.format("noop").start)
    with pytest.raises(PySparkException, match="there is no column 'topic'"):
        mqtt.range(1).selectExpr("'x' AS payload").write.format("mqtt").options(url="mqtt://h").mode("append").save()
