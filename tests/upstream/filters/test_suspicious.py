"""What is told about links whose settings are allowed, and hardly meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.configuration.reading import load_settings
from broker.settings import Federation, Presence, Settings, Store, Upstream
from broker.upstream.filters.suspicious import ECHO, TWICE, warnings

CONFIG = Path(__file__).resolve().parents[3] / "config"
ANYTHING = "comes down as soon as a client here subscribes to anything"
NAMED = Federation(broker_id="site-7")


def told(*links: dict[str, Any], presence: str = "", federation: Federation = NAMED) -> list[str]:
    made = [Upstream(**{"name": "cloud", "url": "mqtt://h", **keys}) for keys in links]
    return warnings(Settings(upstream=made, federation=federation, presence=Presence(topic=presence)))


@pytest.mark.parametrize(
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
    @pytest.mark.parametrize(
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
    @pytest.mark.parametrize(
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
                {"aggregate": ["$SYS/#"]},
                'aggregate "$SYS/#": has no effect, because links never subscribe to $SYS',
            ),
            (
                {"aggregate": ["$aws/#"]},
                'aggregate "$aws/#": topics that begin with $ belong to the upstream broker, which may refuse this',
            ),
            ({"aggregate": ["a/#", "b/#", "a/#"]}, 'aggregate "a/#": is listed twice'),
            (
                {"aggregate": ["a/b/#", "a/#"]},
                'aggregate "a/b/#": is within aggregate "a/#", and so has no effect',
            ),
            (
                {"aggregate": ["a/b"]},
                'aggregate "a/b": has no effect, because it includes no other filter',
            ),
            (
                {"aggregate": ["canopy/presence/#"]},
                'aggregate "canopy/presence/#": has no effect, because it is within unfolded',
            ),
            (
                {"aggregate": ["a/#"], "roots": ["b/#"]},
                'aggregate "a/#": has no effect, because it is outside roots',
            ),
            (
                {"aggregate": ["a/#"], "local_prefix": "b/"},
                'aggregate "a/#": has no effect, because it is outside local_prefix, "b/"',
            ),
            (
                {"subscribe": ["a"], "local_prefix": "b/"},
                'subscribe "a": has no effect, because it is outside local_prefix, "b/"',
            ),
            (
                {"roots": ["a/#"], "local_prefix": "b/"},
                'roots "a/#": has no effect, because it is outside local_prefix, "b/"',
            ),
            (
                {"publish": ["a/#"], "local_prefix": "b/"},
                'publish "a/#": has no effect, because it is outside local_prefix, "b/"',
            ),
            (
                {"aggregate": "auto", "roots": ["a/#"], "unfolded": ["b/#"]},
                'unfolded "b/#": has no effect, because it is outside roots',
            ),
            (
                {"aggregate": ["a/#"], "unfolded": ["b/#"]},
                'unfolded "b/#": has no effect, because it is outside every aggregate',
            ),
            ({"unfolded": ["b/#"]}, "unfolded: has no effect without aggregate"),
            (
                {"aggregate": ["a/#"], "publish": ["a/+/state"], "version": "3.1.1"},
                f'publish "a/+/state": overlaps aggregate "a/#"; {ECHO}',
            ),
            (
                {"subscribe": ["a/x"], "publish": ["a/#"], "version": "3.1.1"},
                f'publish "a/#": overlaps subscribe "a/x"; {ECHO}',
            ),
            (
                {"subscribe": ["$SYS/#"]},
                'subscribe "$SYS/#": has no effect, because links never subscribe to $SYS',
            ),
            (
                {"publish": ["$SYS/#"]},
                'publish "$SYS/#": no broker takes anything below its own $SYS; remote_prefix gives it other names',
            ),
            ({"subscribe": []}, "subscribe and publish are empty: nothing comes down and nothing goes up"),
            (
                {"subscribe": ["a"], "aggregate": ["a/#"]},
                "aggregate: has no effect with a list in subscribe, whose filters are used unchanged",
            ),
            (
                {"subscribe": ["a"], "aggregate": "auto"},
                "aggregate: has no effect with a list in subscribe, whose filters are used unchanged",
            ),
            ({"max_filters": 5}, 'max_filters: has no effect without aggregate = "auto"'),
            ({"aggregate": ["a/#"], "hold": 5.0}, 'hold: has no effect without aggregate = "auto"'),
            (
                {"password_file": "f"},
                "password: MQTT 3.1.1 cannot send it without a username, so the upstream must use MQTT 5.0",
            ),
        ],
    )
    def test_one_line_with_the_setting_and_the_consequence(self, keys: dict[str, Any], expected: str) -> None:
        good = {"name": "good", "url": "mqtt://other"}
        assert told(good, keys) == [f'upstream[1] "cloud": {expected}']

    def test_everything_makes_the_others_useless(self) -> None:
        lines = told({"aggregate": ["#", "+/#", "a/#", "$x/#"]})
        assert [line.split(": ")[1] for line in lines] == [
            'aggregate "#"',
            'aggregate "+/#"',
            'aggregate "+/#"',
            'aggregate "a/#"',
            'aggregate "$x/#"',
        ]
        assert 'is within aggregate "#"' in lines[2]
        assert 'is within aggregate "#"' in lines[3]
        assert "topics that begin with $" in lines[4]  # a leading wildcard sees none of them [MQTT-4.7.2-1]

    def test_presence_that_is_folded(self) -> None:
        keys = {"aggregate": ["site/7/#"], "unfolded": []}
        assert told(keys) == []
        assert told(keys, presence="presence") == []
        (line,) = told(keys, presence="site/7/presence")
        assert line == (
            'upstream[0] "cloud": aggregate "site/7/#": folds what is below presence.topic, "site/7/presence"; '
            'with "site/7/presence/#" in unfolded it would not'
        )
        assert told({**keys, "unfolded": ["site/7/presence/#"]}, presence="site/7/presence") == []

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
