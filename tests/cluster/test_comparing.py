"""What a node has otherwise than the others is an alarm: users, rules, settings, and the clock."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_mqtt.cluster import comparing
from canopy_mqtt.cluster.comparing import CLOCKS, REMEDY, TOPIC, differences, settings_of, written
from canopy_mqtt.cluster.greeting import VERSIONS, Greeting
from canopy_mqtt.command.ctl import app
from canopy_mqtt.observe.alarms.observer import Observer
from canopy_mqtt.settings import Settings
from tests.cluster.nodes import Nodes
from tests.support.waiting import until

importlib.import_module("canopy_mqtt.admin.server")

RULES = "topic read #\n"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "EVERY", 0.02)


def differs(nodes: Nodes, name: str, other: str) -> str:
    links = nodes.brokers[name].links
    assert links is not None
    [found] = [each for each in links.other_nodes() if each.name == other]
    return found.differs


async def start(nodes: Nodes, folder: Path) -> dict[str, Path]:
    """Two nodes with equal rules in files of their own, at different places."""
    files = {}
    for name in "ab":
        (folder / f"etc-{name}").mkdir()
        files[name] = folder / f"etc-{name}" / "rules.acl"
        files[name].write_text(RULES)
    own = {name: {"access": {"default": "allow", "acl_file": str(file)}} for name, file in files.items()}
    await nodes.start("a", "b", own=own, http={"listen": ("http://127.0.0.1:0",)})
    return files


async def told(nodes: Nodes, name: str) -> None:
    """Each other node has told what it has since now."""
    comparison = nodes.brokers[name].cluster.comparing  # type: ignore[union-attr]
    assert comparison is not None
    comparison._told.clear()
    await until(lambda: comparison._told != {}, "it was told")


async def test_other_rules_are_an_alarm_until_they_are_the_same(nodes: Nodes, tmp_path: Path) -> None:
    files = await start(nodes, tmp_path)
    await told(nodes, "a")
    assert differs(nodes, "a", "b") == ""
    files["b"].write_text(RULES + "topic write x\n")
    await until(lambda: differs(nodes, "a", "b") != "", "a has heard of it")
    assert differs(nodes, "a", "b") == f"it has other users or rules: rules.acl: {REMEDY}"
    broker = nodes.brokers["a"]
    observer = Observer(broker.figures, broker.settings.alarms, {})
    [found] = [each for each in observer.look({}, broker.loop.time()) if each.kind == "node-differs"]
    assert (found.instance, found.detail) == ("b", differs(nodes, "a", "b"))
    assert found.value >= found.bounds.raise_at
    shown = await asyncio.to_thread(CliRunner().invoke, app, ["--url", broker.http[0], "cluster"])
    assert f"b differs from this node: it has other users or rules: rules.acl: {REMEDY}" in shown.stdout
    files["b"].write_text(RULES)
    await until(lambda: differs(nodes, "a", "b") == "", "a has heard of it")


async def test_settings_of_a_reload_are_compared(nodes: Nodes, tmp_path: Path) -> None:
    await start(nodes, tmp_path)
    broker = nodes.brokers["b"]
    await broker.reload(
        broker.settings.model_copy(update={"queue": broker.settings.queue.model_copy(update={"session_messages": 7})})
    )
    await until(lambda: differs(nodes, "a", "b") != "", "a has heard of it")
    assert differs(nodes, "a", "b") == f"it has other settings: queue.session_messages: {REMEDY}"


async def test_nothing_is_said_of_a_node_without_a_link(nodes: Nodes, tmp_path: Path) -> None:
    files = await start(nodes, tmp_path)
    files["b"].write_text("")
    await until(lambda: differs(nodes, "a", "b") != "", "a has heard of it")
    await nodes.cut("a", "b")
    assert differs(nodes, "a", "b") == ""


@pytest.mark.parametrize(("clock", "what"), [(3_600.0, "3,600 s ahead of"), (-3_600.0, "3,600 s behind")])
def test_clocks_are_compared(clock: float, what: str) -> None:
    assert differences({}, {}, 0.0, written({}, {}, clock)) == f"its clock is {what} this one: {CLOCKS}"
    assert differences({}, {}, 0.0, written({}, {}, clock / 100)) == ""


def test_only_what_both_know_is_compared() -> None:
    """A newer release has more settings, and may tell them otherwise."""
    told = written({"limits.new": "1"}, {}, 0.0)
    assert differences({"limits.old": "2"}, {}, 0.0, told) == ""
    for each in (b"", b"[]", b'{"settings": 1}', b"\xff"):
        assert differences({"limits.old": "2"}, {"passwd": "1"}, 0.0, each) == ""


def test_where_files_are_does_not_count() -> None:
    one, other = (
        Settings(
            authenticator=[{"type": "password-file", "path": f"/{name}/passwd"}], access={"acl_file": f"/{name}/acl"}
        )
        for name in "ab"
    )
    assert settings_of(one) == settings_of(other)
    assert "authenticator" in settings_of(one)


async def test_an_older_node_is_not_told(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take what it does not know for hints that are missing, and read what all its sessions have."""

    def greeting(cluster: str, node: str, *, store: str) -> Greeting:
        return Greeting(cluster, node, store=store, versions=(1,) if node == "old" else VERSIONS)

    monkeypatch.setattr("canopy_mqtt.cluster.cluster.Greeting", greeting)
    await nodes.start("a", "b", "old")
    subscriber = await nodes.join("old", "subscriber", ("t", 1))
    await (await nodes.join("a", "publisher")).publish("t", b"x", qos=1)
    assert (await subscriber.message()).payload == b"x"
    heard = {name: nodes.brokers[name].cluster.comparing._told for name in nodes.brokers}  # type: ignore[union-attr]
    await until(lambda: heard["a"] and heard["b"], "both have heard of each other")
    assert [set(heard[name]) for name in ("a", "b", "old")] == [{"b"}, {"a"}, set()]


async def test_no_client_says_it(nodes: Nodes, tmp_path: Path) -> None:
    await start(nodes, tmp_path)
    client = await nodes.join("b", "c")
    await client.publish(TOPIC.decode(), written({}, {"passwd": "1"}, 1e9), qos=0)
    await client.publish("last", b"", qos=0)
    await told(nodes, "a")
    assert differs(nodes, "a", "b") == ""
