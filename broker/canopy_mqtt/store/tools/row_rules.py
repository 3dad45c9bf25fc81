"""The rules for a row of each table: its columns, and what no broker can have written.

Owns these rules, for checking a file and for imports. Columns of one name mean the same in all tables.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

from canopy_mqtt.core.codec.packets import PUBLISH
from canopy_mqtt.core.codec.properties import ForwardScan
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import parse_shared, validate_filter, validate_topic
from canopy_mqtt.core.queues.delivery import MAX_ATTEMPTS, QUEUED, RELEASED, SENT
from canopy_mqtt.core.queues.in_flight import MAX_ID
from canopy_mqtt.core.queues.queue_terms import POLICIES
from canopy_mqtt.store.group_commit.principals import Principals

TABLES: Final = ("session", "subscription", "received", "message", "delivery", "retained", "broadcast", "passed")
"""In this order each refers to what stands before it alone."""

STATES: Final = {QUEUED: "queued", SENT: "sent", RELEASED: "released"}

CHECKSUM: Final = "checksum"
"""How the names of their columns end."""

FLAGS: Final = frozenset({"no_local", "retain_as_published", "streaming", "retain", "publish_retain", "will_retain"})
"""Numbers that are 0 or 1."""

TOGETHER: Final = {
    "session": (("will_topic", ("will_payload", "will_qos", "will_retain", "will_delay", "will_message_expiry")),),
    "subscription": (("queue_policy", ("queue_max_age", "queue_depth")),),
    "delivery": (("topic", ("payload", "publish_qos", "publish_retain")),),
}
"""By table: a column, and those that have values where it has one."""

NEVER: Final = 0xFFFF_FFFF
MAX_NUMBER: Final = 2**62
MAX_VARINT: Final = 268_435_455
MAX_TEXT: Final = 65_535

MAX_NAME: Final = 256
"""Characters of what a row or a field is called in a finding."""


class Column(NamedTuple):
    """A column: its type as the schema has it, and whether it has to have a value."""

    name: str
    kind: str
    needed: bool


def columns(db: sqlite3.Connection, table: str) -> list[Column]:
    """The columns of a table, in their order, but for the checksums, which stand behind the others."""
    found = [Column(row[1], row[2], bool(row[3] or row[5])) for row in db.execute(f"PRAGMA table_info({table})")]
    return [column for column in found if not column.name.endswith(CHECKSUM)]


def type_fault(column: Column, value: object) -> str:
    """Why a value has not the type of its column; empty: it has."""
    if value is None:
        return "is missing" if column.needed else ""
    if column.kind == "INTEGER":
        return "" if isinstance(value, int) and -(2**63) <= value < 2**63 else "is no whole number"
    if column.kind == "REAL":
        # JSON has whole numbers that no float can hold.
        fits = isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) < 2**63
        return "" if fits else "is no time"
    if column.kind == "TEXT":
        return "" if isinstance(value, str) else "is no text"
    return "" if isinstance(value, bytes) else "holds no bytes"


def fault(table: str, row: Mapping[str, Any]) -> str:
    """Return what is wrong with a row whose values have their types; empty: a broker may have written it."""
    for name, value in row.items():
        check = None if value is None else CHECKS.get(name)
        if check is not None:
            try:
                why = check(value)
            except ProtocolError as error:
                why = f"cannot be: {error}"
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                why = "makes no sense"
            if why:
                return f"{name} {why}"
    for first, others in TOGETHER.get(table, ()):
        missing = [name for name in others if row[name] is None]
        if row[first] is not None and missing:
            return f"{missing[0]} is missing beside {first}"
    return _delivery(row) if table == "delivery" else ""


def _delivery(row: Mapping[str, Any]) -> str:
    state = row["state"]
    if row["message"] is None and row["topic"] is None and state != RELEASED:
        return "has no message"
    return "packet_id is missing" if state != QUEUED and row["packet_id"] == 0 else ""


def _between(first: int, last: int) -> Callable[[int], str]:
    def check(value: int) -> str:
        return "" if first <= value <= last else f"is not between {first} and {last}"

    return check


def _topic(text: str) -> str:
    validate_topic(text)
    return ""


def _filter(text: str) -> str:
    validate_filter(parse_shared(text)[1])
    return ""


def _properties(data: bytes) -> str:
    scan = ForwardScan(data, 0, len(data), PUBLISH)
    # What concerned one hop alone is not kept.
    return "" if scan.forward == data else "are not those of a message that is kept"


def _principal(text: str) -> str:
    return "" if isfinite(Principals().read(text, "").expires_at) else "has no time at which it expires"


def _identifiers(text: str) -> str:
    found = json.loads(text)
    right = isinstance(found, list) and all(type(each) is int and 1 <= each <= MAX_VARINT for each in found)
    return "" if right else "is no list of subscription identifiers"


def _client_id(text: str) -> str:
    return "is too long" if len(text.encode()) > MAX_TEXT else ""


_QOS: Final = _between(0, 2)
_FLAG: Final = _between(0, 1)
_NUMBER: Final = _between(1, MAX_NUMBER)
_SECONDS: Final = _between(0, NEVER)

CHECKS: Final[dict[str, Callable[[Any], str]]] = {
    "id": _NUMBER,
    "number": _NUMBER,
    "broadcast": _NUMBER,
    "client_id": _client_id,
    "principal": _principal,
    "expiry_interval": _SECONDS,
    "will_topic": _topic,
    "will_qos": _QOS,
    "will_delay": _SECONDS,
    "will_message_expiry": _between(-1, NEVER),
    "will_properties": _properties,
    "filter": _filter,
    "qos": _QOS,
    "publish_qos": _QOS,
    "retain_handling": _between(0, 2),
    "identifier": _between(0, MAX_VARINT),
    "identifiers": _identifiers,
    "queue_policy": _between(-1, len(POLICIES) - 1),
    "topic": _topic,
    "properties": _properties,
    "state": _between(QUEUED, RELEASED),
    "size": _between(1, MAX_NUMBER),
    "packet_id": _between(0, MAX_ID),
    "attempts": _between(0, MAX_ATTEMPTS),
    "share": _filter,
    **dict.fromkeys(FLAGS, _FLAG),
}
"""By column: why a value of the right type cannot be."""
