"""How far the tables are behind the recorder."""

from __future__ import annotations

import fcntl
import struct
from pathlib import Path

from canopy_pipeline.runtime.storage import Local
from canopy_pipeline.tables import lag
from canopy_pipeline.tables.lag import Lag, recorder_number


def test_a_number_waits_from_the_look_before_it_was_there() -> None:
    made = Lag()
    assert made.look(given=10, through=10, now=100.0) == 0.0
    # Given between 100 and 101.
    assert made.look(given=15, through=10, now=101.0) == 1.0
    assert made.look(given=20, through=10, now=102.0) == 2.0
    assert made.look(given=20, through=15, now=103.0) == 2.0
    assert made.look(given=20, through=20, now=104.0) == 0.0


def test_a_quiet_broker_is_no_lag() -> None:
    made = Lag()
    assert [made.look(10, 10, now) for now in (0.0, 1e6)] == [0.0, 0.0]


def test_without_a_recorder_at_work_there_is_none(tmp_path: Path) -> None:
    made = Lag()
    made.look(15, 10, 0.0)
    assert made.look(0, 10, 9.0) == 0.0
    assert recorder_number(Local(tmp_path)) == 0
    (tmp_path / ".recorder").write_bytes(struct.pack("<qq", 42, 0))
    assert recorder_number(Local(tmp_path)) == 0
    with open(tmp_path / ".recorder", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert recorder_number(Local(tmp_path)) == 42


def test_what_is_remembered_is_bounded() -> None:
    made = Lag()
    for look in range(lag.KEPT + 10):
        assert made.look(given=look, through=0, now=float(look)) == max(0.0, float(look))
    assert made.look(given=lag.KEPT + 10, through=lag.KEPT + 10, now=0.0) == 0.0
