"""The settings of each worker: how many connections it may have, and what is not for several workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt.settings import Settings
from canopy_mqtt.workers import plan
from canopy_mqtt.workers.plan import settings_of, unusable

TLS = {"url": "mqtts://127.0.0.1:0", "tls": {"certificate": "c", "key": "k"}}


def settings(tls: bool = False, **limits: Any) -> Settings:
    tables = (TLS if tls else {"url": "mqtt://127.0.0.1:0", "max_connections": 9, "max_connect_rate": 2.0},)
    return Settings(workers={"count": 4}, limits=limits, listener=tables)


@pytest.mark.parametrize(
    ("fit", "tls", "wanted", "most"),
    [
        (9_000, False, 0, 9_000),
        (9_000, True, 0, 3_000),
        (9_000, False, 500, 500),
        (9_000, False, 20_000, 9_000),
        (9_000, True, 8_000, 3_000),
        (0, False, 20_000, 20_000),
    ],
)
def test_a_worker_has_no_more_connections_than_file_descriptors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fit: int, tls: bool, wanted: int, most: int
) -> None:
    monkeypatch.setattr(plan, "connections_that_fit", lambda beside: fit - beside)
    made = settings_of(1, settings(tls, max_connections=wanted), tmp_path, False)
    assert made.limits.max_connections == most


def test_connections_of_http_have_file_descriptors_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A reload would refuse more: they would not fit."""
    monkeypatch.setattr(plan, "connections_that_fit", lambda beside: 9_000 - beside)
    wanted = Settings(workers={"count": 4}, http={"listen": ("http://127.0.0.1:0",), "max_connections": 100})
    assert settings_of(1, wanted, tmp_path, False).limits.max_connections == 8_900


def test_what_is_counted_before_is_not_counted_again(tmp_path: Path) -> None:
    wanted = settings(max_connections_per_address=3, max_connect_rate=5.0)
    made = settings_of(0, wanted, tmp_path, False)
    assert (made.limits.max_connections_per_address, made.limits.max_connect_rate) == (0, 0.0)
    (listener,) = made.listeners
    assert (listener.max_connections, listener.max_connect_rate) == (0, 0.0)


def test_each_worker_has_an_equal_part_of_what_comes_to_all_evenly(tmp_path: Path) -> None:
    """0 is no limit, and the least part is 1."""
    wanted = Settings(workers={"count": 4}, limits={"max_handshakes": 0}, security={"max_hashings": 2})
    made = settings_of(3, wanted, tmp_path, False)
    assert (made.limits.max_handshakes, made.security.max_hashings) == (0, 1)
    assert made.security.max_authentications * 4 == wanted.security.max_authentications
    assert made.log.client_bytes * 4 == wanted.log.client_bytes


def test_each_worker_needs_file_descriptors_for_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def too_few(connections: int, beside: int, setting: int) -> str:
        assert beside == 0
        asked.append((connections, setting))
        return f"{connections} are too many"

    monkeypatch.setattr(plan, "too_few_descriptors", too_few)
    (line,) = unusable(settings(max_connections=4_001))
    assert line == "each of 4 workers serves its part of them: 1001 are too many"
    (line,) = unusable(settings(True, max_connections=4_000))
    assert line.endswith("a connection with TLS takes up to 3 file descriptors: 3000 are too many")
    assert asked == [(1_001, 4_001), (3_000, 4_000)]
