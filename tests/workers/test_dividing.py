"""What the stores of another number of workers have of each row: all of it, once, at the worker of the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from canopy_mqtt.core.routing.node_messages import marked
from canopy_mqtt.store.division import Division, note, part
from canopy_mqtt.store.tools import row_rules
from canopy_mqtt.store.tools.exporting import rows_of
from canopy_mqtt.store.tools.importing import filling
from canopy_mqtt.store.tools.read_only import open_read_only
from canopy_mqtt.workers import moving
from canopy_mqtt.workers.placing import worker_of
from tests.workers.stores import DELIVERY, NAMES, SESSION, SUBSCRIPTION, places

PRINCIPAL: Final = '{"user_name": "u", "groups": ["g"], "expires_at": 4102444800.0}'
WILL: Final = {
    "will_topic": "w",
    "will_payload": b"\0gone",
    "will_qos": 2,
    "will_retain": 1,
    "will_delay": 60,
    "will_message_expiry": 7,
    "will_properties": b"\x01\x01",
}
MESSAGE: Final = {
    "topic": "m",
    "payload": b"shared",
    "qos": 2,
    "retain": 1,
    "properties": b"\x01\x01",
    "publisher": "someone",
    "expires_at": 4_000_000_000.0,
}
OWN: Final = {"topic": "o", "payload": b"own", "publish_qos": 2, "publish_retain": 1}
TERMS: Final = {"queue_policy": 1, "queue_max_age": 9.5, "queue_depth": 3}


def everything(folder: Path) -> None:
    """A store that has something of all that a store can have."""
    with filling(folder) as importer:
        for number, name in enumerate(NAMES):
            session = {"client_id": name, "principal": PRINCIPAL, "expiry_interval": 100 + number}
            away = {"disconnected_at": 1_700_000_000.0 + number}
            due = {"will_due": 4_000_000_000.0 + number}
            importer.row("session", session | (away if number % 2 else {}) | (WILL if number % 3 else {}) | due)
            alone = {"client_id": f"will-of-{number}", "principal": PRINCIPAL, "expiry_interval": 0}
            importer.row("session", alone | WILL | due)
        for number, name in enumerate(NAMES):
            of = {"client_id": name}
            flags = dict.fromkeys(("no_local", "retain_as_published", "streaming"), number % 2)
            row = of | {"filter": f"a/{name}/#", "qos": number % 3, "retain_handling": number % 3, "identifier": number}
            importer.row("subscription", row | flags | (TERMS if number % 2 else {}))
            importer.row("subscription", SUBSCRIPTION | of | {"filter": "b/+", "streaming": 0})
            for identifier in range(1, 2 + number):
                importer.row("received", of | {"packet_id": 65_535 - identifier})
        for number in range(3):
            importer.row("message", MESSAGE | {"id": 1_000 + number, "topic": f"m/{number}"})
        for turn in range(3):
            for number, name in enumerate(NAMES):
                row = DELIVERY | {"client_id": name, "qos": 2, "retain": turn % 2}
                sent = {"state": 1, "packet_id": 10 + turn, "attempts": 1 + number, "message": 1_000 + turn}
                importer.row("delivery", row | sent)
                importer.row("delivery", row | {"state": 2, "packet_id": 20 + turn, "attempts": 1})
                shared = {"message": 1_000 + number % 3, "identifiers": "[1, 7]", "share": "$share/g/m/#"}
                importer.row("delivery", row | shared)
                own = OWN | {"topic": f"o/{name}/{turn}", "size": 50 + turn if turn else None}
                more = {"properties": b"\x01\x01", "publisher": "p", "expires_at": 4_000_000_000.0 + turn}
                importer.row("delivery", row | own | more)
        for number, name in enumerate(NAMES):
            row = {"topic": f"r/{name}", "payload": b"kept", "qos": number % 3, "publisher": name}
            more = {"properties": marked(b"\x01\x01", 0, 1_000 + number), "expires_at": 4_000_000_000.0 + number}
            importer.row("retained", row | more | {"account": "user u"})
        cleared = {"topic": "cleared", "payload": b"", "qos": 1, "publisher": NAMES[0], "account": "user u"}
        importer.row("retained", cleared | {"properties": marked(b"", 0, 5), "expires_at": 4_000_000_000.0})


def told(folder: Path) -> dict[str, list[Any]]:
    """The rows of all stores of a folder, by table, without the numbers that a store gives; deliveries in their order.

    Of what is retained, the rows of the worker whose own they are.
    """
    found: dict[str, list[Any]] = {table: [] for table in row_rules.TABLES}
    all_places = places(folder)
    for worker, place in enumerate(all_places):
        with open_read_only(place) as store:
            clients = {row["id"]: row["client_id"] for row in rows_of(store, "session")}
            messages = {row.pop("id"): row for row in rows_of(store, "message")}
            for table in row_rules.TABLES:
                for row in rows_of(store, table):
                    for name in ("id", "number", "refs"):
                        row.pop(name, None)
                    if "session" in row:
                        row["client_id"] = clients[row.pop("session")]
                    if row.get("message") is not None:
                        row["message"] = sorted(_rounded(messages[row["message"]], store.ahead).items())
                    row = _rounded(row, store.ahead)
                    if "client_id" in row:
                        assert worker_of(row["client_id"].encode(), len(all_places)) == worker
                    if table == "retained" and str(row["publisher"]).startswith("$upstream/$node/"):
                        owner = row["publisher"].rpartition("/")[2]
                        assert row["account"] == f"link $node/{owner}"
                        assert owner != f"w{worker}"
                    elif table != "message":
                        found[table].append(row)
    for table, rows in found.items():
        # Sorting keeps the order of each client's.
        rows.sort(key=lambda row: str(row.get("client_id") or row.get("topic")))
        if table == "retained":
            assert len(rows) == len({row["topic"] for row in rows})
    return found


def _rounded(row: dict[str, Any], ahead: float) -> dict[str, Any]:
    times = ("disconnected_at", "will_due", "expires_at")
    return {
        name: round(value - ahead) if name in times and value is not None else value
        for name, value in row.items()
        if name not in ("id", "refs")
    }


def test_everything_is_the_same_after_one_four_two_one(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    everything(folder)
    before = told(folder)
    with open_read_only(folder) as store:
        # Each column has a value somewhere, those that are added later as well.
        for table in set(row_rules.TABLES) - {"broadcast", "passed"}:
            for column in row_rules.columns(store.db, table):
                query = f"SELECT count(*) FROM {table} WHERE {column.name} NOT NULL AND {column.name} != 0"
                assert store.db.execute(query).fetchone()[0], (table, column.name)
    for last, workers in ((1, 4), (4, 2), (2, 1)):
        moving.rebuild(folder, last, workers)
        assert told(folder) == before
        for place in places(folder):
            with open_read_only(place) as store:
                assert [len(list(rows_of(store, "retained")))] == [len(NAMES) + 1]


def test_each_worker_goes_on_with_a_message_that_was_on_its_way_to_very_many(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with filling(folder) as importer:
        for name in NAMES:
            importer.row("session", SESSION | {"client_id": name})
        importer.row("broadcast", {"id": 7, "topic": "t", "payload": b"x", "qos": 1, "retain": 0})
        for name in NAMES[:6]:
            importer.row("passed", {"broadcast": 7, "client_id": name})
    moving.rebuild(folder, 1, 3)
    passed: list[str] = []
    for place in places(folder):
        with open_read_only(place) as store:
            clients = {row["id"]: row["client_id"] for row in rows_of(store, "session")}
            assert [(row["id"], row["topic"]) for row in rows_of(store, "broadcast")] == [(1, "t")]
            passed += [clients[row["session"]] for row in rows_of(store, "passed")]
    assert sorted(passed) == sorted(NAMES[:6])


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("after", [3, 1])
def test_a_broadcast_of_a_worker_goes_on_to_those_that_have_not_had_it(
    tmp_path: Path, linked: bool, after: int
) -> None:
    """Two of one number; `linked`: w1 has had what w0 has left."""
    folder = tmp_path / "store"
    folder.mkdir()
    clients = [[name for name in NAMES if worker_of(name.encode(), 2) == worker] for worker in range(2)]
    for worker, names in enumerate(clients):
        with filling(part(folder, worker)) as importer:
            for name in (*names, f"$node/w{1 - worker}"):
                importer.row("session", SESSION | {"client_id": name})
            importer.row("broadcast", {"id": 7, "topic": f"of w{worker}", "payload": b"x", "qos": 1, "retain": 0})
            for name in names[:2] if worker == 1 or not linked else (*names[:2], "$node/w1"):
                importer.row("passed", {"broadcast": 7, "client_id": name})
    note(folder, Division(2))
    moving.rebuild(folder, 2, after)
    left: dict[str, list[str]] = {"of w0": [], "of w1": []}
    for place in places(folder):
        with open_read_only(place) as store:
            known = {row["id"]: row["client_id"] for row in rows_of(store, "session")}
            passed = {(row["broadcast"], known[row["session"]]) for row in rows_of(store, "passed")}
            for row in rows_of(store, "broadcast"):
                left[row["topic"]] += [name for name in known.values() if (row["id"], name) not in passed]
    assert sorted(left["of w0"]) == sorted(clients[0][2:] + ([] if linked else clients[1]))
    # The link of w0 has not had it.
    assert sorted(left["of w1"]) == sorted(clients[1][2:] + clients[0])


def retain(place: Path, *rows: dict[str, Any]) -> None:
    """A store that has this retained, with QoS 1; `at`: when."""
    with filling(place) as importer:
        for row in rows:
            at = row.pop("at")
            importer.row("retained", {"qos": 1, "properties": marked(b"", 0, at)} | row)


def retained(folder: Path) -> list[dict[str, bytes]]:
    """What each worker has retained, and cleared."""
    found = []
    for place in places(folder):
        with open_read_only(place) as store:
            found.append({row["topic"]: row["payload"] for row in rows_of(store, "retained")})
    return found


def test_the_newest_of_each_topic_is_kept_whoever_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    own = {"publisher": "c", "account": "user u"}
    copy = {"publisher": "$upstream/$node/w1", "account": "link $node/w1"}
    retain(
        part(folder, 0),
        {"topic": "newer at w1", "payload": b"old", "at": 10} | own,
        {"topic": "cleared at w1", "payload": b"old", "at": 10} | own,
        {"topic": "lost by w1", "payload": b"copy", "at": 10} | copy,
        {"topic": "the same", "payload": b"copy", "at": 10} | copy,
    )
    retain(
        part(folder, 1),
        {"topic": "newer at w1", "payload": b"new", "at": 11} | own,
        {"topic": "cleared at w1", "payload": b"", "at": 11, "expires_at": 4e9} | own,
        {"topic": "the same", "payload": b"copy", "at": 10} | own,
        {"topic": "w0 was set aside", "payload": b"there", "at": 3} | own,
    )
    note(folder, Division(2))
    moving.rebuild(folder, 2, 3)
    expected = {
        "newer at w1": b"new",
        "cleared at w1": b"",
        "lost by w1": b"copy",
        "the same": b"copy",
        "w0 was set aside": b"there",
    }
    assert retained(folder) == [expected] * 3
    home = worker_of(b"c", 3)
    for worker, place in enumerate(places(folder)):
        with open_read_only(place) as store:
            publishers = {row["topic"]: row["publisher"] for row in rows_of(store, "retained")}
        mine = "c" if worker == home else f"$upstream/$node/w{home}"
        assert publishers == dict.fromkeys(expected, mine) | {"lost by w1": copy["publisher"]}


def test_who_was_connected_is_not_said_by_another_worker(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    retain(
        folder,
        {"topic": "here/c", "payload": b"online", "at": 0},
        {"topic": "here/d", "payload": b"by a client", "at": 0, "publisher": "c"},
        {"topic": "there", "payload": b"by the broker", "at": 0},
    )
    moving.rebuild(folder, 1, 3, "here")
    assert retained(folder) == [{"there": b"by the broker", "here/d": b"by a client"}] * 3
