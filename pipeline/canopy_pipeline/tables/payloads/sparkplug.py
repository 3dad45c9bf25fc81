"""Payloads of Sparkplug B: a row for each metric; aliases become the names that births gave them.

What a host application says of itself (STATE) is JSON, and makes no row.

Promises: a payload whose alias has no birth before it is refused as a whole.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from canopy_pipeline.tables.births import Births
from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.payloads.column_values import value
from canopy_pipeline.tables.payloads.sparkplug_message import NAMESPACE, is_state, payload_class, place, read
from canopy_pipeline.tables.plans import Column, Plan

COLUMNS: Final = tuple(
    Column(name, kind, (name,))
    for name, kind in {
        "group_id": "string",
        "message_type": "string",
        "edge_node_id": "string",
        "device_id": "string",
        "metric": "string",
        "alias": "int64",
        "datatype": "int32",
        "metric_time": "timestamp",
        "is_historical": "boolean",
        "value_int": "int64",
        "value_float": "float64",
        "value_boolean": "boolean",
        "value_string": "string",
        "value_bytes": "binary",
    }.items()
)
METRIC_TIME: Final = "metric_time"

_FLOAT_COLUMN: Final = next(column for column in COLUMNS if column.name == "value_float")
_TIME_COLUMN: Final = next(column for column in COLUMNS if column.name == METRIC_TIME)
_SIGNED: Final = {1: 8, 2: 16, 3: 32, 4: 64}
"""Datatypes Int8 to Int64: bits. They travel as uint32 or uint64."""
_LONG: Final = 1 << 63


class SparkplugDecoder:
    """Makes a row of each metric; an empty one if there is none, as in most DDEATHs."""

    def __init__(self, plan: Plan, births: Births) -> None:
        self.items = plan.limits.items
        self.births = births
        # What is not installed is told now, and not of each payload.
        payload_class()

    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        """The metrics of one message, with the names that the births before `seq` gave them."""
        if is_state(topic):
            return []
        where = place(topic)
        if where is None:
            raise BadPayloadError("malformed", f"not a topic of Sparkplug B ({NAMESPACE}/GROUP/TYPE/NODE/DEVICE)")
        group, kind, node, device = where
        said = read(payload, self.items)
        head = (group, kind, node, device)
        if not said.metrics:
            return [(*head, None, None, None, _time(said), None, None, None, None, None, None)]
        made = []
        for metric in said.metrics:
            name = metric.name if metric.HasField("name") else None
            datatype = metric.datatype if metric.HasField("datatype") else None
            alias = metric.alias if metric.HasField("alias") else None
            if alias is not None and (name is None or datatype is None):
                known = self.births.name(group, node, device, alias, seq)
                if name is None and known is None:
                    raise BadPayloadError("no-birth", f"alias {alias}: no birth of {node} before it names it")
                if known is not None:
                    name = known[0] if name is None else name
                    datatype = known[1] if datatype is None else datatype
            if name is None:
                raise BadPayloadError("malformed", "a metric without name and alias")
            if alias is not None and alias >= _LONG:
                raise BadPayloadError("out-of-range", "an alias that does not fit int64")
            if datatype is not None and datatype >= 1 << 31:
                raise BadPayloadError("out-of-range", "a datatype that does not fit int32")
            time = _time(metric) if metric.HasField("timestamp") else _time(said)
            historical = bool(metric.is_historical)
            made.append((*head, name, alias, datatype, time, historical, *_values(metric, datatype)))
        return made


def _time(said: Any) -> int | None:
    found: int | None = value(said.timestamp, _TIME_COLUMN) if said.HasField("timestamp") else None
    return found


def _values(metric: Any, datatype: int | None) -> tuple[Any, ...]:
    """int, float, boolean, string, bytes; a whole number is in the float column, too."""
    if metric.is_null:
        return (None,) * 5
    if metric.HasField("int_value") or metric.HasField("long_value"):
        whole = metric.int_value if metric.HasField("int_value") else metric.long_value
        bits = _SIGNED.get(datatype or 0)
        if bits is not None:
            whole &= (1 << bits) - 1
            whole -= (whole >> (bits - 1)) << bits
        return whole if whole < _LONG else None, float(whole), None, None, None
    if metric.HasField("float_value"):
        # As somebody wrote it: 21.3 and not 21.299999237060547.
        found = metric.float_value
        if found != found or found in (float("inf"), float("-inf")):
            raise BadPayloadError("not-finite", f"{metric.name or metric.alias}: {found} is not a finite number")
        return None, _shortest(found), None, None, None
    if metric.HasField("double_value"):
        return None, value(metric.double_value, _FLOAT_COLUMN), None, None, None
    if metric.HasField("boolean_value"):
        return None, None, metric.boolean_value, None, None
    if metric.HasField("string_value"):
        return None, None, None, metric.string_value, None
    for name in ("bytes_value", "dataset_value", "template_value"):
        if metric.HasField(name):
            return None, None, None, None, getattr(metric, name)
    return (None,) * 5


def _shortest(found: float) -> float:
    """The decimal with the fewest digits that is this float32."""
    for digits in range(6, 9):
        made = float(f"{found:.{digits}g}")
        if struct.pack("<f", made) == struct.pack("<f", found):
            return made
    return found
