"""The oracle and the broker itself: the record of a mixed run holds no misrouting; one that is put there is found."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pyarrow.parquet as pq
from aiomqtt import Client, ProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions
from pyspark.sql import SparkSession

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.record.files.folder import describe
from canopy_mqtt.record.files.segment import write_manifest
from canopy_mqtt.settings import Settings
from canopy_pipeline.oracle.oracle_job import run
from tests.pipeline.oracle.toy import LEVELS, Toy

STEPS = 250


async def mixed(folder: Path) -> None:
    """Six clients that subscribe, unsubscribe and publish at random; nothing is decided by time."""
    chance = random.Random(6)
    names = Toy("names", seed=6)
    settings = Settings.model_validate(
        {"listen": ("mqtt://127.0.0.1:0",), "recorder": {"directory": str(folder), "deliveries": True}}
    )
    async with Broker(settings) as broker, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                Client("127.0.0.1", broker.ports[0], identifier=f"c{number}", protocol=ProtocolVersion.V5)
            )
            for number in range(6)
        ]
        held: set[tuple[int, str]] = set()
        for _ in range(STEPS):
            number, choice = chance.randrange(len(clients)), chance.random()
            client = clients[number]
            if choice < 0.2:
                topic_filter = names.filter()
                options = SubscribeOptions(
                    qos=chance.randrange(3), noLocal=not topic_filter.startswith("$share/") and chance.random() < 0.3
                )
                await client.subscribe(topic_filter, options=options)
                held.add((number, topic_filter))
            elif choice < 0.27 and held:
                gone = chance.choice(sorted(held))
                held.remove(gone)
                await clients[gone[0]].unsubscribe(gone[1])
            else:
                await client.publish("/".join(chance.choices(LEVELS, k=3)), b"x", qos=chance.randrange(3))


def test_a_mixed_run_is_routed_as_the_specification_says(duck: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "record"
    asyncio.run(mixed(folder))
    outcome = run(duck, [str(folder)], str(tmp_path / "out"))
    assert (outcome.missing, outcome.unexpected, outcome.wrong, outcome.unjudged) == (0, 0, 0, 0)
    assert outcome.notes == []
    assert outcome.publishes > STEPS // 3
    assert outcome.expected >= outcome.delivered > outcome.publishes
    assert outcome.fine
    assert (
        "Every message that was recorded went where it should, and the broker dropped none"
        in (tmp_path / "out" / "index.html").read_text()
    )

    # A delivery goes to somebody else.
    [segment] = folder.rglob("seg-*.parquet")
    table = pq.read_table(segment, partitioning=None)
    rows = table.to_pylist()
    chosen = next(row for row in rows[len(rows) // 2 :] if row["kind"] == "deliver" and row["topic_filter"] is None)
    chosen["client_id"] = "somebody"
    pq.write_table(table.from_pylist(rows, schema=table.schema), segment)
    # Its manifest says the checksum of what stands there now: the jobs refuse a segment that has changed.
    place = segment.relative_to(folder).as_posix()
    write_manifest(folder, place, describe(folder, place))
    outcome = run(duck, [str(folder)], str(tmp_path / "out"))
    assert (outcome.missing, outcome.unexpected, outcome.wrong) == (1, 1, 0)
