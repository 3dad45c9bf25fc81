"""Every bound of a scenario, and everything that contradicts itself, has its message and the key it stands under."""

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


def test_what_was_read_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        scenario().seed = 2


REFUSED: dict[str, tuple[Any, str, str]] = {
    # what is wrong: (how it is made, the key it stands under, a part of the message)
    "a name with a blank": (lambda: scenario(name="a b"), "name", "match pattern"),
    "no stages": (lambda: scenario(stages=[]), "stages", "at least 1 item"),
    "no groups": (lambda: scenario(groups=[]), "groups", "at least 1 item"),
    "no scale": (lambda: scenario(scale=0), "scale", "greater than 0"),
    "a scale too large": (lambda: scenario(scale=1001), "scale", "less than or equal to 1000"),
    "a scale of nan": (lambda: scenario(scale=float("nan")), "scale", "finite number"),
    "no drain": (lambda: scenario(drain=0), "drain", "greater than 0"),
    "no quiet": (lambda: scenario(quiet=-1), "quiet", "greater than 0"),
    "endless quiet": (lambda: scenario(quiet=float("inf")), "quiet", "finite number"),
    "a load below 0": (
        lambda: scenario(stages=[{"name": "a", "seconds": 1, "load": -1}]), "stages.0.load", "than or equal to 0"
    ),
    "a ramp to below 0": (
        lambda: scenario(stages=[{"name": "a", "seconds": 1, "to": -1}]), "stages.0.to", "greater than or equal to 0"
    ),
    "two stages of a name": (
        lambda: scenario(stages=[{"name": "a", "seconds": 1}] * 2), "stages", "'a' stands there twice"
    ),
    "a stage of a name that is taken": (
        lambda: scenario(stages=[{"name": "drain", "seconds": 1}]), "stages", "'drain' is what comes before or after"
    ),
    "nothing measured": (
        lambda: scenario(stages=[{"name": "a", "seconds": 1, "measured": False}]), "", "stages: none is measured"
    ),
    "a group of nobody": (lambda: group(clients=0), "groups.0.clients", "greater than or equal to 1"),
    "too many clients": (lambda: group(clients=1_000_001), "groups.0.clients", "less than or equal to 1000000"),
    "a keep alive too long": (lambda: group(keep_alive=65_536), "groups.0.keep_alive", "65535"),
    "a session too long": (lambda: group(session_expiry=1 << 32), "groups.0.session_expiry", "4294967295"),
    "nothing to receive": (lambda: group(receive_maximum=0), "groups.0.receive_maximum", "equal to 1"),
    "too much to receive": (lambda: group(receive_maximum=65_536), "groups.0.receive_maximum", "65535"),
    "tiny packets": (lambda: group(maximum_packet_size=63), "groups.0.maximum_packet_size", "equal to 64"),
    "a negative connect rate": (lambda: group(connect_rate=-1), "groups.0.connect_rate", "equal to 0"),
    "no delay before a reconnection": (lambda: group(reconnect_delay=0), "groups.0.reconnect_delay", "greater than 0"),
    "a stage to join that is not there": (
        lambda: group(joins="later"), "", "groups.sensors: there is no stage 'later', only go, warm"
    ),
    "two loops": (lambda: publish(in_flight=1), "groups.0.publish.0", "has rate and in_flight"),
    "two rates": (lambda: publish(total_rate=1), "groups.0.publish.0", "has rate and total_rate"),
    "a rate below 0": (lambda: publish(rate=-1), "groups.0.publish.0.rate", "equal to 0"),
    "nothing in flight": (lambda: publish(rate=None, in_flight=0), "groups.0.publish.0.in_flight", "equal to 1"),
    "more in flight than there are packet identifiers": (
        lambda: publish(rate=None, in_flight=65_536, qos=1), "groups.0.publish.0", "in_flight: at most 65535 with QoS 1"
    ),
    "QoS 3": (lambda: publish(qos=3), "groups.0.publish.0.qos", "less than or equal to 2"),
    "no topics": (lambda: publish(topics=0), "groups.0.publish.0.topics", "equal to 1"),
    "another choice": (lambda: publish(choose="best"), "groups.0.publish.0.choose", "'in-turn', 'random' or 'zipf'"),
    "a flat zipf": (lambda: publish(zipf=0), "groups.0.publish.0.zipf", "greater than 0"),
    "another arrival": (lambda: publish(arrival="tide"), "groups.0.publish.0.arrival", "'poisson' or 'bursts'"),
    "an empty burst": (lambda: publish(burst=0), "groups.0.publish.0.burst", "equal to 1"),
    "no messages": (lambda: publish(messages=0), "groups.0.publish.0.messages", "equal to 1"),
    "an expiry below 0": (
        lambda: publish(properties={"message_expiry": -1}), "groups.0.publish.0.properties.message_expiry", "equal to 0"
    ),
    "a payload too small for its mark": (lambda: payload(size=15), "groups.0.publish.0.payload.size", "equal to 16"),
    "a payload too large": (lambda: payload(size=268_000_001), "groups.0.publish.0.payload.size", "268000000"),
    "two payloads": (
        lambda: payload(size=64, template="%m"), "groups.0.publish.0.payload", "size and template exclude each other"
    ),
    "one size between": (lambda: payload(between=[64]), "groups.0.publish.0.payload.between.1", "Field required"),
    "no sizes": (lambda: payload(sizes={}), "groups.0.publish.0.payload.sizes", "at least 1 item"),
    "a weight of 0": (lambda: payload(sizes={"64": 0}), "groups.0.publish.0.payload.sizes.64", "greater than 0"),
    "a size in words": (
        lambda: payload(sizes={"big": 1}), "groups.0.publish.0.payload", "sizes: 'big' is not a number of bytes from 16"
    ),
    "a size in figures of elsewhere": (
        lambda: payload(sizes={"٦٤": 1}), "groups.0.publish.0.payload", "sizes: '٦٤' is not a number of bytes"
    ),
    "a size below the mark's": (lambda: payload(sizes={"15": 1}), "groups.0.publish.0.payload", "sizes: '15'"),
    "a template without a mark": (lambda: payload(template="{}"), "groups.0.publish.0.payload", "needs %m once"),
    "a template with two": (lambda: payload(template="%m %m"), "groups.0.publish.0.payload", "needs %m once"),
    "another retain handling": (
        lambda: group(subscribe=[{"filter": "t", "retain_handling": 3}]), "groups.0.subscribe.0.retain_handling", "to 2"
    ),
    "no filters": (
        lambda: group(subscribe=[{"filter": "t", "filters": 0}]), "groups.0.subscribe.0.filters", "equal to 1"
    ),
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
    "churn with one filter": (
        lambda: group(churn={"filter": "c/%n", "rate": 1, "filters": 1}), "groups.0.churn.filters", "equal to 2"
    ),
    "churn that stands still": (
        lambda: group(churn={"filter": "c/%n", "rate": 0}), "groups.0.churn.rate", "greater than 0"
    ),
    "a cycle of no length": (lambda: group(cycle={"up": 0}), "groups.0.cycle.up", "greater than 0"),
    "a cycle that spreads below 0": (
        lambda: group(cycle={"up": 1, "spread": 1.1}), "groups.0.cycle.spread", "less than or equal to 1"
    ),
    "another goodbye": (
        lambda: group(cycle={"up": 1, "goodbye": "wave"}), "groups.0.cycle.goodbye", "'disconnect' or 'cut'"
    ),
    "reading without saying how": (lambda: group(reading={}), "groups.0.reading", "needs one of rate and freeze_after"),
    "reading in two ways": (
        lambda: group(reading={"rate": 1, "freeze_after": 1}), "groups.0.reading", "needs one of rate and freeze_after"
    ),
    "no receive buffer": (
        lambda: group(reading={"rate": 1, "receive_buffer": 1}), "groups.0.reading.receive_buffer", "equal to 1024"
    ),
    "a will too small for its mark": (lambda: group(will={"topic": "w", "size": 15}), "groups.0.will.size", "to 16"),
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
    "the smallest payload": lambda: payload(size=16),
    "the largest payload": lambda: payload(size=268_000_000),
    "an even distribution of one size": lambda: payload(between=[64, 64]),
    "weighted sizes": lambda: payload(sizes={"16": 0.5, "1024": 1}),
    "a template": lambda: payload(template='{"n": %c, "mark": "%m"}'),
    "very many in flight with QoS 0": lambda: publish(rate=None, in_flight=1_000_000),
    "as many in flight as there are packet identifiers": lambda: publish(rate=None, in_flight=65_535, qos=2),
    "a publisher that waits": lambda: publish(rate=0),
    "a share": lambda: group(subscribe=[{"filter": "$share/g/t"}, {"filter": "$share/h/t"}]),
    "a filter that only looks like a share": lambda: group(subscribe=[{"filter": "$shared/t"}, {"filter": "t"}]),
    "a silent stage": lambda: scenario(stages=[{"name": "a", "seconds": 0.1, "load": 0}]),
    "two groups": lambda: scenario(groups=[{"name": "a", "clients": 1}, {"name": "b", "clients": 1}]),
    "a group that joins": lambda: group(joins="go"),
}


@for_each("make", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_allowed(make: Any) -> None:
    assert make()
