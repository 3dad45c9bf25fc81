"""`Settings(...)` of a program: what it takes, what it says about mistakes, and what type checkers make of it."""

from __future__ import annotations

import inspect
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from canopy_mqtt import Broker, Settings, SettingsError, load_settings
from canopy_mqtt.testing import RunningBroker
from tests.support.runs import for_each

MISTAKES: list[tuple[dict[str, Any], str]] = [
    (
        {"limits": {"max_conections": 1}},
        "limits.max_conections: no such setting; the nearest is limits.max_connections",
    ),
    (
        {"limit": {"max_connections": 1}},
        "limit.max_connections: no such setting; the nearest is limits.max_connections",
    ),
    ({"max_connections": 1}, "max_connections: no such setting; the nearest is limits.max_connections"),
    ({"limits": {"max_connections": -1}}, "limits.max_connections: found -1; allowed: an integer from 0 to 2000000000"),
    ({"limits": 5}, "limits: found 5; allowed: a section, like limits={'max_connections': …}"),
    ({"limits": None}, "limits: found None; allowed: a section, like limits={'max_connections': …}"),
    ({"listen": []}, "listen: found []; allowed: at least one listener"),
    (
        {"listen": "mqtt://127.0.0.1"},
        'listen: found "mqtt://127.0.0.1"; allowed: a list of URLs, like ["mqtt://127.0.0.1:1883"]',
    ),
    (
        {"listener": [{"url": "mqtt://127.0.0.1:0", "nmae": "x"}]},
        "listener[0].nmae: no such setting; the nearest is name",
    ),
    (
        {"store": {"path": Path("/kept")}},
        'store.path: found /kept; allowed: a folder, like "/var/lib/canopy", or "" for memory only',
    ),
]


@for_each(("given", "line"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_told_as_the_command_tells_it(given: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(**given)
    assert caught.value.problems == (line,)
    assert caught.value.__suppress_context__


def test_every_mistake_is_told() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(limits={"max_connections": "x", "max_packet_sise": 1}, hook=["a:b"], log={"level": "loud"})  # type: ignore[call-arg]
    assert [line.partition(":")[0] for line in caught.value.problems] == [
        "limits.max_packet_sise",
        "hook",
        "limits.max_connections",
        "log.level",
    ]


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(upstream=[{"name": "a", "url": "mqtt://h", "password": "hunter2", "pasword": "hunter2", "version": 9}])
    assert "hunter2" not in str(caught.value)


def test_a_broker_under_test_says_the_same() -> None:
    with pytest.raises(SettingsError, match=r"the nearest is mqtt\.max_qos"):
        RunningBroker(mqtt={"maxqos": 1})
    with pytest.raises(SettingsError, match=r"listen: found .* allowed: a list of URLs"):
        RunningBroker(listen="mqtt://127.0.0.1:0")


def test_they_are_the_settings_of_the_command() -> None:
    """One class, wherever they come from."""
    read = load_settings(environ={"CANOPY_LIMITS__MAX_CONNECTIONS": "100"})
    assert type(read) is Settings
    assert read == Settings(limits={"max_connections": 100})
    assert type(Broker().settings) is Settings
    assert issubclass(SettingsError, ValueError)


def test_the_types_name_every_setting() -> None:
    """What stands there for tools is what the model has."""
    source = inspect.getsource(Settings)
    declared = source[source.index("def __init__(") : source.index(") -> None: ...")]
    assert [line.split(":")[0].strip() for line in declared.splitlines() if "= ..." in line] == list(
        Settings.model_fields
    )
    assert get_type_hints(Settings)["limits"].__name__ == "Limits"


def test_the_types_are_those_of_a_strict_program() -> None:
    """`make lint` holds these lines against mypy --strict, which has to find each error that an `ignore` names."""
    settings = Settings(
        listen=["mqtt://127.0.0.1:0"],
        limits={"max_connections": 100},
        log={"level": "debug"},
        listener=[{"url": "mqtt://127.0.0.1:0", "max_connections": 10}],
        upstream=[{"name": "cloud", "url": "mqtt://broker.example.org"}],
        authenticator=({"type": "anonymous"},),
        rule=[{"user": "a", "action": "publish", "filters": ["a/#"]}],
    )
    limit: int = settings.limits.max_connections
    assert limit == 100
    with pytest.raises(SettingsError) as caught:
        Settings(limit={"max_connections": 100})  # type: ignore[call-arg]
    first: str = caught.value.problems[0]
    assert first.startswith("limit.max_connections: ")
    with pytest.raises(SettingsError):
        Settings(limits=5)  # type: ignore[arg-type]
    with pytest.raises(SettingsError):
        Settings(listen=5)  # type: ignore[arg-type]
    # The type checker of a program believes no package without it.
    assert (files("canopy_mqtt") / "py.typed").is_file()
