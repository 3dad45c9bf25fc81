"""A small plant whose devices speak all formats that `canopy pipeline tables` reads: the sample of `make demo`.

The mapping that makes tables of it is config/tables/tables.toml. One payload in each round is bad, on purpose: it is
there to be seen in the table of dead letters.
"""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from canopy_pipeline.tables.payloads.sparkplug_message import payload_class

CONFIG = Path(__file__).parents[1] / "config" / "tables"
ROUNDS = 50
PATIENCE = 10.0
"""Seconds that a broker has to acknowledge."""


@cache
def valve_schema() -> Any:
    """Avro's schema of a valve."""
    return fastavro.parse_schema(json.loads((CONFIG / "valve.avsc").read_text()))


@cache
def pump_class() -> Any:
    """Protobuf's message of a pump."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString((CONFIG / "pump.desc").read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("plant.Pump"))


def power(watts: float, at: str, **more: Any) -> bytes:
    """JSON."""
    return json.dumps({"at": at, "power": {"watts": watts}, **more}).encode()


def valve(**fields: Any) -> bytes:
    """Avro."""
    written = io.BytesIO()
    fastavro.schemaless_writer(written, valve_schema(), {"tags": [], "position": None, **fields})
    return written.getvalue()


def pump(**fields: Any) -> bytes:
    """Protobuf."""
    made: bytes = pump_class()(**fields).SerializeToString()
    return made


def sparkplug(*metrics: dict[str, Any], at: datetime) -> bytes:
    """Sparkplug B."""
    made: bytes = payload_class()(timestamp=round(at.timestamp() * 1000), metrics=metrics).SerializeToString()
    return made


def births(at: datetime) -> list[tuple[str, bytes]]:
    """Return the births of the edge node, which name its aliases. Datatype 3 is Int32."""
    return [("spBv1.0/plant/NBIRTH/n1", sparkplug({"name": "speed", "alias": 7, "datatype": 3}, at=at))]


def messages(number: int, at: datetime) -> list[tuple[str, bytes]]:
    """Topics and payloads of a round: seven that are good, and the second is bad."""
    when = at.isoformat()
    broken = json.dumps({"at": when, "power": {"watts": "many"}}).encode()
    return [
        ("site/s1/device/d1/power", power(230.5 + number, when, phase=number)),
        ("site/s1/device/d1/power", broken),
        ("site/s2/notes", f"note {number} – ü".encode()),
        ("site/s2/temperature", b"21.5"),
        ("site/s1/valve/v1", valve(open=True, position=0.25, cycles=number, tags=["a"])),
        ("site/s1/pump", pump(serial="p-1", rpm=1500, flow=2.5, mode=1, total=1 << 40)),
        # -5, as Sparkplug has it.
        ("spBv1.0/plant/NDATA/n1", sparkplug({"alias": 7, "int_value": (1 << 32) - 5}, at=at)),
    ]


def sent() -> list[tuple[str, bytes]]:
    """All of it."""
    at = datetime.now(UTC)
    return [*births(at), *(each for number in range(ROUNDS) for each in messages(number, at))]


def main() -> int:
    """Publish it to a broker on this machine."""
    client = Client(CallbackAPIVersion.VERSION2, "sample-plant")
    client.connect("127.0.0.1", int(sys.argv[1]))
    client.loop_start()
    for under_way in [client.publish(topic, payload, qos=1) for topic, payload in sent()]:
        under_way.wait_for_publish(PATIENCE)
    client.disconnect()
    client.loop_stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
