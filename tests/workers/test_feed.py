"""The page's snapshots of all workers as those of one broker."""

from __future__ import annotations

from typing import Any

from canopy_mqtt.admin.events import SAMPLE
from canopy_mqtt.workers.feed import added_rows, at_about, one_snapshot


def row(at: int, **values: float) -> list[float]:
    return [at if name == "at" else values.get(name, 0) for name in SAMPLE]


def told(at: int, *losers: tuple[str, str], dropped: int = 0, **values: float) -> dict[str, Any]:
    """A snapshot; each loser with the time of its last loss."""
    return {
        "sample": row(at, **values),
        "uptime": at,
        "totals": {"sessions": 2, "retained": 7},
        "dropped": {"expired": dropped},
        "losers": [{"clientid": name, "last_at": when} for name, when in losers],
        "refused": [],
        "slow": {"count": 1, "clients": [{"clientid": "slow", "delay": at}]},
        "alarms": {"count": 1, "active": [{"name": "room", "message": "full", "since": at}]},
        "upstream": [],
        "store": {"kept": True, "failing": False, "figures": {"state": "written", "rows": 4}},
    }


def test_samples_are_added_at_the_time_of_the_first_and_the_worst_lag_counts() -> None:
    assert added_rows([row(5, received=1, lag=0.2), row(4, received=2, lag=0.5)]) == row(5, received=3, lag=0.5)


def test_the_history_has_of_the_others_what_was_there_then() -> None:
    rows = [row(1_000, sent=1), row(2_000, sent=2), row(9_000, sent=9)]
    assert [at_about(at, [rows]) for at in (-1, 1_200, 5_000)] == [[], [rows[1]], [rows[1]]]


def test_a_snapshot_is_of_all() -> None:
    found = one_snapshot({"w0": told(3, ("a", "1"), connected=1), "w1": told(5, ("b", "2"), connected=4)}, [])
    assert found["sample"] == row(3, connected=5)
    assert found["uptime"] == 5
    assert found["totals"] == {"sessions": 4, "retained": 7}
    assert [each["clientid"] for each in found["losers"]] == ["b", "a"]
    assert found["slow"] == {"count": 2, "clients": [{"clientid": "slow", "delay": 5}]}
    assert found["alarms"] == {"count": 1, "active": [{"name": "room", "message": "full", "since": 3}]}
    assert found["store"]["figures"] == {"state": "written", "rows": 8}


def test_the_totals_of_a_worker_that_does_not_answer_stay() -> None:
    """Else its return would be a burst; who is connected there now nobody knows."""
    away = told(2, received=10, connected=6, dropped=3)
    found = one_snapshot({"w0": told(3, received=5, connected=1, dropped=1)}, [away])
    assert found["sample"] == row(3, received=15, connected=1)
    assert found["dropped"] == {"expired": 4}
