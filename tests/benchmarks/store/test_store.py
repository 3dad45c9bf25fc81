"""The benchmark of durability: its clients over socket pairs, and whole small runs on a real broker."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.store import filling
from benchmarks.store.cli import main
from benchmarks.store.clients import Client, LoadError, Publisher, Subscriber, drive, publishes
from benchmarks.store.disk import bytes_on_disk, sync_times
from benchmarks.store.entrants import ENTRANTS, Entrant
from loadtest.brokers import process

LONG = pytest.mark.long
PUBACK = b"\x40\x02\x00\x01"


def pair() -> tuple[Client, socket.socket]:
    """A connected client, and what it is connected to."""
    ours, theirs = socket.socketpair()
    client = Client.__new__(Client)
    client.socket = ours
    for each in (ours, theirs):
        each.settimeout(10)
    return client, theirs


def test_publishes_have_one_length_and_identifiers() -> None:
    frames = publishes(["a/1", "a/2"], 3, retain=True)
    assert {len(frame) for frame in frames} == {2 + 2 + 3 + 2 + 64}
    assert {frame[0] for frame in frames} == {0x33}
    assert [frame[7:9] for frame in frames] == [b"\x00\x01", b"\x00\x02", b"\x00\x03"]
    with pytest.raises(LoadError, match="several lengths"):
        publishes(["a", "aa"], 2)


def test_a_publisher_stays_within_its_window() -> None:
    """Acknowledgements that come in pieces count when they are whole."""
    client, broker = pair()
    with broker, client.socket:
        frames = publishes(["a"], 5)
        publisher = Publisher(client, frames, 2)
        publisher.send()
        assert broker.recv(10_000) == b"".join(frames[:2])
        for piece, acknowledged, sent in ((PUBACK[:3], 0, 2), (PUBACK[3:] + PUBACK[:1], 1, 3), (PUBACK[1:], 2, 4)):
            broker.sendall(piece)
            publisher.receive()
            assert (publisher.acknowledged, publisher.sent) == (acknowledged, sent)
        assert not publisher.done


def test_a_subscriber_acknowledges_each() -> None:
    client, broker = pair()
    with broker, client.socket:
        frames = publishes(["abc"], 3)
        subscriber = Subscriber(client, len(frames[0]), 3)
        data = b"".join(frames)
        for piece in (data[:10], data[10:100], data[100:]):
            broker.sendall(piece)
            subscriber.receive()
        assert subscriber.done
        assert broker.recv(100) == b"\x40\x02\x00\x01\x40\x02\x00\x02\x40\x02\x00\x03"
        broker.sendall(b"\xd0" + data[1 : len(frames[0])])
        with pytest.raises(LoadError, match="0xd0"):
            subscriber.receive()


def test_the_clock_stops_when_all_is_acknowledged() -> None:
    client, broker = pair()

    def answer() -> None:
        for _ in range(3):
            broker.recv(71, socket.MSG_WAITALL)
            broker.sendall(PUBACK)

    with broker, client.socket:
        thread = Thread(target=answer)
        thread.start()
        publisher = Publisher(client, publishes(["a"], 3), 1)
        assert drive([publisher]) > 0.0
        assert publisher.done
        thread.join()


def test_a_broker_that_goes_is_told() -> None:
    client, broker = pair()
    with client.socket:
        publisher = Publisher(client, publishes(["a"], 3), 1)
        broker.close()
        with pytest.raises((LoadError, OSError)):
            drive([publisher])


def test_what_a_sync_takes(tmp_path: Path) -> None:
    assert len(sync_times(tmp_path, 5)) == 5
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "one").write_bytes(bytes(5_000))
    assert bytes_on_disk(tmp_path) >= 5_000


@pytest.mark.parametrize("entrant", ENTRANTS, ids=lambda one: one.name)
def test_who_keeps_is_told_to(entrant: Entrant, tmp_path: Path) -> None:
    command = entrant.begin(1883, tmp_path)
    told = Path(command[2]).read_text() if command[1] == "-c" else " ".join(command)
    assert ("persistence true" in told or "store.path=" in told) is ("memory" not in entrant.name)


@pytest.mark.parametrize(
    "row", ["pairs", *(pytest.param(row, marks=LONG) for row in ("offline", "latency", "retained"))]
)
def test_a_small_run(row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure is there."""
    assert main([row, "--quick", "--broker", "canopy, full", "--directory", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "fdatasync" in out
    line = out.splitlines()[-1]
    assert line.startswith("canopy, full  ")
    assert "failed" not in line
    assert list(tmp_path.iterdir()) == []


@LONG
def test_a_broker_starts_on_a_store_that_was_filled(tmp_path: Path) -> None:
    lines = filling.table(0.001, tmp_path, None).splitlines()
    assert [line.split()[:4] for line in lines[2:]] == [
        ["100", "1,000", "0", "0"],
        ["0", "0", "1,000", "0"],
        ["100", "1,000", "1,000", "0"],
        ["100", "1,000", "0", "1,000"],
    ]


LATE = """
import socket, sys, time
time.sleep(0.3)
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        client, _ = server.accept()
        client.sendall(bytes.fromhex("20020000"))
        client.recv(100)
"""


def test_a_broker_is_waited_for_as_long_as_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start on a large store takes longer than any other."""
    monkeypatch.setattr(process, "START_TIMEOUT", 0.0)
    port = process.free_port()
    with process.BrokerProcess([sys.executable, "-c", LATE, str(port)], port, None, 30.0) as broker:
        assert broker.pid
