"""Ten million recorded messages through each job of the pipeline: seconds, messages a second, peak memory.

Owns: the made-up record (a broker with 1,000 publishers, 10,000 topics and 400 subscriptions, where each message goes
to one client), and the rows that docs/benchmarks-pipeline.md shows. Each job runs in a process of its own, start of the
JVM included.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.runner import Bench, Case, Entrant, Line, Row
from canopy_load.brokers.registry import python_module
from canopy_mqtt.record.files.folder import describe
from canopy_mqtt.record.files.segment import write_manifest
from canopy_mqtt.record.schema import SCHEMA

KINDS: Final = ("temperature", "pressure", "speed", "state")
TOPICS: Final = 10_000
PUBLISHERS: Final = 1_000
LINES: Final = 100
SEGMENT: Final = 500_000
"""Publishes in a segment; as many deliveries follow them."""
BEGIN: Final = datetime(2026, 11, 21, 16, 0, tzinfo=UTC)
RATE: Final = 10_000
"""Messages a second, by the record."""
RUN: Final = "0badcafe"
WATCH: Final = 0.2
"""Seconds between two looks at the memory of a job."""
MEMORY: Final = "4g"


def topic_names() -> list[str]:
    """Ten thousand topics: `plant/LINE/DEVICE/KIND`."""
    return [f"plant/line{n % LINES:03d}/device{n // 4 % 2500:04d}/{KINDS[n % 4]}" for n in range(TOPICS)]


def payloads(rng: np.random.Generator, count: int, size: int) -> Any:
    """Random payloads of one size."""
    data = rng.integers(0, 256, count * size, np.uint8).tobytes()
    offsets = np.arange(0, count * size + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def rows(count: int, columns: dict[str, Any]) -> Any:
    """A table of the recorder's columns; those that are not given are null."""
    return pa.table({field.name: columns.get(field.name, pa.nulls(count, field.type)) for field in SCHEMA}).cast(SCHEMA)


def subscriptions(first: int) -> Any:
    """Each line has one client for its temperatures and one for each other kind: every message goes to one client."""
    names, filters = [], []
    for line in range(LINES):
        for kind in KINDS:
            names.append(f"reader-{line:03d}-{kind}")
            filters.append(f"plant/line{line:03d}/+/{kind}")
    count = len(names)
    return rows(
        count,
        {
            "seq": pa.array(np.arange(first, first + count)),
            "kind": pa.repeat("subscribe", count),
            "ts": pa.repeat(pa.scalar(BEGIN, pa.timestamp("us", tz="UTC")), count),
            "recv_ns": pa.repeat(1_000_000_000, count),
            "run_id": pa.repeat(RUN, count),
            "client_id": pa.array(names),
            "topic_filter": pa.array(filters),
            "qos": pa.repeat(pa.scalar(0, pa.int8()), count),
            "no_local": pa.repeat(False, count),
            "retain_as_published": pa.repeat(False, count),
        },
    )


def record(folder: Path, messages: int) -> None:
    """The record: as many publishes, and a delivery for each."""
    rng = np.random.default_rng(7)
    topics = pa.array(topic_names())
    readers = pa.array([f"reader-{n % LINES:03d}-{KINDS[n % 4]}" for n in range(TOPICS)])
    publishers = pa.array([f"device-{n:04d}" for n in range(PUBLISHERS)])
    first = 1
    table = subscriptions(first)
    first += table.num_rows
    done = 0
    while done < messages:
        count = min(SEGMENT, messages - done)
        # Some topics are much busier than others.
        chosen = np.minimum((rng.pareto(0.6, count) * 40).astype(np.int64), TOPICS - 1)
        seq = first + 2 * np.arange(count)
        us = (done + np.arange(count)) * (1_000_000 // RATE)
        times = np.datetime64(BEGIN.replace(tzinfo=None), "us") + us.astype("timedelta64[us]")
        ts = pa.array(times).cast(pa.timestamp("us", tz="UTC"))
        both = {"ts": ts, "recv_ns": pa.array(1_000_000_000 + us * 1000), "run_id": pa.repeat(RUN, count)}
        both |= {"qos": pa.repeat(pa.scalar(0, pa.int8()), count), "retain": pa.repeat(False, count)}
        published = rows(
            count,
            both
            | {
                "seq": pa.array(seq),
                "kind": pa.repeat("publish", count),
                "client_id": publishers.take(pa.array(chosen % PUBLISHERS)),
                "topic": topics.take(pa.array(chosen)),
                "payload": payloads(rng, count, 64),
                "size": pa.repeat(pa.scalar(64, pa.int32()), count),
            },
        )
        delivered = rows(
            count,
            both
            | {
                "seq": pa.array(seq + 1),
                "kind": pa.repeat("deliver", count),
                "client_id": readers.take(pa.array(chosen)),
                "ref_seq": pa.array(seq),
            },
        )
        whole = pa.concat_tables([table, published, delivered] if table is not None else [published, delivered])
        whole = whole.sort_by("seq")
        begun = BEGIN + timedelta(microseconds=int(us[0]))
        place = f"date={begun:%Y-%m-%d}/hour={begun:%H}/seg-{RUN}-{whole['seq'][0].as_py():015d}.parquet"
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(whole, path, compression="zstd", compression_level=1, row_group_size=131_072)
        write_manifest(folder, place, describe(folder, place))
        table = None
        first += 2 * count
        done += count
        print(f"{done:,} messages made", file=sys.stderr)


def tree_memory(pid: int) -> int:
    """Bytes resident, of a process and all below it."""
    total = 0
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        try:
            with open(f"/proc/{each}/statm", "rb") as file:
                total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{task}/children", "rb") as file:
                    waiting += [int(child) for child in file.read().split()]
        except (OSError, IndexError):
            continue
    return total


def measured(command: Sequence[str]) -> tuple[float, int, int]:
    """Seconds, peak memory of all its processes, exit code."""
    begun = time.monotonic()
    peak = 0
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        while process.poll() is None:
            peak = max(peak, tree_memory(process.pid))
            time.sleep(WATCH)
    return time.monotonic() - begun, peak, process.returncode


def run(job: str, case: Case) -> Iterator[Line]:
    """The size is the number of messages; the record of a size is made once, and kept where a folder was named."""
    with ExitStack() as stack:
        folder = case.parent or stack.enter_context(case.folder())
        recorded = folder / f"record-{case.size}"
        if not recorded.exists():
            record(recorded, case.size)
        out = folder / "out" / job
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        command = [*python_module("canopy_mqtt"), "pipeline", job, "--input", str(recorded), "--output", str(out)]
        if job == "rollup":
            command += ["--latency", "none"]
        command += ["--driver-memory", MEMORY, "--engine", case.entrant.name]
        if case.entrant.name == "spark":
            command += ["--master", "local[2]"]
        seconds, peak, code = measured(command)
        if code:
            raise OSError(f"the job ended with {code}")
        yield Line("", {"seconds": seconds, "messages/s": case.size / seconds, "peak MB": peak / 1e6})


_BOTH: Final = ("spark", "duckdb")

BENCH: Final = Bench(
    "pipeline",
    "Ten million recorded messages through each job.",
    {
        job: Row(job, partial(run, job), brokers, sizes=(10_000_000,))
        for job, brokers in (("rollup", _BOTH), ("oracle", _BOTH), ("tree", ("spark",)), ("plan", ("spark",)))
    },
    {name: Entrant(name) for name in _BOTH},
    repeats=1,
)
