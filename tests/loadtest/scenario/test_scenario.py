"""What a scenario may not say, and what contradicts itself, has its message and the key it stands under."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from canopy_load.scenario.scenario_schema import Group, Payload, Publish, Scenario
from tests.support.runs import for_each

BASE = """
name = "one"
stages = [{ name = "warm", seconds = 1, measured = false }, { name = "go", seconds = 2.5, load = 0.5, to = 2 }]
[[groups]]
name = "sensors"
clients = 2
"""


def scenario(**changes: Any) -> Scenario:
    """The base with other keys; None takes one away."""
    data = {**tomllib.loads(BASE), **changes}
    return Scenario.model_validate({key: value for key, value in data.items() if value is not None})


def group(**keys: Any) -> Scenario:
    """The base with one group that has more keys."""
    return scenario(groups=[{"name": "sensors", "clients": 2, **keys}])


def publish(**keys: Any) -> Scenario:
    return group(publish=[{"topic": "t/%c", "rate": 1, **keys}])


def payload(**keys: Any) -> Scenario:
    return publish(payload=keys)


def test_a_scenario_is_read_from_toml_with_its_defaults() -> None:
    found = scenario()
    assert [(stage.seconds, stage.load, stage.to, stage.measured) for stage in found.stages] == [
        (1, 1, None, False),
        (2.5, 0.5, 2, True),
    ]
    assert found.groups == [Group(name="sensors", clients=2)]
    assert (found.scale, found.seed, found.drain, found.quiet) == (1, 1, 15, 1)
    one = Publish(topic="t", rate=1)
    assert (one.qos, one.retain, one.arrival, one.payload) == (0, False, "constant", Payload(size=64))


REFUSED: dict[str, tuple[Any, str, str]] = {
    # what is wrong: (how it is made, the key it stands under, a part of the message)
    "a stage of a name that is taken": (
        lambda: scenario(stages=[{"name": "drain", "seconds": 1}]), "stages", "'drain' is what comes before or after"
    ),
    "nothing measured": (
        lambda: scenario(stages=[{"name": "a", "seconds": 1, "measured": False}]), "", "stages: none is measured"
    ),
    "too many clients": (lambda: group(clients=1_000_001), "groups.0.clients", "less than or equal to 1000000"),
    "a stage to join that is not there": (
        lambda: group(joins="later"), "", "groups.sensors: there is no stage 'later', only go, warm"
    ),
    "more in flight than there are packet identifiers": (
        lambda: publish(rate=None, in_flight=65_536, qos=1), "groups.0.publish.0", "in_flight: at most 65535 with QoS 1"
    ),
    "a size in words": (
        lambda: payload(sizes={"big": 1}), "groups.0.publish.0.payload", "sizes: 'big' is not a number of bytes from 16"
    ),
    "a template without a mark": (lambda: payload(template="{}"), "groups.0.publish.0.payload", "needs %m once"),
    "shared and not": (
        lambda: group(subscribe=[{"filter": "$share/g/t"}, {"filter": "t"}]),
        "groups.0", "shared and other filters need groups of their own",
    ),
    "shared, and comes and goes": (
        lambda: group(subscribe=[{"filter": "$share/g/t"}], cycle={"up": 1}), "groups.0", "cannot be judged"
    ),
    "shared, and churns": (
        lambda: group(subscribe=[{"filter": "$share/g/t"}], churn={"filter": "c/%n", "rate": 1}),
        "groups.0", "cannot be judged",
    ),
    "reading without saying how": (lambda: group(reading={}), "groups.0.reading", "needs one of rate and freeze_after"),
    "no receive buffer": (
        lambda: group(reading={"rate": 1, "receive_buffer": 1}), "groups.0.reading.receive_buffer", "equal to 1024"
    ),
}  # fmt: skip


@for_each(("make", "key", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(make: Any, key: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    [error] = [each for each in caught.value.errors() if message in each["msg"]]
    assert ".".join(str(part) for part in error["loc"]) == key


VERSION_5 = {
    "session_expiry": {"session_expiry": 1},
    "receive_maximum": {"receive_maximum": 1},
    "maximum_packet_size": {"maximum_packet_size": 64},
    "will.delay": {"will": {"topic": "w", "delay": 1}},
    "publish.properties": {"publish": [{"topic": "t", "rate": 1, "properties": {"topic_alias": True}}]},
    "subscribe.user": {"subscribe": [{"filter": "t", "user": {"canopy-queue": "drop-newest"}}]},
    "subscribe.no_local": {"subscribe": [{"filter": "t", "no_local": True}]},
    "subscribe.retain_handling": {"subscribe": [{"filter": "t", "retain_handling": 2}]},
}


@for_each(("key", "keys"), VERSION_5.items(), ids=VERSION_5)
def test_what_exists_in_5_0_only_is_refused_with_3_1_1(key: str, keys: dict[str, Any]) -> None:
    assert group(version="5.0", **keys).groups[0].version == "5.0"
    with pytest.raises(ValidationError, match=f'{key}: exists in MQTT 5.0 only, this group has version = "3.1.1"'):
        group(version="3.1.1", **keys)


ALLOWED: dict[str, Any] = {
    "the largest payload": lambda: payload(size=268_000_000),
    "very many in flight with QoS 0": lambda: publish(rate=None, in_flight=1_000_000),
    "as many in flight as there are packet identifiers": lambda: publish(rate=None, in_flight=65_535, qos=2),
    "a publisher that waits": lambda: publish(rate=0),
    "a share": lambda: group(subscribe=[{"filter": "$share/g/t"}, {"filter": "$share/h/t"}]),
    "a filter that only looks like a share": lambda: group(subscribe=[{"filter": "$shared/t"}, {"filter": "t"}]),
    "a silent stage": lambda: scenario(stages=[{"name": "a", "seconds": 0.1, "load": 0}]),
}


@for_each("make", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_allowed(make: Any) -> None:
    assert make()
