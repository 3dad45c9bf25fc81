"""The sample plant of `make demo`, as a recorded story, and its mapping."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyarrow as pa

from canopy_mqtt.record.schema import SCHEMA
from canopy_pipeline.tables.decode import Batches
from canopy_pipeline.tables.plans import NEEDED
from tests.pipeline.recorded import BEGIN, Story

ROOT: Final = Path(__file__).parents[3]
SAMPLE: Final = ROOT / "config" / "tables"
MAPPING: Final = (SAMPLE / "tables.toml").read_text()


def _plant() -> ModuleType:
    """tools/plant.py: a script, in no package."""
    spec = importlib.util.spec_from_file_location("canopy_tools_plant", ROOT / "tools" / "plant.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


PLANT: Final = _plant()


def mapping(folder: Path, text: str = MAPPING) -> Path:
    """The mapping file and what it names."""
    shutil.copytree(SAMPLE, folder, dirs_exist_ok=True)
    file = folder / "tables.toml"
    file.write_text(text)
    return file


def power(watts: float, at: str = BEGIN.isoformat(), **more: Any) -> bytes:
    made: bytes = PLANT.power(watts, at, **more)
    return made


def valve(**fields: Any) -> bytes:
    made: bytes = PLANT.valve(**fields)
    return made


def pump(**fields: Any) -> bytes:
    made: bytes = PLANT.pump(**fields)
    return made


def sparkplug(*metrics: dict[str, Any]) -> bytes:
    made: bytes = PLANT.sparkplug(*metrics, at=BEGIN)
    return made


def story(rounds: int = 3, first_seq: int = 1) -> Story:
    """So many rounds of eight messages: seven of the plant, the second of them bad, and one that is in no table."""
    told = Story(first_seq=first_seq)
    for topic, payload in PLANT.births(BEGIN):
        told.publish("edge", topic, payload)
    for number in range(rounds):
        told.pause(1)
        for topic, payload in (*PLANT.messages(number, BEGIN), ("elsewhere", b"x")):
            told.publish(f"client of {topic}", topic, payload)
    return told


def decoded(batches: Batches, told: Story) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table that a story's messages become."""
    events = [{name: event.get(name) for name in NEEDED} for event in told.events]
    schema = pa.schema([SCHEMA.field(name) for name in NEEDED])
    [batch] = pa.Table.from_pylist(events, schema=schema).to_batches()
    return {name: rows.to_pylist() for name, rows in batches.decode(batch).items()}
