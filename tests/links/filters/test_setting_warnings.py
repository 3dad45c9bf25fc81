"""The warnings about links whose settings are allowed, and hardly meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from canopy_mqtt.links.filters.setting_warnings import ECHO, TWICE, warnings
from canopy_mqtt.settings import Federation, Settings, Store, Upstream
from canopy_mqtt.settings.loader import load_settings
from tests.support.runs import for_each

CONFIG = Path(__file__).resolve().parents[3] / "config"
ANYTHING = "comes down as soon as a client here subscribes to anything"
NAMED = Federation(broker_id="site-7")


def told(*links: dict[str, Any], federation: Federation = NAMED) -> list[str]:
    made = [Upstream(**{"name": "cloud", "url": "mqtt://h", **keys}) for keys in links]
    return warnings(Settings(upstream=made, federation=federation))


@for_each(
    ("keys", "path", "said"),
    [
        ({"publish": ["a"]}, "/kept", [TWICE]),
        ({"publish": ["a"]}, "", []),
        ({"publish": ["a"], "clean_start": False}, "/kept", []),
        ({"publish": ["a"], "publish_qos": 1}, "/kept", []),
        ({}, "/kept", []),
    ],
)
def test_qos_2_that_may_arrive_twice_after_a_restart(keys: dict[str, Any], path: str, said: list[str]) -> None:
    link = Upstream(**{"name": "cloud", "url": "mqtt://h", **keys})
    made = Settings(upstream=[link], federation=NAMED, store=Store(path=path))
    assert warnings(made) == [f'upstream[0] "cloud": {each}' for each in said]


class TestSensible:
    @for_each(
        "keys",
        [
            {},
            {"aggregate": ["site/7/#", "fleet/+/notice/#"]},
            {"aggregate": "auto", "max_filters": 10, "hold": 5.0, "roots": ["site/#"]},
            {"subscribe": ["a", "b/#"], "publish": ["c/#"]},
            {"aggregate": ["site/7/#"], "publish": ["site/7/#"]},
            {"aggregate": ["site/7/#"], "publish": ["state/#"], "version": "3.1.1"},
            {"aggregate": ["a/#"], "local_prefix": "a/", "remote_prefix": "b/", "roots": ["a/x/#", "a/y/#"]},
            {"aggregate": ["a/#"], "unfolded": ["a/one/#"]},
            {"username": "u", "password": "p", "version": "auto"},
            {"publish": ["$SYS/broker/uptime"], "remote_prefix": "site/7/"},
        ],
    )
    def test_nothing_is_said(self, keys: dict[str, Any]) -> None:
        assert told(keys) == []

    def test_nor_of_no_link_nor_of_the_files_that_we_ship(self) -> None:
        assert warnings(Settings()) == []
        for path in CONFIG.glob("*.toml"):
            assert warnings(load_settings(path, (), (), {})) == []

    def test_two_brokers_may_get_the_same(self) -> None:
        one = {"name": "a", "publish": ["x/#"], "client_id": "c"}
        assert told(one, {**one, "name": "b", "url": "mqtt://other"}) == []
        # Nor is it a copy where it has another name.
        assert told(one, {**one, "name": "b", "client_id": "d", "remote_prefix": "copy/"}) == []


class TestSuspicious:
    @for_each(
        ("keys", "expected"),
        [
            (
                {"aggregate": ["#"]},
                f'aggregate "#": all that is published upstream {ANYTHING}',
            ),
            (
                {"aggregate": ["+/#"], "remote_prefix": "acme/"},
                f'aggregate "+/#": all that is published below acme/ {ANYTHING}',
            ),
            (
                {"aggregate": ["#"], "roots": ["site/7/#"]},
                f'aggregate "#": all that is published within roots {ANYTHING}',
            ),
            (
                {"aggregate": ["a/#"], "publish": ["a/+/state"], "version": "3.1.1"},
                f'publish "a/+/state": overlaps aggregate "a/#"; {ECHO}',
            ),
            (
                {"subscribe": ["a/x"], "publish": ["a/#"], "version": "3.1.1"},
                f'publish "a/#": overlaps subscribe "a/x"; {ECHO}',
            ),
            ({"subscribe": []}, "subscribe and publish are empty: nothing comes down and nothing goes up"),
            (
                {"password_file": "f"},
                "password: MQTT 3.1.1 cannot send it without a username, so the upstream must use MQTT 5.0",
            ),
        ],
    )
    def test_one_line_with_the_setting_and_the_consequence(self, keys: dict[str, Any], expected: str) -> None:
        good = {"name": "good", "url": "mqtt://other"}
        assert told(good, keys) == [f'upstream[1] "cloud": {expected}']

    def test_a_session_that_is_never_found_again(self) -> None:
        (line,) = told({}, federation=Federation())
        assert line == (
            'upstream[0] "cloud": client_id: changes at each start without federation.broker_id, so the session of a '
            "killed broker is never resumed, and its queue fills upstream for session_expiry, 86400 s"
        )
        assert told({"client_id": "c"}, federation=Federation()) == []
        assert told({"session_expiry": 0}, federation=Federation()) == []

    def test_two_links_to_one_broker(self) -> None:
        one = {"name": "a", "client_id": "c", "publish": ["x/#"]}
        other = {"name": "b", "client_id": "c", "publish": ["y", "x/+"], "url": "mqtt://h:1883"}
        assert told(one, other) == [
            (
                'upstream[1] "b": client_id "c": upstream[0] "a" has it too, with the same url; each ends the other\'s '
                "connection"
            ),
            (
                'upstream[1] "b": publish "x/+": overlaps publish "x/#" of upstream[0] "a", which has the same url; '
                "messages that both match are sent twice"
            ),
        ]

    def test_passwords_are_not_told(self) -> None:
        lines = told({"password": "hunter2", "aggregate": ["#"]})
        assert len(lines) == 2
        assert "hunter2" not in "".join(lines)
