"""Receivers on two executors of a cluster: an executor is killed, and the driver with all it has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.mqtt.executors import TOLD
from pipeline.runtime.session import java
from tests.pipeline.mortal import environment
from tests.pipeline.mqtt.conftest import PATIENCE, canopy, until
from tests.pipeline.mqtt.test_spark import START, Numbers, _descendants

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@contextmanager
def driver(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A driver whose receivers have subscribed; with all its processes it is killed at the end, if it is there."""
    for told in folder.glob(f"spool/*/{TOLD}"):
        told.unlink()
    with (
        (folder / "said").open("ab") as said,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.pipeline.mqtt.clustered", str(folder), f"mqtt://127.0.0.1:{port}"],
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
        ) as it,
    ):
        try:

            def both() -> bool:
                assert it.poll() is None, (folder / "said").read_text()[-3000:]
                return len(subscribed(folder)) == 2

            until("both receivers have subscribed", both, START)
            yield it
        finally:
            for number in _descendants(it.pid):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


def subscribed(folder: Path) -> list[Path]:
    """The files of the receivers that have."""
    return [each for each in folder.glob(f"spool/*/{TOLD}") if json.loads(each.read_text())["subscribed"]]


def executor(process: int) -> int:
    """One of its executors."""
    for number in _descendants(process):
        with suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{number}/cmdline").read_bytes():
                return number
    raise AssertionError("there is no executor")


def batches(folder: Path) -> int:
    return len(list((folder / "out" / "_spark_metadata").glob("[0-9]*")))


def committed(out: Path) -> list[str]:
    """The files that Spark's sink vouches for: of a batch that broke off there are others."""
    lines = [line for log in (out / "_spark_metadata").glob("[0-9]*") for line in log.read_text().splitlines()[1:]]
    return sorted({json.loads(line)["path"].removeprefix("file://") for line in lines})


def test_killed_executor_and_driver_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    why = java()
    if why is not None:
        pytest.skip(why)
    with canopy() as port:
        publisher = Numbers(port)
        with driver(tmp_path, port) as it:
            publisher.start()
            try:
                until("some batches", lambda: batches(tmp_path) > 2, START)
                spools = {each.parent.name: each.stat().st_ino for each in subscribed(tmp_path)}
                os.kill(executor(it.pid), signal.SIGKILL)
                # Its receiver runs again: it tells so anew.
                until(
                    "a receiver is taken over",
                    lambda: any(each.stat().st_ino != spools[each.parent.name] for each in subscribed(tmp_path)),
                    START,
                )
                before = publisher.sent
                until("more after that", lambda: publisher.sent > before + 100)
            except BaseException:
                publisher.close()
                raise
        # Now the driver is dead, and all its executors; the publisher goes on.
        before = publisher.sent
        until("more while it is dead", lambda: publisher.sent > before + 100)
        with driver(tmp_path, port) as it:
            publisher.close()
            assert it.stdin is not None
            it.stdin.close()
            assert it.wait(PATIENCE) == 0, (tmp_path / "said").read_text()[-3000:]
    rows = pq.ParquetDataset(committed(tmp_path / "out")).read().to_pylist()
    got = Counter(int(each["payload"]) for each in rows)
    assert not set(range(publisher.sent)) - set(got)
    print(f"{publisher.sent} messages, {sum(times > 1 for times in got.values())} of them twice")
    # What was under way at a kill may be there twice; each copy has a number of its own.
    assert max(got.values()) <= 3
    assert len({(each["receiver"], each["seq"]) for each in rows}) == len(rows)
