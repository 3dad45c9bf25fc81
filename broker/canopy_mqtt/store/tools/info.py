"""The figures of a store in a file: counts, sizes, the longest queues, and who uses it."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.tools.read_only import ReadOnlyStore, open_read_only, process_using
from canopy_mqtt.store.tools.row_rules import STATES

LARGEST: Final = 10
"""Queues that are named."""

QUEUES: Final = (
    "SELECT client_id, count(*), sum(coalesce(length(delivery.payload), length(message.payload), 0))"
    " FROM delivery JOIN session ON session.id = delivery.session LEFT JOIN message ON message.id = delivery.message"
    f" WHERE state < 2 GROUP BY session.id ORDER BY 2 DESC, 3 DESC, 1 LIMIT {LARGEST}"
)
OLDEST: Final = "SELECT client_id, disconnected_at FROM session WHERE disconnected_at IS NOT NULL ORDER BY 2 LIMIT 1"
DELIVERIES: Final = (
    "SELECT state, count(*) FROM delivery WHERE session IN (SELECT id FROM session) GROUP BY state ORDER BY state"
)
COUNTS: Final = {
    "sessions": "SELECT count(*) FROM session WHERE expiry_interval > 0",
    "connected": "SELECT count(*) FROM session WHERE expiry_interval > 0 AND disconnected_at IS NULL",
    "links": f"SELECT count(*) FROM session WHERE substr(client_id, 1, {len(UPLINKS)}) = '{UPLINKS}'",
    "wills": "SELECT count(*) FROM session WHERE will_topic IS NOT NULL",
    "ended": "SELECT count(*) FROM gone_session",
    "subscriptions": "SELECT count(*) FROM subscription WHERE session IN (SELECT id FROM session)",
    "received": "SELECT count(*) FROM received WHERE session IN (SELECT id FROM session)",
    "shared_messages": "SELECT count(*) FROM message",
    "retained": "SELECT count(*) FROM retained WHERE payload <> x''",
    "retained_bytes": "SELECT coalesce(sum(length(payload)), 0) FROM retained",
}


def info(directory: Path) -> dict[str, Any]:
    """The figures of the store of a directory, as `canopy store info --json` prints them. Raises StoreError."""
    with open_read_only(directory) as found:
        try:
            return _figures(found)
        except (TypeError, ValueError) as error:
            raise StoreError(f"{found.path}: a row cannot be read: see canopy store verify") from error


def _figures(found: ReadOnlyStore) -> dict[str, Any]:
    db = found.db
    pages, page, free = (
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size", "freelist_count")
    )
    figures: dict[str, Any] = {
        "path": str(found.path),
        "version": found.version,
        "used_by": process_using(found.path),
        "bytes": pages * page,
        "log_bytes": _log_bytes(found.path),
        "free_bytes": free * page,
    }
    for name, statement in COUNTS.items():
        figures[name] = db.execute(statement).fetchone()[0]
    figures["deliveries"] = _deliveries(found)
    oldest = db.execute(OLDEST).fetchone()
    figures["oldest"] = (
        None if oldest is None else {"client_id": _name(oldest[0]), "disconnected_at": _time(oldest[1] - found.ahead)}
    )
    figures["largest"] = [
        {"client_id": _name(client_id), "messages": count, "bytes": size}
        for client_id, count, size in db.execute(QUEUES)
    ]
    return figures


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a client identifier is no text")
    return value


def _time(value: float) -> float:
    if not isfinite(value):
        raise ValueError("a time is none")
    return value


def _deliveries(found: ReadOnlyStore) -> dict[str, int]:
    counted = dict(found.db.execute(DELIVERIES).fetchall())
    return {name: counted.get(state, 0) for state, name in STATES.items()}


def _log_bytes(path: Path) -> int:
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except OSError:
        return 0
