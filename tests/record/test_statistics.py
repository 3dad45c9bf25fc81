"""`canopy record stats`: every number against the events that were written."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.record import app
from canopy_mqtt.record import statistics
from tests.pipeline.recorded import BEGIN, Story


def story() -> Story:
    """Messages of two clients, drops of two causes, one gap."""
    made = Story()
    made.subscribe("s", "#")
    for number in range(10):
        made.pause(2.0)
        sent = made.publish(f"p{number % 2}", f"a/{number % 3}", b"x" * number)
        made.deliver("s", sent)
    made.publish(None, "$SYS/x", b"1")
    made.drop("s", "queue-full", 3)
    made.drop("s", "expired")
    made.drop("t", "queue-full")
    made.gap(100, 106)
    return made


def test_every_number_is_that_of_the_events(tmp_path: Path) -> None:
    told = story()
    files = told.write(tmp_path, 3)
    ran = CliRunner().invoke(app, ["stats", str(tmp_path), "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout) == {
        "segments": 3,
        "file_bytes": sum(file.stat().st_size for file in files),
        "events": 26,
        "kinds": {"publish": 11, "deliver": 10, "drop": 3, "subscribe": 1, "gap": 1},
        "first": BEGIN.isoformat(),
        "last": told.now.isoformat(),
        "seconds": 20.0,
        "first_message": (BEGIN + timedelta(seconds=2)).isoformat(),
        "last_message": told.now.isoformat(),
        "messages": 11,
        "payload_bytes": sum(range(10)) + 1,
        "topics": 4,
        "clients": 4,
        "drops": {"queue-full": 4, "expired": 1},
        "gaps": 1,
        "lost_events": 7,
        "missing": [],
    }
    lines = CliRunner().invoke(app, ["stats", str(tmp_path)]).stdout.splitlines()
    assert lines[0] == "2026-11-21 16:00:00 to 2026-11-21 16:00:20 UTC, 20 s"
    assert lines[2] == "26 events: 11 publish, 10 deliver, 3 drop, 1 subscribe, 1 gap"
    assert lines[3] == "11 messages, 46 B of payload, 0.6 a second; 4 topics, 4 clients"
    assert lines[4:] == ["dropped: 4 queue-full, 1 expired", "1 gap, 7 events at most"]


def test_a_segment_that_is_missing_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    gone, _ = story().write(tmp_path, 2)
    gone.unlink()
    ran = CliRunner().invoke(app, ["stats", str(tmp_path)])
    assert ran.exit_code == 1
    assert "13 events" in ran.stdout
    assert f"{gone}: its manifest is there, and it is not" in ran.stderr


def test_names_are_told_apart_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "COUNTED", 2)
    story().write(tmp_path, 2)
    found = statistics.statistics(tmp_path)
    assert (found.topics, found.clients) == (2, 2)
    assert "2 or more topics, 2 or more clients" in CliRunner().invoke(app, ["stats", str(tmp_path)]).stdout


def test_a_folder_that_is_none_is_one_line(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["stats", str(tmp_path / "nosuch")])
    assert ran.exit_code != 0
    assert len(ran.stderr.splitlines()) == 1
