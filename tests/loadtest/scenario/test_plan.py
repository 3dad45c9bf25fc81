"""What cannot be played is refused before anybody connects, with the group and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from canopy_load.engine import conductor
from canopy_load.engine.job import Job, Target
from canopy_load.errors import LoadError
from canopy_load.scenario.plan import Plan, PlanError
from tests.loadtest.playing import group, scenario, sender
from tests.support.runs import for_each

TOPIC: dict[str, tuple[str, str]] = {
    "empty": ("", "topic name is empty"),
    "with a wildcard": ("t/+", "topic name holds a wildcard"),
    "with U+0000": ("t\0", "topic name holds U\\+0000"),
    "with an unknown pattern": ("t/%x", "unknown pattern at '%x'"),
    "with a pattern that does not end": ("t/%{c%2", "unknown pattern at '%{c%2'"),
    "with a division by 0": ("t/%{c%0}", "divides by 0"),
    "with a lone percent sign": ("t/%", "unknown pattern at '%'"),
    "with a mark": ("t/%m", "%m stands in templates of payloads only"),
}

FILTER: dict[str, tuple[str, str]] = {
    "empty": ("", "topic filter is empty"),
    "that ends too early": ("a/#/b", "holds # before its end"),
    "with a wildcard beside a number": ("a/%n+", "holds \\+ beside other characters"),
    "with an unknown pattern": ("a/%x", "unknown pattern at '%x'"),
}

SHARED: dict[str, tuple[str, str]] = {
    "without a filter": ("$share/g", "names a share and no filter"),
    "with a wildcard in its name": ("$share/+/t", "has a wildcard in its share name"),
    "with a bad filter": ("$share/g/a#", "holds # beside other characters"),
    "that differs among its members": ("$share/g/%c", "no %c and no %n"),
}


def refused(one: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=rf"groups\.{one['name']}\b.*{message}"):
        Plan(scenario(one), "00000000")


@for_each(("text", "message"), TOPIC.values(), ids=TOPIC)
def test_topics(text: str, message: str) -> None:
    refused(sender(topic=text), message)
    refused(group("mortal", will={"topic": text}), message)


@for_each(("text", "message"), (FILTER | SHARED).values(), ids=FILTER | SHARED)
def test_filters(text: str, message: str) -> None:
    refused(group("sub", 2, subscribe=[{"filter": text}]), message)


@for_each(("text", "message"), FILTER.values(), ids=FILTER)
def test_filters_that_come_and_go(text: str, message: str) -> None:
    refused(group("churn", 2, churn={"filter": text, "rate": 1}), message)


def test_two_shares_in_one_group() -> None:
    two = [{"filter": "$share/g/t"}, {"filter": "$share/h/t"}]
    refused(group("sub", subscribe=two), "under one share name")


def test_clients_that_would_throw_each_other_out() -> None:
    refused({**group("twins", 2), "client_id": "same"}, "client_id: needs %c: there are 2 clients")
    refused({**group("odd"), "client_id": "%q"}, "unknown pattern at '%q'")


def test_topics_that_are_all_the_same() -> None:
    refused(sender(topic="t/%c", topics=2), "needs %n: it stands for 2 topics")


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (sender(properties={"response_topic": "a/+"}), "'a/\\+' is not a topic name"),
        (sender(payload={"template": "%m %x"}), "unknown pattern at '%x'"),
        (sender(in_flight=1, messages=None), "no subscriber in the same process hears 't/0'"),
        (sender(topic="t/+"), "topic name holds a wildcard"),
    ],
    ids=["response topic", "template", "closed loop", "topic"],
)
async def test_a_run_of_it_is_one_clear_line(one: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=rf"groups\.pub\b.*{message}"):
        await conductor.play(Job(scenario(one), "", [Target("127.0.0.1", 1)]))
