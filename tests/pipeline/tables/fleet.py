"""A plant whose devices speak all formats: what they send, and the mapping that makes tables of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Final

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pipeline.tables.payloads.sparkplug_message import payload_class
from tests.pipeline.recorded import BEGIN, Story

MAPPING: Final = """
[tables.power]
filter = "site/{site}/device/{device}/power"
format = "json"
event_time = "measured"
keep = ["topic", "client_id"]
columns.measured = { path = "at", type = "timestamp", required = true }
columns.watts = { path = "power.watts", type = "float64", required = true }
columns.phase = "int32"

[tables.notes]
filter = "site/{site}/notes"
format = "text"

[tables.temperature]
filter = "site/{site}/temperature"
format = "number"

[tables.valves]
filter = "site/{site}/valve/+"
format = "avro"
schema = "valve.avsc"

[tables.pumps]
filter = "site/{site}/pump"
format = "protobuf"
descriptor = "pump.desc"
message = "plant.Pump"

[tables.metrics]
filter = "spBv1.0/#"
format = "sparkplug"
event_time = "metric_time"
"""

VALVE: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Valve",
    "fields": [
        {"name": "open", "type": "boolean"},
        {"name": "position", "type": ["null", "double"]},
        {"name": "cycles", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def descriptors() -> bytes:
    """What protoc would write of a message Pump."""
    file = descriptor_pb2.FileDescriptorProto(name="pump.proto", package="plant", syntax="proto3")
    mode = file.enum_type.add(name="Mode")
    mode.value.add(name="IDLE", number=0)
    mode.value.add(name="RUNNING", number=1)
    pump = file.message_type.add(name="Pump")
    for name, number, kind in (("serial", 1, 9), ("rpm", 2, 5), ("flow", 3, 1), ("mode", 4, 14), ("total", 5, 4)):
        field = pump.field.add(name=name, number=number, label=1)
        field.type = kind  # type: ignore[assignment]  # numbers of the enumeration
        if kind == 14:
            field.type_name = ".plant.Mode"
    pump.field.add(name="alarms", number=6, label=3, type=9)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def mapping(folder: Path, text: str = MAPPING) -> Path:
    """The mapping file and what it names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "valve.avsc").write_text(json.dumps(VALVE))
    (folder / "pump.desc").write_bytes(descriptors())
    file = folder / "tables.toml"
    file.write_text(text)
    return file


def power(watts: float, at: str = "2026-11-21T16:00:00Z", **more: Any) -> bytes:
    return json.dumps({"at": at, "power": {"watts": watts}, **more}).encode()


def valve(**fields: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(VALVE), {"tags": [], "position": None, **fields})
    return written.getvalue()


def pump(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.AddSerializedFile(file.SerializeToString())
    made: bytes = message_factory.GetMessageClass(pool.FindMessageTypeByName("plant.Pump"))(
        **fields
    ).SerializeToString()
    return made


def sparkplug(*metrics: dict[str, Any], at: int | None = None) -> bytes:
    """`at`: milliseconds; None: when the story begins."""
    made: bytes = payload_class()(
        timestamp=int(BEGIN.timestamp() * 1000) if at is None else at, metrics=metrics
    ).SerializeToString()
    return made


def story(rounds: int = 3, first_seq: int = 1) -> Story:
    """So many rounds in which everybody sends something; eight good payloads and one bad in each."""
    told = Story(first_seq=first_seq)
    told.publish("edge", "spBv1.0/plant/NBIRTH/n1", sparkplug({"name": "speed", "alias": 7, "datatype": 3}))
    for number in range(rounds):
        told.pause(1)
        told.publish("d1", "site/s1/device/d1/power", power(230.5 + number, phase=number))
        told.publish("d1", "site/s1/device/d1/power", b'{"at": "2026-11-21T16:00:00Z", "power": {"watts": "many"}}')
        told.publish("d2", "site/s2/notes", f"note {number} – ü".encode())
        told.publish("d3", "site/s2/temperature", b"21.5")
        told.publish("d4", "site/s1/valve/v1", valve(open=True, position=0.25, cycles=number, tags=["a"]))
        told.publish("d5", "site/s1/pump", pump(serial="p-1", rpm=1500, flow=2.5, mode=1, total=1 << 40))
        told.publish("edge", "spBv1.0/plant/NDATA/n1", sparkplug({"alias": 7, "int_value": (1 << 32) - 5}))
        told.publish("d9", "elsewhere", b"x")
    return told
