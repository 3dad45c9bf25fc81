"""How many messages a second the Spark source "mqtt" takes from a broker into its spool, without a loss.

Owns: one broker, one publisher at a steady rate (`canopy load`), and the source's stream reader, driven as Spark drives
it, in this process. The rate holds when every message is a row and the broker told of no loss.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from benchmarks.network.links import LoadError
from benchmarks.runner import HOST, Bench, Case, Line, Row, peers
from canopy_load.brokers.registry import python_module
from canopy_pipeline.mqtt.rows import spark_schema
from canopy_pipeline.mqtt.source import MqttStreamReader

SILENCE: Final = 5.0
"""Seconds without a new row after which the rest counts as lost."""
PATIENCE: Final = 60.0
"""Seconds that the publisher may take beyond its time."""


def _scenario(qos: int, rate: int, seconds: float) -> str:
    """One publisher, 64 bytes, 1,000 topics; it ends after its last message."""
    return f"""
name = "source"
description = "one publisher"
stages = [{{ name = "steady", seconds = {seconds} }}]
[[groups]]
name = "publisher"
clients = 1
publish = [{{ topic = "bench/%n", topics = 1000, qos = {qos}, rate = {rate}, messages = {int(rate * seconds)} }}]
"""


def run(qos: int, case: Case) -> Iterator[Line]:
    """The rate is the size; the receiver is a thread of this process."""
    with case.folder() as folder, case.broker() as process:
        url = f"mqtt://{HOST}:{process.port}"
        said = {"url": url, "filters": "bench/#", "client_id": "bench", "spool": str(folder / "spool"), "qos": str(qos)}
        reader = MqttStreamReader(said, spark_schema())
        scenario = folder / "source.toml"
        scenario.write_text(_scenario(qos, case.size, case.seconds))
        command = [*python_module("canopy_mqtt"), "load", "run", str(scenario)]
        command += ["--target", url, "--out", str(folder / "out")]
        try:
            start = reader.initialOffset()
            time.sleep(1.5)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as publisher:
                rows = _rows(reader, start, publisher, int(case.size * case.seconds))
                if publisher.wait(PATIENCE):
                    raise LoadError(f"the publisher failed: {(publisher.stderr.read() if publisher.stderr else b'')!r}")
        finally:
            reader.stop()
        sent = int(case.size * case.seconds)
        yield Line("", {"sent": sent, "rows": rows, "lost": sent - rows})


def _rows(reader: MqttStreamReader, start: Any, publisher: subprocess.Popen[bytes], wanted: int) -> int:
    """How many rows come until all are there, or nothing more comes."""
    rows, last, limit = 0, time.monotonic(), reader.getDefaultReadLimit()
    while rows < wanted and (publisher.poll() is None or time.monotonic() - last < SILENCE):
        time.sleep(0.1)
        end = reader.latestOffset(start, limit)
        if end != start:
            for part in reader.partitions(start, end):
                rows += sum(each.num_rows for each in reader.read(part))
            reader.commit(end)
            last, start = time.monotonic(), end
    return rows


BENCH: Final = Bench(
    "source",
    'How many messages a second the Spark source "mqtt" takes without a loss.',
    {
        "qos0": Row("QoS 0", partial(run, 0), sizes=(20_000,)),
        "qos1": Row("QoS 1", partial(run, 1), sizes=(20_000,)),
    },
    peers("canopy"),
    repeats=1,
    seconds=10.0,
)
