"""A store on disk for tests: where it is, what of its file another program sees, and what it gives back."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from canopy_mqtt.core.persistence.journal import Saved
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.disk_queue import Fetch
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.store.base import StoreListener
from canopy_mqtt.store.damage import Damage, Damages
from canopy_mqtt.store.sqlite import SqliteStore


class Listener(StoreListener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.notices: list[str] = []
        self.damages: list[Damage] = []
        self.counts: dict[str, int] = {}
        self.aside: list[tuple[str, dict[str, int], dict[str, int]]] = []
        self.recoveries = 0
        self.ends = 0

    def failed(self, reason: str) -> None:
        self.reasons.append(reason)

    def recovered(self) -> None:
        self.recoveries += 1

    def replaced(self) -> None:
        self.ends += 1

    def damaged(self, damages: Damages) -> None:
        self.damages += damages.named
        for what, count in damages.counts.items():
            self.counts[what] = self.counts.get(what, 0) + count

    def set_aside(self, where: str, lost: dict[str, int], kept: dict[str, int]) -> None:
        self.aside.append((where, lost, kept))

    def noticed(self, line: str) -> None:
        self.notices.append(line)


class Wanted(Fetch):
    """A request for messages that somebody waits for."""

    def committed(self, number: int) -> int:
        del number
        return len(self.records)


async def opened(directory: Path, **options: Any) -> SqliteStore:
    """A store that is open."""
    store = SqliteStore(directory, **options)
    store.listener = Listener()
    await store.open(asyncio.get_running_loop().time)
    return store


def ask(directory: Path, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement, as the sqlite3 shell would, while the broker runs."""
    db = sqlite3.connect(f"file:{directory}/canopy.db?mode=ro", uri=True)
    try:
        return db.execute(statement).fetchall()
    finally:
        db.close()


def count(directory: Path, table: str) -> int:
    """Rows of a table."""
    [[rows]] = ask(directory, f"SELECT count(*) FROM {table}")
    return int(rows)


def message(payload: bytes = b"1", topic: bytes = b"a", expires_at: float = 0.0) -> Message:
    return Message(topic, payload, 1, False, b"\x01\x01", expires_at, "p")


def delivery(payload: bytes = b"1", qos: int = 1) -> Delivery:
    return Delivery(message(payload), qos, True, (3, 4), None)


def see(saved: Saved) -> dict[str, Any]:
    """All of it but times and numbers, as plain values to compare."""
    sessions = {
        one.client_id: {
            "user": one.principal.user_name,
            "expiry": one.expiry_interval,
            "connected": one.disconnected_for is None,
            "will": None if one.will is None else (one.will.will, one.will.due_in is None),
            "received": sorted(one.received),
            "subscriptions": sorted(
                (each.request.topic_filter, each.request.qos, each.identifier, each.streaming)
                for each in one.subscriptions
            ),
            "deliveries": [
                (
                    None if each.message is None else each.message.payload,
                    *(each.qos, each.retain, each.identifiers, each.share),
                    *(each.packet_id, each.state, each.attempts),
                )
                for each in one.deliveries
            ],
        }
        for one in saved.sessions
    }
    return {
        "sessions": sessions,
        "retained": sorted((one.topic, one.payload) for one in saved.retained),
        "broadcasts": [(one.message.topic, one.message.payload, sorted(one.passed)) for one in saved.broadcasts],
    }
