"""Stores of several workers, made row by row, and what is in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.store.division import Division, division, note, part
from canopy_mqtt.store.tools.exporting import rows_of
from canopy_mqtt.store.tools.importing import filling
from canopy_mqtt.store.tools.read_only import open_read_only
from canopy_mqtt.store.tools.row_rules import NEVER
from canopy_mqtt.workers.placing import worker_of

NAMES: Final = [f"client-{number}" for number in range(12)]

EXPECTED: Final = {name: Counter({"all": 1, f"of/{name}": 1, ("a", 1): 1}) for name in NAMES}
"""The content of `made`."""

SUBSCRIPTION: Final = {"qos": 1, "no_local": 0, "retain_as_published": 0, "retain_handling": 0, "identifier": 0}
SESSION: Final = {"principal": '{"user_name": "u"}', "expiry_interval": NEVER, "disconnected_at": 1.0}
DELIVERY: Final = {"state": 0, "packet_id": 0, "attempts": 0, "qos": 1, "retain": 0}


def fill(folder: Path, sessions: list[str]) -> None:
    """A store with these sessions, each with a subscription and a message of its own, and one that all share."""
    with filling(folder) as importer:
        for name in sessions:
            importer.row("session", SESSION | {"client_id": name})
        for name in sessions:
            importer.row("subscription", SUBSCRIPTION | {"client_id": name, "filter": "a", "streaming": 0})
        if sessions:
            importer.row("message", {"id": 1, "topic": "all", "payload": b"x", "qos": 1, "retain": 0})
        for name in sessions:
            importer.row("delivery", DELIVERY | {"client_id": name, "message": 1})
            own = {"topic": f"of/{name}", "payload": name.encode(), "publish_qos": 1, "publish_retain": 0}
            importer.row("delivery", DELIVERY | {"client_id": name} | own)
        importer.row("retained", {"topic": "r", "payload": b"kept", "qos": 0})


def made(folder: Path, workers: int) -> Path:
    """Make a folder with the stores of so many workers, and return it."""
    folder.mkdir()
    if workers == 1:
        fill(folder, NAMES)
        return folder
    for worker in range(workers):
        fill(part(folder, worker), [name for name in NAMES if worker_of(name.encode(), workers) == worker])
    note(folder, Division(workers))
    return folder


def places(folder: Path) -> list[Path]:
    """The folders of the stores of a folder."""
    workers = division(folder).workers
    return [folder] if workers == 1 else [part(folder, worker) for worker in range(workers)]


def content(folder: Path) -> dict[str, Counter[Any]]:
    """What all stores of a folder have, by their clients; workers that ran have left empty sessions of their links."""
    found: dict[str, Counter[Any]] = {}
    all_places = places(folder)
    for worker, place in enumerate(all_places):
        with open_read_only(place) as store:
            clients = {row["id"]: row["client_id"] for row in rows_of(store, "session")}
            links = {number for number, name in clients.items() if name.startswith("$")}
            messages = {row["id"]: row["topic"] for row in rows_of(store, "message")}
            for name in (name for number, name in clients.items() if number not in links):
                assert worker_of(name.encode(), len(all_places)) == worker
                assert name not in found
                found[name] = Counter()
            for row in rows_of(store, "delivery"):
                found[clients[row["session"]]][row["topic"] or messages[row["message"]]] += 1
            for row in rows_of(store, "subscription"):
                if row["session"] not in links:
                    found[clients[row["session"]]][row["filter"], row["qos"]] += 1
            assert [(row["topic"], row["payload"]) for row in rows_of(store, "retained")] == [("r", b"kept")]
    return found
