"""What operators see of a cluster whose nodes have one database, at any node, and how they end a session there."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from aiohttp import ClientSession
from typer.testing import CliRunner, Result

from canopy_mqtt.command.ctl import app
from canopy_mqtt.store.shared import reporting
from canopy_mqtt.store.shared.store import SharedStore
from canopy_mqtt.version import __version__
from tests.cluster.nodes import Nodes
from tests.support import postgresql
from tests.support.waiting import until

pytest.importorskip("asyncpg")
# A broker loads it when it is to listen for HTTP, and reads files for that.
importlib.import_module("canopy_mqtt.admin.server")

Ctl: TypeAlias = Callable[..., Awaitable[Result]]
DURABLE = [(0x11, 3600)]
TAKEN_OVER = 0x8E


@pytest.fixture
async def shared(nodes: Nodes) -> Nodes:
    """Two nodes with one database."""
    await nodes.start_shared()
    return nodes


@pytest.fixture
def ctl(nodes: Nodes) -> Ctl:
    """Runs a command at a node, in a thread, so that the node may answer."""

    async def run(node: str, *arguments: str) -> Result:
        url = nodes.brokers[node].http[0]
        return await asyncio.to_thread(CliRunner().invoke, app, ["--url", url, *arguments])

    return run


async def asked(ctl: Ctl, node: str, *arguments: str) -> Any:
    """The answer as JSON."""
    shown = await ctl(node, "--json", *arguments)
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


async def test_the_nodes_of_a_cluster(shared: Nodes, ctl: Ctl) -> None:
    await shared.join("b", "durable", clean=False, props=DURABLE)
    await shared.join("b", "clean")
    answer = await asked(ctl, "a", "cluster")
    for each in answer["data"]:
        assert each.pop("seen") < 60.0
    assert answer["data"] == [
        {
            "name": "a",
            "state": "alive",
            "version": __version__,
            "clients": 0,
            "durable": 0,
            "link": "here",
            "differs": "",
        },
        {
            "name": "b",
            "state": "alive",
            "version": __version__,
            "clients": 2,
            "durable": 1,
            "link": "connected",
            "differs": "",
        },
    ]
    await shared.stop("b")
    await until(lambda: not shared.link("a", "b").connected, "the link is down")
    shown = await ctl("a", "cluster")
    assert shown.exit_code == 3
    [heading, _, row] = shown.stdout.splitlines()
    assert heading.split() == ["node", "state", "seen", "version", "clients", "durable", "link"]
    assert row.split()[:2] == ["b", "down"]
    assert row.split()[-3:] == ["0", "0", "down"]


async def test_a_session_is_shown_at_any_node(shared: Nodes, ctl: Ctl) -> None:
    peer = await shared.join("b", "s", ("t/#", 1), clean=False, props=DURABLE)
    found = await asked(ctl, "a", "session", "s")
    assert (found["node"], found["epoch"], found["account"]) == ("b", 1, "address 127.0.0.1")
    assert (found["expiry_interval"], found["expires_in"]) == (3600, None)
    assert found["subscriptions"] == [{"topic": "t/#", "qos": 1}]
    await peer.disconnect()
    await until(lambda: not shared.brokers["b"].router.sessions.get("s"))
    publisher = await shared.join("a", "p")
    await publisher.publish("t/1", b"x", qos=1)
    for node in "ab":
        found = await asked(ctl, node, "session", "s")
        assert (found["node"], found["mqueue_len"], found["inflight_cnt"]) == ("", 1, 0)
        assert 0 < found["expires_in"] <= 3600
    shown = await ctl("a", "session", "s")
    assert "t/#" in shown.stdout
    shown = await ctl("a", "session", "nobody")
    assert shown.exit_code == 1
    assert "there is no such client" in shown.output


async def away(nodes: Nodes, name: str, client_id: str) -> None:
    """A durable client has been at a node."""
    peer = await nodes.join(name, client_id, ("t/#", 1), clean=False, props=DURABLE)
    await peer.disconnect()
    await until(lambda: not nodes.brokers[name].router.sessions.get(client_id))


async def test_the_sessions_of_all_nodes_are_listed_at_each(shared: Nodes, ctl: Ctl) -> None:
    """Page by page, and without those that end with their connections, and the queues of share groups."""
    for at, client_id in enumerate(["s3", "s1", "Else", "s2"]):
        await away(shared, "ab"[at % 2], client_id)
    await shared.join("b", "s0", ("t/1", 1), ("$share/g/t/#", 1), clean=False, props=DURABLE)
    await shared.join("b", "clean", ("t/1", 1))
    await (await shared.join("a", "p")).publish("t/1", b"x", qos=1)
    for node in "ab":
        found = await asked(ctl, node, "session")
        assert [(each["clientid"], each["node"]) for each in found["data"]] == [
            ("Else", ""), ("s0", "b"), ("s1", ""), ("s2", ""), ("s3", ""),
        ]  # fmt: skip
        assert found["meta"]["node"] is None
        some = await asked(ctl, node, "session", "--away", "--like", "S")
        assert [(each["clientid"], each["mqueue_len"]) for each in some["data"]] == [
            ("Else", 1), ("s1", 1), ("s2", 1), ("s3", 1),
        ]  # fmt: skip
        assert all(0 < each["expires_in"] <= each["expiry_interval"] == 3600 for each in some["data"])
    first = await asked(ctl, "a", "api", "GET", "/sessions?limit=2")
    assert ([each["clientid"] for each in first["data"]], first["meta"]["hasnext"]) == (["Else", "s0"], True)
    rest = await asked(ctl, "b", "api", "GET", f"/sessions?cursor={first['meta']['cursor']}")
    assert ([each["clientid"] for each in rest["data"]], rest["meta"]["hasnext"]) == (["s1", "s2", "s3"], False)
    shown = await ctl("a", "session", "--away", "--limit", "1")
    assert shown.stdout.splitlines()[0].split() == [
        *("client", "account", "node"), *("expires", "in", "expires", "after"), "subs", "queued",
    ]  # fmt: skip
    assert shown.stdout.splitlines()[1].split()[:4] == ["Else", "address", "127.0.0.1", "-"]
    assert "there are more" in shown.stderr


async def test_a_slow_list_holds_up_nothing_else(shared: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages, CONNECTs and what the node deletes in the database go on while the database looks."""
    monkeypatch.setattr(
        reporting, "SESSIONS", f"SELECT pg_sleep(60), $1::text, $2::text, $3::bool, $4::int -- {shared.folder}"
    )
    broker = shared.brokers["a"]
    store, url = broker.store, broker.settings.store.url
    assert isinstance(store, SharedStore)
    assert store.reports is not None
    asking = asyncio.create_task(store.reports.sessions("", "", None, 1))
    looks = f"SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%{shared.folder}'"
    while not await postgresql.ask(url, looks):
        assert not asking.done()
    subscriber = await shared.join("a", "s", ("t", 1), clean=False, props=DURABLE)
    await (await shared.join("a", "p")).publish("t", b"x", qos=1)
    assert (await subscriber.message()).payload == b"x"
    await store.running.database.sweep("SELECT expire_1(1)")
    assert not asking.done()
    asking.cancel()
    await asyncio.wait([asking])


async def test_what_is_of_one_node_says_so(shared: Nodes, ctl: Ctl) -> None:
    await shared.join("b", "here", ("t", 0))
    assert (await asked(ctl, "b", "clients"))["meta"]["node"] == "b"
    shown = await ctl("a", "clients")
    assert "here" not in shown.stdout
    assert "canopy: of the node a alone (the nodes: canopy ctl cluster)" in shown.stderr
    assert (await asked(ctl, "a", "retained"))["meta"]["node"] is None
    assert (await asked(ctl, "a", "status"))["node"] == "a"
    for command in (["status"], ["top"], ["alarms"], ["explain", "t"]):
        assert "of the node a alone" in (await ctl("a", *command)).stderr
    for command in (["cluster"], ["session"], ["retained"]):
        assert "alone" not in (await ctl("a", *command)).output
    async with ClientSession() as session, session.get(shared.brokers["a"].http[0] + "/metrics") as answer:
        assert 'canopy_cluster_node{node="a"} 1' in await answer.text()


@pytest.mark.parametrize("connected", [True, False])
async def test_a_session_is_ended_at_any_node(shared: Nodes, ctl: Ctl, connected: bool) -> None:
    """With its connection, wherever that is."""
    peer = await shared.join("b", "s", ("t/#", 1), clean=False, props=DURABLE)
    if not connected:
        await peer.disconnect()
        await until(lambda: not shared.brokers["b"].router.sessions.get("s"))
    shown = await ctl("a", "kick", "--session", "s")
    assert shown.exit_code == 0, shown.output
    if connected:
        await peer.closed()
    again = await shared.join("a", "s", clean=False, props=DURABLE)
    assert not again.connack.session_present
    shown = await ctl("a", "kick", "--session", "nobody")
    assert shown.exit_code == 1
    assert "there is no such client" in shown.output


async def test_a_cluster_without_a_database(nodes: Nodes, ctl: Ctl) -> None:
    """Links are all that a node knows of the others, and no session is shared."""
    await nodes.start("a", "b", http={"listen": ("http://127.0.0.1:0",)})
    shown = await ctl("a", "cluster")
    assert shown.exit_code == 0, shown.output
    [_, own, other] = [line.split() for line in shown.stdout.splitlines()]
    assert (own[:2], own[-1]) == (["a", "alive"], "here")
    assert (other[:2], other[-1]) == (["b", "unknown"], "connected")
    shown = await ctl("a", "session", "s")
    assert shown.exit_code == 1
    assert "shares its sessions with no other" in shown.output
