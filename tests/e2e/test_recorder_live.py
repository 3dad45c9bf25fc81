"""The recorder of a real daemon: killed under load, stopped under load, with a queue that is too small, a full disk.

What the clients know (what was acknowledged to them, how much they sent) is held against what is in the segments.
Clients here are a few bytes over a socket, in threads of their own.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from tests.e2e import wire
from tests.record.scenes import STATE, stored
from tests.support.daemon import PATIENCE, Daemon

WINDOW: Final = 50
"""Publishes that wait for their acknowledgement."""

BURST: Final = b"x" * 200


def recorder(root: Path, **settings: object) -> list[str]:
    """Arguments of `canopy serve`, for a recorder that finishes segments often."""
    given = {"directory": root, "segment_seconds": 0.2, **settings}
    return [part for name, value in given.items() for part in ("--set", f"recorder.{name}={value}")]


def record(command: str, root: Path) -> str:
    """Return the output of `canopy record`, which must succeed."""
    done = CliRunner().invoke(app, ["record", command, str(root)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


class Publisher(threading.Thread):
    """Publishes with QoS 1 in a window until its connection ends, and knows what was acknowledged."""

    def __init__(self, daemon: Daemon, name: str, changed: threading.Condition) -> None:
        super().__init__(name=name)
        self.acknowledged = 0
        self._changed = changed
        self._socket = daemon.connect(wire.connect(name, version=4))
        self._topic = f"load/{name}"

    def run(self) -> None:
        sent = 0
        stream = self._socket.makefile("rb")
        with closing(self._socket), closing(stream):
            try:
                while True:
                    ready = b""
                    while sent < self.acknowledged + WINDOW:
                        ready += wire.publish(
                            self._topic, b"%d " % sent + BURST, version=4, qos=1, packet_id=sent % 65_535 + 1
                        )
                        sent += 1
                    self._socket.sendall(ready)
                    answer = stream.read(4)
                    if len(answer) < 4:
                        return
                    assert answer == b"\x40\x02" + struct.pack("!H", self.acknowledged % 65_535 + 1)
                    with self._changed:
                        self.acknowledged += 1
                        self._changed.notify()
            except OSError:
                return


@contextmanager
def load(daemon: Daemon, changed: threading.Condition) -> Iterator[list[Publisher]]:
    """Two of them; they end with the daemon."""
    publishers = [Publisher(daemon, name, changed) for name in ("one", "two")]
    for publisher in publishers:
        publisher.start()
    try:
        yield publishers
    finally:
        daemon.process.kill()
        for publisher in publishers:
            publisher.join(PATIENCE)


def in_order(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """The messages of each publisher, as they stand in the record."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row["kind"] == "publish":
            assert row["topic"] == f"load/{row['client_id']}"
            found[row["client_id"]].append(int(row["payload"].split(b" ", 1)[0]))
    return found


@pytest.mark.long
def test_killed_under_load(tmp_path: Path) -> None:
    """Twice: what was acknowledged is in a segment, or its number is in the gap that the next start names."""
    lost = 0
    acknowledged: list[dict[str, int]] = []
    for _ in range(2):
        changed = threading.Condition()
        with Daemon(*recorder(tmp_path)) as daemon, load(daemon, changed) as publishers, changed:
            before = len(list(tmp_path.glob("date=*/hour=*/[!.]*.parquet")))

            def enough(these: list[Publisher] = publishers, before: int = before) -> bool:
                # Looked at after each acknowledgement: two segments are finished, and a third is being written.
                if any(publisher.acknowledged < 300 for publisher in these):
                    return False
                return len(list(tmp_path.glob("date=*/hour=*/[!.]*.parquet"))) >= before + 2

            assert changed.wait_for(enough, PATIENCE)
            daemon.process.kill()
        acknowledged.append({publisher.name: publisher.acknowledged for publisher in publishers})
    with Daemon(*recorder(tmp_path)) as daemon:
        assert daemon.end(signal.SIGTERM)[0] == 0
    said = record("verify", tmp_path)
    gaps = [(int(first), int(last)) for first, last in re.findall(r"^gap: (\d+)\.\.(\d+),.*\(crash\)$", said, re.M)]
    assert len(gaps) == 2
    assert said.splitlines()[-1] == "complete but for 2 gaps, named above"
    rows = stored(tmp_path)
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        runs[row["run_id"]].append(row)
    for (first, last), acked, run in zip(gaps, acknowledged, list(runs.values())[:2], strict=True):
        lost += last - first + 1
        missing = 0
        recorded = in_order(run)
        for name, count in acked.items():
            there = recorded[name]
            # What is there is there from the beginning on, once each and in order.
            assert there == list(range(len(there)))
            missing += max(0, count - len(there))
        assert run[-1]["seq"] == first - 1
        assert missing <= last - first + 1
    assert lost > 0


def test_stopped_under_load(tmp_path: Path) -> None:
    """SIGTERM: all that was acknowledged is there, and no number is missing."""
    changed = threading.Condition()
    with (
        Daemon(*recorder(tmp_path, segment_seconds=60)) as daemon,
        load(daemon, changed) as publishers,
    ):
        with changed:
            assert changed.wait_for(lambda: all(each.acknowledged > 300 for each in publishers), PATIENCE)
        assert daemon.end(signal.SIGTERM)[0] == 0
    assert record("verify", tmp_path).splitlines()[-1] == "complete"
    rows = stored(tmp_path)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    recorded = in_order(rows)
    for publisher in publishers:
        there = recorded[publisher.name]
        assert there == list(range(len(there)))
        assert len(there) >= publisher.acknowledged
    last, ended = struct.unpack_from("<qq", (tmp_path / STATE).read_bytes())
    assert (last, ended) == (len(rows), 1)
    assert record("ls", tmp_path).splitlines()[-1].startswith(f"1 segment, {len(rows):,} events, ")


def test_a_queue_that_is_too_small(tmp_path: Path) -> None:
    """The recorded messages and those named by the gaps are together all that was sent, to the message."""
    sent = 20_000
    with Daemon(*recorder(tmp_path, queue_events=100)) as daemon:
        connection = daemon.connect(wire.connect("p", version=4))
        with closing(connection):
            frame = wire.publish("t", b"x", version=4)
            for _ in range(sent // 1_000):
                connection.sendall(frame * 1_000)
            connection.sendall(wire.PING)
            assert connection.recv(2, socket.MSG_WAITALL) == b"\xd0\x00"
            connection.sendall(wire.disconnect(version=4))
            assert connection.recv(1) == b""
        assert daemon.end()[0] == 0
    said = record("verify", tmp_path)
    assert "(queue-full)" in said
    rows = stored(tmp_path)
    gaps = [row for row in rows if row["kind"] == "gap"]
    assert all(row["n"] == row["to_seq"] - row["from_seq"] + 1 for row in gaps)
    assert sum(row["kind"] == "publish" for row in rows) + sum(row["n"] for row in gaps) == sent
    # Who came and went is there: they have a part of the room to themselves.
    assert [row["kind"] for row in rows if row["kind"] in ("connect", "disconnect")] == ["connect", "disconnect"]


def until_state(connection: socket.socket, wanted: Callable[[str], bool]) -> str:
    """Wait for a state on `$SYS/broker/recorder/state`, to which `connection` is subscribed in 3.1.1, and return it."""
    connection.settimeout(PATIENCE)
    with connection.makefile("rb") as stream:
        while True:
            head = stream.read(2)
            size = head[1] & 0x7F
            if head[1] & 0x80:
                size += stream.read(1)[0] << 7
            body = stream.read(size)
            if head[0] & 0xF0 == 0x30:
                state = body[2 + int.from_bytes(body[:2]) :].decode()
                if wanted(state):
                    return state


def small_files() -> None:
    """In the daemon: no file may grow beyond 200,000 bytes, as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


@pytest.mark.long
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """The recorder gives up and says so, the broker goes on; with room again the next start names what is missing."""
    root = tmp_path / "record"
    settings = [*recorder(root, segment_seconds=60, segment_bytes=65_536), "--set", "sys.interval=0.1"]
    with Daemon(*settings, prepare=small_files) as daemon:
        with (
            closing(daemon.connect(wire.connect("w", version=4))) as watcher,
            closing(daemon.connect(wire.connect("p", version=4))) as publisher,
        ):
            watcher.sendall(wire.subscribe(1, [("$SYS/broker/recorder/state", 0)], version=4))
            assert until_state(watcher, bool) == "recording"
            for at in range(8):
                publisher.sendall(wire.publish("t", os.urandom(100_000), version=4, qos=1, packet_id=at + 1))
                assert publisher.recv(4, socket.MSG_WAITALL)[:2] == b"\x40\x02"
            state = until_state(watcher, lambda state: state != "recording")
            assert state == f"{root}: cannot be written to (file too large)"
            publisher.sendall(wire.publish("t", b"still here", version=4, qos=1, packet_id=9))
            assert publisher.recv(4, socket.MSG_WAITALL) == b"\x40\x02\x00\x09"
        status, lines = daemon.end()
        assert status == 0
        events = [json.loads(line) for line in lines]
        assert [event["level"] for event in events if event["event"] == "recorder gave up"] == ["error"]
    with Daemon(*recorder(root)) as daemon:
        assert daemon.end()[0] == 0
    assert re.search(r"^gap: .*\(stopped\)$", record("verify", root), re.M)
