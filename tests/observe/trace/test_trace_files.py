"""Traces that have ended, as files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.observe.trace.entries import PACKET, Entry, Trace, TracedConnection
from canopy_mqtt.observe.trace.trace_files import MAX_FILES, save
from tests.support.waiting import until


def ended(name: str, started_at: float) -> Trace:
    trace = Trace(name, "clientid", "c", 1.0, 10_000, started_at=started_at)
    trace.add(Entry(PACKET, 0, TracedConnection(1, "", "unix", None, "door"), True, b"\xc0\x00", 2, 4))
    return trace


def written(folder: Path) -> set[str]:
    return {each.name.rpartition("-")[2] for each in folder.iterdir() if each.suffix == ".pcapng"}


def test_a_file_is_for_its_owner_and_whole(tmp_path: Path) -> None:
    file = save(tmp_path / "a" / "b", ended("mine", 1_700_000_000.0))
    assert file == tmp_path / "a" / "b" / "canopy-20231114T221320Z-mine.pcapng"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes().startswith(b"\x0a\x0d\x0d\x0a")
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_only_so_many_files_and_only_ours(tmp_path: Path) -> None:
    others = [tmp_path / "mine.pcapng", tmp_path / "canopy.toml", tmp_path / "canopy-notes.pcapng"]
    for other in others:
        other.write_text("x")
    for number in range(MAX_FILES + 3):
        save(tmp_path, ended(f"t-{number}", 1_700_000_000.0 + number))
    left = sorted(each.name.rpartition("-t-")[2] for each in tmp_path.iterdir() if each not in others)
    assert left == sorted(f"{number}.pcapng" for number in range(3, MAX_FILES + 3))
    assert all(other.exists() for other in others)


async def test_a_trace_that_ends_is_written_also_when_the_broker_stops(tmp_path: Path) -> None:
    settings = {"listen": ("mqtt://127.0.0.1:0",), "tracing": {"directory": str(tmp_path)}}
    async with Broker(Settings.model_validate(settings)) as broker:
        broker.traces.start("clientid", "c", "one")
        broker.traces.start("clientid", "c", "two")
        broker.traces.stop("one")
        await until(lambda: written(tmp_path) == {"one.pcapng"})
    assert written(tmp_path) == {"one.pcapng", "two.pcapng"}


async def test_a_folder_that_cannot_be_had_costs_the_file_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    settings = {"listen": ("mqtt://127.0.0.1:0",), "tracing": {"directory": str(tmp_path / "file")}}
    async with Broker(Settings.model_validate(settings)) as broker:
        trace = broker.traces.start("clientid", "c", "one")
        broker.traces.stop("one")
        await until(lambda: "trace not written" in caplog.text)
        assert broker.traces.all == {"one": trace}
