"""Lists of the most expensive names, what would happen to a message, and traces, of all workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from canopy_mqtt.observe.trace.entries import Entry, TracedConnection
from canopy_mqtt.workers import inquiries
from canopy_mqtt.workers.asking import Away
from canopy_mqtt.workers.inquiries import Packets, one_top, one_trace
from tests.support.daemon import canopy
from tests.support.waiting import until
from tests.workers.crew import Crew

FLAGS = ("--set", "http.listen=http://127.0.0.1:0")


def listed(of: str, by: str = "messages", absent: float = 0.0, **values: float) -> dict[str, Any]:
    data = [{"name": name, "value": value, "error": 0.0, "deviation": 0.0} for name, value in values.items()]
    return {"of": of, "by": by, "total": sum(values.values()), "absent": absent, "gap": 1, "data": data}


def named(found: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {each["name"]: (each["value"], each["error"]) for each in found["data"]}


def test_a_topic_of_several_workers_has_the_sum_and_what_may_be_missing_is_its_error() -> None:
    found = one_top([listed("topics", a=5, b=3), listed("topics", absent=1, b=4)], 10, 40)
    assert named(found) == {"b": (7, 0), "a": (6, 1)}
    assert (found["total"], found["absent"]) == (12, 1)


def test_what_is_not_in_a_full_list_may_be_as_much_as_its_last() -> None:
    assert named(one_top([listed("topics", a=5), listed("topics", b=4)], 1, 1)) == {"a": (9, 4)}


def test_a_client_is_at_one_worker() -> None:
    found = one_top([listed("subscribers", "lag", 2, a=5), listed("subscribers", "lag", 3, b=4)], 10, 40)
    assert named(found) == {"a": (5, 0), "b": (4, 0)}
    assert (found["total"], found["absent"]) == (5, 3)


def test_a_trace_runs_while_it_does_at_one_worker() -> None:
    ended = {"status": "full", "started_at": "1", "ended_at": "3", "max_bytes": 5, "bytes": 5, "packets": 2}
    running = ended | {"status": "running", "started_at": "2", "ended_at": None, "bytes": 1, "packets": 1}
    assert one_trace([ended, running]) == {
        "status": "running",
        "started_at": "1",
        "ended_at": None,
        "max_bytes": 10,
        "bytes": 6,
        "packets": 3,
    }
    assert one_trace([ended, ended | {"ended_at": "4"}])["ended_at"] == "4"


async def test_a_worker_that_was_away_for_a_moment_is_in_a_live_trace_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiries, "PAUSE", 0.0)
    entry = Entry(0, 1, TracedConnection(1, "", "", None, ""))
    told: dict[str, list[tuple[list[Entry], bool] | Away]] = {
        "w0": [([], True), ([], True), ([entry], False), ([], False)],
        "w1": [([], True), Away("w1"), ([entry], False), ([], False)],
    }

    async def ask(name: str, *_: object) -> tuple[list[Entry], bool]:
        answer = told[name].pop(0)
        if isinstance(answer, Away):
            raise answer
        return answer

    transport = SimpleNamespace(is_closing=lambda: False)
    call = cast(Any, SimpleNamespace(request=SimpleNamespace(transport=transport)))
    packets = Packets(cast(Any, SimpleNamespace(names=["w0", "w1"], ask=ask)), "a trace")
    assert [len(some) async for some in packets.as_they_come(call)] == [2]
    # One that does not come back keeps nobody waiting where the others have ended.
    told |= {"w0": [([], False)], "w1": [Away("w1")]}
    packets = Packets(cast(Any, SimpleNamespace(names=["w0", "w1"], ask=ask)), "a trace")
    assert [some async for some in packets.as_they_come(call)] == []


@pytest.fixture
async def http(crew: Crew) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"{crew.daemon.started['http'][0]}", raise_for_status=True) as session:
        yield session


async def asked(http: aiohttp.ClientSession, method: str, path: str, **more: Any) -> Any:
    async with http.request(method, f"/api/v5{path}", **more) as answer:
        return await answer.json() if answer.status != 204 else None


async def test_topics_of_all_workers_are_counted(crew: Crew, http: aiohttp.ClientSession) -> None:
    for worker in range(3):
        peer = await crew.join(next(crew.names(worker, "busy")))
        await peer.publish("busy/topic", b"x", qos=1)

    async def top(of: str) -> dict[str, float]:
        found = await asked(http, "GET", "/top", params={"of": of, "limit": "1000"})
        return {each["name"]: each["value"] for each in found["data"]}

    topic = (await top("topics"))["busy/topic"]
    publishers = await top("publishers")
    # The window fades meanwhile.
    assert topic == pytest.approx(sum(publishers[next(crew.names(worker, "busy"))] for worker in range(3)), rel=0.1)


async def test_an_explanation_is_of_the_clients_of_all_workers(crew: Crew, http: aiohttp.ClientSession) -> None:
    names = sorted(next(crew.names(worker, "reader")) for worker in range(3))
    for name in names:
        await crew.join(name, "why/#")
    found = await asked(http, "GET", "/explain", params={"topic": "why/not"})
    assert [(each["client_id"], each["outcome"]) for each in found["receivers"]] == [(name, "sent") for name in names]
    assert found["filters"] == [{"topic_filter": "why/#", "subscriptions": 3, "groups": 0}]
    first = await asked(http, "GET", "/explain", params={"topic": "why/not", "limit": "2"})
    rest = await asked(http, "GET", "/explain", params={"topic": "why/not", "limit": "2", "cursor": first["cursor"]})
    assert [each["client_id"] for each in (*first["receivers"], *rest["receivers"])] == names
    for name in names:
        found = await asked(http, "GET", "/explain", params={"topic": "why/not", "client": name})
        (one,) = found["receivers"]
        assert (one["client_id"], one["outcome"]) == (name, "sent")
        assert found["filters"] == [{"topic_filter": "why/#", "subscriptions": 1, "groups": 0}]


async def test_a_trace_has_the_packets_of_all_workers_in_order(crew: Crew, http: aiohttp.ClientSession) -> None:
    begun = await asked(http, "POST", "/trace", json={"type": "topic", "value": "traced/#"})
    name = begun["name"]
    for number in range(6):
        peer = await crew.join(next(crew.names(number % 3, f"traced-{number}")))
        await peer.publish(f"traced/{number}", b"x", qos=1)
    async with http.get(f"/api/v5/trace/{name}/download", params={"format": "jsonl"}) as answer:
        lines = [json.loads(line) for line in (await answer.text()).splitlines()]
    topics = [line["fields"]["topic"] for line in lines if line.get("packet") == "PUBLISH"]
    assert topics == [f"traced/{number}" for number in range(6)]
    assert len({line["connection"] for line in lines}) == 6
    assert (await asked(http, "PUT", f"/trace/{name}/stop"))["status"] == "stopped"
    listed = await asked(http, "GET", "/trace")
    assert [each["name"] for each in listed["data"]] == [name]
    await asked(http, "DELETE", f"/trace/{name}")
    assert (await asked(http, "GET", "/trace"))["data"] == []


async def test_a_trace_that_one_worker_cannot_begin_is_nowhere(stack: AsyncExitStack) -> None:
    """The worker that answers would begin it; another one has a trace of this name already, and keeps it."""
    crew = await Crew.started(stack, 3, *FLAGS)
    url = crew.daemon.started["http"][0]
    connector = aiohttp.TCPConnector(force_close=True)
    http = await stack.enter_async_context(aiohttp.ClientSession(url, connector=connector))
    mine = {"type": "clientid", "value": "x", "name": "mine"}
    await asked(http, "POST", "/trace", json=mine)
    for worker in (0, 2):
        await crew.restarted(worker)
    refused = await asked(http, "POST", "/trace", json=mine | {"value": "y"})
    assert refused["code"] == "ALREADY_EXISTS"
    for name in ("w0", "w2"):
        await crew.line("trace started", worker=name, value="y")
    (kept,) = (await asked(http, "GET", "/trace"))["data"]
    assert (kept["name"], kept["value"], kept["status"]) == ("mine", "x", "running")
    await crew.restarted(1)
    assert (await asked(http, "GET", "/trace"))["data"] == []


async def test_ctl_follows_a_client_of_another_worker(crew: Crew, http: aiohttp.ClientSession) -> None:
    name = next(crew.names(2, "followed"))
    url = crew.daemon.started["http"][0]
    command = asyncio.create_task(
        asyncio.to_thread(canopy, "ctl", "trace", "client", name, "--for", "1m", "--url", url)
    )

    def begun() -> list[str]:
        return [line["trace"] for line in crew.told("trace started") if line["value"] == name]

    await until(lambda: len(begun()) == 3, "all workers trace")
    peer = await crew.join(name)
    await peer.publish("seen/1", b"x", qos=1)
    await asked(http, "PUT", f"/trace/{begun()[0]}/stop")
    done = await command
    assert done.returncode == 0, done.stderr
    assert "CONNECT" in done.stdout
    assert "seen/1" in done.stdout
