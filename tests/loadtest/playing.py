"""How the tests of `canopy load` say a scenario in a line, play it against a scripted server and hold the result to the
server's books.

Owns: short forms of groups, `play`, `Cases` (many scenarios in one run, since each run starts a process), and `agrees`,
which compares everything that both can know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any
from unittest import mock

from canopy_load.checks import broker_statistics
from canopy_load.engine import conductor
from canopy_load.engine.job import Job, Target
from canopy_load.report.result import Deliveries, GroupResult, Result
from canopy_load.scenario.scenario_schema import Scenario
from tests.loadtest.account import Account
from tests.loadtest.script import DELIVER, Delivery, Fate, Script
from tests.loadtest.scripted import ScriptedServer


def stage(seconds: float = 0.5, name: str = "go", **more: Any) -> dict[str, Any]:
    return {"name": name, "seconds": seconds, **more}


def group(name: str, clients: int = 1, **more: Any) -> dict[str, Any]:
    """A group whose clients are called after it: `name-0`, `name-1` and so on."""
    return {"name": name, "clients": clients, "client_id": f"{name}-%c", "reconnect_delay": 0.05, **more}


def sender(
    name: str = "pub", topic: str = "t/%c", clients: int = 1, keys: Any = None, **publish: Any
) -> dict[str, Any]:
    """A group that publishes: 30 messages of each client in 0.3 seconds, unless told otherwise."""
    what: dict[str, Any] = {"topic": topic, "messages": 30, **publish}
    if not {"rate", "total_rate", "in_flight"} & set(what):
        what["rate"] = 100
    return group(name, clients, publish=[what], **(keys or {}))


def reader(name: str = "sub", filters: str = "t/#", clients: int = 1, keys: Any = None, **more: Any) -> dict[str, Any]:
    """A group that subscribes to filters (with blanks between them)."""
    return group(name, clients, subscribe=[{"filter": each, **more} for each in filters.split()], **(keys or {}))


def scenario(*groups: dict[str, Any], stages: Any = None, **more: Any) -> Scenario:
    """A scenario that ends soon."""
    data = {"name": "scripted", "quiet": 0.3, "drain": 5.0, "stages": stages or [stage()], "groups": list(groups)}
    return Scenario.model_validate({**data, **more})


def job(server: ScriptedServer, what: Scenario, **more: Any) -> Job:
    return Job(what, "", [Target("127.0.0.1", server.port)], **more)


async def play(server: ScriptedServer, *groups: dict[str, Any], processes: int = 1, **more: Any) -> Result:
    """Play these groups against the server to the end. It publishes nothing under $SYS, or does so at once."""
    with mock.patch.object(broker_statistics, "FIRST", 0.05):
        return await conductor.play(job(server, scenario(*groups, **more), processes=processes))


def stated(deliveries: Deliveries) -> Account:
    """What a result says, as far as a server can know it."""
    return Account(*(getattr(deliveries, each.name) for each in fields(Account)))


def named(result: Result, name: str) -> GroupResult:
    [found] = [each for each in result.groups if each.name == name]
    return found


def balanced(result: Result) -> None:
    """What holds whatever happened: expected = received + lost + unconfirmed, nothing below 0, and the sums."""
    parts = [each.deliveries for each in result.groups] + [each.deliveries for each in result.pairs]
    for deliveries in [result.deliveries, *parts]:
        assert deliveries.expected == deliveries.received + deliveries.lost + deliveries.unconfirmed, deliveries
        assert min(getattr(deliveries, each.name) for each in fields(deliveries)) >= 0, deliveries
    for each in fields(Deliveries):
        of_groups = sum(getattr(one.deliveries, each.name) for one in result.groups if not one.frozen)
        assert getattr(result.deliveries, each.name) == of_groups, each.name
    # A will counts as its group's, and is not sent in any second.
    assert sum(second.sent for second in result.seconds) == sum(one.sent for one in result.groups if one.publishes)


def agrees(server: ScriptedServer, result: Result, groups: Collection[str] = (), share: str = "") -> None:
    """The result says exactly what the server did to these groups (none named: to all), who all stay connected.

    `share`: the shared filter that these groups subscribe to.
    """
    for each in result.groups:
        if not groups or each.name in groups:
            _group_agrees(server, result, each, share)


def _group_agrees(server: ScriptedServer, result: Result, group: GroupResult, share: str) -> None:
    name = group.name
    clients = [f"{name}-{number}" for number in range(group.clients)]
    assert group.sent == sum(one.publisher in clients for one in server.messages), name
    assert (group.deliveries.unconfirmed, group.deliveries.unjudged) == (0, 0), name
    if not group.subscribes:
        assert group.deliveries == Deliveries(), name
        return
    subscribers = [share] if share else clients
    assert stated(group.deliveries) == server.books.account(None, subscribers), name
    said: dict[str, Account] = {}
    done: dict[str, Account] = {}
    # A loss is told to a subscriber, not for a publisher; and how a share is called is the result's affair.
    for one in result.pairs:
        if one.group == name and one.deliveries != Deliveries():
            key = one.publisher if share else f"{one.publisher} to {one.subscriber}"
            assert key not in said, key
            said[key] = replace(stated(one.deliveries), told_lost=0)
    for (publisher, subscriber), pair in server.books.pairs.items():
        if subscriber in subscribers and pair.due:
            key = publisher if share else f"{publisher} to {subscriber}"
            done[key] = replace(pair.account(), told_lost=0)
    assert said == done, name


class Cases:
    """Small scenarios that are played in one run, each with topics of its own below its name."""

    def __init__(self) -> None:
        self.groups: list[dict[str, Any]] = []
        self._fates: dict[str, Callable[[Delivery], Fate]] = {}

    def add(
        self, name: str, *groups: dict[str, Any], fates: dict[int, Fate] | Callable[[Delivery], Fate] | None = None
    ) -> None:
        """Another one. `fates`: by the number of a message among its publisher's, or by the delivery."""
        self.groups += groups
        if callable(fates):
            self._fates[name] = fates
        elif fates:
            by_number = fates
            self._fates[name] = lambda delivery: by_number.get(delivery.message.number, DELIVER)

    def fate(self, delivery: Delivery) -> Fate:
        """For `Script.fate`."""
        found = self._fates.get(delivery.message.topic.partition("/")[0])
        return found(delivery) if found else DELIVER

    def play(
        self, script: Script | None = None, prepare: Callable[[ScriptedServer], None] | None = None, **more: Any
    ) -> tuple[ScriptedServer, Result]:
        """Play them all, in an event loop of their own; the server, which has ended, and the result."""
        script = script or Script()
        script.fate = self.fate

        async def run() -> tuple[ScriptedServer, Result]:
            async with ScriptedServer(script) as server:
                if prepare is not None:
                    prepare(server)
                return server, await play(server, *self.groups, **more)

        server, result = asyncio.run(run())
        assert server.violations == []
        balanced(result)
        return server, result
