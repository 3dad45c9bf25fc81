"""`canopy store`: what is in a store, whether it is whole, out of it and into it."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from canopy_mqtt.core.persistence.journal import Saved
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.store.sqlite.schema import VERSION
from canopy_mqtt.store.times import Note
from canopy_mqtt.store.tools import importing
from tests.store.sqlite.place import ask, count, opened, see
from tests.store.tools.filled import fill
from tests.support.runs import for_each


def canopy(*arguments: str | Path, code: int = 0, given: bytes | None = None) -> str:
    """Return the output of `canopy store …`, errors included."""
    result = CliRunner().invoke(app, ["store", *map(str, arguments)], input=given)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


@cache
def _filled(place: Path) -> Path:
    folder = place / "filled"

    async def work() -> None:
        await (await fill(folder)).close()

    asyncio.run(work())
    return folder


@pytest.fixture
def filled(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store that no broker uses: a copy, since it is filled once."""
    return Path(copytree(_filled(tmp_path_factory.getbasetemp()), tmp_path / "s"))


def damage(directory: Path, statement: str) -> None:
    db = sqlite3.connect(directory / "canopy.db")
    with db:
        db.executescript(statement)
    db.close()


def test_what_is_in_it(filled: Path) -> None:
    found = json.loads(canopy("info", filled, "--json"))
    assert {name: found[name] for name in ("version", "used_by", "sessions", "connected", "wills", "ended")} == {
        "version": VERSION,
        "used_by": None,
        "sessions": 2,
        "connected": 1,
        "wills": 1,
        "ended": 0,
    }
    assert {name: found[name] for name in ("subscriptions", "received", "shared_messages", "retained")} == {
        "subscriptions": 2,
        "received": 1,
        "shared_messages": 1,
        "retained": 2,
    }
    assert found["deliveries"] == {"queued": 5, "sent": 1, "released": 1}
    assert found["oldest"]["client_id"] == "away"
    assert found["largest"] == [
        {"client_id": "away", "messages": 5, "bytes": 307},
        {"client_id": "da 'n\" é", "messages": 1, "bytes": 300},
    ]
    assert found["bytes"] == (filled / "canopy.db").stat().st_size
    assert found["links"] == 0
    text = canopy("info", filled)
    assert "no broker uses it" in text
    assert "deliveries: 5 queued, 1 sent, 1 released" in text
    assert "queue of 'away': 5 messages, 307 B" in text
    damage(filled, "UPDATE session SET client_id = '$upstream/cloud' WHERE client_id != 'away'")
    text = canopy("info", filled)
    assert "sessions: 2, 1 connected when it was written, 1 of links to upstream brokers, 1 with a will" in text


async def test_beside_a_broker(tmp_path: Path) -> None:
    """A command that only reads goes on, and sees what is committed; one that writes is refused."""
    store = await fill(tmp_path / "s")
    try:
        found = json.loads(await asyncio.to_thread(canopy, "info", tmp_path / "s", "--json"))
        assert (found["used_by"], found["sessions"]) == (os.getpid(), 2)
        assert (await asyncio.to_thread(canopy, "verify", tmp_path / "s")).endswith(": whole\n")
        assert await asyncio.to_thread(canopy, "export", tmp_path / "s")
        for arguments in (("salvage", tmp_path / "s", tmp_path / "n"), ("import", tmp_path / "s", "-")):
            told = await asyncio.to_thread(canopy, *arguments, code=1, given=b"")
            assert f"is in use by process {os.getpid()}: stop that one" in told
    finally:
        await store.close()


def test_out_and_in_again(filled: Path, tmp_path: Path) -> None:
    """The same lines come out of what they went into, and a broker finds the same."""
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    canopy("export", filled, first)
    assert first.stat().st_mode & 0o777 == 0o600
    told = canopy("import", tmp_path / "t", first)
    assert told.endswith(": 2 sessions with 2 subscriptions and 7 messages, 2 retained messages\n")
    canopy("export", tmp_path / "t", second)
    assert first.read_bytes() == second.read_bytes()
    assert canopy("verify", tmp_path / "t").endswith(": whole\n")

    async def loaded(directory: Path) -> Saved:
        store = await opened(directory)
        try:
            return await store.load()
        finally:
            await store.close()

    before, after = (see(asyncio.run(loaded(each))) for each in (filled, tmp_path / "t"))
    assert before == after
    # Over pipes as well, and with the mark that editors of Windows write.
    canopy("import", tmp_path / "u", "-", given=b"\xef\xbb\xbf" + canopy("export", filled).encode())
    assert canopy("export", tmp_path / "u").encode() == first.read_bytes()


def test_a_client_that_a_hook_lets_stay_for_ever(tmp_path: Path) -> None:
    async def work() -> None:
        store = await opened(tmp_path / "s")
        store.journal.session_kept("c", Principal("u", expires_at=float("inf")), 300, 0.0)
        await store.close()

    asyncio.run(work())
    assert json.loads(canopy("export", tmp_path / "s").splitlines()[1])["principal"] == {"user_name": "u"}


def test_times_of_a_store_whose_clock_jumped_are_the_systems(filled: Path) -> None:
    plain = [json.loads(line) for line in canopy("export", filled).splitlines()]
    [found] = ask(filled, "SELECT * FROM clock")
    note = Note.of(found)
    assert note is not None
    earlier = note._replace(time=note.time - 1_000_000.0)
    damage(filled, f"UPDATE clock SET time = {earlier.time!r}, checksum = {earlier.row()[-1]}")
    moved = [json.loads(line) for line in canopy("export", filled).splitlines()]
    for before, after in zip(plain, moved, strict=True):
        for name in ("disconnected_at", "expires_at", "will_due"):
            if name in before:
                assert after.pop(name) == pytest.approx(before.pop(name) + 1_000_000.0)
        assert after == before


HEAD = {"type": "canopy-store", "version": 1}
SESSION = {"type": "session", "client_id": "c", "principal": {"user_name": "u"}, "expiry_interval": 5}
RETAINED = {"type": "retained", "topic": "a", "payload": "aGk=", "qos": 1}
DELIVERY = {
    "type": "delivery",
    "client_id": "c",
    "state": "queued",
    "packet_id": 0,
    "attempts": 0,
    "qos": 1,
    "retain": False,
    "topic": "t",
    "payload": "",
    "publish_qos": 1,
    "publish_retain": False,
}
SUBSCRIPTION = {
    "type": "subscription",
    "client_id": "c",
    "filter": "a/#",
    "qos": 1,
    "no_local": False,
    "retain_as_published": False,
    "retain_handling": 0,
    "identifier": 0,
    "streaming": False,
}
MESSAGE = {"type": "message", "id": 7, "topic": "t", "payload": "", "qos": 1, "retain": False}
POINTER = {name: value for name, value in DELIVERY.items() if name not in ("topic", "payload")} | {"message": 7}
SENT = DELIVERY | {"state": "sent", "packet_id": 3}


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], "is empty"),
        ([RETAINED], "line 1: is not that of an export"),
        ([HEAD | {"version": 2}], "line 1: is not that of an export"),
        ([HEAD, []], "line 2: is no object"),
        ([HEAD, {"type": "x"}], "line 2: type is none of session, subscription"),
        ([HEAD, RETAINED, RETAINED], "line 3: is there twice"),
        ([HEAD, RETAINED | {"topic": "a/#"}], "line 2: topic cannot be: topic name holds a wildcard"),
        ([HEAD, RETAINED | {"topic": 5}], "line 2: topic is no text"),
        ([HEAD, RETAINED | {"topic": "\ud800"}], "line 2: "),
        ([HEAD, RETAINED | {"qos": 3}], "line 2: qos is not between 0 and 2"),
        ([HEAD, RETAINED | {"qos": True}], "line 2: qos is missing"),
        ([HEAD, RETAINED | {"payload": "%"}], "line 2: payload is no base64"),
        ([HEAD, RETAINED | {"payload": 5}], "line 2: payload is no base64"),
        ([HEAD, RETAINED | {"properties": "AQ=="}], "line 2: properties cannot be"),
        ([HEAD, RETAINED | {"expires_at": float("nan")}], "line 2: NaN is no number"),
        ([HEAD, RETAINED | {"expires_at": "x"}], "line 2: expires_at is no time"),
        ([HEAD, RETAINED | {"colour": 1}], "line 2: 'colour' means nothing for type retained"),
        ([HEAD, RETAINED | {"\x1b[2J": 1}], r"line 2: '\x1b[2J' means nothing for type retained"),
        ([HEAD, RETAINED | {"expires_at": 10**400}], "line 2: expires_at is no time"),
        (
            [HEAD, SESSION | {"principal": {"user_name": None, "expires_at": 10**400}}],
            "line 2: principal makes no sense",
        ),
        (
            [HEAD, json.dumps(SESSION | {"principal": "@"}).replace('"@"', '{"user_name": null, "expires_at": 1e999}')],
            "line 2: principal has no time at which it expires",
        ),
        ([HEAD, SESSION, MESSAGE | {"id": 2**63 - 1}], "line 3: id is not between 1 and"),
        ([HEAD, SESSION, DELIVERY | {"attempts": 2**31}], "line 3: attempts is not between 0 and 2147483647"),
        ([HEAD, {"type": "retained", "topic": "a"}], "line 2: payload is missing"),
        ([HEAD, SUBSCRIPTION], "line 2: no session of its client_id stands before it"),
        ([HEAD, SESSION, SUBSCRIPTION | {"filter": "a#"}], "line 3: filter cannot be"),
        ([HEAD, SESSION, SUBSCRIPTION | {"no_local": 1}], "line 3: no_local is neither true nor false"),
        ([HEAD, SESSION | {"principal": 7}], "line 2: principal makes no sense"),
        ([HEAD, SESSION | {"expiry_interval": 2**70}], "line 2: expiry_interval is no whole number"),
        ([HEAD, SESSION, DELIVERY | {"state": "lost"}], "line 3: state is none of queued, sent, released"),
        ([HEAD, SESSION, DELIVERY | {"topic": None}], "line 3: has no message"),
        ([HEAD, SESSION, DELIVERY | {"payload": None}], "line 3: payload is missing beside topic"),
        ([HEAD, SESSION | {"will_topic": "w"}], "line 2: will_payload is missing beside will_topic"),
        ([HEAD, {"type": {}}], "line 2: type is none of session, subscription"),
        ([HEAD, SESSION, DELIVERY | {"state": "sent"}], "line 3: packet_id is missing"),
        ([HEAD, SESSION, SENT, SENT], "line 4: packet_id 3 of its client is in flight already"),
        ([HEAD, SESSION, POINTER], "line 3: message 7 does not stand before it"),
        ([HEAD, SESSION, MESSAGE], "message 7 belongs to no delivery"),
        (["{"], "line 1: not JSON"),
        ([HEAD, f'{json.dumps(RETAINED)[:-1]}, "topic": "b"}}\n'], "line 2: the key 'topic' stands twice"),
    ],
)
def test_a_line_that_cannot_come_in_is_named(lines: list[Any], fault: str, tmp_path: Path) -> None:
    """And nothing has come in."""
    file = tmp_path / "in.jsonl"
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    told = canopy("import", tmp_path / "s", file, code=1)
    assert fault in told
    assert told.count("\n") == 1
    assert (count(tmp_path / "s", "session"), count(tmp_path / "s", "retained")) == (0, 0)


def test_a_file_without_lines_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MAX_LINE", 100)
    told = canopy("import", tmp_path / "s", "/dev/zero", code=1)
    assert told == "canopy: /dev/zero: line 1: is longer than 100 bytes\n"


def test_after_a_faulty_file_a_good_one_comes_in(tmp_path: Path) -> None:
    """The good file consists of the lines above."""
    file = tmp_path / "in.jsonl"
    good = "".join(json.dumps(line) + "\n" for line in (HEAD, SESSION, SUBSCRIPTION, MESSAGE, POINTER, SENT))
    file.write_text(good + "{")
    assert "line 7: not JSON" in canopy("import", tmp_path / "s", file, code=1)
    file.write_text(good)
    canopy("import", tmp_path / "s", file)
    assert canopy("verify", tmp_path / "s").endswith(": whole\n")


def test_a_store_with_something_in_it_is_not_filled(filled: Path, tmp_path: Path) -> None:
    before = (filled / "canopy.db").read_bytes()
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(HEAD))
    assert "is not empty: name a folder that holds no store yet" in canopy("import", filled, file, code=1)
    assert (filled / "canopy.db").read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("UPDATE message SET refs = 5", "message 1: 5 deliveries should point to it, and 2 do"),
        ("DELETE FROM message", "its message 1 is missing"),
        ("DELETE FROM session WHERE client_id = 'away'", "delivery: 6 rows of it belong to no session"),
        ("INSERT INTO gone_session SELECT id, 0 FROM session", "session 'away' has ended, and is there"),
        ("UPDATE delivery SET packet_id = 1 WHERE state > 0", "packet identifier 1 is in flight to 'away' more than"),
        ("UPDATE retained SET topic = 'a/+' WHERE rowid = 1", "retained 'a/+': topic cannot be: topic name holds"),
        ("UPDATE retained SET payload = x'00' WHERE rowid = 1", "retained 'r/1': its checksum is another"),
        ("UPDATE retained SET payload = 'text' WHERE rowid = 1", "retained 'r/1': payload holds no bytes"),
        ("UPDATE delivery SET state = 9 WHERE number = 3", "delivery 3: state is not between 0 and 2"),
        ("UPDATE delivery SET topic = NULL WHERE number = 3", "delivery 3: has no message"),
        ("UPDATE session SET principal = 'x'", "principal makes no sense"),
        ("ALTER TABLE delivery DROP COLUMN payload", "its tables are not those of its version"),
        ("DROP INDEX subscription_over; PRAGMA writable_schema = ON; DELETE FROM sqlite_schema WHERE name = 'received'",
         "never used"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_line_each(filled: Path, statement: str, line: str) -> None:
    damage(filled, statement)
    told = canopy("verify", filled, code=1)
    assert line in told
    assert "canopy: " in told.splitlines()[-1]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE session SET disconnected_at = 'x' WHERE disconnected_at NOT NULL",
        "UPDATE session SET disconnected_at = 9e999 WHERE disconnected_at NOT NULL",
        "UPDATE session SET client_id = x'ff' WHERE disconnected_at NOT NULL",
    ],
)
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_figures_of_a_row_that_cannot_be_read(filled: Path, statement: str, how: tuple[str, ...]) -> None:
    damage(filled, statement)
    told = canopy("info", filled, *how, code=1)
    assert "a row cannot be read: see canopy store verify" in told
    assert told.count("\n") == 1


def test_a_session_that_ended_in_no_year_is_told_of(filled: Path) -> None:
    damage(filled, "UPDATE session SET disconnected_at = 1e300 WHERE disconnected_at NOT NULL")
    assert "longest away: 'away', since 1e+300 s" in canopy("info", filled)


def test_a_salvaged_store_has_no_empty_pages(filled: Path, tmp_path: Path) -> None:
    damage(
        filled,
        "INSERT INTO retained WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 500)"
        " SELECT 'x/' || i, zeroblob(3000), 1, NULL, NULL, NULL, NULL, 0 FROM n;"
        " DELETE FROM retained WHERE topic LIKE 'x/%'",
    )
    before = (filled / "canopy.db").stat().st_size
    canopy("salvage", filled, tmp_path / "new")
    assert (tmp_path / "new" / "canopy.db").stat().st_size < before / 4
    assert canopy("verify", tmp_path / "new").endswith(": whole\n")


@for_each("command", ["info", "verify", "export"])
def test_where_there_is_no_store(tmp_path: Path, command: str) -> None:
    told = canopy(command, tmp_path, code=1)
    assert told == f"canopy: {tmp_path} holds no store (canopy.db): name the folder of store.path\n"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "workers").write_text("2\n")
    told = canopy(command, tmp_path, code=1)
    assert told == f"canopy: {tmp_path} holds the stores of several workers: name the folder of one, as {tmp_path}/w0\n"


@for_each("command", ["info", "verify", "export"])
def test_a_file_that_is_none_of_ours(tmp_path: Path, command: str) -> None:
    (tmp_path / "canopy.db").write_bytes(b"x" * 5_000)
    assert "is not an SQLite file" in canopy(command, tmp_path, code=1)
    (tmp_path / "canopy.db").unlink()
    damage(tmp_path, "CREATE TABLE x (y)")
    assert "is not a store of Canopy" in canopy(command, tmp_path, code=1)
    (tmp_path / "canopy.db").unlink()
    os.mkfifo(tmp_path / "canopy.db")
    assert "cannot be read (it is a FIFO (named pipe), and no file)" in canopy(command, tmp_path, code=1)


def test_what_is_exported_overwrites_nothing(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    assert "is there already" in canopy("export", filled, tmp_path / "there", code=1)
    assert (tmp_path / "there").read_text() == "mine"
    assert "cannot be made" in canopy("export", filled, tmp_path / "no" / "folder", code=1)
    assert "cannot be read" in canopy("import", tmp_path / "t", tmp_path / "none", code=1)
