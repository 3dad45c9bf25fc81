"""Ten million recorded messages through each job of the pipeline: CPU seconds, seconds, peak memory.

Owns: the made-up records (a broker with 1,000 publishers, 10,000 topics and 400 subscriptions, where each message goes
to one client and says when it was sent; and one of JSON payloads), and the rows that docs/benchmarks-pipeline.md shows.
Each job runs in a process of its own, start of the JVM included, beside what `benchmarks.by_hand` has for it: their
rows must be equal.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.by_hand import JOBS
from benchmarks.runner import Bench, Case, Entrant, Line, Row
from canopy_load.brokers.registry import python_module
from canopy_mqtt.record.files.folder import describe
from canopy_mqtt.record.files.row_groups import RowGroups
from canopy_mqtt.record.files.segment import write_manifest
from canopy_mqtt.record.schema import SCHEMA

KINDS: Final = ("temperature", "pressure", "speed", "state")
TOPICS: Final = 10_000
PUBLISHERS: Final = 1_000
LINES: Final = 100
SEGMENT: Final = 500_000
"""Publishes in a segment; as many deliveries follow them."""
BEGIN: Final = datetime(2026, 11, 21, 16, 0, tzinfo=UTC)
SMALL_SEGMENT: Final = 10_000
"""Publishes in each segment that is merged."""
RATE: Final = 20_000
"""Messages a second, by the record: ten minutes at most, so that its page shows single seconds."""
RUN: Final = "0badcafe"
WATCH: Final = 0.2
"""Seconds between two looks at the memory of a job."""
MEMORY: Final = "4g"
SUBREAPER: Final = 36
"""Linux's PR_SET_CHILD_SUBREAPER: what outlives its parent is this process's child."""
MAPPING: Final = """
[tables.power]
filter = "plant/{line}/#"
format = "json"
event_time = "measured"
columns.measured = { path = "at", type = "timestamp", required = true }
columns.watts = { path = "power.watts", type = "float64", required = true }
columns.phase = "int32"
"""


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


def sent(rng: np.random.Generator, us: Any) -> Any:
    """User properties that say when messages were sent: some hundred microseconds before they came, to some seconds."""
    late = np.minimum(rng.lognormal(7.5, 1.5, len(us)), 5e6).astype(np.int64)
    values = pa.array(int(BEGIN.timestamp()) * 1_000_000 + us - late).cast(pa.string())
    pairs = pa.StructArray.from_arrays([pa.repeat("sent", len(us)), values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(np.arange(len(us) + 1, dtype=np.int32)), pairs)


def json_payloads(rng: np.random.Generator, us: Any) -> Any:
    """Payloads of a meter: a time, a nested number and a whole one."""
    watts = rng.uniform(0, 500, len(us)).round(2)
    times = (BEGIN + timedelta(microseconds=int(each)) for each in us)
    made = (
        f'{{"at": "{at}", "power": {{"watts": {each}}}, "phase": {n % 3}}}'.encode()
        for n, (at, each) in enumerate(zip(times, watts, strict=True))
    )
    return pa.array(made, pa.binary())


def record(folder: Path, messages: int, segment: int = SEGMENT, json: bool = False) -> None:
    """The record: as many publishes, and a delivery for each; of JSON payloads publishes alone."""
    rng = np.random.default_rng(7)
    topics = pa.array(topic_names())
    readers = pa.array([f"reader-{n % LINES:03d}-{KINDS[n % 4]}" for n in range(TOPICS)])
    publishers = pa.array([f"device-{n:04d}" for n in range(PUBLISHERS)])
    first = 1
    table = subscriptions(first)
    first += table.num_rows
    done = 0
    while done < messages:
        count = min(segment, messages - done)
        # Some topics are much busier than others.
        chosen = np.minimum((rng.pareto(0.6, count) * 40).astype(np.int64), TOPICS - 1)
        step = 1 if json else 2
        seq = first + step * np.arange(count)
        us = (done + np.arange(count)) * (1_000_000 // RATE)
        times = np.datetime64(BEGIN.replace(tzinfo=None), "us") + us.astype("timedelta64[us]")
        ts = pa.array(times).cast(pa.timestamp("us", tz="UTC"))
        both = {"ts": ts, "recv_ns": pa.array(1_000_000_000 + us * 1000), "run_id": pa.repeat(RUN, count)}
        both |= {"qos": pa.repeat(pa.scalar(0, pa.int8()), count), "retain": pa.repeat(False, count)}
        payload = json_payloads(rng, us) if json else payloads(rng, count, 64)
        published = rows(
            count,
            both
            | {
                "seq": pa.array(seq),
                "kind": pa.repeat("publish", count),
                "client_id": publishers.take(pa.array(chosen % PUBLISHERS)),
                "topic": topics.take(pa.array(chosen)),
                "payload": payload,
                "size": pc.binary_length(payload),
                "properties": sent(rng, us),
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
        parts = [published] if json else [published, delivered]
        whole = pa.concat_tables([table, *parts] if table is not None else parts).sort_by("seq")
        begun = BEGIN + timedelta(microseconds=int(us[0]))
        place = f"date={begun:%Y-%m-%d}/hour={begun:%H}/seg-{RUN}-{whole['seq'][0].as_py():015d}.parquet"
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file, RowGroups(file, SCHEMA) as groups:
            groups.add(whole)
        write_manifest(folder, place, describe(folder, place))
        table = None
        first += step * count
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


def measured(command: Sequence[str]) -> tuple[dict[str, float], int]:
    """CPU seconds and peak memory of a command and all its processes, its seconds, and its exit code."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    begun = time.monotonic()
    peak = 0
    process = subprocess.Popen(command, stdout=sys.stderr)
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        peak = max(peak, tree_memory(process.pid))
        time.sleep(WATCH)
    seconds = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    cpu = ended[2].ru_utime + ended[2].ru_stime
    # Spark's Java, which its parent did not wait for.
    with suppress(ChildProcessError):
        while True:
            used = os.wait4(-1, 0)[2]
            cpu += used.ru_utime + used.ru_stime
    return {"CPU s": cpu, "seconds": seconds, "peak MB": peak / 1e6}, process.returncode


_SHARED: list[Path] = []
"""The folder of the records that several rows need."""


@contextmanager
def shared() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as name:
        _SHARED.append(Path(name))
        try:
            yield
        finally:
            _SHARED.pop()


def command_of(job: str, tool: str, recorded: Path, out: Path) -> list[str]:
    """The command of a row, by Canopy or by hand."""
    if tool not in _BOTH and (job, tool) in JOBS:
        return [sys.executable, "-P", "-m", "benchmarks.by_hand", job, tool, str(recorded), str(out)]
    command = [*python_module("canopy_mqtt"), "pipeline", job, "--input", str(recorded)]
    if job == "compact":
        return command
    command += ["--output", str(out)]
    if job == "tables":
        mapping = out.with_suffix(".toml")
        mapping.write_text(MAPPING)
        return [*command, "--mapping", str(mapping)]
    if job == "rollup":
        command += ["--latency", "property:sent"]
    command += ["--driver-memory", MEMORY, "--engine", tool]
    return [*command, "--master", "local[2]"] if tool == "spark" else command


def run(job: str, case: Case) -> Iterator[Line]:
    """The size is the number of messages; the record of a size is made once, and kept if a folder was named."""
    folder = case.parent or _SHARED[0]
    kind, segment = {"tables": ("json-", SEGMENT), "compact": ("small-", SMALL_SEGMENT)}.get(job, ("", SEGMENT))
    recorded = folder / f"record-{kind}{case.size}"
    if not recorded.exists():
        record(recorded, case.size, segment, job == "tables")
    out = folder / f"out-{case.size}" / f"{job}-{case.entrant.name}"
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    if job == "compact":
        recorded = shutil.copytree(recorded, out)
    elif (job, case.entrant.name) in JOBS:
        out.mkdir()
    figures, code = measured(command_of(job, case.entrant.name, recorded, out))
    if code:
        raise OSError(f"the job ended with {code}")
    if job == "compact":
        after, before = (sum(each.stat().st_size for each in out.rglob(f"{name}-*")) for name in ("merged", "seg"))
        figures["size ×"] = after / before
    yield Line("", figures, differences(job, out))


ROWS: Final = {
    "rollup": (
        "minutes",
        """epoch_us(start), topic, messages, bytes, size_min, size_max, qos0, retained, publishers, latency_count,
        latency_sum_us, list_sort(latency)""",
    ),
    "tree": ("tree", "prefix, messages, bytes"),
    "tables": ("power", "seq, epoch_us(ts), topic, line, epoch_us(measured), watts, phase"),
}
"""A table and its columns that must be equal, whoever computed them."""


def differences(job: str, out: Path) -> tuple[str, ...]:
    """Compare the rows in a folder with those that others made of the same record; name those that differ."""
    if job not in ROWS:
        return ()
    table, columns = ROWS[job]
    found = {}
    for folder in sorted(out.parent.glob(f"{job}-*/")):
        files = [*map(str, (*folder.glob(f"{table}.parquet"), *folder.glob(f"{table}/**/*.parquet")))]
        if not files:
            # Its job failed.
            continue
        rows = f"select concat_ws(' ', {columns}) as r from read_parquet({files})"
        [found[folder]] = duckdb.execute(f"select count(*), sum(hash(r)) from ({rows})").fetchall()
    others = [folder.name for folder, rows in found.items() if rows != found[out]]
    return (f"OTHER ROWS than {', '.join(others)}",) if others else ()


_BOTH: Final = ("spark", "duckdb")
_TOOLS: Final = ("spark", "duckdb", "sql", "polars", "canopy")

BENCH: Final = Bench(
    "pipeline",
    "Ten million recorded messages through each job, beside DuckDB and Polars by hand.",
    {
        job: Row(job, partial(run, job), tools, sizes=(size,))
        for job, tools, size in (
            ("rollup", ("duckdb", "sql", "polars", "spark"), 10_000_000),
            ("oracle", _BOTH, 10_000_000),
            ("tree", ("duckdb", "sql", "spark"), 10_000_000),
            ("plan", _BOTH, 10_000_000),
            ("report", ("duckdb",), 25_000),
            ("tables", ("canopy", "sql"), 1_000_000),
            ("compact", ("canopy",), 1_000_000),
        )
    },
    {name: Entrant(name) for name in _TOOLS},
    repeats=1,
    around=shared,
)
