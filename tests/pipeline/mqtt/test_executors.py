"""Receivers on executors: what a killed one had acknowledged is there, and the next one goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pipeline.errors import MisuseError, PipelineError
from pipeline.mqtt import executors
from pipeline.mqtt.options import stream_options
from pipeline.mqtt.rows import spark_schema
from pipeline.mqtt.source import MqttStreamReader
from pipeline.mqtt.spool import SpoolError
from tests.pipeline.mortal import environment
from tests.pipeline.mqtt.conftest import PATIENCE, publish, until
from tests.pipeline.mqtt.test_source import ALL, taken

TASK = "import json, sys; from pipeline.mqtt.executors import serve; serve(json.loads(sys.argv[1]), 0, sys.argv[2])"


def options(port: int, folder: Path, **more: str) -> dict[str, str]:
    return {
        "url": f"mqtt://127.0.0.1:{port}",
        "filters": "plant/#",
        "client_id": folder.name,
        "spool": str(folder / "spool"),
        "receivers_on": "executors",
        "available_now_wait": "0.5",
    } | more


@contextmanager
def task(said: dict[str, str], run: str) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a task; killed at the end."""
    folder = Path(said["spool"])
    with subprocess.Popen(
        [sys.executable, "-P", "-c", TASK, json.dumps(said), run], env=environment(folder.parent)
    ) as it:
        try:
            yield it
        finally:
            it.kill()


def subscribed(folder: Path) -> bool:
    with suppress(FileNotFoundError):
        return bool(json.loads((folder / executors.TOLD).read_text())["subscribed"])
    return False


def test_a_killed_receiver_is_taken_over_and_nothing_acknowledged_is_lost(
    brokers: Callable[[str], int], tmp_path: Path
) -> None:
    port = brokers("canopy")
    said = options(port, tmp_path)
    spool = tmp_path / "spool"
    reader = MqttStreamReader(said, spark_schema())
    try:
        start = reader.initialOffset()
        with task(said, "one"):
            until("it has subscribed", lambda: subscribed(spool))
            publish(port, "plant/x", [b"%d" % each for each in range(200)])
        # Killed with what it had in memory; the session keeps what comes meanwhile.
        publish(port, "plant/x", [b"%d" % each for each in range(200, 300)])
        (spool / executors.TOLD).unlink()
        with task(said, "two") as second:
            reader.prepareForTriggerAvailableNow()
            end = reader.latestOffset(start, ALL)
            rows = taken(reader, start, end)
            got = Counter(payload for payload, _, _ in rows)
            assert set(got) == set(range(300))
            assert max(got.values()) <= 2
            assert [seq for _, _, seq in rows] == list(range(end["seq"]))
            # What the query has done with goes, by the receiver's hand.
            reader.commit(end)
            until("the segments are gone", lambda: not list(spool.glob("seg-*")))
            executors._tell(spool / executors.ENDING, {"run": "two"})
            assert second.wait(PATIENCE) == 0
        assert reader.reportLatestOffset() == end | {"lost": 0, "session": 1}
    finally:
        reader.stop()


def test_a_second_task_of_the_same_number_is_kept_out(
    brokers: Callable[[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.mqtt.parts.LOCK_WAIT", 0.0)
    said = options(brokers("canopy"), tmp_path)
    with task(said, "one"):
        until("it has subscribed", lambda: subscribed(tmp_path / "spool"))
        with pytest.raises(SpoolError, match="another query uses this spool"):
            executors.serve(said, 0, "two")


def test_what_does_not_heal_ends_the_receivers_and_the_query(tmp_path: Path, unused_tcp_port: int) -> None:
    said = options(unused_tcp_port, tmp_path, connect_timeout="0.1")
    executors.serve(said, 0, "one")
    reader = MqttStreamReader(said, spark_schema())
    try:
        with pytest.raises(PipelineError, match="connect"):
            reader.latestOffset({"seq": 0}, ALL)
    finally:
        reader.stop()


def test_two_queries_do_not_read_one_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "LOCK_WAIT", 0.0)
    first = executors.watched(stream_options(options(1, tmp_path)))
    try:
        with pytest.raises(SpoolError, match="another query uses this spool"):
            executors.watched(stream_options(options(1, tmp_path)))
    finally:
        first[0].stop()


def test_drafts_of_a_query_that_was_killed_do_not_gather(tmp_path: Path) -> None:
    (part,) = executors.watched(stream_options(options(1, tmp_path)))
    try:
        (tmp_path / "spool" / f".{executors.DONE}.part").write_text('{"en')
        part.commit(1)
        assert part.state().committed == 1
        assert not list((tmp_path / "spool").glob(".*"))
    finally:
        part.stop()


def test_a_query_without_receivers_says_how_they_are_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "START_WAIT", 0.0)
    reader = MqttStreamReader(options(1, tmp_path), spark_schema())
    try:
        with pytest.raises(PipelineError, match=r"no receiver has subscribed.*canopy_spark.receive starts them"):
            reader.prepareForTriggerAvailableNow()
    finally:
        reader.stop()


def test_wrong_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="option 'receivers_on' is 'moon': give driver or executors"):
        stream_options(options(1, tmp_path, receivers_on="moon"))
